"""Connection managers of this node and their connections, as far as the agent has to know them."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.cluster.outgoing import HIGH_BYTES, Link
from fairlead.cluster.port import Bytes


class Connection:
    """A client's connection that has used the durable road."""

    __slots__ = ("groups", "index", "sessions", "uid")

    def __init__(self, uid: int, index: int) -> None:
        self.uid = uid
        self.index = index
        self.groups: set[int] = set()  # those that know it, or were asked for when they were away
        self.sessions: dict[int, str] = {}  # id of each session, by its number


class ManagerLink(Link):
    """A manager's unix link. Its slot names it on the bus."""

    __slots__ = ("connections", "greeting", "is_known", "told_full")

    def __init__(self, slot: int) -> None:
        super().__init__(slot)
        self.connections: dict[int, Connection] = {}
        self.greeting = 0  # number of the hello that has to be answered; 0: none
        self.is_known = False  # it said hello and was answered: it hears announcements
        self.told_full = False

    @property
    def slot(self) -> int:
        return self.number

    def connection(self, uid: int, index: int) -> Connection:
        found = self.connections.get(uid)
        if found is None:
            found = self.connections[uid] = Connection(uid, index)
        return found

    def give(self, piece: Bytes) -> None:
        """Envelopes and frames, whole."""
        if not self.is_open:
            return
        self.out.append(piece)
        self.bytes += len(piece)
        if self.bytes > HIGH_BYTES:
            self.is_full = True

    def using(self, group: int) -> Iterator[Connection]:
        """Connections that have something to do with a group."""
        return (one for one in self.connections.values() if group in one.groups)
