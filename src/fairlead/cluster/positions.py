"""Where readers in bulk stand: `positions` of one destination or of all that a pattern stands for, and `plan`.

Both are asked often, by programs that wait for messages: a pattern is looked up once as long as no name comes or goes.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from fairlead.cluster import requests
from fairlead.cluster.naming import is_pattern
from fairlead.cluster.readable import bounds
from fairlead.cluster.retention import retains
from fairlead.cluster.subscriptions import fits
from fairlead.errors import NoDestination, TooMany

if TYPE_CHECKING:
    from fairlead.cluster.core import Core
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.parties import Line

DESTINATIONS_MAX: Final = 10_000
PATTERNS_MAX: Final = 256  # remembered
NO_LIMIT: Final = 1 << 62


class Questions:
    """A part of `Bulk`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._matching: dict[str, list[Destination]] = {}
        self._names = (0, 0)  # in which state they were matched
        self.commands = {"positions": self._positions, "plan": self._plan}

    def _positions(self, line: Line, number: int, request: dict[str, Any]) -> None:
        asked = requests.read(request, requests.Positions)
        found = [self._facts(home, asked.ms) for home in self._matches(asked.destination)]
        self._core.answer(line, number, {"destinations": found, "now_ms": self._core.now_ms})

    def _facts(self, home: Destination, ms: int | None) -> dict[str, Any]:
        first, beyond, low = bounds(home)
        keeps = retains(home.parameters)
        facts: dict[str, Any] = {
            "name": home.name,
            "kind": home.kind,
            "id": home.id.hex(),
            "first": first,
            "next": beyond,
            "low": low,
            "retains": keeps,
            "bytes": home.kept_bytes if keeps else home.bytes,
        }
        if ms is not None:
            facts["at"] = min(max(home.index.at_time(ms), first), beyond)
        return facts

    def _matches(self, text: str) -> list[Destination]:
        if not is_pattern(text):
            return [found(self._core, text)]
        names = self._core.names
        state = (names.next_number, len(names))
        if state != self._names or len(self._matching) >= PATTERNS_MAX:
            self._matching.clear()
            self._names = state
        matching = self._matching.get(text)
        if matching is None:
            matching = [one for one in names.destinations.values() if fits(text, one.name)]
            if len(matching) > DESTINATIONS_MAX:
                raise TooMany(f"{text!r} stands for {len(matching)} destinations; {DESTINATIONS_MAX} can be asked for.")
            self._matching[text] = matching
        return matching

    def _plan(self, line: Line, number: int, request: dict[str, Any]) -> None:
        asked = requests.read(request, requests.Plan)
        home = found(self._core, asked.destination)
        first, beyond, _ = bounds(home)
        begin = min(max(asked.first, first), beyond)
        end = plan(home, begin, beyond, asked.messages or NO_LIMIT, asked.bytes or NO_LIMIT)
        self._core.answer(line, number, {"end": end, "first": first, "next": beyond})

    def on_gone(self, line: Line) -> None:
        """Nothing is kept of a connection."""

    def on_deleted(self, destination: Destination, reason: str) -> None:
        self._matching.clear()


def plan(home: Destination, begin: int, beyond: int, messages: int, size: int) -> int:
    """How far to read without going over a limit; at least one message. Where nothing limits it, all of it."""
    if begin >= beyond or (messages == NO_LIMIT and size == NO_LIMIT):
        return beyond
    groups, end, left = home.index.select(array("Q", (begin, beyond)), messages, size)
    if groups and left < 0:  # the last record goes over it
        last = groups[-1].rows[-5]
        return last if last > begin else _share(groups[-1].rows, begin, end, size)
    return end


def _share(rows: array[int], begin: int, end: int, size: int) -> int:
    """One record alone goes over the limit: the part of it that does not, by its average message."""
    each = max(1, (rows[-3] & 0xFFFF_FFFF) // max(rows[-3] >> 32, 1))
    return min(end, begin + max(1, size // each))


def found(core: Core, name: str) -> Destination:
    destination = core.find(name)
    if destination is None:
        raise NoDestination(f"There is no queue or topic {name!r}.")
    return destination
