"""Operations of the directory on their way through a client manager: to the primary of the group that keeps it.

A change goes there or nowhere. A read goes to any member that is in reach while no primary is, and its answer says
that it is stale (DIR-38). Each is answered: when the links to the group end, those under way are told to try again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlead.cluster.client_manager import envelopes
from fairlead.cluster.outgoing import chunks_of, encode_json
from fairlead.directory.rights import is_read
from fairlead.errors import NoDirectory
from fairlead.wire.durable import KIND_ANSWER

if TYPE_CHECKING:
    from fairlead.cluster.client_manager.agent import Agent
    from fairlead.cluster.client_manager.group_link import GroupLink
    from fairlead.cluster.client_manager.managers import Connection, ManagerLink

STALE_S: Final = 3.0  # for a member's answer
PATIENCE_S: Final = 30.0  # for the primary's: whoever asked has given up long before
OPEN_MAX: Final = 100_000  # operations under way; more are refused

Asked = tuple[int, int, int]
"""Slot of the manager, uid of the connection, number of the command."""


def port_of(group: str) -> str:
    return f"directory:{group}"


class DirectoryRoad:
    """The directory as one agent knows it. `group`: who keeps it; empty: nobody."""

    def __init__(self, agent: Agent, group: str = "") -> None:
        self._agent = agent
        self.group = group
        self.members: tuple[str, ...] = ()  # nodes in view that have a copy
        self.asked = self.stale = self.lost = 0
        self._open: dict[Asked, tuple[int, float]] = {}  # index of the connection, until when
        self._reads: dict[int, tuple[Asked, int, float]] = {}  # put to members, by number
        self._number = 0

    def take(
        self, link: ManagerLink, connection: Connection, number: int, request: dict[str, Any], whole: memoryview
    ) -> None:
        group = self._agent.named(self.group)
        if group is None:
            self._refuse(link, connection, number, "This cluster keeps no directory; see [directory] serve.")
        elif len(self._open) + len(self._reads) >= OPEN_MAX:
            self._refuse(link, connection, number, "Too many operations are under way here; try again.")
        elif group.up:
            self.asked += 1
            connection.groups.add(group.index)
            until_s = self._agent.now_s + PATIENCE_S
            self._open[link.slot, connection.uid, number] = connection.index, until_s
            self._agent.put(link.slot, group.index, whole)
        elif is_read(request.get("op")) and self.members:
            self._ask_member(link, connection, number, request)
        else:
            self._refuse(link, connection, number, "No majority of the directory's servers is in reach; try again.")

    def answered(self, slot: int, uid: int, number: int) -> None:
        """An ANSWER or ERROR of a group passes by."""
        if self._open:
            self._open.pop((slot, uid, number), None)

    # --- Stale reads ------------------------------------------------------------------------------------------------
    def _ask_member(self, link: ManagerLink, connection: Connection, number: int, request: dict[str, Any]) -> None:
        asked = link.slot, connection.uid, number
        self._number += 1
        body = encode_json({"number": self._number, "request": request})
        for node in self.members:
            if self._agent.send(node, port_of(self.group), body):
                self._reads[self._number] = asked, connection.index, self._agent.now_s + STALE_S
                self.stale += 1
                return
        self._refuse(link, connection, number, "No server of the directory is in reach; try again.")

    def from_member(self, message: memoryview) -> None:
        """What a member says to a read."""
        try:
            facts = msgspec.json.decode(message, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._agent.dropped += 1
            return
        number, answer = facts.get("number"), facts.get("answer")
        found = self._reads.pop(number, None) if isinstance(number, int) else None
        if found is None:
            return
        (slot, uid, client_number), index, _ = found
        link = self._agent.managers.get(slot)
        if link is None or uid not in link.connections:
            return
        if isinstance(answer, dict):
            for flags, piece in chunks_of(encode_json(answer)):
                link.give(envelopes.packed(uid, index, KIND_ANSWER, number=client_number, flags=flags, body=piece))
        else:
            code, text = str(facts.get("code", NoDirectory.code)), str(facts.get("text", ""))
            link.give(envelopes.error(uid, index, client_number, code, text))

    # --- Losses -----------------------------------------------------------------------------------------------------
    def on_lost(self, group: GroupLink) -> None:
        """The links to a group are over."""
        if group.name == self.group and self._open:
            over, self._open = self._open, {}
            self._give_up(((asked, index) for asked, (index, _) in over.items()), "The directory's primary was lost")

    def on_gone(self, slot: int, uid: int | None = None) -> None:
        """A connection is gone, or all of a manager."""
        if self._open:
            self._open = {key: its for key, its in self._open.items() if not _is_of(key, slot, uid)}
        if self._reads:
            self._reads = {key: its for key, its in self._reads.items() if not _is_of(its[0], slot, uid)}

    def tick(self) -> None:
        now_s = self._agent.now_s
        late = [(asked, index) for asked, (index, until_s) in self._open.items() if until_s <= now_s]
        for asked, _ in late:
            del self._open[asked]
        reads = [number for number, (_, _, until_s) in self._reads.items() if until_s <= now_s]
        late += [self._reads.pop(number)[:2] for number in reads]
        if late:
            self._give_up(late, "The directory did not answer in time")

    def _give_up(self, those: Iterable[tuple[Asked, int]], why: str) -> None:
        for (slot, uid, number), index in those:
            self.lost += 1
            link = self._agent.managers.get(slot)
            if link is not None and uid in link.connections:
                text = f"{why}; what was asked may have been done: ask again."
                link.give(envelopes.error(uid, index, number, NoDirectory.code, text))

    def _refuse(self, link: ManagerLink, connection: Connection, number: int, text: str) -> None:
        link.give(envelopes.error(connection.uid, connection.index, number, NoDirectory.code, text))

    def facts(self) -> dict[str, Any]:
        """For status."""
        return {
            "group": self.group,
            "members": list(self.members),
            "asked": self.asked,
            "stale": self.stale,
            "lost": self.lost,
            "open": len(self._open) + len(self._reads),
        }


def _is_of(asked: Asked, slot: int, uid: int | None) -> bool:
    return asked[0] == slot and uid in (None, asked[1])
