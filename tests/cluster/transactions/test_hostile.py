"""Whatever is sent as a command or between groups: it is answered or dropped, and nothing breaks (CLU-59)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.cluster.prepared import id_of
from fairlead.wire import durable
from tests.cluster.manager_rig import Refused
from tests.cluster.test_transactions import Teller, fill, waiting
from tests.cluster.transactions.lone import ELSEWHERE, Lone, prepare

IDS = st.sampled_from([ELSEWHERE, id_of(bytes(19) + b"\x04", 1), "0" * 56, "f" * 56])
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.text(max_size=60),
    st.lists(st.integers(), max_size=3),
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.one_of(IDS, JUNK),
        "decider": st.one_of(st.sampled_from(["a", "z", ""]), JUNK),
        "groups": st.one_of(st.just(["a", "z"]), st.lists(st.text(max_size=3), max_size=4), JUNK),
        "session": st.one_of(st.just(1), JUNK),
        "transaction": st.one_of(st.integers(1, 3), JUNK),
        "sends": st.one_of(st.dictionaries(st.text(max_size=3), st.integers(-1, 3), max_size=2), JUNK),
        "outcome": st.one_of(st.sampled_from(["committed", "rolled-back", ""]), JUNK),
    },
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["prepare", "final", "abandon", "outcome", "commit", "rollback"]), st.booleans(), FIELDS),
    max_size=12,
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_commands_of_any_kind(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, bool, Any]]) -> None:
    manager = Lone(tmp_path_factory.mktemp("hostile"))
    fill(manager, "a", b"one")
    teller = Teller(manager)
    teller.take(1, 1)
    teller.send(1, 1, b"moved")
    manager.turn()
    for do, is_link, fields in steps:
        body = msgspec.json.encode({**fields, "do": do})
        uid = 0 if is_link else teller.client.uid
        manager.put(uid, durable.KIND_COMMAND, number=7, body=body)
        manager.turn()
    assert manager.core.faults == 0
    manager.crash()
    manager.word("rolled-back")
    for identity in list(manager.core.prepared.by_id):
        manager.word("rolled-back", identity)
        manager.ask("abandon", identity, "a")
    money = len(waiting(manager, "a")) + len(waiting(manager, "b")) + len(waiting(manager, "_DMQ"))
    assert money == 1
    assert manager.core.faults == 0


@settings(max_examples=100, deadline=None)
@given(
    messages=st.lists(
        st.tuples(
            st.sampled_from(["a", "y", "z", ""]),
            st.one_of(
                st.dictionaries(st.text(max_size=5), JUNK, max_size=3),
                st.fixed_dictionaries(
                    {"do": st.sampled_from(["ask", "decide", "done"]), "id": IDS},
                    optional={"outcome": st.sampled_from(["", "committed", "rolled-back"])},
                ),
            ),
        ),
        max_size=10,
    )
)
def test_settling_messages_of_any_kind(
    tmp_path_factory: pytest.TempPathFactory, messages: list[tuple[str, dict[str, Any]]]
) -> None:
    manager = Lone(tmp_path_factory.mktemp("hostile"))
    fill(manager, "a", b"one")
    teller = Teller(manager)
    teller.take(1, 1)
    teller.send(1, 1, b"moved")
    prepare(teller)
    for sender, message in messages:
        manager.core.decisions.on_settle(sender, message)
        manager.turn()
        manager.later(500)
    assert manager.core.faults == 0
    mine = [what for who, what in messages if who == "z" and what.get("id") == ELSEWHERE and what.get("outcome")]
    assert (len(manager.core.prepared) == 0) == any(what["do"] == "decide" for what in mine)
    manager.crash()
    assert manager.core.faults == 0


def test_a_client_cannot_speak_for_the_agent(tmp_path: Path) -> None:
    manager = Lone(tmp_path)
    fill(manager, "a", b"one")
    teller = Teller(manager)
    teller.take(1, 1)
    teller.send(1, 1, b"moved")
    prepare(teller)
    for do in ("final", "abandon", "outcome"):
        with pytest.raises(Refused):
            teller.client.do(do, id=ELSEWHERE, decider="z")
    assert list(manager.core.prepared.by_id) == [ELSEWHERE]
