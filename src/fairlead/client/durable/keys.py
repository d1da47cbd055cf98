"""Messages with a grouping key, one at a time: the next of a key comes when the last one is settled (CLU-28).

When one is given back, those of its key that follow it go back too. Others may be under way already, sent before the
server heard of it: they are early, until what was given back has come again or the server has said that it knows. It
says so when its disk does, often after the message has come again and was given back once more: that answer is to the
first time, and says nothing of the second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from heapq import heappop, heappush

from fairlead.wire.entry_codec import Delivered

__all__ = ["GivenBack", "Keys"]


class Keys:
    """Of one consumer. What waits for its key is out of the buffer, and comes back to its front."""

    def __init__(self) -> None:
        self._active: dict[str, int] = {}  # key: the message the application has
        self._parked: dict[str, deque[Delivered]] = {}
        self.given_back: dict[str, Back] = {}

    def admit(self, message: Delivered) -> bool:
        """May it be handed out now? If not it is parked."""
        key = message.key
        if key is None:
            return True
        if key in self._active:
            self._parked.setdefault(key, deque()).append(message)
            return False
        self._active[key] = message.order
        return True

    def settled(self, key: str, order: int) -> Delivered | None:
        """The application is done with this one; the next of its key, if it is here."""
        if self._active.get(key) != order:
            return None
        del self._active[key]
        waiting = self._parked.get(key)
        if not waiting:
            return None
        message = waiting.popleft()
        if not waiting:
            del self._parked[key]
        return message

    def forget(self, key: str, order: int) -> None:
        """The application did not get it after all."""
        if self._active.get(key) == order:
            del self._active[key]

    def give_back(self, key: str, order: int) -> GivenBack:
        given = GivenBack(self, key, order)
        self.given_back.setdefault(key, Back()).add(given)
        return given

    def is_early(self, message: Delivered) -> bool:
        """Was it sent before the server heard that one it follows was given back?"""
        key = message.key
        back = self.given_back.get(key) if key is not None else None
        if back is None:
            return False
        given = back.last.get(message.order)
        if given is not None:
            self.known(given)  # it has come again
        lowest = back.lowest()
        return lowest is not None and lowest < message.order

    def known(self, given: GivenBack) -> None:
        """The server has heard of it, this time."""
        back = self.given_back.get(given.key)
        if back is not None and back.last.get(given.order) is given:
            del back.last[given.order]
            if not back.last:
                del self.given_back[given.key]

    def take(self, key: str) -> list[Delivered]:
        """Everything parked behind this key, to be given back."""
        return list(self._parked.pop(key, ()))

    def take_all(self) -> list[Delivered]:
        everything = [message for waiting in self._parked.values() for message in waiting]
        self._parked.clear()
        return everything

    def on_lost(self, held: Collection[int]) -> None:
        """Only what the application has keeps its key; what was taken for it and not seen comes again like the rest."""
        self.take_all()
        self.given_back.clear()
        self._active = {key: order for key, order in self._active.items() if order in held}


class Back:
    """What was given back of one key, and is not known to the server."""

    __slots__ = ("_heap", "last")

    def __init__(self) -> None:
        self.last: dict[int, GivenBack] = {}  # by order, the last time it was
        self._heap: list[int] = []  # these, and some that are known meanwhile

    def add(self, given: GivenBack) -> None:
        self.last[given.order] = given
        heappush(self._heap, given.order)

    def lowest(self) -> int | None:
        while self._heap and self._heap[0] not in self.last:
            heappop(self._heap)
        return self._heap[0] if self._heap else None


class GivenBack:
    """A message, one time it was given back: waits for the server to say that it knows."""

    __slots__ = ("_keys", "key", "order")

    def __init__(self, keys: Keys, key: str, order: int) -> None:
        self._keys = keys
        self.key = key
        self.order = order

    def done(self) -> bool:
        return False

    def set_result(self, result: None) -> None:
        self._keys.known(self)

    def set_exception(self, exception: Exception) -> None:
        self._keys.known(self)
