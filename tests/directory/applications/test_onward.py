"""What becomes of a message after each attempt; and, over many attempts, that it comes once.

The simulation below has brokers that lose their confirmations, cannot be reached, and see the recipient come and go.
What was planted into the rules shows that it would notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import find as search
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from fairlead.directory.delivery.instructions import HOPS_MAX, Instructions
from fairlead.directory.delivery.routes import UNKNOWN, Route
from fairlead.directory.registrar.onward import Outcome, Step, fault_of, next_reader, next_step, unread_selector
from fairlead.selector import compile as compile_selector
from fairlead.wire.properties import encode_properties

FACTS: Any = (4, 0, b"", 1, b"", True)
TO_AZ = Instructions("AZ", "id", "app.AZ")
ANSWER = Instructions("AX", "id.answer", "temporary:1")
AT_B, AT_C = Route("carry.B", "B"), Route("carry.C", "C")


@pytest.mark.parametrize(
    ("outcome", "route", "in_doubt", "age_s", "do", "broker"),
    [
        (Outcome.STORED, None, False, 0, "done", ""),
        (Outcome.REFUSED, None, False, 0, "dead", ""),
        (Outcome.DOUBTFUL, AT_B, False, 999, "wait", ""),  # it may be at C
        (Outcome.UNREACHABLE, AT_B, True, 999, "wait", ""),
        (Outcome.UNREACHABLE, AT_B, False, 0, "send", "B"),
        (Outcome.UNREACHABLE, AT_C, False, 999, "wait", ""),
        (Outcome.UNREACHABLE, None, False, 999, "wait", ""),
        (Outcome.UNREACHABLE, UNKNOWN, False, 0, "wait", ""),
        (Outcome.UNREACHABLE, UNKNOWN, False, 31, "dead", ""),
        (Outcome.ABSENT, AT_B, True, 0, "send", "B"),
        (Outcome.ABSENT, AT_C, False, 0, "later", ""),  # it is just being registered there
        (Outcome.ABSENT, AT_C, False, 31, "dead", ""),
        (Outcome.ABSENT, UNKNOWN, False, 0, "later", ""),  # it may be on its way from one broker to another
        (Outcome.ABSENT, UNKNOWN, False, 31, "dead", ""),
        (Outcome.ABSENT, None, False, 999, "later", ""),
    ],
)
def test_steps(outcome: Outcome, route: Route | None, in_doubt: bool, age_s: float, do: str, broker: str) -> None:
    step = next_step(outcome, TO_AZ, at="C", route=route, in_doubt=in_doubt, age_s=age_s)
    assert (step.do, step.broker) == (do, broker)
    assert bool(step.reason) == (do == "dead")


@pytest.mark.parametrize("outcome", [Outcome.DOUBTFUL, Outcome.UNREACHABLE])
def test_what_a_broker_may_have_waits_for_it_until_it_is_out_of_the_directory(outcome: Outcome) -> None:
    def step(*, is_gone: bool) -> Step:
        return next_step(outcome, TO_AZ, at="C", route=AT_B, in_doubt=True, is_gone=is_gone, age_s=0)

    assert step(is_gone=False) == Step("wait")
    assert step(is_gone=True) == Step("send", "B")


def test_an_answer_is_dropped_when_nobody_waits_for_it() -> None:
    def step(outcome: Outcome, age_s: float) -> str:
        return next_step(outcome, ANSWER, at="A", route=None, in_doubt=False, age_s=age_s).do

    assert step(Outcome.ABSENT, 0) == "drop"
    assert step(Outcome.UNREACHABLE, 0) == step(Outcome.DOUBTFUL, 0) == "wait"
    assert step(Outcome.UNREACHABLE, 31) == "drop"


def test_what_cannot_be_carried() -> None:
    assert fault_of(TO_AZ) == fault_of(ANSWER) == fault_of(TO_AZ._replace(hops=HOPS_MAX - 1)) == ""
    assert "no delivery" in fault_of(None)
    for queue in ("app.AZ", "carry.C::AZ"):
        assert fault_of(TO_AZ._replace(doubt=("B", queue)), "AZ") == ""
    for queue in ("orders", "_DMQ", "app.AY", "carry.C::AY", "carry.C::", "carry.AZ"):
        assert queue in fault_of(TO_AZ._replace(doubt=("B", queue)), "AZ")
    assert "4 brokers" in fault_of(TO_AZ._replace(hops=HOPS_MAX))
    for queue in ("orders", "_DMQ", "app.AY", "carry.B", "app."):
        assert queue in fault_of(TO_AZ._replace(queue=queue))


def test_what_is_in_a_carry_queue_goes_to_whom_the_queue_is_for() -> None:
    assert fault_of(TO_AZ, "AZ") == fault_of(ANSWER, "") == ""
    assert "goes to AY" in fault_of(TO_AZ, "AY")
    assert "connections that asked" in fault_of(TO_AZ, "")
    assert "goes to AZ" in fault_of(ANSWER, "AZ")
    assert "'temporary:1'" in fault_of(ANSWER, "AX")  # an answer, but not where answers are
    assert "'app.AY'" in fault_of(TO_AZ._replace(queue="app.AY"), "AZ")


@settings(deadline=None)
@given(
    st.lists(st.sampled_from("ABCD"), max_size=4), st.integers(0, 4), st.sets(st.sampled_from("ABC%_'!"), min_size=1)
)
def test_the_selector_lets_every_message_through_that_has_a_next_reader(via: list[str], hops: int, names: Any) -> None:
    others = sorted(names)
    message = TO_AZ._replace(via=tuple(via), hops=hops)
    selector = compile_selector(unread_selector(others))
    assert selector is not None
    chosen = selector.matches(encode_properties(message.properties()), FACTS)
    reader = next_reader(message, others)
    assert reader not in via
    if hops and via:
        assert chosen == bool(reader)
    assert chosen or not reader


# --- The whole way ----------------------------------------------------------------------------------------------------

Rule = Callable[..., Step]


class Broker:
    def __init__(self) -> None:
        self.has_queue = False
        self.keys: set[str] = set()
        self.waiting: list[Instructions] = []

    def store(self, message: Instructions, key: str) -> None:
        if key not in self.keys:
            self.keys.add(key)
            self.waiting.append(message)


class Journey:
    """One message from A to AZ, which is at B or at C. `draw` decides what goes wrong."""

    def __init__(self, draw: Callable[[int], int], rule: Rule, key: Callable[[Instructions], str]) -> None:
        self.draw, self.rule, self.key = draw, rule, key
        self.brokers = {"B": Broker(), "C": Broker()}
        self.at = "C"
        self.brokers["C"].has_queue = True
        self.read = self.dead = self.moves = self.faults = 0

    def run(self) -> tuple[int, int]:
        self.carry(TO_AZ, "C")
        for _ in range(6):  # the recipient stays where it is now, and whatever waits elsewhere comes
            self.read_here()
            for name, one in self.brokers.items():
                if name != self.at:
                    waiting, one.waiting = one.waiting, []
                    for message in waiting:
                        self.carry(message, self.at)
        self.read_here()
        return self.read, self.dead

    def read_here(self) -> None:
        here = self.brokers[self.at]
        self.read += len(here.waiting)
        here.waiting.clear()

    def something_happens(self) -> None:
        what = self.draw(5)
        if what == 0:
            self.read_here()
        elif what == 1 and self.moves < 2:
            self.moves += 1
            self.at = "B" if self.at == "C" else "C"
            self.brokers[self.at].has_queue = True
        elif what == 2:  # the old registrar sends after it what is left
            for name, one in self.brokers.items():
                if name != self.at and one.waiting and self.faults < 8:
                    self.carry(one.waiting.pop(), self.at)

    def carry(self, message: Instructions, target: str) -> None:
        in_doubt, at = False, target
        while True:
            outcome = self.attempt(message.onward(at), at)
            self.something_happens()
            route = AT_B if self.at == "B" else AT_C
            step = self.rule(outcome, message, at=at, route=route, in_doubt=in_doubt, age_s=0)
            if step.do == "done":
                return
            if step.do == "dead":
                self.dead += 1
                return
            if step.do == "send":
                at, in_doubt = step.broker, False
            else:
                in_doubt = in_doubt or outcome is Outcome.DOUBTFUL
                if step.do == "later":
                    at = target

    def attempt(self, message: Instructions, at: str) -> Outcome:
        broker = self.brokers[at]
        fault = self.draw(4) if self.faults < 6 else 3
        if fault < 3:
            self.faults += 1
        if fault == 0:
            return Outcome.UNREACHABLE
        if not broker.has_queue:
            return Outcome.ABSENT
        if fault == 1:
            return Outcome.DOUBTFUL  # it never came there
        broker.store(message, self.key(message))
        return Outcome.DOUBTFUL if fault == 2 else Outcome.STORED


def journey(choices: list[int], rule: Rule = next_step, key: Callable[[Instructions], str] = lambda m: m.key) -> Any:
    left = list(choices)
    return Journey(lambda limit: (left.pop() if left else 3) % limit, rule, key).run()


choices = st.lists(st.integers(0, 59), max_size=60)


@settings(max_examples=300, deadline=None)
@given(choices)
def test_it_comes_once_whatever_happens_on_the_way(drawn: list[int]) -> None:
    assert journey(drawn) == (1, 0)


def hasty(outcome: Outcome, instructions: Instructions, **facts: Any) -> Step:
    """Goes elsewhere although it may have been stored."""
    return next_step(outcome, instructions, **facts | {"in_doubt": False})


def careless(outcome: Outcome, instructions: Instructions, **facts: Any) -> Step:
    """Takes no answer for a yes."""
    return next_step(Outcome.STORED if outcome is Outcome.DOUBTFUL else outcome, instructions, **facts)


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        (hasty, lambda message: message.key),
        (careless, lambda message: message.key),
        (next_step, lambda message: message.id),  # what comes back is taken for a repeat
        (next_step, lambda message: f"{message.id}/{object()!r}"),  # no repeat is known again
    ],
    ids=["hasty", "careless", "returns", "repeats"],
)
def test_the_simulation_notices(rule: Rule, key: Callable[[Instructions], str]) -> None:
    try:
        found = search(
            choices,
            lambda drawn: journey(drawn, rule, key) != (1, 0),
            settings=settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck)),
        )
    except NoSuchExample:  # pragma: no cover - the point of the test
        pytest.fail("the planted fault was not noticed")
    assert journey(found, rule, key) != (1, 0)
