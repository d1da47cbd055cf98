"""Where a client's COMMAND goes: to the group its session or handle says, to the group of the destination it names,
to all of them, or no further than here (docs/cluster.md, section 5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlead.cluster.client_manager import envelopes, joining
from fairlead.cluster.client_manager.group_link import GroupLink
from fairlead.cluster.client_manager.managers import Connection, ManagerLink
from fairlead.cluster.client_manager.questions import FIRST_NUMBER, Reply
from fairlead.cluster.demux import Frame
from fairlead.cluster.naming import is_pattern
from fairlead.errors import NoDestination
from fairlead.wire.durable import COMMAND_BYTES_MAX

if TYPE_CHECKING:
    from fairlead.cluster.client_manager.agent import Agent

WRONG_GROUP: Final = "wrong-group"
AWAY: Final = "no-message-manager"

BY_DESTINATION: Final = frozenset(
    {"schedules", "cancel", "positions", "plan", "scan", "stage"}
    | {"cursor-open", "cursor-reserve", "cursor-commit", "cursor-release"}
)
OPENS: Final = ("produce", "consume")  # name a destination, in the session of a group


class Commands:
    """The agent's table of what clients can ask."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.taken = 0
        self.refused = 0

    def take(self, link: ManagerLink, view: memoryview, frame: Frame, whole: memoryview) -> None:
        """One COMMAND with the uid of a connection; `whole` is its envelope and frame."""
        uid, index, number, body, end = frame[0], frame[1], frame[4], frame[9], frame[10]
        request: Any = None
        if end - body <= COMMAND_BYTES_MAX:
            try:
                request = msgspec.json.decode(view[body:end])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                request = None
        if not isinstance(request, dict) or number >= FIRST_NUMBER:
            self.refused += 1
            text = f"A command is a JSON object of at most {COMMAND_BYTES_MAX} bytes, with a number below 2^31."
            link.give(envelopes.error(uid, index, number, "bad-request", text, frame[5]))
            return
        self.taken += 1
        do = request.get("do")
        if do == "gone":
            self._agent.connection_gone(link, uid, whole)
            return
        connection = link.connection(uid, index)
        if do in ("full", "room"):
            for group in connection.groups:
                self._agent.put(link.slot, group, whole)
        elif do == "session":
            self._session(link, connection, number, request, whole)
        elif do == "directory":
            self._agent.directory_road.take(link, connection, number, request, whole)
        elif do == "locate":
            self._locate(link, connection, number, request)
        elif do == "commit" and "parts" in request:
            self._agent.commits.on_commit(link, connection, number, request)
        elif do in ("publish", "abandon", "unsubscribe"):
            self._to_all(link, connection, number, str(do), request, whole)
        elif do in BY_DESTINATION:
            self._by_destination(link, connection, number, request, whole)
        else:
            self._by_number(link, connection, number, request, whole)

    # --- To one group ---------------------------------------------------------------------------------------------
    def _session(
        self, link: ManagerLink, connection: Connection, number: int, request: dict[str, Any], whole: memoryview
    ) -> None:
        wanted = request.get("group")
        group = self._agent.groups[0] if wanted in (None, "") else self._agent.named(wanted)
        if group is None:
            self._refuse(link, connection, number, "bad-request", f"There is no group {wanted!r:.60}.")
        elif self._forward(link, connection, number, group, whole):
            self._agent.links.expect_session(group, link, connection, number)

    def _by_number(
        self, link: ManagerLink, connection: Connection, number: int, request: dict[str, Any], whole: memoryview
    ) -> None:
        """`session`, `handle` or `producer` say the group; a group may also be named."""
        its = next((value for key in ("session", "handle", "producer") if type(value := request.get(key)) is int), None)
        named = request.get("group", request.get("decider"))
        group = self._agent.group_at(its) if its is not None else self._agent.named(named)
        if group is None:
            text = f"`{request.get('do')!s:.40}` needs a session or a handle of this connection."
            self._refuse(link, connection, number, "bad-request", text)
            return
        if request.get("do") in OPENS and not self._is_there(link, connection, number, group, request):
            return
        if request.get("do") == "end-session":
            connection.sessions.pop(its or 0, None)
        self._forward(link, connection, number, group, whole)

    def _is_there(
        self, link: ManagerLink, connection: Connection, number: int, group: GroupLink, request: dict[str, Any]
    ) -> bool:
        """A name exists once (CLU-87): it is neither made nor looked for in a group that is not its own."""
        name = request.get("destination")
        if not isinstance(name, str) or is_pattern(name):
            return True
        entry = self._agent.directory.find(name)
        if entry is not None:
            wanted = entry.group
        elif not request.get("create"):
            return True  # it may be newer than what we know: the group says whether it has it
        elif not self._agent.directory.is_complete:
            self._refuse(link, connection, number, AWAY, "")
            return False
        else:
            wanted = self._agent.placement.of(name)
        if wanted == group.index:
            return True
        text = f"{name!r} belongs to group {self._agent.groups[wanted].name!r}, not to {group.name!r}: ask `locate`."
        self._refuse(link, connection, number, WRONG_GROUP, text)
        return False

    def _by_destination(
        self, link: ManagerLink, connection: Connection, number: int, request: dict[str, Any], whole: memoryview
    ) -> None:
        name = request.get("destination")
        if not isinstance(name, str):
            self._refuse(link, connection, number, "bad-request", f"`{request['do']}` needs a destination.")
            return
        if request["do"] == "positions" and is_pattern(name):
            self._join(link, connection, number, request, joining.listed("destinations"))
            return
        entry = self._agent.directory.find(name)
        if entry is None and not self._agent.directory.is_complete:
            self._refuse(link, connection, number, AWAY, "")
            return
        group = self._agent.groups[self._agent.placement.of(name) if entry is None else entry.group]
        self._forward(link, connection, number, group, whole)

    def _forward(
        self, link: ManagerLink, connection: Connection, number: int, group: GroupLink, whole: memoryview
    ) -> bool:
        connection.groups.add(group.index)
        if not group.up:
            self._refuse(link, connection, number, AWAY, f"Group {group.name!r} is not served at the moment.")
            return False
        self._agent.put(link.slot, group.index, whole)
        return True

    # --- To none, or all ------------------------------------------------------------------------------------------
    def _locate(self, link: ManagerLink, connection: Connection, number: int, request: dict[str, Any]) -> None:
        name, agent = request.get("destination"), self._agent
        if not isinstance(name, str):
            self._refuse(link, connection, number, "bad-request", "`locate` needs a destination.")
            return
        entry = agent.directory.find(name)
        if entry is not None:
            facts = {"group": agent.groups[entry.group].name, "kind": entry.kind, "id": entry.id}
        elif not agent.directory.is_complete:
            self._refuse(link, connection, number, AWAY, "")
            return
        else:
            facts = {"group": agent.groups[agent.placement.of(name)].name, "kind": "", "id": ""}
        link.give(envelopes.answer(connection.uid, connection.index, number, facts))

    def _to_all(
        self,
        link: ManagerLink,
        connection: Connection,
        number: int,
        do: str,
        request: dict[str, Any],
        whole: memoryview,
    ) -> None:
        if len(self._agent.groups) == 1 or request.get("group"):
            group = self._agent.named(request["group"]) if request.get("group") else self._agent.groups[0]
            if group is None:
                text = f"There is no group {request['group']!r:.60}."
                self._refuse(link, connection, number, NoDestination.code, text)
            else:
                self._forward(link, connection, number, group, whole)
        elif do == "unsubscribe" and type(request.get("session")) is int:
            self._by_number(link, connection, number, request, whole)
        elif do == "unsubscribe":
            self._join(link, connection, number, request, joining.any_of)
        elif do == "abandon":
            self._join(link, connection, number, request, joining.summed("dropped"))
        else:
            self._publish(link, connection, number, request)

    def _publish(self, link: ManagerLink, connection: Connection, number: int, request: dict[str, Any]) -> None:
        """Stages of a batch: each group publishes its own part of it, under the same batch number (durable.md, 7)."""
        stages = request.get("stages")
        shares: dict[str, dict[str, Any]] = {group.name: {**request, "stages": []} for group in self._agent.groups}
        try:
            for stage, counts in stages:  # type: ignore[union-attr]
                by_group: dict[str, dict[str, int]] = {}
                for name, count in counts.items():
                    entry = self._agent.directory.find(name)
                    index = self._agent.placement.of(name) if entry is None else entry.group
                    by_group.setdefault(self._agent.groups[index].name, {})[name] = count
                for group, its in by_group.items():
                    shares[group]["stages"].append([stage, its])
        except (TypeError, ValueError, AttributeError):
            self._refuse(
                link, connection, number, "bad-request", "`publish` needs stages: [[stage, {name: count}], …]."
            )
            return
        self._join(link, connection, number, request, joining.published, shares)

    def _join(
        self,
        link: ManagerLink,
        connection: Connection,
        number: int,
        request: dict[str, Any],
        rule: joining.Rule,
        shares: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        slot, uid, index = link.slot, connection.uid, connection.index

        def then(reply: Reply) -> None:
            if link.connections.get(uid) is not connection:
                return
            if reply.facts is not None:
                link.give(envelopes.answer(uid, index, number, reply.facts))
            else:
                link.give(envelopes.error(uid, index, number, reply.code, reply.text))

        names = [group.name for group in self._agent.groups]
        joined = joining.Join(names, rule, then)
        for group in self._agent.groups:
            connection.groups.add(group.index)
            command = request if shares is None else shares[group.name]
            self._agent.ask(group.name, slot, uid, index, command, joined.replier(group.name))

    def _refuse(self, link: ManagerLink, connection: Connection, number: int, code: str, text: str) -> None:
        self.refused += 1
        link.give(envelopes.error(connection.uid, connection.index, number, code, text))
