"""Messages with a grouping key, one at a time: the next of a key comes when the last one is settled (CLU-28)."""

from __future__ import annotations

from collections import deque

from fairlead.wire.entry_codec import Delivered

__all__ = ["Keys"]


class Keys:
    """Of one consumer. What waits for its key is out of the buffer, and comes back to its front."""

    def __init__(self) -> None:
        self._active: dict[str, int] = {}  # key: the message the application has
        self._parked: dict[str, deque[Delivered]] = {}
        self.parked = 0
        self._returned: dict[str, int] = {}  # key: the message given back, until the server has heard of it

    def returned(self, key: str, order: int) -> Returned:
        """Given back. What follows it and was under way when the server heard of that must go back too."""
        self._returned[key] = order
        return Returned(self, key, order)

    def heard(self, key: str, order: int) -> None:
        if self._returned.get(key) == order:
            del self._returned[key]

    def is_early(self, message: Delivered) -> bool:
        """Was it sent before the server heard that one of its key, which comes first, was given back?"""
        key = message.key
        order = self._returned.get(key) if key is not None else None
        if order is None or key is None:
            return False
        if message.order == order:
            del self._returned[key]  # here it is again: from now on all is in order
        return message.order > order

    def admit(self, message: Delivered) -> bool:
        """May it be handed out now? If not it is parked."""
        key = message.key
        if key is None:
            return True
        if key in self._active:
            self._parked.setdefault(key, deque()).append(message)
            self.parked += 1
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
        self.parked -= 1
        message = waiting.popleft()
        if not waiting:
            del self._parked[key]
        return message

    def forget(self, key: str, order: int) -> None:
        """The application did not get it after all."""
        if self._active.get(key) == order:
            del self._active[key]

    def take(self, key: str) -> list[Delivered]:
        """Everything parked behind this key, to be given back."""
        waiting = list(self._parked.pop(key, ()))
        self.parked -= len(waiting)
        return waiting

    def on_lost(self) -> None:
        self.take_all()
        self._returned.clear()

    def take_all(self) -> list[Delivered]:
        everything = [message for waiting in self._parked.values() for message in waiting]
        self._parked.clear()
        self.parked = 0
        return everything


class Returned:
    """Waits for the answer to a message given back."""

    __slots__ = ("_key", "_keys", "_order")

    def __init__(self, keys: Keys, key: str, order: int) -> None:
        self._keys = keys
        self._key = key
        self._order = order

    def done(self) -> bool:
        return False

    def set_result(self, result: None) -> None:
        self._keys.heard(self._key, self._order)

    def set_exception(self, exception: Exception) -> None:
        self._keys.heard(self._key, self._order)
