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

    def take_all(self) -> list[Delivered]:
        everything = [message for waiting in self._parked.values() for message in waiting]
        self._parked.clear()
        self.parked = 0
        return everything
