from __future__ import annotations

from typing import Any

from fairlead.security.auditing import KINDS_MAX, SINGLY_MAX, WINDOW_S, Ledger
from fairlead.security.changes import differences
from fairlead.security.quotas import Quota
from fairlead.security.users import Group, Lists, User, Users


def test_a_flood_is_a_few_lines_and_a_sum() -> None:
    told: list[dict[str, Any]] = []
    ledger = Ledger(told.append)
    for number in range(1000):
        ledger.note("refused", f"number {number}", 0.001 * number, user="eve", action="publish")
    ledger.note("refused", "another kind", 1.0, user="eve", action="send")
    assert len(told) == SINGLY_MAX + 1
    ledger.tick(WINDOW_S - 1)
    assert len(told) == SINGLY_MAX + 1
    ledger.tick(WINDOW_S + 1)
    assert told[-1]["more"] == 1000 - SINGLY_MAX
    assert "997 more" in told[-1]["text"]
    ledger.tick(3 * WINDOW_S)
    assert len(told) == SINGLY_MAX + 2


def test_many_names_do_not_wash_the_log_out() -> None:
    told: list[dict[str, Any]] = []
    ledger = Ledger(told.append)
    for number in range(10 * KINDS_MAX):
        ledger.note("login-refused", "no", 0.0, user=f"user-{number}", reason="bad-credentials")
    assert len(told) <= KINDS_MAX + SINGLY_MAX


def test_what_changed_is_said_without_secrets() -> None:
    before = Users({"ann": User(hash="scrypt$old"), "bob": User()}, {"desk": Group()}, {"red": Quota()})
    after = Users(
        {"ann": User(hash="scrypt$new", groups=["desk"], publish=["x"], deny=Lists(send=["y"])), "eve": User()},
        {"desk": Group(publish=[])},
        {"red": Quota(connections=1), "blue": Quota()},
    )
    found = differences(before, after)
    assert found == [
        "The tenant blue was added.",
        "The tenant red was changed: quotas.",
        "The group desk was changed: publish.",
        "The user ann was changed: publish, deny send, password, groups.",
        "The user bob was removed.",
        "The user eve was added.",
    ]
    assert "scrypt" not in " ".join(found)
    assert differences(None, Users()) == ["There is a users file now."]
