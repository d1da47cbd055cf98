"""When to acknowledge: after 8 packets or 20 ms, at once when something is odd, unasked when there is room again."""

from __future__ import annotations

from math import inf

from fairlead.tunnel.rules import Rules

__all__ = ["Acks"]


class Acks:
    """Whether an ACK is due; what it says is worked out when it leaves."""

    def __init__(self, rules: Rules, edge: int) -> None:
        self.packets = rules.ack_packets
        self.after_s = rules.ack_after_s
        self.pending = 0
        """Packets received that no ACK has spoken of."""
        self.due_at = inf
        self.is_due = False
        self.told_edge = edge
        """R + window as last told."""

    def at_once(self) -> None:
        """A duplicate, a gap, a packet beyond the window (TUN-71); a probe (TUN-84); the close (TUN-89)."""
        self.is_due = True

    def received(self, received: int, now_s: float) -> None:
        """R is `received` now; at the edge that was told the other end can only wait for an ACK."""
        self.pending += 1
        if self.pending >= self.packets or received >= self.told_edge:
            self.is_due = True
        else:
            self.soon(now_s)

    def soon(self, now_s: float) -> None:
        if self.due_at == inf:
            self.due_at = now_s + self.after_s

    def consumed(self, edge: int, received: int, capacity: int) -> None:
        """Reading made room: say so when there was none, or a quarter of the buffer is free again (TUN-82)."""
        gained = edge - self.told_edge
        if gained > 0 and (self.told_edge <= received or 4 * gained >= capacity):
            self.is_due = True

    def on_time(self, now_s: float) -> None:
        if now_s >= self.due_at:
            self.is_due = True
            self.due_at = inf

    def taken(self, edge: int) -> None:
        self.pending, self.is_due, self.due_at = 0, False, inf
        self.told_edge = edge

    def is_worth_sending(self) -> bool:
        """With other packets an ACK travels for nothing."""
        return self.is_due or self.pending > 0
