"""Questions that a child answers for local tools: every asker gets an answer, whatever becomes of the child."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead.errors import ConfigError
from fairlead.runtime.questions import PATIENCE_S, Questions


class Loop:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def now_s(self) -> float:
        return self.time_s

    def call_after(self, seconds: float, callback: Callable[[], None]) -> None:
        self.due.append((self.time_s + seconds, callback))

    def pass_time(self, seconds: float) -> None:
        until_s = self.time_s + seconds
        while ready := [one for one in self.due if one[0] <= until_s]:
            first = min(ready, key=lambda one: one[0])
            self.due.remove(first)
            self.time_s = first[0]
            first[1]()
        self.time_s = until_s


class Child:
    def __init__(self) -> None:
        self.sock: object | None = object()
        self.heard: list[dict[str, Any]] = []

    def send(self, command: str, **args: Any) -> bool:
        self.heard.append({"command": command, **args})
        return self.sock is not None


class Asker:
    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def tell(self, **facts: Any) -> None:
        self.told.append(facts)

    def answer(self, **facts: Any) -> None:
        self.tell(ok=True, **facts)

    def refuse(self, text: str) -> None:
        self.tell(ok=False, error=text)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def questions(loop: Loop) -> Questions:
    return Questions(loop)  # type: ignore[arg-type]


def ask(questions: Questions, child: Child, **args: Any) -> Asker:
    asker = Asker()
    questions.ask(child, asker, "status", args)  # type: ignore[arg-type]
    return asker


def test_each_answer_goes_to_who_asked_and_only_once(questions: Questions) -> None:
    child = Child()
    one, two = ask(questions, child, x=1), ask(questions, child, x=2)
    assert child.heard[0] == {"command": "admin", "number": 1, "name": "status", "args": {"x": 1}}
    questions.on_answer(2, {"ok": True, "answer": {"ok": {"depth": 5}}})
    questions.on_answer(1, {"ok": False, "answer": {"error": {"code": "no-destination", "text": "There is none."}}})
    for number in (1, 2, 99):
        questions.on_answer(number, {"ok": True, "answer": {"ok": {}}})
    assert one.told == [{"ok": False, "error": "There is none.", "code": "no-destination"}]
    assert two.told == [{"ok": True, "result": {"depth": 5}}]


def test_who_asks_a_child_that_ends_is_told(questions: Questions, loop: Loop) -> None:
    child = Child()
    asker = ask(questions, child)
    loop.pass_time(5)
    assert asker.told == []
    child.sock = None
    loop.pass_time(2)
    assert [one["ok"] for one in asker.told] == [False]
    with pytest.raises(ConfigError, match="cannot be asked"):
        ask(questions, child)


def test_no_answer_is_waited_for_for_ever(questions: Questions, loop: Loop) -> None:
    asker = ask(questions, Child())
    loop.pass_time(PATIENCE_S + 2)
    assert [one["ok"] for one in asker.told] == [False]
    assert loop.due == []


def test_arguments_that_fit_no_packet_are_refused(questions: Questions) -> None:
    with pytest.raises(ConfigError, match="at most"):
        ask(questions, Child(), text="x" * 70_000)
