"""The agent: all connection managers of a node on one side, all groups of the cluster on the other. It only computes.

What travels in bulk is not looked at: every number says its group, so the frames of one read go on in as many slices
as the group changes in them (`demuxing.runs`). Looked at are COMMANDs and what answers them, names, and publishes.
Loss is turned into notices to exactly the connections that relied on what was lost (CLU-62).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from fairlead.cluster.client_manager import envelopes
from fairlead.cluster.client_manager.administration import ADMIN, Administration
from fairlead.cluster.client_manager.commands import Commands
from fairlead.cluster.client_manager.commits import Commits
from fairlead.cluster.client_manager.coordinator import Coordinator
from fairlead.cluster.client_manager.directory import Directory
from fairlead.cluster.client_manager.directory_road import DirectoryRoad
from fairlead.cluster.client_manager.greetings import Greetings
from fairlead.cluster.client_manager.group_link import GroupLink, Sender
from fairlead.cluster.client_manager.link_head import FULL, OWN_SLOT, ROOM, SLOTS
from fairlead.cluster.client_manager.links import Links, object_of
from fairlead.cluster.client_manager.managers import ManagerLink
from fairlead.cluster.client_manager.placement import Group, Placement
from fairlead.cluster.client_manager.questions import AWAY, Questions, Reply, Then
from fairlead.cluster.demux import GROUP_SHIFT, LOOKED_AT, Frame
from fairlead.cluster.demuxing import scan
from fairlead.cluster.naming import WELL_KNOWN
from fairlead.cluster.port import Bytes
from fairlead.wire.durable import KIND_COMMAND
from fairlead.wire.kinds import KIND_PUBLISH

PATIENCE_S: Final = 60.0  # for a group's answer to a question of ours


class Agent:
    """One client manager node's. The edge sets `now_s` before it tells anything."""

    def __init__(
        self,
        node: str,
        groups: Sequence[Group],
        send: Sender,
        coordinator: Coordinator,
        now_s: float,
        *,
        say: Callable[[str, str], None] = lambda level, text: None,
        directory_group: str = "",
    ) -> None:
        self.node = node
        self.now_s = now_s
        self.send = send
        self.say = say
        self.placement = Placement(groups)
        self.groups = [GroupLink(group.name, index, send) for index, group in enumerate(groups)]
        self.directory = Directory(len(groups))
        self.managers: dict[int, ManagerLink] = {}
        self.greetings = Greetings(self, now_s)
        self.links = Links(self)
        self.questions = Questions()
        self.directory_road = DirectoryRoad(self, directory_group)
        self.commands = Commands(self)
        self.commits = Commits(self, coordinator)
        self.administration = Administration(self)
        self._slot = 0
        self._pending: dict[tuple[int, int], list[Bytes]] = {}  # slot and group: what this call sends there
        self.passed_in = self.passed_out = self.dropped = 0

    # --- Who is who -----------------------------------------------------------------------------------------------
    def group_at(self, number: int) -> GroupLink | None:
        """The group whose numbers this is one of."""
        index = number >> GROUP_SHIFT
        return self.groups[index] if 0 <= index < len(self.groups) else None

    def named(self, name: object) -> GroupLink | None:
        index = self.placement.index.get(name) if isinstance(name, str) else None
        return None if index is None else self.groups[index]

    def configure(self, groups: Sequence[Group]) -> None:
        """Other pins, or groups more; those there are keep their places (CLU-188)."""
        had = [group.name for group in self.groups]
        if [group.name for group in groups[: len(had)]] != had:
            raise ValueError("Groups keep their places in the list; new ones come behind them.")
        self.placement = Placement(groups)
        for index in range(len(had), len(groups)):
            self.groups.append(GroupLink(groups[index].name, index, self.send))
        self.directory.grow(len(groups))
        names = [group.name for group in groups]
        if names != had:
            self.links.notify_all(event="groups", groups=names)
            self.links.on_serving(self.links.serving)

    # --- Sending --------------------------------------------------------------------------------------------------
    def put(self, slot: int, group: int, piece: Bytes) -> None:
        """Behind everything that was put there before; it leaves with `flush`, which ends every call from outside."""
        self._pending.setdefault((slot, group), []).append(piece)

    def flush(self) -> None:
        while self._pending:
            pending, self._pending = self._pending, {}
            for (slot, index), pieces in pending.items():
                self.groups[index].data(slot, pieces)
            self.links.look_for_lost()

    def unput(self, is_over: Callable[[int, int], bool]) -> None:
        """What was put to these (told slot and group) is not sent."""
        for key in [key for key in self._pending if is_over(*key)]:
            del self._pending[key]

    def ask(
        self,
        group: str,
        slot: int,
        uid: int,
        index: int,
        command: dict[str, Any],
        then: Then,
        *,
        until_s: float | None = None,
    ) -> None:
        """A command of our own, over a manager's link as that connection's, or over our own link."""
        its = self.named(group)
        if its is None or not its.up:
            then(AWAY)
            return
        limit_s = self.now_s + PATIENCE_S if until_s is None else until_s
        number = self.questions.put(its.index, slot, uid, limit_s, then)
        self.put(slot, its.index, envelopes.command(uid, index, number, command))

    # --- Managers -------------------------------------------------------------------------------------------------
    def manager_opened(self) -> ManagerLink:
        while self._slot in self.managers:
            self._slot = (self._slot + 1) % SLOTS
        link = self.managers[self._slot] = ManagerLink(self._slot)
        self._slot = (self._slot + 1) % SLOTS
        for group in self.groups:
            if group.is_open:
                group.open(link.slot)
        return link

    def manager_lost(self, link: ManagerLink) -> None:
        """Its connections lost their holder, in every group."""
        if self.managers.pop(link.slot, None) is None:
            return
        link.is_open = False
        link.out.clear()
        link.bytes = 0
        for group in self.groups:
            group.close(link.slot)
        self.unput(lambda slot, group: slot == link.slot)
        connections = list(link.connections.values())
        for connection in connections:
            self.commits.on_gone(link, connection)
        link.connections.clear()
        self.directory_road.on_gone(link.slot)
        self.links.forget_sessions(connections)
        self.questions.give_up(lambda _, slot, uid, until_s: slot == link.slot, AWAY)
        self.greetings.on_lost(link)
        self.flush()

    def from_manager(self, link: ManagerLink, view: memoryview, found: list[tuple[int, int, int]]) -> None:
        """What `runs` found in one read. The memory is not needed any more when this returns."""
        for index, start, beyond in found:
            if index == LOOKED_AT:
                self._look(link, view, view[start:beyond], scan(view, start, beyond)[0][0])
            elif index < len(self.groups) and self.groups[index].up:
                self.passed_in += beyond - start
                self.put(link.slot, index, view[start:beyond])
            else:
                self.dropped += 1
                if index >= len(self.groups):
                    self._refuse_all(link, view, start, beyond)
        self.flush()

    def _refuse_all(self, link: ManagerLink, view: memoryview, start: int, beyond: int) -> None:
        for frame in scan(view, start, beyond)[0]:
            text = f"This connection has no handle {frame[4]}."
            link.give(envelopes.error(frame[0], frame[1], frame[4], "unknown-number", text))

    def _look(self, link: ManagerLink, view: memoryview, whole: memoryview, frame: Frame) -> None:
        uid, index, kind, _, number, correlation, _, topic, headers, body, end = frame
        if uid == 0 and kind == KIND_COMMAND:
            self._manager_says(link, number, object_of(view[body:end]))
        elif uid and kind == KIND_COMMAND:
            self.commands.take(link, view, frame, whole)
        elif uid and kind == KIND_PUBLISH:
            name = bytes(view[topic:headers]).decode(errors="replace")
            self._published(link, uid, index, name, view, frame, whole)
        else:
            self.dropped += 1
            link.give(
                envelopes.error(uid, index, number, "bad-request", "Such a frame is not known here.", correlation)
            )

    def _published(
        self, link: ManagerLink, uid: int, index: int, name: str, view: memoryview, frame: Frame, whole: memoryview
    ) -> None:
        """A transient publish to the name of a destination."""
        _, _, _, flags, number, correlation, _, _, headers, body, end = frame
        if name == ADMIN:
            section = bytes(view[headers:body])
            self.administration.on_publish(link, uid, index, section, bytes(view[body:end]))
            return
        entry = self.directory.find(name)
        if entry is None and name in WELL_KNOWN:
            group: GroupLink | None = self.groups[0]
        else:
            group = None if entry is None else self.groups[entry.group]
        if group is None:  # deleted meanwhile: it is a transient topic again
            section, content = bytes(view[headers:body]), bytes(view[body:end])
            link.give(
                envelopes.packed(0, 0, KIND_PUBLISH, flags=flags, topic=name.encode(), headers=section, body=content)
            )
        elif group.up:
            link.connection(uid, index).groups.add(group.index)
            self.put(link.slot, group.index, whole)
        else:
            text = f"Group {group.name!r}, which has {name!r}, is not served at the moment."
            link.give(envelopes.error(uid, index, number, "no-message-manager", text, correlation))

    def connection_gone(self, link: ManagerLink, uid: int, whole: memoryview) -> None:
        """Only the groups that know it are told."""
        connection = link.connections.pop(uid, None)
        if connection is None:
            return
        for group in connection.groups:
            if self.groups[group].up:
                self.put(link.slot, group, whole)
        self.commits.on_gone(link, connection)
        self.questions.give_up(lambda _, slot, its, until_s: (slot, its) == (link.slot, uid), AWAY)
        self.directory_road.on_gone(link.slot, uid)
        self.links.forget_sessions((connection,))

    def has_room(self, link: ManagerLink) -> None:
        """It was full and takes more again."""
        if link.told_full:
            link.told_full = False
            for group in self.groups:
                group.say(ROOM, link.slot)

    def is_full(self, link: ManagerLink) -> None:
        link.told_full = True
        for group in self.groups:
            group.say(FULL, link.slot)

    # --- What managers say about themselves -------------------------------------------------------------------------
    def _manager_says(self, link: ManagerLink, number: int, facts: dict[str, Any]) -> None:
        match facts.get("do"):
            case "hello":
                link.manager = facts["manager"] if isinstance(facts.get("manager"), int) else 0
                self.greetings.on_hello(link, number)
            case "announced" if isinstance(facts.get("number"), int):
                self.greetings.on_announced(link, facts["number"])
            case do:
                self.dropped += 1
                link.give(envelopes.error(0, 0, number, "bad-request", f"There is no link command {do!r:.60}."))

    def note(self, record: dict[str, Any]) -> None:
        """An event for the log of the cluster: the first group that is served keeps it."""
        for group in self.groups:
            if group.up:
                self.put(OWN_SLOT, group.index, envelopes.command(0, 0, 0, {"do": "event", **record}))
                return

    # --- Time -----------------------------------------------------------------------------------------------------
    def tick(self) -> None:
        """Now and then, at least every 100 ms."""
        now_s = self.now_s
        self.links.tick()
        self.greetings.greet()
        self.questions.give_up(lambda group, slot, uid, until_s: until_s <= now_s, Reply(None, "timeout"))
        self.commits.tick()
        self.directory_road.tick()
        self.flush()

    def facts(self) -> dict[str, Any]:
        """For status."""
        return {
            "kind": "cm",
            "node": self.node,
            "view": self.links.view_number,
            "links": [group.facts() for group in self.groups],
            "managers": [
                {
                    "manager": link.manager,
                    "slot": link.slot,
                    "connections": len(link.connections),
                    "waiting": link.bytes,
                }
                for link in self.managers.values()
            ],
            "destinations": len(self.directory),
            "commands": self.commands.taken,
            "refused": self.commands.refused,
            "dropped": self.dropped,
            "interruptions": self.links.interruptions,
            "bytes_in": self.passed_in,
            "bytes_out": self.passed_out,
            "commits": self.commits.coordinator.facts(),
            "directory": self.directory_road.facts(),
        }
