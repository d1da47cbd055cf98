"""What the parts of a node ask of the bus. Every carrier is one of these, and the law suite holds each to it.

The promise: from one sender to one port (or channel and port) messages arrive in the order of sending, without gaps or
doubles, until `broken` is told for that sender; what was under way then may be lost, and the order begins anew. Nothing
above may be unsafe when the promise fails: it carries speed, not safety.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Bytes = bytes | bytearray | memoryview
Handler = Callable[[str, memoryview], None]
"""Sender's name and the message; the memory is the bus's own and is valid until the handler returns."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A live node, as the view tells of it; we are one of them."""

    name: str
    start: int  # grows with each life of the node
    rank: int  # 0: in the view for longest
    buses: tuple[str, ...] = ()
    address: str = ""
    tag: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class View:
    """Who is there. A change of tags alone keeps the number."""

    number: int
    peers: Mapping[str, Peer]


class Bus(Protocol):
    """One node's attachment to all of its buses. One thread owns it; it is turned by that thread's loop."""

    node: str
    carrier: str  # "tcp", "udp" or "local"

    @property
    def view(self) -> View: ...

    def fileno(self) -> int:
        """Readable when `turn` has something to do."""

    def listen(self, port: str, handler: Handler) -> None:
        """Messages for this port go to the handler, casts as well."""

    def deaf(self, port: str) -> None:
        """No longer."""

    def join(self, channel: str) -> None: ...

    def leave(self, channel: str) -> None: ...

    def send(self, to: str, port: str, *pieces: Bytes) -> bool:
        """One message to one node (also to ourselves: delivered in the next turn). Copied or written before return.

        False: that node is not there; nothing was sent.
        """

    def cast(self, channel: str, port: str, *pieces: Bytes) -> None:
        """One message to every other member of the channel."""

    def tag(self, key: str, value: Any) -> None:
        """Say something about ourselves; everybody's view shows it at once. None takes it back."""

    def on_view(self, handler: Callable[[View], None]) -> None:
        """Called whenever members or tags have changed."""

    def on_broken(self, handler: Callable[[str], None]) -> None:
        """Called when order from and to that node begins anew: it was lost, restarted, or too slow."""

    def backlog(self, to: str) -> int:
        """Bytes for that node which the network has not taken yet."""

    def turn(self, now_s: float) -> None:
        """Take in what has come (handlers are called from here), send what is due."""

    def flush(self) -> None:
        """Write what was sent in this turn."""

    def patience_s(self, now_s: float) -> float:
        """How long `turn` may wait for something to happen."""

    def close(self) -> None:
        """Leave in an orderly way: the others are told."""
