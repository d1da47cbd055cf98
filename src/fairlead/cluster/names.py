"""The table of destinations: what a name may be, which are always there, and how managers hear of changes.

A name exists once (CLU-87); deleted and made again it has a new number and a new id, so that nothing sent to the old
one can reach the new one (CLU-88). What is made or removed in one turn is announced to all managers in one command;
until all of them have said `announced` a new destination keeps what is sent to it waiting (ARCHITECTURE, one name
space).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Struct, to_builtins

from fairlead.cluster.destination import Destination
from fairlead.cluster.naming import NAMES_PER_FRAME as NAMES_PER_FRAME
from fairlead.cluster.naming import WELL_KNOWN as WELL_KNOWN
from fairlead.cluster.naming import fixed_id as fixed_id
from fairlead.cluster.outgoing import Link
from fairlead.cluster.parameters import Kind, Parameters
from fairlead.cluster.port import Port
from fairlead.cluster.tasks import Task
from fairlead.errors import BadName, NotAllowed, WrongKind
from fairlead.journal.index import Index, Pool
from fairlead.security.spaces import is_servers
from fairlead.wire.durable import KIND_COMMAND

NAME_MAX: Final = 255
FIRST_NUMBER: Final = 16  # numbers below are for the destinations that are always there
ANNOUNCE_WAIT_MS: Final = 2000
HOLD: Final = "announce"  # why a new destination's task is held

_NAME: Final = re.compile(r"[A-Za-z0-9._\-/:]{1,255}")


WELL_KNOWN_PARAMETERS: Final = {
    "_ADMIN": Parameters(),
    "_LOG": Parameters(retain_messages=10_000),
    "_DMQ": Parameters(delivery_limit=0),
}


def well_known(group: str, index: int) -> dict[str, str]:
    """The names of these destinations in a group: those of the first are the cluster's, others keep their own."""
    return {name: f"{name}.{group}" if index else name for name in WELL_KNOWN if not index or name != "_ADMIN"}


def check_name(name: str, *, reserved: bool = False) -> None:
    """Raise unless it can be the name of a destination or a durable subscription (CLU-177)."""
    if not _NAME.fullmatch(name):
        raise BadName(f"{name[:60]!r} cannot be a name: 1 to {NAME_MAX} letters, digits and `. _ - / :`, nothing else.")
    if is_servers(name) and not reserved:
        raise NotAllowed(f"{name!r} begins with an underscore; such names are reserved for the server.")


class Made(Struct, kw_only=True):
    """A CREATE record, and a line of a snapshot."""

    number: int
    id: str
    name: str
    kind: Kind
    parameters: Parameters
    temporary: str = ""  # id of the session it belongs to, or nothing


@dataclass(slots=True, eq=False)
class Place:
    """A destination in its table."""

    destination: Destination
    task: Task
    owner: bytes = b""  # the session whose temporary destination it is


class Names:
    """All destinations of this message manager."""

    def __init__(self, port: Port, pool: Pool | None = None) -> None:
        self._port = port
        self._pool = pool  # the memory all indexes share; None: each its own, without bound
        self.by_name: dict[str, Place] = {}
        self.by_number: dict[int, Place] = {}
        self.destinations: dict[int, Destination] = {}
        self.next_number = FIRST_NUMBER

    def __len__(self) -> int:
        return len(self.by_name)

    def __iter__(self) -> Iterator[Place]:
        return iter(self.by_number.values())

    def find(self, name: str) -> Destination | None:
        place = self.by_name.get(name)
        return None if place is None else place.destination

    def existing(self, name: str, kind: Kind) -> Place | None:
        """The destination a second request for its making gets; WrongKind if it is of the other kind."""
        place = self.by_name.get(name)
        if place is not None and place.destination.kind != kind:
            raise WrongKind(f"{name!r} is a {place.destination.kind}, not a {kind}.")
        return place

    def apply_create(self, made: Made) -> Place:
        """A CREATE record, when it is written and when it is read again."""
        destination = Destination(
            self._port, made.number, bytes.fromhex(made.id), made.name, made.kind, made.parameters
        )
        if self._pool is not None:
            destination.index = Index(self._pool)
        task = Task(made.name, "destination", destination, destination.turn)
        place = Place(destination, task, bytes.fromhex(made.temporary))
        self.by_name[made.name] = place
        self.by_number[made.number] = place
        self.destinations[made.number] = destination
        self.next_number = max(self.next_number, made.number + 1)
        return place

    def apply_delete(self, number: int) -> Place | None:
        place = self.by_number.pop(number, None)
        self.destinations.pop(number, None)
        if place is not None and self.by_name.get(place.destination.name) is place:
            del self.by_name[place.destination.name]
        return place

    def listed(self) -> list[list[str]]:
        """Name, kind and id of each, as managers are told."""
        return [[one.name, one.kind, one.id.hex()] for one in self.destinations.values()]

    def snapshot(self) -> dict[str, Any]:
        made = [made_of(place) for place in self.by_number.values()]
        return {"next_number": self.next_number, "made": to_builtins(made)}


def made_of(place: Place) -> Made:
    """The CREATE record that would make this destination."""
    it = place.destination
    return Made(
        number=it.number,
        id=it.id.hex(),
        name=it.name,
        kind=it.kind,
        parameters=it.parameters,
        temporary=place.owner.hex(),
    )


class Announcements:
    """Tells the managers what was made and removed, and when all of them know."""

    def __init__(self) -> None:
        self.number = 0
        self._changes: dict[str, tuple[str, str] | None] = {}  # name -> kind and id, or None: removed
        self._then: list[Callable[[], None]] = []  # for the next number
        self._awaited: dict[int, tuple[set[int], list[Callable[[], None]]]] = {}

    def made(self, destination: Destination, then: Callable[[], None]) -> None:
        """Announce it; `then` is called when every manager knows."""
        self._changes[destination.name] = (destination.kind, destination.id.hex())
        self._then.append(then)

    def removed(self, name: str) -> None:
        self._changes[name] = None

    def send(self, links: dict[int, Link]) -> None:
        """What this turn changed, to every manager that has said hello."""
        if not self._changes:
            return
        add = [[name, *facts] for name, facts in self._changes.items() if facts is not None]
        remove = [name for name, facts in self._changes.items() if facts is None]
        then, self._then, self._changes = self._then, [], {}
        listening = [link for link in links.values() if link.manager >= 0]
        for at in range(0, max(len(add), len(remove)), NAMES_PER_FRAME):
            self.number += 1
            facts = {
                "do": "announce",
                "add": add[at : at + NAMES_PER_FRAME],
                "remove": remove[at : at + NAMES_PER_FRAME],
                "number": self.number,
            }
            for link in listening:
                link.json(0, 0, KIND_COMMAND, 0, facts)
        if listening and then:
            self._awaited[self.number] = ({link.number for link in listening}, then)
        else:
            for action in then:
                action()

    def acknowledged(self, link: Link, number: int) -> None:
        """A manager said `announced`; or, with the newest number, will never say it."""
        link.announced = max(link.announced, number)
        for awaited in [one for one in self._awaited if one <= number]:
            who, then = self._awaited[awaited]
            who.discard(link.number)
            if not who:
                del self._awaited[awaited]
                for action in then:
                    action()

    def lost(self, link: Link) -> None:
        self.acknowledged(link, self.number)

    def overdue(self, number: int) -> list[int]:
        """Managers that have not answered this announcement; it is not waited for any longer."""
        found = self._awaited.pop(number, None)
        if found is None:
            return []
        for action in found[1]:
            action()
        return sorted(found[0])
