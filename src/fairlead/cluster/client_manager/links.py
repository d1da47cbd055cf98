"""The agent's side of the groups: links follow the view, what comes over them goes to managers (docs/cluster.md, 5).

All that is for clients goes on in one piece, except the few answers that are ours: to questions of the agent itself,
and to `session`, which we complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlead.cluster.client_manager import envelopes
from fairlead.cluster.client_manager.group_link import HELLO_S, RETRY_S, GroupLink, Served
from fairlead.cluster.client_manager.link_head import DATA, LINK_HEAD, OWN_SLOT, REFUSED
from fairlead.cluster.client_manager.managers import Connection, ManagerLink
from fairlead.cluster.client_manager.questions import AWAY, FIRST_NUMBER, Reply
from fairlead.cluster.demux import GROUP_SHIFT, LOOKED_AT, Frame
from fairlead.cluster.demuxing import runs, scan
from fairlead.errors import RemoteProtocolError
from fairlead.wire.durable import KIND_ANSWER, KIND_COMMAND
from fairlead.wire.headers import decode_headers
from fairlead.wire.kinds import KIND_ERROR, KIND_PUBLISH

if TYPE_CHECKING:
    from fairlead.cluster.client_manager.agent import Agent

HELLO: Final = 1  # number of the one question that is not put through `ask`


class Links:
    """All groups' links of one agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.serving: Mapping[str, Served] = {}
        self.nodes: tuple[str, ...] = ()
        self.view_number = 0
        self.interruptions = 0
        self._sessions: dict[tuple[int, int, int, int], Connection] = {}  # group, slot, uid, number of a `session`

    def look_for_lost(self) -> None:
        for group in self._agent.groups:
            if group.lost:
                self._lose(group, "its node is gone")

    def forget_sessions(self, connections: Iterable[Connection]) -> None:
        """Nobody waits for these answers any more."""
        if self._sessions:
            gone = set(map(id, connections))
            self._sessions = {key: one for key, one in self._sessions.items() if id(one) not in gone}

    def tick(self) -> None:
        now_s = self._agent.now_s
        for group in self._agent.groups:
            if group.is_open and not group.up and group.deadline_s <= now_s:
                self._lose(group, "it did not answer")
        for group in self._agent.groups:
            if group.served is None and group.deadline_s <= now_s and group.name in self.serving:
                self.on_serving(self.serving)
                return

    # --- Who serves ---------------------------------------------------------------------------------------------------
    def on_view(self, number: int, nodes: Iterable[str], serving: Mapping[str, Served]) -> None:
        """Who is there, and which node says that it serves which group."""
        self.view_number, self.nodes = number, tuple(nodes)
        self.on_serving(serving)

    def on_serving(self, serving: Mapping[str, Served]) -> None:
        self.serving = serving
        for group in self._agent.groups:
            served = serving.get(group.name)
            if served == group.served and (group.is_open or served is None):
                continue
            if group.served is not None:
                self._lose(group, f"{served.node if served else 'nobody'} serves it now")
            if served is not None and group.served is None:
                self._open(group, served)
        self._agent.greetings.greet()
        self.look_for_lost()
        self._agent.flush()

    def on_broken(self, node: str) -> None:
        """Order from and to that node begins anew: so do links."""
        for group in self._agent.groups:
            if group.served is not None and group.served.node == node:
                self._lose(group, "the bus lost its order")
        self.on_serving(self.serving)

    def _open(self, group: GroupLink, served: Served) -> None:
        group.served = served
        group.deadline_s = self._agent.now_s + HELLO_S
        group.open(OWN_SLOT)
        hello = {"do": "hello", "manager": OWN_SLOT, "generation": 0, "pid": 0, "node": self._agent.node}
        group.data(OWN_SLOT, [envelopes.command(0, 0, HELLO, hello)])
        for slot in self._agent.managers:
            group.open(slot)

    def _lose(self, group: GroupLink, why: str) -> None:
        """Its links are over; whoever used them hears it."""
        was_up, node = group.up, group.served.node if group.served else ""
        group.served = None
        group.forget()
        group.deadline_s = self._agent.now_s + RETRY_S
        self._agent.unput(lambda slot, index: index == group.index)
        self._sessions = {key: one for key, one in self._sessions.items() if key[0] != group.index}
        if was_up:
            self.interruptions += 1
            self._agent.say("warning", f"the links to group {group.name!r} at {node} are over: {why}")
            self._notify(group, "interrupted")
            self._end_sessions(group)
            self._agent.commits.on_lost(group.name)
        self._agent.directory_road.on_lost(group)
        self._agent.questions.give_up(lambda index, slot, uid, until_s: index == group.index, AWAY)

    def _notify(self, group: GroupLink, event: str) -> None:
        for link in self._agent.managers.values():
            for connection in link.using(group.index):
                link.give(envelopes.notice(connection.uid, connection.index, event=event, group=group.name))

    def _end_sessions(self, group: GroupLink) -> None:
        for link in self._agent.managers.values():
            for connection in link.using(group.index):
                for number in [one for one in connection.sessions if one >> GROUP_SHIFT == group.index]:
                    del connection.sessions[number]

    def notify_all(self, **facts: Any) -> None:
        for link in self._agent.managers.values():
            for connection in link.connections.values():
                link.give(envelopes.notice(connection.uid, connection.index, **facts))

    def from_group(self, name: str, node: str, message: memoryview) -> None:
        """One message of the port `link:GROUP`."""
        group = self._agent.named(name)
        if group is None or len(message) < LINK_HEAD.size:
            self._agent.dropped += 1
            return
        what, slot, generation, _ = LINK_HEAD.unpack_from(message)
        if not group.is_current(node, slot, generation):
            self._agent.dropped += 1
            return
        if what == REFUSED:
            self._lose(group, f"{node} does not lead it")
        elif what == DATA:
            self._take(group, slot, message)
        self._agent.flush()

    def _take(self, group: GroupLink, slot: int, message: memoryview) -> None:
        try:
            found, used = runs(message, LINK_HEAD.size, len(message), False)
            if used != len(message):
                raise RemoteProtocolError("A message ends inside a frame.")
        except RemoteProtocolError as fault:
            self._agent.say(
                "error", f"group {group.name!r} at {group.served.node if group.served else ''}: {fault.text}"
            )
            self._lose(group, fault.text)
            return
        link = self._agent.managers.get(slot)
        if slot == OWN_SLOT:
            for _, start, beyond in found:
                for frame in scan(message, start, beyond)[0]:
                    self._own(group, message, frame)
        elif link is not None:
            self._pass_on(group, link, message, found)

    def _pass_on(
        self, group: GroupLink, link: ManagerLink, view: memoryview, found: list[tuple[int, int, int]]
    ) -> None:
        """To the manager, all in one piece except what is ours."""
        first = LINK_HEAD.size
        for index, start, beyond in found:
            if index != LOOKED_AT:
                continue
            frame = scan(view, start, beyond)[0][0]
            if self._is_ours(group, link, frame):
                if start > first:
                    link.give(bytes(view[first:start]))
                first = beyond
                self._answered(group, link, view, frame)
        if len(view) > first:
            link.give(bytes(view[first:]))
        self._agent.passed_out += len(view)
        if link.is_full and not link.told_full:
            self._agent.is_full(link)

    def _is_ours(self, group: GroupLink, link: ManagerLink, frame: Frame) -> bool:
        """Does it answer a question of ours, or a `session`, whose answer we complete?"""
        uid, kind, number = frame[0], frame[2], frame[4]
        if kind in (KIND_ANSWER, KIND_ERROR):
            self._agent.directory_road.answered(link.slot, uid, number)
            return number >= FIRST_NUMBER or (group.index, link.slot, uid, number) in self._sessions
        return uid == 0 and kind != KIND_PUBLISH  # about the link itself; publishes are for the manager

    def _answered(self, group: GroupLink, link: ManagerLink, view: memoryview, frame: Frame) -> None:
        uid, index, kind, _, number, _, _, _, headers, body, end = frame
        connection = self._sessions.pop((group.index, link.slot, uid, number), None)
        if connection is None:
            then = self._agent.questions.answered(group.index, link.slot, uid, number)
            if then is not None:
                then(_reply_of(kind, bytes(view[headers:body]), view[body:end]))
        elif kind == KIND_ERROR:
            link.give(_enveloped(uid, index, view, frame))
        else:
            facts = object_of(view[body:end])
            if type(facts.get("session")) is int:
                connection.sessions[facts["session"]] = str(facts.get("id", ""))
            facts |= {"group": group.name, "groups": [one.name for one in self._agent.groups]}
            link.give(envelopes.answer(uid, index, number, facts))

    def expect_session(self, group: GroupLink, link: ManagerLink, connection: Connection, number: int) -> None:
        self._sessions[group.index, link.slot, connection.uid, number] = connection

    def _own(self, group: GroupLink, view: memoryview, frame: Frame) -> None:
        """Something on our own link."""
        uid, _, kind, _, number, _, _, _, headers, body, end = frame
        if kind == KIND_PUBLISH:
            through = next((link for link in self._agent.managers.values() if link.is_known), None)
            if through is not None:
                through.give(_enveloped(0, 0, view, frame))
            return
        if kind == KIND_ANSWER and number == HELLO and not group.up:
            self._greeted(group, object_of(view[body:end]))
            return
        if kind == KIND_COMMAND and uid == 0:
            self._told_names(group, object_of(view[body:end]))
            return
        then = self._agent.questions.answered(group.index, OWN_SLOT, uid, number)
        if then is not None:
            then(_reply_of(kind, bytes(view[headers:body]), view[body:end]))

    def _greeted(self, group: GroupLink, facts: dict[str, Any]) -> None:
        group.names = _names(facts.get("names"))
        count = facts.get("count")
        group.names_expected = count if isinstance(count, int) else len(group.names)
        self._check_up(group)

    def _told_names(self, group: GroupLink, facts: dict[str, Any]) -> None:
        if facts.get("do") != "announce":
            return
        add, number = _names(facts.get("add")), facts.get("number")
        remove = [name for name in facts.get("remove") or () if isinstance(name, str)]
        if not group.up:  # a page of the greeting, or a change while its pages come
            group.names |= add
            for name in remove:
                if group.names.pop(name, None) is not None:
                    group.names_expected -= 1
            if number:
                group.names_expected = max(group.names_expected, len(group.names))
                self._announced(group, number)
            self._check_up(group)
            return
        self._agent.greetings.announce(
            self._agent.directory.update(group.index, add, remove), lambda: self._announced(group, number)
        )

    def _announced(self, group: GroupLink, number: object) -> None:
        if isinstance(number, int) and number and group.is_open:
            self._agent.put(OWN_SLOT, group.index, envelopes.command(0, 0, 0, {"do": "announced", "number": number}))

    def _check_up(self, group: GroupLink) -> None:
        if group.up or group.names_expected < 0 or len(group.names) < group.names_expected:
            return
        names, group.names = group.names, {}
        group.up = True
        assert group.served is not None
        self._agent.say("info", f"linked to group {group.name!r} at {group.served.node}, epoch {group.served.epoch}")
        self._agent.greetings.announce(self._agent.directory.replace(group.index, names), lambda: None)
        self._agent.greetings.greet()
        self._notify(group, "back")
        self._agent.commits.on_back(group.name)


def object_of(body: memoryview) -> dict[str, Any]:
    """The JSON object of a frame, or an empty one."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _names(rows: object) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, list) and len(row) == 3 and all(isinstance(one, str) for one in row):
            found[row[0]] = (row[1], row[2])
    return found


def _reply_of(kind: int, section: bytes, body: memoryview) -> Reply:
    if kind == KIND_ANSWER:
        return Reply(object_of(body))
    try:
        code = dict(decode_headers(section)).get("code", b"internal").decode(errors="replace")
    except RemoteProtocolError:
        code = "internal"
    return Reply(None, code, bytes(body).decode(errors="replace"))


def _enveloped(uid: int, index: int, view: memoryview, frame: Frame) -> bytes:
    _, _, kind, flags, number, correlation, peer, topic, headers, body, end = frame
    return envelopes.packed(
        uid,
        index,
        kind,
        flags=flags,
        number=number,
        correlation=correlation,
        peer=peer,
        topic=bytes(view[topic:headers]),
        headers=bytes(view[headers:body]),
        body=bytes(view[body:end]),
    )
