"""One question to several nodes over the port `admin`, and what they say put together (CLU-182, CLU-183).

It waits for as many answers as there are nodes in the view; a node that leaves meanwhile is not waited for, and
those that said nothing are named.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from fairlead.bus.port import Bus, View
from fairlead.cluster.configuration.edge.part import KINDS

PORT: Final = "admin"
PATIENCE_S: Final = 10.0
PATIENCE_MAX_S: Final = 600.0

Facts = dict[str, Any]
Reply = Callable[[Facts], None]


@dataclass(slots=True)
class _Round:
    """One question and who has answered it."""

    view: int
    expected: list[str]
    until_s: float
    then: Reply
    answers: dict[str, Facts] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)


class Gatherer:
    """One per node process. Whoever listens on the port hands it every message that has `answer`."""

    def __init__(self, bus: Bus, now_s: float) -> None:
        self._bus = bus
        self._now_s = now_s
        self._numbers = itertools.count(1)
        self._rounds: dict[int, _Round] = {}
        bus.on_view(self._on_view)

    def ask(self, question: Facts, then: Reply) -> None:
        """Put it to all nodes, or those in its `nodes`; `then` gets {"nodes": {name: answer}, "expected", "missing"}.

        `patience_s` in it says how long to wait for those that are there and say nothing.
        """
        view = self._bus.view
        there = {peer.name for peer in view.peers.values() if peer.tag.get("kind") in KINDS} | {self._bus.node}
        nodes: Iterable[str] = question.get("nodes") or there
        wanted = sorted(str(name) for name in nodes)
        patience_s = min(PATIENCE_MAX_S, float(question.get("patience_s", PATIENCE_S)))
        number = next(self._numbers)
        found = _Round(view.number, wanted, self._now_s + patience_s, then)
        self._rounds[number] = found
        plain = {key: value for key, value in question.items() if key not in ("nodes", "patience_s")}
        data = msgspec.json.encode({**plain, "number": number})
        for name in wanted:
            if name not in there or not self._bus.send(name, PORT, data):
                found.gone.add(name)
        self._end_if_over(number)

    def on_answer(self, sender: str, message: Facts) -> None:
        number = message.pop("answer", None)
        found = self._rounds.get(number) if isinstance(number, int) else None
        if found is not None and sender in found.expected:
            found.answers[sender] = message
            self._end_if_over(number)

    def turn(self, now_s: float) -> float:
        """When it wants to be called next."""
        self._now_s = now_s
        for number, found in list(self._rounds.items()):
            if now_s >= found.until_s:
                found.gone.update(set(found.expected) - found.answers.keys())
                self._end_if_over(number)
        return min((found.until_s for found in self._rounds.values()), default=now_s + PATIENCE_S)

    def _on_view(self, view: View) -> None:
        for number, found in list(self._rounds.items()):
            found.gone.update(name for name in found.expected if name not in view.peers and name != self._bus.node)
            self._end_if_over(number)

    def _end_if_over(self, number: Any) -> None:
        found = self._rounds.get(number)
        if found is None or set(found.expected) - found.answers.keys() - found.gone:
            return
        del self._rounds[number]
        found.then(
            {
                "nodes": found.answers,
                "expected": len(found.expected),
                "view": found.view,
                "missing": sorted(set(found.expected) - found.answers.keys()),
            }
        )
