"""Administrative messages this adapter knows in full: to be fetched by id (STR-67), or handed to a backup (STR-70)."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from fairlead.feeds.records import Place
from fairlead.feeds.words import Admin, AskedAdmin

__all__ = ["SentAdmins"]

KEPT_MAX = 4096
KEPT_BYTES_MAX = 32 * 1024 * 1024
HANDED_MAX = 1024
HANDED_BYTES_MAX = 2 * 1024 * 1024  # of one word on the link
EACH_BYTES = 256  # an allowance for what is around a body


class SentAdmins:
    """The newest of them, bounded by number and bytes."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[int, Admin, str, Place]] = OrderedDict()
        self._bytes = 0

    def __contains__(self, admin: str) -> bool:
        return admin in self._kept

    def keep(self, number: int, admin: Admin, source: str, place: Place) -> None:
        """`number` 0: it was not sent here, but may be fetched."""
        self._drop(admin.id)
        self._kept[admin.id] = (number, admin, source, place)
        self._bytes += len(admin.body) + EACH_BYTES
        while len(self._kept) > KEPT_MAX or (self._bytes > KEPT_BYTES_MAX and len(self._kept) > 1):
            self._drop(next(iter(self._kept)))

    def _drop(self, admin: str) -> None:
        if admin in self._kept:
            self._bytes -= len(self._kept.pop(admin)[1].body) + EACH_BYTES

    def find(self, admin: str) -> tuple[Admin, str, Place] | None:
        found = self._kept.get(admin)
        return found and found[1:]

    def moved(self, shift: int) -> None:
        """All numbers have moved."""
        for id_, (number, admin, source, place) in self._kept.items():
            if number:
                self._kept[id_] = (max(0, number + shift), admin, source, place)

    def newest(self, count: int) -> tuple[tuple[str, str, Place], ...]:
        """Id and place of those sent here last."""
        recent = list(islice(reversed(self._kept.values()), 2 * count))
        return tuple((admin.id, source, place) for number, admin, source, place in recent if number)[:count]

    def since(self, number: int) -> AskedAdmin:
        """Those sent here at this number or later, the newest as far as they fit in one word."""
        chosen: list[tuple[int, Admin, str, tuple[int, int, int]]] = []
        size = 0
        for at, admin, source, place in reversed(self._kept.values()):
            if not at or at < number:
                continue
            size += len(admin.body) + EACH_BYTES
            if size > HANDED_BYTES_MAX or len(chosen) == HANDED_MAX:
                break
            chosen.append((at, admin, source, place))
        return AskedAdmin(sent=tuple(sorted(chosen, key=lambda sent: sent[0])))
