"""Numbers of a backup and of its active compared, while administrative records are not at the same places (STR-19).

A displaced record or a void stands at another number here than the record it belongs to stands there; between the two
places the numbers of all others differ by one, and behind both they are equal again. An anchor that falls between must
not be taken for a drift, and one that is used for aligning must not count the difference in.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

__all__ = ["Twofold", "shift_for", "there"]


class Twofold(Protocol):
    """An administrative record: at `n` in the active's stream, at `number` in ours (None: not yet)."""

    n: int
    number: int | None


def there(number: int, moved: Collection[Twofold]) -> int:
    """Which number the active gives to our record `number`: ours taken out of the stream, theirs put in."""
    moved_number = number - _ours_before(number, moved)
    for n in sorted(one.n for one in moved):
        if n > moved_number:
            break
        moved_number += 1
    return moved_number


def shift_for(number: int, anchor: int, moved: Collection[Twofold]) -> int:
    """By how much all our numbers have to move, if our record `number` has the number `anchor` at the active."""
    theirs_before = sum(one.n < anchor for one in moved)
    return anchor - theirs_before - (number - _ours_before(number, moved))


def _ours_before(number: int, moved: Collection[Twofold]) -> int:
    return sum(one.number is not None and one.number < number for one in moved)
