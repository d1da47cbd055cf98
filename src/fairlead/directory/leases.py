"""Signs of life of brokers: who has not renewed for a lease's length is not there any more (DIR-22).

Kept by the primary alone and in no log: whoever begins to lead gives all that were alive a whole lease, so a change of
primary never takes a broker that lives for a dead one; a dead one is noticed a lease later at most. The same holds for
a primary that slept: who could not be heard is not dead.
"""

from __future__ import annotations

from collections.abc import Iterable


class Leases:
    def __init__(self, length_ms: int) -> None:
        self.length_ms = length_ms
        self._until: dict[str, int] = {}  # all have the same length: the one that ends first is the first

    def begin(self, names: Iterable[str], now_ms: int) -> None:
        self._until = dict.fromkeys(names, now_ms + self.length_ms)

    def renew(self, name: str, now_ms: int) -> None:
        self._until.pop(name, None)
        self._until[name] = now_ms + self.length_ms

    def forget(self, name: str) -> None:
        self._until.pop(name, None)

    def over(self, now_ms: int) -> list[str]:
        """Who did not renew in time; told until forgotten: a record that could not be written is tried again."""
        if (due := self.next_ms) is not None and now_ms - due > max(1000, self.length_ms // 3):
            self.begin(list(self._until), now_ms)  # nobody was listening when it was due
        found = []
        for name, until in self._until.items():
            if until > now_ms:
                break
            found.append(name)
        return found

    @property
    def next_ms(self) -> int | None:
        return next(iter(self._until.values()), None)

    def left_s(self, now_ms: int) -> dict[str, float]:
        return {name: max(0, until - now_ms) / 1000 for name, until in self._until.items()}
