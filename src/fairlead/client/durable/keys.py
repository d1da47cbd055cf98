"""Messages with a grouping key, one at a time: the next of a key comes when the last one is settled (CLU-28).

When one is given back, those of its key that follow it go back too. Others may be under way already, sent before the
server heard of it: they are early, until what was given back has come again or the server has said that it knows.
"""

from __future__ import annotations

from collections import deque

from fairlead.wire.entry_codec import Delivered

__all__ = ["GivenBack", "Keys"]


class Keys:
    """Of one consumer. What waits for its key is out of the buffer, and comes back to its front."""

    def __init__(self) -> None:
        self._active: dict[str, int] = {}  # key: the message the application has
        self._parked: dict[str, deque[Delivered]] = {}
        self.given_back: dict[str, set[int]] = {}

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
        self.given_back.setdefault(key, set()).add(order)
        return GivenBack(self, key, order)

    def is_early(self, message: Delivered) -> bool:
        """Was it sent before the server heard that one it follows was given back?"""
        key = message.key
        orders = self.given_back.get(key) if key is not None else None
        if not orders or key is None:
            return False
        self.known(key, message.order)
        return bool(orders) and min(orders) < message.order

    def known(self, key: str, order: int) -> None:
        """It has come again, or the server has heard."""
        orders = self.given_back.get(key)
        if orders is not None:
            orders.discard(order)
            if not orders:
                del self.given_back[key]

    def take(self, key: str) -> list[Delivered]:
        """Everything parked behind this key, to be given back."""
        return list(self._parked.pop(key, ()))

    def take_all(self) -> list[Delivered]:
        everything = [message for waiting in self._parked.values() for message in waiting]
        self._parked.clear()
        return everything

    def on_lost(self) -> None:
        self.take_all()
        self.given_back.clear()


class GivenBack:
    """Waits for the server to say that it knows."""

    __slots__ = ("_key", "_keys", "_order")

    def __init__(self, keys: Keys, key: str, order: int) -> None:
        self._keys = keys
        self._key = key
        self._order = order

    def done(self) -> bool:
        return False

    def set_result(self, result: None) -> None:
        self._keys.known(self._key, self._order)

    def set_exception(self, exception: Exception) -> None:
        self._keys.known(self._key, self._order)
