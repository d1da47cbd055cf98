"""Commands the agent itself has put to groups, and who waits for what is said to them.

Their numbers are above those that clients may use, so an answer is told from a client's by its number alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

FIRST_NUMBER: Final = 1 << 31
LAST_NUMBER: Final = (1 << 32) - 1


class Reply(NamedTuple):
    """An ANSWER has facts, an ERROR code and text."""

    facts: dict[str, Any] | None
    code: str = ""
    text: str = ""


Then = Callable[[Reply], None]
AWAY: Final = Reply(None, "no-message-manager")


@dataclass(frozen=True, slots=True)
class _Open:
    group: int
    slot: int
    uid: int
    until_s: float
    then: Then


class Questions:
    """Those that are open."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._number = FIRST_NUMBER

    def __len__(self) -> int:
        return len(self._open)

    def put(self, group: int, slot: int, uid: int, until_s: float, then: Then) -> int:
        """The number to ask under."""
        while self._number in self._open:
            self._turn()
        number = self._number
        self._open[number] = _Open(group, slot, uid, until_s, then)
        self._turn()
        return number

    def _turn(self) -> None:
        self._number = FIRST_NUMBER if self._number == LAST_NUMBER else self._number + 1

    def answered(self, group: int, slot: int, uid: int, number: int) -> Then | None:
        """Who waits for this; None: nobody any more."""
        found = self._open.get(number)
        if found is None or (found.group, found.slot, found.uid) != (group, slot, uid):
            return None
        del self._open[number]
        return found.then

    def give_up(self, is_over: Callable[[int, int, int, float], bool], reply: Reply) -> None:
        """Those of which this is true (told group, slot, uid and time limit) get this instead of an answer."""
        over = [number for number, one in self._open.items() if is_over(one.group, one.slot, one.uid, one.until_s)]
        for number in over:
            one = self._open.pop(number, None)
            if one is not None:
                one.then(reply)
