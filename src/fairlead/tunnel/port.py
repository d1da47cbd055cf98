"""What the layers of a tunnel ask of each other: a driver moves single packets, a sink is what it moves them to."""

from __future__ import annotations

from typing import Protocol

from fairlead.tunnel.packets import Packet

__all__ = ["Driver", "Sink"]


class Sink(Protocol):
    """The connection layer, as a driver sees it."""

    def on_packets(self, packets: list[Packet]) -> None:
        """They came, in whatever order and number; their checksums are right."""

    def on_damaged(self, count: int) -> None:
        """So many were left out: damaged."""

    def on_room(self) -> None:
        """The driver takes packets again."""

    def on_restored(self) -> None:
        """The way is open again after it was shut: what was under way may be lost."""

    def on_gone(self, code: int, text: str) -> None:
        """The carrier says for certain that this tunnel has ended (410, CONN_ABORT of the gateway, no right to it)."""


class Driver(Protocol):
    """Sends and receives single packets, and reports; numbers, sorts and repeats nothing (TUN-2)."""

    @property
    def carrier(self) -> str:
        """`push/pull`, `websocket`, `udp`, `link`, `memory`: for people. It may change."""

    def room(self) -> int:
        """Bytes of packets it would take at once; 0: `Sink.on_room` is called later."""

    def send(self, packets: list[bytes]) -> None:
        """Whole packets; at most about `room()` bytes of them. They may be lost."""

    def set_period(self, pull_period_s: float, hold_s: float) -> None:
        """How often to ask for packets when there are none; drivers that need not ask do nothing."""

    def close(self) -> None:
        """No more packets in either direction; nothing waits."""
