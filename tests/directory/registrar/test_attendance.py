from __future__ import annotations

from fairlead.directory.registrar import talk
from fairlead.directory.registrar.attendance import Attendance, Attending, Refusal


def register(app: str = "AX", number: int = 1, **facts: str) -> talk.Register:
    return talk.Register(app=app, identity=f"{number:032x}", **facts)  # type: ignore[arg-type]


def test_a_connection_comes_and_goes() -> None:
    here = Attendance("A", 10)
    attending = here.admit(register(), "u", holder=1)
    assert isinstance(attending, Attending)
    assert (attending.link.broker, attending.link.user, here.count("AX")) == ("A", "u", 1)
    assert here.leave(attending.link.identity, holder=1) is attending
    assert (len(here), here.count("AX"), here.kinds) == (0, 0, {})


def test_one_that_comes_back_before_its_old_conversation_ended_is_counted_once() -> None:
    here = Attendance("A", 1)
    first = here.admit(register(), "u", holder=1)
    assert here.admit(register(), "u", holder=2) is first
    assert here.leave(f"{1:032x}", holder=1) is None
    assert len(here) == 1
    assert here.leave(f"{1:032x}", holder=2) is first


def test_the_identity_of_another_application_or_user_is_refused_as_wrong() -> None:
    here = Attendance("A", 10)
    here.admit(register("AX"), "u", holder=1)
    assert here.admit(register("AX"), "v", holder=2) == Refusal("authentication", talk.WRONG)
    assert here.admit(register("AY"), "u", holder=3) == Refusal("authentication", talk.WRONG)
    assert len(here) == 1


def test_full_at_the_limit_and_not_after_one_has_gone() -> None:
    here = Attendance("A", 2)
    for number in (1, 2):
        here.admit(register(number=number), "", holder=number)
    states = [here.state]
    refused = here.admit(register(number=3), "", holder=3)
    assert isinstance(refused, Refusal)
    assert refused.code == "full"
    here.leave(f"{1:032x}", holder=1)
    states.append(here.state)
    assert states == ["full", "up"]
    assert isinstance(here.admit(register(number=3), "", holder=3), Attending)


def test_what_the_operator_wants_counts_more() -> None:
    here = Attendance("A", 10)
    here.wanted = "draining"
    assert here.state == "draining"
    assert isinstance(here.admit(register(), "", holder=1), Attending)  # who comes all the same is served
    here.wanted = "disabled"
    assert isinstance(here.admit(register(number=2), "", holder=2), Refusal)


def test_an_application_stays_static_until_somebody_says_otherwise() -> None:
    here = Attendance("A", 10)
    here.admit(register(number=1, kind="static"), "", holder=1)
    here.admit(register(number=2), "", holder=2)
    assert here.kinds == {"AX": "static"}
    here.change_kind("AX", "dynamic")
    assert {kind for _, kind, _ in here.links()} == {"dynamic"}


def test_a_label_is_told_once() -> None:
    here = Attendance("A", 10)
    here.admit(register(), "", holder=1)
    before = here.version
    assert here.label(f"{1:032x}", "AX-4") is not None
    assert here.version > before
    assert here.label(f"{1:032x}", "AX-4") is None
    assert here.label(f"{2:032x}", "AX-5") is None
    assert [link.label for _, _, link in here.links()] == ["AX-4"]
