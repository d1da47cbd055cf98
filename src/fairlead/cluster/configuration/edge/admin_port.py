"""Administration between nodes: the port `admin`, where a node answers questions about itself and takes orders.

A question is JSON, `{"do": "status", "number": 7}`; the answer goes back to the node that asked: `{"answer": 7, "node":
"a1", "ok": true, …}`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from fairlead.bus.faults import FaultSwitch
from fairlead.bus.port import Bus
from fairlead.cluster.configuration.edge.gathering import PORT, Facts, Gatherer, Reply
from fairlead.cluster.configuration.edge.part import ConfigPart
from fairlead.cluster.configuration.events import Done
from fairlead.errors import FairleadError, Unavailable

Handler = Callable[[Facts, Reply], Facts | None]
"""Gets the question. Returns the answer, or None and calls the second argument with it later."""


class AdminPort:
    """One per node process; `ask` puts questions to others."""

    def __init__(self, bus: Bus, now_s: float) -> None:
        self._bus = bus
        self._handlers: dict[str, Handler] = {"commands": lambda question, reply: {"commands": sorted(self._handlers)}}
        gatherer = self._gatherer = Gatherer(bus, now_s)
        self.ask = gatherer.ask
        self.turn = gatherer.turn
        bus.listen(PORT, self._on_message)

    def handle(self, do: str, handler: Handler) -> None:
        """Questions of that name go to this handler."""
        self._handlers[do] = handler

    def answer_here(self, question: Facts, reply: Reply) -> None:
        """Have a question answered by this node alone, without the bus."""
        handler = self._handlers.get(str(question.get("do")))

        def tell(answer: Facts) -> None:
            reply({"ok": "error" not in answer, **answer, "node": self._bus.node})

        if handler is None:
            known = ", ".join(sorted(self._handlers))
            tell({"error": f"{self._bus.node} knows no command {question.get('do')!r:.60}; it has {known}"})
            return
        try:
            answer = handler(question, tell)
        except FairleadError as error:
            answer = {"error": str(error)}
        except (KeyError, TypeError, ValueError) as error:
            answer = {"error": f"the arguments of {question.get('do')!r:.60} make no sense: {error}"}
        if answer is not None:
            tell(answer)

    def _on_message(self, sender: str, data: memoryview) -> None:
        try:
            message = msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        if "do" not in message:
            self._gatherer.on_answer(sender, message)
            return
        number = message.pop("number", None)

        def reply(answer: Facts) -> None:
            self._bus.send(sender, PORT, msgspec.json.encode({"answer": number, **answer}))

        self.answer_here(message, reply)


def fault_handler(faults: FaultSwitch | None) -> Handler:
    """`fault`: {"fault": "cut", "from", "to", "bus", "value"} disturbs the bus, where that was allowed at the start."""

    def handler(question: Facts, reply: Reply) -> Facts:
        if faults is None:
            raise Unavailable("this node was started without the fault switch (`faults = true` in node.toml)")
        return faults.command(question)

    return handler


def settings_handler(part: ConfigPart) -> Handler:
    """`settings`: {"changes": {KEY: VALUE}} has them changed on all nodes; without changes it shows them."""

    def handler(question: Facts, reply: Reply) -> Facts | None:
        changes = question.get("changes")
        if not isinstance(changes, dict) or not changes:
            return {"settings": msgspec.to_builtins(part.settings), "config": part.facts()}

        def done(event: Done) -> None:
            missing = list(event.missing)
            reply({"error": event.error} if event.error else {"revision": event.revision, "missing": missing})

        part.change(changes, done)
        return None

    return handler
