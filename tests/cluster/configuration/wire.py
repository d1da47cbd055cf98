"""A bus of one process, for the edges of configuration: every node's messages wait for its next turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairlead.bus.port import Bytes, Handler, Peer, View


class Wire:
    """The medium."""

    def __init__(self) -> None:
        self.buses: dict[str, OneBus] = {}
        self.number = 0

    def attach(self, name: str, kind: str = "mm") -> OneBus:
        bus = OneBus(self, name, kind)
        self.buses[name] = bus
        self.changed()
        return bus

    def detach(self, name: str) -> None:
        del self.buses[name]
        self.changed()

    def changed(self) -> None:
        self.number += 1
        for bus in list(self.buses.values()):
            for handler in bus.view_handlers:
                handler(bus.view)

    def settle(self, now_s: float = 0.0) -> None:
        """Deliver everything that is under way."""
        while any(bus.inbox for bus in self.buses.values()):
            for bus in list(self.buses.values()):
                bus.turn(now_s)


class OneBus:
    def __init__(self, wire: Wire, node: str, kind: str) -> None:
        self.node, self.carrier, self._wire = node, "test", wire
        self.kind = kind
        self.handlers: dict[str, Handler] = {}
        self.view_handlers: list[Callable[[View], None]] = []
        self.inbox: list[tuple[str, str, bytes]] = []

    @property
    def view(self) -> View:
        peers = {
            name: Peer(name, 1, rank, ("main",), tag={"kind": bus.kind})
            for rank, (name, bus) in enumerate(self._wire.buses.items())
        }
        return View(self._wire.number, peers)

    def fileno(self) -> int:
        return -1

    def listen(self, port: str, handler: Handler) -> None:
        self.handlers[port] = handler

    def deaf(self, port: str) -> None:
        self.handlers.pop(port, None)

    def join(self, channel: str) -> None: ...

    def leave(self, channel: str) -> None: ...

    def send(self, to: str, port: str, *pieces: Bytes) -> bool:
        other = self._wire.buses.get(to)
        if other is None:
            return False
        other.inbox.append((self.node, port, b"".join(pieces)))
        return True

    def cast(self, channel: str, port: str, *pieces: Bytes) -> None: ...

    def tag(self, key: str, value: Any) -> None: ...

    def on_view(self, handler: Callable[[View], None]) -> None:
        self.view_handlers.append(handler)

    def on_broken(self, handler: Callable[[str], None]) -> None: ...

    def backlog(self, to: str) -> int:
        return 0

    def turn(self, now_s: float) -> None:
        inbox, self.inbox = self.inbox, []
        for sender, port, data in inbox:
            if port in self.handlers:
                self.handlers[port](sender, memoryview(data))

    def flush(self) -> None: ...

    def patience_s(self, now_s: float) -> float:
        return 0.0

    def close(self) -> None: ...
