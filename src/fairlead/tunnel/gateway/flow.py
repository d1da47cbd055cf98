"""One direction of a tunnel, as seen by somebody its packets pass: what was sent, what acknowledged, is it over?"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.tunnel.packets import Packet
from fairlead.tunnel.serial import HALF, MASK

__all__ = ["Flow", "FlowStatus", "reaches"]


def reaches(number: int | None, other: int | None) -> bool:
    """Is `number` at or after `other`, in serial arithmetic? Nothing reaches, or is reached by, what is not there."""
    return number is not None and other is not None and (number - other) & MASK < HALF


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """None: this gateway has not seen it pass."""

    received: int | None
    """R of the receiver."""
    consumed: int | None
    """C of the receiver."""
    window: int | None
    edge: int | None
    unacknowledged: int | None
    packets: int
    bytes: int
    resends: int
    """Packets numbered no higher than one seen before: sent again, or late."""


class Flow:
    __slots__ = ("ack", "bytes", "capacity", "close", "highest", "last_ack", "packets", "repeats", "window")

    def __init__(self, capacity: int = 0) -> None:
        self.capacity = capacity
        """N of the receiver; 0: not known."""
        self.highest: int | None = None
        self.packets = self.bytes = self.repeats = 0
        self.ack: int | None = None
        self.window = 0
        self.close: int | None = None
        """The number of CONN_CLOSE."""
        self.last_ack = b""
        """The ACK that acknowledged the most, as it passed."""

    def sent(self, sequence: int, size: int) -> None:
        self.packets += 1
        self.bytes += size
        highest = self.highest
        if highest is None or 0 < (sequence - highest) & MASK < HALF:
            self.highest = sequence
        else:
            self.repeats += 1

    def acknowledged(self, packet: Packet) -> None:
        """By an ACK of the receiver."""
        ack = self.ack
        if ack is not None:
            ahead = (packet.sequence - ack) & MASK
            if ahead >= HALF or (ahead == 0 and packet.window < self.window):
                return  # it was overtaken (TUN-75)
        self.ack = packet.sequence
        self.window = packet.window
        self.last_ack = packet.raw

    @property
    def is_over(self) -> bool:
        """The sender closed, and the receiver has acknowledged that: it has read everything."""
        return self.close is not None and reaches(self.ack, self.close)

    def status(self) -> FlowStatus:
        ack = self.ack
        edge = None if ack is None else (ack + self.window) & MASK
        return FlowStatus(
            received=ack,
            consumed=(edge - self.capacity) & MASK if edge is not None and self.capacity else None,
            window=None if ack is None else self.window,
            edge=edge,
            unacknowledged=None if ack is None or self.highest is None else unacknowledged(self.highest, ack),
            packets=self.packets,
            bytes=self.bytes,
            resends=self.repeats,
        )


def unacknowledged(highest: int, ack: int) -> int:
    ahead = (highest - ack) & MASK
    return ahead if ahead < HALF else 0
