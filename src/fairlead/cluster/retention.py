"""How long messages stay readable after they were consumed, for replay: by time, bytes, or number.

Where several limits are set, each of them lets go. What is not consumed yet is never let go here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fairlead.cluster import settling

if TYPE_CHECKING:
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.parameters import Parameters

STEPS: Final = 64
"""Into so many steps the time of `retain_s` is cut."""


def retains(parameters: Parameters) -> bool:
    return bool(parameters.retain_s or parameters.retain_bytes or parameters.retain_messages)


class Retention:
    """What one destination keeps. `consumed` says what had been consumed when."""

    __slots__ = ("consumed",)

    def __init__(self) -> None:
        self.consumed: list[tuple[int, int]] = []

    def first_kept(self, home: Destination, low: int) -> int:
        """The oldest order number that has to stay, `low` being the oldest one that is not consumed."""
        limits, now_ms = home.parameters, home.port.now_ms
        first = home.first
        if limits.retain_messages > 0:
            first = max(first, home.next - limits.retain_messages)
        if limits.retain_s:
            if not self.consumed or (
                self.consumed[-1][1] < low and self.consumed[-1][0] + limits.retain_s * 1000 / STEPS <= now_ms
            ):
                self.consumed.append((now_ms, low))
            while self.consumed and self.consumed[0][0] + limits.retain_s * 1000 <= now_ms:
                first = max(first, self.consumed.pop(0)[1])
        if limits.retain_bytes:
            surplus = home.kept_bytes - limits.retain_bytes
            for entry in home.index.following(first):
                if surplus <= 0 or entry.base + entry.count > low:
                    break
                surplus -= entry.size
                first = entry.base + entry.count
        return min(first, low)

    def next_ms(self, parameters: Parameters) -> int:
        """When time lets go of something next."""
        return int(self.consumed[0][0] + parameters.retain_s * 1000) if self.consumed else 0


def trim(home: Destination) -> None:
    """What nobody has to settle or may read any more is let go."""
    home.trim_due = False
    cursors = home.cursors.values()
    if home.kind == "queue" and home.low == home.first == home.cursors[0].floor:
        home.marks.check()  # only more came: there is nothing to let go
        return
    low = min((cursor.floor for cursor in cursors), default=home.visible)
    if home.kind == "topic" and low > home.low:
        home.bytes -= settling.bytes_of(home, home.low, low)
    home.low = max(low, home.low)
    first = home.low
    if retains(home.parameters):
        if home.parameters.retain_messages < 0:
            first = home.first
        else:
            first = home.retention.first_kept(home, home.low)
            if home.retention.consumed:
                home.port.wake_at(home, home.retention.next_ms(home.parameters))
    if home.parameters.last_value and home.last_values.orders:
        first = min(first, home.last_values.orders.first() or first)
    if first > home.first:
        if retains(home.parameters):
            home.kept_bytes -= settling.bytes_of(home, home.first, first)
        if home.kind == "topic" and home.large:
            settling.large_gone(home, home.first, first)
        home.first = first
        home.index.drop_below(first)
        home.priorities.drop_below(first)
        home.clock.drop_below(first)
    home.marks.check()
