"""The destination manager: makes and deletes destinations, each with its task, and has managers told (CLU-73, CLU-86).

A new destination's task stands still until its CREATE record is safe and every manager has heard of it: so nothing that
is sent to its name is lost between the two roads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fairlead.cluster import records
from fairlead.cluster.destination import Destination
from fairlead.cluster.names import (
    ANNOUNCE_WAIT_MS,
    WELL_KNOWN,
    WELL_KNOWN_PARAMETERS,
    Made,
    check_name,
    fixed_id,
    well_known,
)
from fairlead.cluster.outgoing import encode_json
from fairlead.cluster.parameters import Kind, Parameters
from fairlead.cluster.parties import Line
from fairlead.cluster.retention import retains
from fairlead.cluster.tasks import Command
from fairlead.errors import StoreFull
from fairlead.security.spaces import is_servers, prefix_of
from fairlead.security.spaces import owner as owner_of

if TYPE_CHECKING:
    from fairlead.cluster.core import Core

POSTED: Final = object()  # origin of what was posted: it runs even if its destination is deleted first


class DestinationManager:
    """One per message manager."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._own = well_known(core.group, core.index)
        self._plain = {own: name for name, own in self._own.items()}

    def own_name(self, name: str) -> str:
        """What `_LOG` and `_DMQ`, a tenant's too, are called in this group; any other name is as it is."""
        prefix = prefix_of(owner_of(name))
        return prefix + self._own.get(name.removeprefix(prefix), name.removeprefix(prefix))

    def create(
        self, name: str, kind: Kind, parameters: Parameters, *, owner: bytes = b"", reserved: bool = False
    ) -> Destination:
        """See `Host.create`. Asked for twice, it is made once (CLU-87)."""
        core = self._core
        check_name(name, reserved=reserved)
        existing = core.names.existing(name, kind)
        if existing is not None:
            return existing.destination
        known = WELL_KNOWN.get(self._plain.get(name, ""))
        made = Made(
            number=known[0] if known else core.names.next_number,
            id=(fixed_id(known[0], core.index) if known else core.world.new_id("destination")).hex(),
            name=name,
            kind=kind,
            parameters=parameters,
            temporary=owner.hex(),
        )
        if (tenant := owner_of(name)) and not is_servers(name):
            dead = self.own_name(prefix_of(tenant) + "_DMQ")
            if dead not in core.names.by_name:  # with the first of a tenant comes what takes its dead messages
                self.create(dead, "queue", WELL_KNOWN_PARAMETERS["_DMQ"], reserved=True)
                made.number = core.names.next_number
        index, _ = core.append(records.CREATE, encode_json(made))
        destination = self.adopt(made)
        task = core.names.by_number[made.number].task
        if core.journal.full:
            core.tasks.hold(task, StoreFull.code)
        core.sessions.on_created(destination)
        core.tasks.stop(task)
        core.after(index, lambda: self._announce(destination, lambda: core.tasks.go(task)))
        if not owner:
            core.event("info", "destination-created", f"The {kind} {name!r} was created.", destination=name)
        return destination

    def create_well_known(self) -> None:
        """`_ADMIN`, `_LOG` and `_DMQ` are there from the first start (CLU-176)."""
        for name, own in self._own.items():
            if own not in self._core.names.by_name:
                self.create(own, WELL_KNOWN[name][1], WELL_KNOWN_PARAMETERS[name], reserved=True)

    def adopt(self, made: Made) -> Destination:
        """A CREATE record, when it is written and when it is read again."""
        place = self._core.names.apply_create(made)
        self._core.tasks.add(place.task)
        return place.destination

    def abandon(self, number: int) -> list[Command]:
        """A DELETE record, when it is written and when it is read again; the commands its task has not run."""
        place = self._core.names.apply_delete(number)
        if place is None:
            return []
        self._core.showcase.forget(place.destination)
        return self._core.tasks.remove(place.task)

    def delete(self, destination: Destination, reason: str) -> int:
        """See `Host.delete`. What its task has not run is answered; what was posted to it runs all the same."""
        core = self._core
        index, _ = core.append(records.DELETE, encode_json({"number": destination.number}))
        left = self.abandon(destination.number)
        core.timers.forget(destination)
        core.flow.forget(destination)
        core.own.forget(destination)
        core.sessions.on_deleted(destination, reason)
        core.bulk.on_deleted(destination, reason)
        for cost, _, origin, call, args in left:
            if origin is POSTED:
                core.tasks.put(core.manager_task, cost, POSTED, call, *args)
            elif isinstance(origin, Line):
                core.error(origin, 0, "destination-deleted", reason)
        name = destination.name
        core.after(index, lambda: self._forget_name(name))
        core.event("info", "destination-deleted", f"{name!r} was deleted: {reason}", destination=name)
        return index

    # --- Announcing -----------------------------------------------------------------------------------------------
    def _announce(self, destination: Destination, then: Callable[[], None]) -> None:
        core = self._core
        if core.names.destinations.get(destination.number) is not destination:
            return  # deleted before it was safe
        core.announcements.made(destination, then)
        number = core.announcements.number + 1
        core.call_at(core.now_ms + ANNOUNCE_WAIT_MS, lambda: self._stop_waiting(number))

    def _stop_waiting(self, number: int) -> None:
        core = self._core
        late = core.announcements.overdue(number)
        if late:
            managers = ", ".join(str(core.links[one].manager) for one in late if one in core.links)
            core.event("warning", "announcement-late", f"Managers {managers} did not acknowledge a new destination.")

    def _forget_name(self, name: str) -> None:
        if name not in self._core.names.by_name:
            self._core.announcements.removed(name)

    # --- What the journal asks ------------------------------------------------------------------------------------
    def is_live(self, number: int, first: int, beyond: int) -> bool:
        """Is any message of this range still needed? Asked before a file of the journal is taken back."""
        destination = self._core.names.destinations.get(number)
        return destination is not None and destination.is_live(first, beyond)

    def live_bytes(self, number: int, first: int, beyond: int) -> int:
        """About how much of this range is still needed."""
        destination = self._core.names.destinations.get(number)
        if destination is None or not destination.is_live(first, beyond):
            return 0
        beyond = min(beyond, destination.next)
        each = destination.kept_bytes // max(destination.next - destination.first, 1) + 1
        if retains(destination.parameters):
            return each * (beyond - max(first, destination.first))
        return each * max(
            (sum(high - low for low, high in one.unsettled(first, beyond)) for one in destination.cursors.values()),
            default=0,
        )
