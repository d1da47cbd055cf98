"""Administration at a client manager: commands go to the group of the destination they name, else to all groups, and
come back as one answer; those about the cluster itself are answered here (CLU-180 … CLU-185).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlead import topics
from fairlead.cluster.admin_request import ANSWER_BYTES_MAX, OWN, REMEMBERED_MAX, Request, not_for_clients, too_long
from fairlead.cluster.client_manager import envelopes, joining
from fairlead.cluster.client_manager.link_head import OWN_SLOT
from fairlead.cluster.client_manager.managers import ManagerLink
from fairlead.cluster.client_manager.questions import Reply
from fairlead.errors import FairleadError, RemoteProtocolError
from fairlead.security.spaces import is_servers, prefix_of
from fairlead.wire.headers import decode_headers
from fairlead.wire.kinds import KIND_PUBLISH

if TYPE_CHECKING:
    from fairlead.cluster.client_manager.agent import Agent
    from fairlead.cluster.client_manager.group_link import GroupLink

ADMIN: Final = "_ADMIN"
Then = Callable[[dict[str, Any]], None]


class Administration:
    """The admin manager of a client manager."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.offers: dict[str, Callable[[dict[str, Any], Then], None]] = {"agent": self._of_agent}
        self._told: OrderedDict[str, dict[str, Any] | None] = OrderedDict()  # None: under way
        self.executed = 0

    # --- Ways in --------------------------------------------------------------------------------------------------
    def on_publish(self, link: ManagerLink, uid: int, index: int, section: bytes, body: bytes) -> None:
        """A message on `_ADMIN`; the manager has checked that its user may send there."""
        try:
            request = msgspec.json.decode(body, type=Request)
            if request.reply:
                topics.validate_topic(request.reply)
        except (msgspec.DecodeError, UnicodeDecodeError, FairleadError) as fault:
            text = f"A message on _ADMIN is not a command: {fault}"
            link.give(envelopes.error(uid, index, 0, "bad-request", text))
            return
        if is_servers(request.reply):
            text = "Answers do not go to topics whose names begin with an underscore."
            link.give(envelopes.error(uid, index, 0, "bad-topic", text))
            return
        if request.command in OWN:
            self._reply(link, request, not_for_clients(request.command))
            return

        def answered(result: dict[str, Any]) -> None:
            if request.id in self._told:
                self._told[request.id] = result
            self._reply(link, request, result)

        if request.id and request.id in self._told:
            told = self._told[request.id]
            if told is not None:
                self._reply(link, request, told)
            return
        if request.id:
            self._told[request.id] = None
            while len(self._told) > REMEMBERED_MAX:
                self._told.popitem(last=False)
        self.execute(request, answered, user=_sender(section))

    def _reply(self, link: ManagerLink, request: Request, result: dict[str, Any]) -> None:
        if not request.reply:
            return
        envelope = {"id": request.id, "node": self._agent.node, "expected": 1, "view": self._agent.links.view_number}
        body = msgspec.json.encode(envelope | result)
        if len(body) > ANSWER_BYTES_MAX:
            body = msgspec.json.encode(envelope | too_long(len(body)))
        if request.tenant:
            body = body.replace(prefix_of(request.tenant).encode(), b"")  # its names as it says them
        link.give(envelopes.packed(0, 0, KIND_PUBLISH, topic=request.reply.encode(), body=body))

    def local(self, name: str, args: dict[str, Any], then: Then) -> None:
        """Over the local socket, which only this server's user can open."""
        self.execute(Request(command=name, args=args), then, user="local")

    # --- What is done ---------------------------------------------------------------------------------------------
    def execute(self, request: Request, then: Then, *, user: str) -> None:
        """`then` gets `{"ok": …}` or `{"error": {"code", "text"}}`."""
        self.executed += 1
        offer = self.offers.get(request.command)
        if offer is not None:
            offer(request.args, then)
            return
        groups = self._meant(request)
        if isinstance(groups, str):
            then({"error": {"code": "bad-parameter", "text": groups}})
            return
        one_of = len(groups) == 1

        def joined(replies: dict[str, Reply]) -> Reply:
            if one_of:
                reply = next(iter(replies.values()))
                if reply.facts is not None:
                    return reply
                text = reply.text or f"Group {groups[0].name!r} is not served at the moment."
                return Reply({"error": {"code": reply.code, "text": text}})
            return Reply(joining.administered(request.command, replies))

        join = joining.Join([group.name for group in groups], joined, lambda reply: then(reply.facts or {}))
        command = {"do": "admin", "command": request.command, "args": request.args, "user": user, "id": request.id}
        command["quota"] = request.quota
        for group in groups:
            self._agent.ask(group.name, OWN_SLOT, 0, 0, command, join.replier(group.name))

    def _of_agent(self, args: dict[str, Any], then: Then) -> None:
        then({"ok": self._agent.facts()})

    def _meant(self, request: Request) -> list[GroupLink] | str:
        """The groups a command is for, or a sentence that says why it is for none."""
        agent, scope = self._agent, request.scope
        if scope.kind not in (None, "message-manager"):
            return f"A command of that name is not offered by a {scope.kind!r:.40}."
        name = request.args.get("destination")
        if isinstance(name, str) and name:
            entry = agent.directory.find(name)
            found = [agent.groups[agent.placement.of(name) if entry is None else entry.group]]
        else:
            found = list(agent.groups)
        if scope.group is not None:
            found = [group for group in agent.groups if group.name == scope.group]
        nodes = [scope.node] if isinstance(scope.node, str) else scope.node
        if nodes is not None:
            found = [group for group in found if group.served is not None and group.served.node in nodes]
        return found or f"There is no group that this is for: {msgspec.json.encode(scope).decode()}."


def _sender(section: bytes) -> str:
    """The user a manager vouches for: the first pair, if it is `:from`."""
    try:
        pairs = decode_headers(section)
    except RemoteProtocolError:
        return ""
    return pairs[0][1].decode(errors="replace") if pairs and pairs[0][0] == ":from" else ""
