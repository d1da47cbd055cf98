"""What waits for a client until it pulls (TUN-67): bounded, each sequenced packet once, and of ACKs only the newest.

What does not fit is dropped: the broker's end sends it again.
"""

from __future__ import annotations

from fairlead.tunnel.packets import Kind, Packet
from fairlead.tunnel.serial import HALF, MASK

__all__ = ["ToClient"]


class ToClient:
    __slots__ = ("_accepted", "_queue", "ack", "bytes", "bytes_max", "packets_max")

    def __init__(self, packets_max: int, bytes_max: int) -> None:
        self.packets_max = packets_max
        self.bytes_max = bytes_max
        self.bytes = 0
        self.ack: Packet | None = None
        self._accepted: Packet | None = None
        self._queue: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._queue) + (self.ack is not None) + (self._accepted is not None)

    def put(self, packet: Packet, room: int) -> bool:
        """False: dropped. `room` is what all buffers together may still grow; a few bytes of control always fit."""
        if packet.kind == Kind.ACK:
            if self.ack is None:
                self.ack = packet
                self.bytes += len(packet.raw)
            elif is_more_advanced(packet, self.ack):
                self.bytes += len(packet.raw) - len(self.ack.raw)
                self.ack = packet
            return True
        if packet.kind == Kind.CONN_INIT_ACK:
            self.bytes += len(packet.raw) - (len(self._accepted.raw) if self._accepted else 0)
            self._accepted = packet
            return True
        twin = self._queue.get(packet.sequence)
        growth = len(packet.raw) - (len(twin) if twin is not None else 0)
        if growth > room or self.bytes + growth > self.bytes_max:
            return False
        if twin is None and len(self._queue) >= self.packets_max:
            return False
        self._queue[packet.sequence] = packet.raw
        self.bytes += growth
        return True

    def take(self, limit_bytes: int) -> list[bytes]:
        """Control first, then the rest as it came, up to the limit, at least one. Handed out is gone (TUN-68)."""
        packets = [one.raw for one in (self._accepted, self.ack) if one is not None]
        if self.bytes <= limit_bytes:
            packets += self._queue.values()
            self.clear()
            return packets
        self._accepted = self.ack = None
        size = sum(map(len, packets))
        taken = 0
        for raw in self._queue.values():
            if size + len(raw) > limit_bytes and packets:
                break
            size += len(raw)
            packets.append(raw)
            taken += 1
        for sequence in list(self._queue)[:taken]:
            del self._queue[sequence]
        self.bytes -= size
        return packets

    def clear(self) -> None:
        self.bytes = 0
        self.ack = self._accepted = None
        self._queue = {}


def is_more_advanced(new: Packet, old: Packet) -> bool:
    """Acknowledges more, or the same with a larger window."""
    ahead = (new.sequence - old.sequence) & MASK
    return ahead < HALF if ahead else new.window >= old.window
