"""A manager's end of the durable road: its link to the message manager, and who may do what there.

Frames in bulk never come here, the engine copies them. What does come: the link itself (made, lost, made again for
ever), the names of all destinations, COMMANDs, which are passed on with the word of this process about who asks and
what they may (CLU-205), and publishes of clients about whose rights the engine does not know enough.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead.broker.answers import FIXED, error_frame, frame
from fairlead.broker.edge.engine import Traffic
from fairlead.cluster.naming import is_pattern
from fairlead.directory.rights import granted, is_read
from fairlead.errors import FairleadError
from fairlead.runtime.rundir import short_path
from fairlead.security import administering, spaces
from fairlead.security.rules import ADMIN, Action, Rules
from fairlead.wire.durable import KIND_ANSWER, KIND_COMMAND, KIND_NOTICE
from fairlead.wire.headers import encode_headers

SOCKET_NAME: Final = "mm-0.sock"
RETRY_FIRST_S: Final = 0.02
RETRY_LAST_S: Final = 0.25
BUFFER_BYTES: Final = 4 << 20  # of the link's socket, each way
HELLO: Final = 1  # number of the one question we ask

ASKED: Final[tuple[Action, ...]] = ("send", "consume", "browse", "create", "admin")  # what `may` can hold
# What a client may ask for, and the right on the destination it names without which nothing is passed on.
COMMANDS: Final[dict[str, Action | None]] = {
    **dict.fromkeys(("session", "end-session", "end", "flow", "unsubscribe", "commit", "rollback", "outcome")),
    **dict.fromkeys(("ids", "transfer", "temporary")),
    "locate": None,  # by whoever has any right there
    "produce": "send",
    "consume": "consume",
    "schedules": "browse",
    "cancel": "consume",
    # In bulk: what `publish` and `abandon` touch belongs to who opened it.
    **dict.fromkeys(("positions", "plan", "scan"), "browse"),
    **dict.fromkeys(("cursor-open", "cursor-reserve", "cursor-commit", "cursor-release"), "consume"),
    "stage": "send",
    **dict.fromkeys(("publish", "abandon")),
    "directory": None,  # who may what: directory/rights.py
}
LABELLED: Final = frozenset({"stage", "publish", "abandon"})  # with labels that are one name space for all
LOOKS: Final = frozenset({"locate"})
STORED_QUOTAS: Final = frozenset({"storage_bytes", "message_bytes", "destinations"})
WELL_KNOWN: Final = [("_ADMIN", "topic", ""), ("_LOG", "topic", ""), ("_DMQ", "queue", "")]  # until we are told
_encode = msgspec.json.Encoder().encode
GRANTED_MAX: Final = 10_000  # remembered per connection, for the time when rights are withdrawn


@dataclass(slots=True)
class Member:
    """A client as this road knows it."""

    index: int
    uid: int
    user: str
    name: str  # type/instance
    who: str = ""  # as rules are asked
    tenant: str = ""
    granted: set[Grant] = field(default_factory=set)  # what was passed on because of a right


Grant = tuple[Action, str, tuple[str, ...]]
"""What may be done with which name, and by pattern what is left out."""


class Road:
    """The link of one manager."""

    def __init__(
        self,
        *,
        traffic: Traffic,
        run: Path,
        manager: int,
        generation: int,
        rules: Rules,
        enabled: bool,
        say: Callable[..., None],
        on_denied: Callable[[str, str, str], None] = lambda user, action, what: None,
    ) -> None:
        self._traffic = traffic
        self._path = run / SOCKET_NAME
        self._hello = {"do": "hello", "manager": manager, "generation": generation, "pid": os.getpid()}
        self._rules = rules
        self._enabled = enabled
        self._say = say
        self._on_denied = on_denied
        self._members: dict[int, Member] = {}
        self._retry_s = 0.0
        self._pause_s = RETRY_FIRST_S
        self._linked = False  # there is a socket
        self.up = False  # and the other side has told us its names
        self.names: dict[str, tuple[str, str]] = {}  # kind and id of every destination
        self.denied = 0
        if enabled:  # these exist always (CLU-176): without a link whoever publishes to them is told so
            self._replace_names(WELL_KNOWN)

    # --- The link -------------------------------------------------------------------------------------------------
    @property
    def patience_ms(self) -> int | None:
        """How long a turn may sleep before `tick` is due; None: as long as it likes."""
        return None if self._linked or not self._enabled else int(self._pause_s * 1000)

    def tick(self, now_s: float) -> None:
        """While there is no link, try to make one."""
        if self._linked or not self._enabled or now_s < self._retry_s:
            return
        self._pause_s = min(2 * self._pause_s, RETRY_LAST_S)
        self._retry_s = now_s + self._pause_s
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            with short_path(self._path) as path:
                sock.connect(path)
        except OSError:
            sock.close()
            return
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        self._traffic.link(sock.detach())
        self._linked = True
        self._pause_s = RETRY_FIRST_S
        self._tell(self._hello, HELLO)

    def on_lost(self) -> None:
        """The engine has lost the link; everybody who used it hears of it, and we look for a new one."""
        self._linked = False
        if self.up:
            self.up = False
            self._say("the link to the message manager is lost")
            self._traffic.notify(frame(KIND_NOTICE, body=b'{"event":"interrupted"}'))

    def on_link(self, received: bytes) -> None:
        """A frame about the link itself."""
        _, kind, _, topic, section, number, _, _ = FIXED.unpack_from(received)
        facts = _object(received[32 + topic + section :])
        if kind == KIND_ANSWER and number == HELLO:
            self._replace_names(facts.get("names", []))
            self.up = True
            self._traffic.notify(frame(KIND_NOTICE, body=b'{"event":"back"}'))
        elif kind == KIND_COMMAND and facts.get("do") == "announce":
            added = {name: (kind_, id_) for name, kind_, id_ in facts.get("add", [])}
            removed = [name for name in facts.get("remove", []) if self.names.pop(name, None)]
            self.names |= added
            self._traffic.divert([name.encode() for name in added], [name.encode() for name in removed])
            self._tell({"do": "announced", "number": facts.get("number", 0)})

    def _replace_names(self, names: list[tuple[str, str, str]]) -> None:
        found = {name: (kind, id_) for name, kind, id_ in names}
        gone = [name.encode() for name in self.names if name not in found]
        self._traffic.divert([name.encode() for name in found], gone)
        self.names = found

    def _tell(self, facts: dict[str, Any], number: int = 0) -> None:
        self._traffic.forward(0, 0, frame(KIND_COMMAND, body=msgspec.json.encode(facts), number=number))

    # --- Clients --------------------------------------------------------------------------------------------------
    def join(self, index: int, uid: int, user: str, name: str, who: str | None = None) -> None:
        """A client is known by name now."""
        who = user if who is None else who
        tenant = self._rules.tenant_of(who)
        self._members[index] = Member(index, uid, user, spaces.prefix_of(tenant) + name, who, tenant)
        self._introduce(self._members[index])

    def _introduce(self, member: Member) -> None:
        pair = encode_headers([(":from", member.user)]) if member.user else b""
        restricted = not self._rules.unrestricted(member.who, "publish")
        prefix = spaces.prefix_of(member.tenant).encode()
        self._traffic.identity(member.index, member.uid, pair, restricted, prefix)

    def leave(self, index: int) -> None:
        self._members.pop(index, None)

    def reload(self, rules: Rules) -> list[Member]:
        """Other rules from now on. Those returned have something open that they have no right to any more (CLU-206)."""
        before, self._rules = self._rules, rules
        for member in self._members.values():
            self._introduce(member)
        return [
            member
            for member in self._members.values()
            if not all(self._still(member, *grant) for grant in member.granted)
            or (member.granted and before.quotas_of(member.who) != rules.quotas_of(member.who))
        ]

    def _still(self, member: Member, action: Action, name: str, but: tuple[str, ...]) -> bool:
        allowed = self._rules.allows(member.who, action, name)
        return allowed and (not is_pattern(name) or self._rules.exceptions(member.who, name) == but)

    def on_command(self, index: int, received: bytes) -> None:
        """Pass a COMMAND on with who asks and what they may, or answer it with an error."""
        member = self._members.get(index)
        if member is None:
            return
        _, _, _, topic, section, number, correlation, _ = FIXED.unpack_from(received)
        request = _object(received[32 + topic + section :])
        do = request.get("do")
        if not isinstance(do, str) or do not in COMMANDS:
            self._refuse(member, number, correlation, "bad-request", f"There is no command {str(do)[:40]!r}.")
            return
        if do == "directory":
            self._directory(member, number, correlation, request)
            return
        if not self.up:
            self._refuse(member, number, correlation, "no-message-manager", "")
            return
        try:
            self._judge(member, number, correlation, do, request)
        except FairleadError as problem:  # a name that is none, where a pattern of it had to be looked at
            self._refuse(member, number, correlation, problem.code, str(problem))

    def _judge(self, member: Member, number: int, correlation: int, do: str, request: dict[str, Any]) -> None:
        """Pass it on in the server's own names, if the user has the right for it."""
        wanted = COMMANDS[do]
        if do == "consume" and request.get("browse"):
            wanted = "browse"
        request |= {"user": member.user, "client": member.name, "may": []}
        request |= {"tenant": member.tenant, "quota": self._quota(member), "but": []}
        destination = request.get("destination")
        if isinstance(destination, str):
            destination = request["destination"] = spaces.inside(member.tenant, destination)
            request["may"] = self._rights(member, destination)
            if do == "consume" and is_pattern(destination):
                request["but"] = self._rules.exceptions(member.who, destination)
        refusal = administering.judge_parameters(self._rules, member.who, member.tenant, request)
        if refusal:
            self._deny(member, number, correlation, "send", refusal)
            return
        if do == "transfer" and (problem_text := self._too_long(member, request.get("length"))):
            self._refuse(member, number, correlation, "quota-exceeded", problem_text)
            return
        if member.tenant and do in LABELLED:
            administering.label(member.tenant, request)
        if wanted is not None:
            if not isinstance(destination, str):
                self._refuse(member, number, correlation, "bad-request", f"`{do}` needs a destination.")
                return
            if wanted not in request["may"]:
                self._deny(member, number, correlation, wanted, f"{wanted} {destination}")
                return
            if not destination.startswith(spaces.TEMPORARY) and len(member.granted) < GRANTED_MAX:
                member.granted.add((wanted, destination, tuple(request["but"])))
        elif do in LOOKS and not request["may"]:
            self._deny(member, number, correlation, "browse", f"{do} {destination}")
            return
        self._pass_on(member, number, correlation, request, "no-message-manager")

    def _too_long(self, member: Member, length: object) -> str:
        """Why a very large message may not be that long; empty: it may."""
        limits = [quota.message_bytes for _, quota in self._rules.quotas_of(member.who) if quota.message_bytes]
        if not limits or not isinstance(length, int) or length <= min(limits):
            return ""
        return f"The quota of this user or its tenant is {min(limits)} bytes a message."

    def _directory(self, member: Member, number: int, correlation: int, request: dict[str, Any]) -> None:
        """An operation of the directory: reads are for everybody, changes for whoever has a right on what they name."""
        if member.tenant:  # its names are the same for all
            self._deny(member, number, correlation, "browse", "use the directory: it is not part of a tenant")
            return
        request["may"] = [] if is_read(request.get("op")) else granted(self._rules, member.who, request)
        self._pass_on(member, number, correlation, request, "no-directory")

    def _pass_on(self, member: Member, number: int, correlation: int, request: dict[str, Any], without: str) -> None:
        """To the message manager; `without` one, that error."""
        passed = frame(KIND_COMMAND, body=_encode(request), number=number, correlation=correlation)
        if not self.up or not self._traffic.forward(member.index, member.uid, passed):
            self._refuse(member, number, correlation, without, "")

    def _rights(self, member: Member, destination: str) -> list[Action]:
        if destination.startswith(spaces.TEMPORARY):
            if spaces.temporary_owner(destination) != member.tenant:
                return []
            return ["send", "consume", "browse"]  # who knows the name was given it; only its maker may consume
        return [right for right in ASKED if self._rules.allows(member.who, right, destination)]

    def _quota(self, member: Member) -> dict[str, dict[str, int]]:
        """What the message manager has to keep, by whose it is."""
        return {
            scope: {name: value for name, value in quota.said().items() if name in STORED_QUOTAS}
            for scope, quota in self._rules.quotas_of(member.who)
            if quota.said()
        }

    def on_publish(self, index: int, received: bytes) -> None:
        """A transient publish to a destination, by a client who may not publish everywhere, or to a reserved name."""
        member = self._members.get(index)
        if member is None:
            return
        _, _, _, topic, _, number, correlation, _ = FIXED.unpack_from(received)
        name = received[32 : 32 + topic].decode(errors="replace")
        if name == spaces.inside(member.tenant, ADMIN) and (
            member.tenant or not self._rules.allows(member.who, "admin", ADMIN)
        ):
            self._administer(member, number, correlation, received)
        elif not self._rules.allows(member.who, "publish", name):
            self._deny(member, number, correlation, "publish", f"publish to {name}")
        elif not self._traffic.forward(index, member.uid, received):
            self._refuse(member, number, correlation, "no-message-manager", "")
        elif not spaces.is_servers(name):
            self._traffic.clear(index, member.uid, received[32 : 32 + topic])

    def _administer(self, member: Member, number: int, correlation: int, received: bytes) -> None:
        """A command of administration: read here, judged by what it names, and passed on as it was judged."""
        _, kind, flags, topic, section, _, _, peer = FIXED.unpack_from(received)
        request = _object(received[32 + topic + section :])
        try:
            refusal = administering.judge(self._rules, member.who, member.tenant, request)
        except FairleadError as problem:
            self._refuse(member, number, correlation, problem.code, str(problem))
            return
        if refusal:
            self._deny(member, number, correlation, "admin", f"{refusal} (asked of {ADMIN})")
            return
        request |= {"user": member.user, "tenant": member.tenant, "quota": self._quota(member)}
        body, name, pairs = _encode(request), ADMIN.encode(), received[32 + topic : 32 + topic + section]
        size = 32 + len(name) + section + len(body)
        fixed = FIXED.pack(size, kind, flags, len(name), section, number, correlation, peer)
        if not self._traffic.forward(member.index, member.uid, fixed + name + pairs + body):
            self._refuse(member, number, correlation, "no-message-manager", "")

    def _deny(self, member: Member, number: int, correlation: int, action: str, what: str) -> None:
        self.denied += 1
        if member.tenant:
            what = what.replace(spaces.prefix_of(member.tenant), "")
        self._say(
            f"denied to connection {member.uid} ({member.name}, user {member.user or 'anonymous'}): {what}",
            connection=member.uid,
            code="not-allowed",
        )
        self._on_denied(member.user, action, what)
        text = f"{member.user or 'A client without a name'} may not {what}."
        self._refuse(member, number, correlation, "not-allowed", text)

    def _refuse(self, member: Member, number: int, correlation: int, code: str, text: str) -> None:
        self._traffic.send(member.index, member.uid, error_frame(code, text, number, correlation))


def _object(body: bytes) -> dict[str, Any]:
    """The JSON object of a frame, or an empty one: what it lacks is complained about then."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
