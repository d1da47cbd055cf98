"""Who is there: which lines count, which nodes they make up, when order from one of them was lost.

Of two lines between the same nodes on the same bus only one counts, and the node with the smaller name says which: it
accepts a line or refuses it, and the other waits for that word. So both always use the same one. A line that was
reset does not take its node out of the view: whether the node answers another call does, or the time of detection.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fairlead.bus.handshake import Hello
from fairlead.bus.port import Peer, View
from fairlead.bus.records import Distant, Info

L = TypeVar("L")


class Verdict(enum.Enum):
    """What becomes of a line whose other end has shown who it is."""

    ACCEPT = "accept"
    AWAIT = "await"  # the other end decides
    BUSY = "busy"  # there is one already; try again if it is dead
    OLDER = "older"  # a later life of that node is here
    OURSELVES = "ourselves"
    TWIN = "twin"  # somebody else has our name


class End(enum.Enum):
    """Why a line is no more."""

    LEFT = "left"
    RESET = "reset"
    SILENT = "silent"
    SLOW = "slow"
    DEAD = "dead"
    REPLACED = "replaced"


@dataclass(eq=False, slots=True)
class Fellow(Generic[L]):
    """Another node that we have a line to, or had one a moment ago."""

    name: str
    start: int
    since: int = 0
    buses: tuple[str, ...] = ()
    channels: frozenset[str] = frozenset()
    tag: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, L] = field(default_factory=dict)  # by bus; those that count, some not up yet
    up: dict[str, L] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    suspect_until_s: float = 0.0
    out: L | None = None  # where our messages to it go
    into: L | None = None  # where its messages come from
    used: bool = False  # order has been promised since it was last broken
    number: int = 0
    members: bytes = b""


class Membership(Generic[L]):
    """Told about lines, it keeps the view. `broken`, `ended` and `redial` are lists the edge empties."""

    def __init__(
        self, node: str, start: int, buses: tuple[str, ...], tag: dict[str, Any], clock_ns: Callable[[], int]
    ) -> None:
        self.node, self.start = node, start
        self.fellows: dict[str, Fellow[L]] = {}
        self.channels: set[str] = set()
        self.tag: dict[str, Any] = dict(tag)
        self.view = View(0, {})
        self.broken: list[str] = []
        self.ended: list[tuple[L, End]] = []  # lines to close
        self.redial: list[tuple[str, str]] = []  # bus and address to call at once
        self.view_changed = True
        self._buses = buses
        self._clock_ns = clock_ns
        self._since = clock_ns()
        self._given_up: set[tuple[str, int]] = set()
        self._distant: dict[str, dict[str, Distant]] = {}  # by the node that told us
        self._routes: dict[str, str] = {}  # to distant nodes
        self._arrivals: dict[str, str] = {}  # from distant nodes
        self._members = b""
        self.refresh()

    # Lines

    def judge(self, line: L, bus: str, hello: Hello, *, dialled: bool) -> Verdict:
        """The other end has proved itself. ACCEPT takes the line in; it is up when the other's `info` has come."""
        if hello.node == self.node:
            return Verdict.OURSELVES if hello.start == self.start else Verdict.TWIN
        fellow = self.fellows.get(hello.node)
        if fellow is not None and hello.start != fellow.start:
            if hello.start < fellow.start and fellow.up:
                return Verdict.OLDER
            self._drop(fellow, End.REPLACED)
            fellow = None
        if self.node > hello.node:
            return Verdict.AWAIT
        if fellow is not None and bus in fellow.lines:
            return Verdict.BUSY
        self._attach(line, bus, hello)
        return Verdict.ACCEPT

    def accepted(self, line: L, bus: str, hello: Hello) -> None:
        """The one who decides has taken this line, so any other on this bus is dead."""
        fellow = self.fellows.get(hello.node)
        if fellow is not None and bus in fellow.lines and fellow.lines[bus] is not line:
            older = fellow.lines[bus]
            self._detach(fellow, bus)
            self.ended.append((older, End.REPLACED))
        self._attach(line, bus, hello)

    def informed(self, line: L, bus: str, name: str, info: Info, address: str) -> bool:
        """What the other end says about itself. True: with that the line is up."""
        fellow = self.fellows.get(name)
        if fellow is None or fellow.lines.get(bus) is not line:
            return False
        fellow.since, fellow.tag = info.since, info.tag
        fellow.buses, fellow.channels = tuple(info.buses), frozenset(info.channels)
        fellow.number, fellow.members = info.number, info.members
        rose = bus not in fellow.up
        if rose:
            fellow.up[bus] = line
            fellow.addresses[bus] = address
            fellow.suspect_until_s = 0.0
            self._given_up = {one for one in self._given_up if one[0] != name}
            if fellow.out is None:
                self._use(fellow, line)
            if info.gave_up:  # we are newcomers to it, and so our rank is the last
                others = [one.since for one in self.fellows.values()]
                self._since = max(self._clock_ns(), max(others) + 1)
        self.refresh()
        return rose

    def switch(self, line: L, name: str) -> None:
        """From now on that node's messages come on this line; the one they came on is dead, if we know it or not."""
        fellow = self.fellows.get(name)
        if fellow is None:
            return
        for bus, older in list(fellow.up.items()):
            if older is fellow.into and older is not line:
                self._detach(fellow, bus)
                self.ended.append((older, End.REPLACED))
        fellow.into = line
        fellow.used = True

    def closed(self, line: L, bus: str, name: str, end: End, until_s: float = 0.0) -> None:
        """A line is gone. After a RESET the node has until then to answer again."""
        fellow = self.fellows.get(name)
        if fellow is None or fellow.lines.get(bus) is not line:
            return
        was_up = bus in fellow.up
        if end is End.LEFT:
            fellow.used = False  # nothing was lost: it said goodbye behind all it had to say
        self._detach(fellow, bus)
        if fellow.up:
            if end is End.DEAD:
                self._drop(fellow, end)
        elif end is End.RESET and was_up:
            fellow.suspect_until_s = until_s
            self.redial.extend(fellow.addresses.items())
        elif not fellow.lines and not fellow.suspect_until_s:
            self._forget(fellow, end)
        self.refresh()

    def refused(self, address: str) -> None:
        """Nobody listens there any more: a node that was only doubted is gone."""
        for fellow in list(self.fellows.values()):
            if fellow.suspect_until_s and not fellow.lines and address in fellow.addresses.values():
                self._forget(fellow, End.DEAD)
        self.refresh()

    def dead(self, name: str, start: int) -> bool:
        """Its keeper says so."""
        fellow = self.fellows.get(name)
        if fellow is None or fellow.start != start:
            return False
        self._drop(fellow, End.DEAD)
        self.refresh()
        return True

    def tick(self, now_s: float) -> None:
        for fellow in list(self.fellows.values()):
            if fellow.suspect_until_s and not fellow.lines and now_s >= fellow.suspect_until_s:
                self._forget(fellow, End.SILENT)
                self.refresh()

    # What is told

    def info(self, bus: str, name: str, start: int, stream: bytes = b"", position: int = 0, listener: str = "") -> Info:
        """What that node should know about us."""
        peers = {one.name: one.addresses[bus] for one in self.fellows.values() if bus in one.up and one.name != name}
        return Info(
            since=self._since,
            buses=list(self._buses),
            channels=sorted(self.channels),
            tag=self.tag,
            peers=peers,
            number=self.view.number,
            members=self._members,
            gave_up=(name, start) in self._given_up,
            stream=stream,
            position=position,
            listener=listener,
        )

    def distant(self, bus: str) -> list[Distant]:
        """Whom the nodes of this bus do not see, and we do."""
        return [
            Distant(one.name, one.start, one.since, list(one.buses), sorted(one.channels), one.tag)
            for one in self.fellows.values()
            if one.up and bus not in one.buses
        ]

    def told_distant(self, name: str, distant: list[Distant]) -> None:
        """That node says whom it sees beyond our buses."""
        before = self._distant.get(name, {})
        self._distant[name] = {
            one.node: one for one in distant if one.node != self.node and not set(one.buses) & set(self._buses)
        }
        for node, one in before.items():
            after = self._distant[name].get(node)
            if (after is None or after.start != one.start) and self._routes.get(node) == name:
                self._unroute(node)
        self.refresh()

    def route(self, node: str) -> str | None:
        """Which fellow passes on to that distant node; always the same one while it is there."""
        if node not in self._routes:
            ways = [name for name, told in self._distant.items() if node in told and self._is_up(name)]
            if not ways:
                return None
            self._routes[node] = min(ways)
        return self._routes[node]

    def came_by(self, node: str, way: str) -> None:
        """A distant node's message was passed on by that fellow; while it is there, by none else."""
        if self._arrivals.get(node, way) != way:
            self.broken.append(node)
        self._arrivals[node] = way

    def distant_listeners(self, channel: str) -> Iterator[str]:
        """Members of the channel that only others can reach."""
        for node in self.view.peers:
            if any(channel in told[node].channels for told in self._distant.values() if node in told):
                yield node

    def refresh(self) -> None:
        """Make the view what it now is."""
        seen: dict[str, tuple[int, int, tuple[str, ...], str, dict[str, Any]]] = {
            self.node: (self._since, self.start, self._buses, "", self.tag)
        }
        for teller, told in self._distant.items():
            if self._is_up(teller):
                for one in told.values():
                    seen[one.node] = (one.since, one.start, tuple(one.buses), "", one.tag)
        for one_here in self.fellows.values():
            if one_here.up or one_here.suspect_until_s:
                buses = tuple(bus for bus in one_here.buses if bus in one_here.up or bus not in self._buses)
                address = next(iter(one_here.addresses.values()), "")
                seen[one_here.name] = (one_here.since, one_here.start, buses, address, one_here.tag)
        ranked = sorted(seen, key=lambda name: (seen[name][0], name))
        peers = {
            name: Peer(name, seen[name][1], rank, seen[name][2], seen[name][3], dict(seen[name][4]))
            for rank, name in enumerate(ranked)
        }
        members = digest(peers)
        number = self.view.number
        if members != self._members:
            number += 1
        agreed = [one.number for one in self.fellows.values() if one.up and one.members == members]
        number = max([number, *agreed])
        if number != self.view.number or peers != self.view.peers:
            self.view = View(number, peers)
            self._members = members
            self.view_changed = True

    # Within

    def _attach(self, line: L, bus: str, hello: Hello) -> None:
        fellow = self.fellows.get(hello.node)
        if fellow is None:
            fellow = self.fellows[hello.node] = Fellow(hello.node, hello.start)
        fellow.lines[bus] = line

    def _detach(self, fellow: Fellow[L], bus: str) -> None:
        line = fellow.lines.pop(bus)
        fellow.up.pop(bus, None)
        if line is fellow.out or line is fellow.into:
            self._break(fellow)
            if fellow.up:
                self._use(fellow, fellow.out or next(iter(fellow.up.values())))

    def _use(self, fellow: Fellow[L], line: L) -> None:
        fellow.out = line
        fellow.used = True

    def _break(self, fellow: Fellow[L]) -> None:
        """Order begins anew, both ways; told once, however it came to that.

        The two directions may use two lines. Of these the one that is still up stays in use: it was announced once, and
        the other end, which may not have noticed anything, does not announce it again.
        """
        if fellow.used:
            self.broken.append(fellow.name)
        fellow.used = False
        if fellow.into not in fellow.up.values():
            fellow.into = None
        if fellow.out not in fellow.up.values():
            fellow.out = None

    def _drop(self, fellow: Fellow[L], end: End) -> None:
        for bus, line in list(fellow.lines.items()):
            fellow.lines.pop(bus)
            fellow.up.pop(bus, None)
            self.ended.append((line, end))
        self._break(fellow)
        self._forget(fellow, end)

    def _forget(self, fellow: Fellow[L], end: End) -> None:
        self._break(fellow)
        self.fellows.pop(fellow.name, None)
        if end in (End.SILENT, End.SLOW):
            self._given_up.add((fellow.name, fellow.start))
        self._distant.pop(fellow.name, None)
        for node in [node for node, way in self._routes.items() if way == fellow.name]:
            self._unroute(node)
        for node in [node for node, way in self._arrivals.items() if way == fellow.name]:
            self._unroute(node)

    def _unroute(self, node: str) -> None:
        """What was passed on may be lost, either way."""
        self._routes.pop(node, None)
        self._arrivals.pop(node, None)
        self.broken.append(node)

    def _is_up(self, name: str) -> bool:
        return name in self.fellows and bool(self.fellows[name].up)


def digest(peers: dict[str, Peer]) -> bytes:
    """Equal for equal sets of nodes in equal lives."""
    text = "\n".join(f"{name} {peers[name].start}" for name in sorted(peers))
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
