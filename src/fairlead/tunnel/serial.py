"""32-bit serial numbers: inside an end numbers count on for ever, on the wire they wrap round (TUN-18)."""

from __future__ import annotations

__all__ = ["HALF", "MASK", "near", "on_wire"]

MASK = 0xFFFF_FFFF
HALF = 1 << 31


def on_wire(number: int) -> int:
    return number & MASK


def near(wire: int, known: int) -> int:
    """The number that looks like `wire` and lies closest to `known`: up to half the circle before or behind it."""
    ahead = (wire - known) & MASK
    return known + (ahead if ahead < HALF else ahead - MASK - 1)
