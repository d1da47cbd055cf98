"""When an instruction is finished: once all of its recipients are served or gone (SRV-62, SRV-73, SRV-76).

The message itself is freed by its completion word, whoever finishes last (`store/arena.py`). Here is the step before
it: one manager counts the recipients of each instruction down, and finishes the instruction exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finish:
    """Count this touch in the completion word of this message."""

    handle: int
    touch: int
    limit: int


@dataclass(slots=True)
class _Open:
    finish: Finish
    remaining: int
    recorded: bool = False


class Relinquish:
    """The instructions of one manager that are under way."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, handle: int, touch: int, limit: int) -> int:
        """A new instruction, held open by a guard until `share_done` is called once for the guard itself."""
        self._next += 1
        self._open[self._next] = _Open(Finish(handle, touch, limit), 1)
        return self._next

    def add_recipient(self, instruction: int) -> None:
        self._open[instruction].remaining += 1

    def share_done(self, instruction: int) -> Finish | None:
        """One recipient (or the guard) less; the last one yields what is to be counted."""
        found = self._open[instruction]
        found.remaining -= 1
        if found.remaining:
            return None
        del self._open[instruction]
        return found.finish

    def unrecorded(self) -> list[tuple[int, Finish]]:
        """Under way and not yet in the outstanding table, in the order they came."""
        return [(number, found.finish) for number, found in self._open.items() if not found.recorded]

    def recorded(self, instruction: int) -> None:
        self._open[instruction].recorded = True
