"""Two ends and hands to carry packets between them, one by one and in a time that stands still until it is told."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.tunnel.end import End, Role
from fairlead.tunnel.packets import Kind, Packet, encode, split
from fairlead.tunnel.rules import Rules

__all__ = ["ID", "Pair", "ack", "data", "packet", "taken"]

ID = 0x0102_0304
MUCH = 1 << 30


def packet(
    kind: int, sequence: int = 0, window: int = 0, payload: bytes = b"", version: int = 2, connection_id: int = ID
) -> Packet:
    """As it comes out of a driver."""
    (found,) = split(encode(kind, connection_id, sequence, window, payload, version)).packets
    return found


def data(sequence: int, payload: bytes = b"x") -> Packet:
    return packet(Kind.DATA, sequence, payload=payload)


def ack(sequence: int, window: int) -> Packet:
    return packet(Kind.ACK, sequence, window)


def taken(end: End, now_s: float, limit: int = MUCH) -> list[Packet]:
    """What an end sends now."""
    return split(b"".join(end.take_packets(limit, now_s))).packets


class Pair:
    def __init__(
        self, client: Rules | None = None, broker: Rules | None = None, *, version: int = 2, is_open: bool = True
    ) -> None:
        client = client or Rules()
        broker = broker or client
        self.now_s = 0.0
        self.client = End(client, Role.CLIENT, ID, 0.0, version=version)
        self.broker = End(broker, Role.BROKER, ID, 0.0, version=version, peer_window=client.capacity)
        if is_open:
            self.settle()

    def by_role(self, role: Role) -> tuple[End, End]:
        """That end, and the other."""
        return (self.client, self.broker) if role is Role.CLIENT else (self.broker, self.client)

    def other(self, end: End) -> End:
        return self.broker if end is self.client else self.client

    def carry(self, end: End, keep: Callable[[Packet], bool] = lambda _: True) -> list[Packet]:
        """All that it sends now goes to the other end, but for what is not kept."""
        packets = taken(end, self.now_s)
        self.other(end).on_packets([found for found in packets if keep(found)], self.now_s)
        return packets

    def settle(self) -> None:
        """Back and forth until neither has anything to say."""
        while self.client.has_packets(self.now_s) or self.broker.has_packets(self.now_s):
            self.carry(self.client)
            self.carry(self.broker)

    def wait(self, seconds: float) -> None:
        """With a carrier that takes no time."""
        until = self.now_s + seconds
        while (soonest := min(self.client.next_at(), self.broker.next_at())) <= until:
            self.go_to(max(soonest, self.now_s))
            self.settle()
        self.go_to(until)
        self.settle()

    def go_to(self, now_s: float) -> None:
        self.now_s = now_s
        self.client.on_time(now_s)
        self.broker.on_time(now_s)
