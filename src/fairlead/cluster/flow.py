"""Flow control of the whole: full command queues, a full store, full links; who is told, and when it is over.

A destination's own limits are its own business (`Destination.blocked`). Here are the reasons from outside of it.
Producers are told with the first reason and released with the last (CLU-66, CLU-103, CLU-104).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from fairlead.cluster.outgoing import Link
from fairlead.cluster.parties import Consumer, Producer
from fairlead.errors import StoreFull

if TYPE_CHECKING:
    from fairlead.cluster.core import Core
    from fairlead.cluster.destination import Destination

QUEUE: Final = "queue"  # too many commands wait for the destination
FULL: Final = StoreFull.code


class Flow:
    """What is blocked, and why."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._over: set[int] = set()  # destinations above their queue's mark
        self.store_text = ""  # why the store is full; empty: it is not
        self.blocks = 0
        self.stalls = 0  # times a link had no room

    def is_blocked(self, destination: Destination) -> bool:
        return bool(self.store_text) or destination.number in self._over

    # --- Command queues -------------------------------------------------------------------------------------------
    def over_mark(self, destination: Destination, over: bool) -> None:
        if over:
            was_blocked = self._core.is_blocked(destination)
            self._over.add(destination.number)
            if not was_blocked:
                self._block(destination, QUEUE)
        else:
            self._over.discard(destination.number)
            self._unblock(destination)

    def forget(self, destination: Destination) -> None:
        self._over.discard(destination.number)

    # --- The store ------------------------------------------------------------------------------------------------
    def store_full(self, text: str) -> None:
        """No room on stable storage: sends wait, everything else goes on."""
        if self.store_text:
            return
        blocked = {place.destination.number for place in self._core.names if self._core.is_blocked(place.destination)}
        self.store_text = text or "There is no room left on stable storage."
        for place in self._core.names:
            self._core.tasks.hold(place.task, FULL)
            if place.destination.number not in blocked:
                self._block(place.destination, FULL)
        self._core.event("error", FULL, self.store_text)

    def store_room(self) -> None:
        if not self.store_text:
            return
        self.store_text = ""
        for place in self._core.names:
            self._core.tasks.release(place.task, FULL)
            self._unblock(place.destination)
        self._core.event("info", "store-room", "There is room on stable storage again.")

    # --- Links ----------------------------------------------------------------------------------------------------
    def link_full(self, link: Link) -> None:
        """A manager does not take what is for it: its consumers get no more until it does; others do."""
        found = False
        for consumer in consumers_of(link):
            found |= not consumer.stalled
            consumer.stalled = True
        if found:
            self.stalls += 1

    def link_room(self, link: Link) -> None:
        for consumer in consumers_of(link):
            if consumer.stalled:
                consumer.stalled = False
                self._core.ready(consumer.destination)

    # --- Telling --------------------------------------------------------------------------------------------------
    def _block(self, destination: Destination, code: str) -> None:
        self.blocks += 1
        for producer in self._producers(destination):
            producer.told_blocked = True
            facts = {"destination": destination.name, "producer": producer.handle, "code": code}
            self._core.notice(producer.session, event="blocked", **facts)

    def _unblock(self, destination: Destination) -> None:
        if self._core.is_blocked(destination):
            return
        for producer in self._producers(destination):
            if producer.told_blocked:
                producer.told_blocked = False
                facts = {"destination": destination.name, "producer": producer.handle}
                self._core.notice(producer.session, event="unblocked", **facts)

    def _producers(self, destination: Destination) -> Iterator[Producer]:
        for session in self._core.sessions.by_id.values():
            producer = session.producers.get(destination.number)
            if producer is not None:
                yield producer

    def facts(self) -> dict[str, Any]:
        """For `flow`."""
        names = self._core.names.destinations
        return {
            "store_full": self.store_text,
            "blocked": sorted(one.name for one in names.values() if self._core.is_blocked(one)),
            "over_mark": sorted(names[number].name for number in self._over if number in names),
            "blocks": self.blocks,
            "links": [
                {"manager": link.manager, "waiting_bytes": link.bytes, "full": link.is_full}
                for link in self._core.links.values()
            ],
            "stalls": self.stalls,
        }


def consumers_of(link: Link) -> Iterator[Consumer]:
    for line in link.lines.values():
        for party in line.handles.values():
            if isinstance(party, Consumer):
                yield party
