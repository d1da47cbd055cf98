"""Before a planned end of leading: deliveries stop, consumers finish what they have, and the log says exactly what may
have been delivered, so that whoever leads next marks nothing else as redelivered (CLU-34)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fairlead.cluster import records

if TYPE_CHECKING:
    from fairlead.cluster.core import Core
    from fairlead.cluster.cursor import Cursor
    from fairlead.cluster.destination import Destination


class Draining:
    """One core's, from its beginning on; messages are accepted and settled meanwhile."""

    def __init__(self, core: Core) -> None:
        self._core = core
        for home in core.destinations.values():
            home.halted = True

    @property
    def is_done(self) -> bool:
        """Does no consumer that is here hold anything?"""
        cursors = (cursor for home in self._core.destinations.values() for cursor in home.cursors.values())
        return not any(share.locked for cursor in cursors for share in cursor.shares)

    def settle(self) -> None:
        """Write down how far deliveries have gone; nothing is delivered until `abandon`, or by another core."""
        for home in self._core.destinations.values():
            for cursor in home.cursors.values():
                if cursor.durable:
                    _lower(home, cursor)

    def abandon(self) -> None:
        """It goes on here after all: deliveries begin again when what `settle` wrote is safe."""
        for home in self._core.destinations.values():
            self._core.after(home.last_index, partial(self._resume, home))

    def _resume(self, home: Destination) -> None:
        home.halted = False
        self._core.ready(home)


def _lower(home: Destination, cursor: Cursor) -> None:
    mark = cursor.floor
    for held in (*(share.locked for share in cursor.all_shares()), cursor.taken):
        mark = max(mark, *(beyond for _, beyond in held), 0)
    if mark >= cursor.mark:
        return
    index, _ = home.port.append(records.MARK, records.MARK_RECORD.pack(home.number, cursor.number, mark))
    home.last_index = index
    cursor.mark = mark

    def safe() -> None:  # after those of earlier, higher marks
        cursor.mark_safe = mark

    home.port.after(index, safe)
