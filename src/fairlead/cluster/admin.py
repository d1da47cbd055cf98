"""The meeting point of administration: who offers a command, who asked, and the one answer it gets (CLU-75).

A command is a JSON message on the topic `_ADMIN`, its answer a broadcast on the topic it names;
docs/administration.md has the formats. Parts register what they offer, with a struct for its arguments, so that
`commands` can list everything there is. A command with an id is executed once: said again it gets the answer it got
(CLU-184).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from fairlead import topics
from fairlead.cluster import admin_commands, records, stage_commands
from fairlead.cluster.admin_request import (
    ANSWER_BYTES_MAX,
    OWN,
    REMEMBERED_MAX,
    Request,
    Scope,
    not_for_clients,
    too_long,
)
from fairlead.cluster.admin_request import Later as Later
from fairlead.errors import BadParameter, FairleadError, Refused, RemoteProtocolError
from fairlead.security.spaces import is_servers, prefix_of
from fairlead.wire.durable import KIND_ANSWER
from fairlead.wire.headers import decode_headers

if TYPE_CHECKING:
    from fairlead.cluster.core import Core
    from fairlead.cluster.outgoing import Link
    from fairlead.cluster.parties import Line
    from fairlead.cluster.port import Bytes

KIND: Final = "message-manager"

Then = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Offer:
    """A command somebody has registered."""

    name: str
    arguments: type[Struct]
    handler: Callable[[Any], dict[str, Any] | Later]
    changes: bool  # does it change anything? Such commands are noted in the event log

    def facts(self) -> dict[str, Any]:
        info = msgspec.structs.fields(self.arguments)
        return {
            "name": self.name,
            "text": (self.handler.__doc__ or "").strip(),
            "changes": self.changes,
            "arguments": [
                {"name": one.name, "required": one.required, "default": None if one.required else _default(one)}
                for one in info
            ],
        }


class Admin:
    """The admin manager of this message manager."""

    def __init__(self, core: Core, *, node: str = "mm-0") -> None:
        self._core = core
        self.node = node
        self.revision = 0  # of the settings changed by administration
        self.settings: dict[str, Any] = {}
        self._offers: dict[str, Offer] = {}
        self._told: OrderedDict[str, dict[str, Any] | None] = OrderedDict()  # None: under way
        self.executed = 0
        self.register("commands", admin_commands.Nothing, self._commands)
        admin_commands.register(self, core)
        stage_commands.register(self, core)

    def register(
        self,
        name: str,
        arguments: type[Struct],
        handler: Callable[[Any], dict[str, Any] | Later],
        *,
        changes: bool = False,
    ) -> None:
        """Offer a command. The handler's docstring is its description; it raises FairleadError to refuse."""
        self._offers[name] = Offer(name, arguments, handler, changes)

    def _commands(self, _: admin_commands.Nothing) -> dict[str, Any]:
        """All commands, with their arguments."""
        return {"commands": [offer.facts() for _, offer in sorted(self._offers.items())]}

    # ------------------------------------------------------------------ over `_ADMIN`

    def on_publish(self, line: Line, section: bytes, body: Bytes) -> None:
        """A message on `_ADMIN`; the manager has checked that its user may send there."""
        try:
            request = msgspec.json.decode(body, type=Request)
            if request.reply:
                topics.validate_topic(request.reply)
        except (msgspec.DecodeError, UnicodeDecodeError, FairleadError) as fault:
            self._core.error(line, 0, "bad-request", f"A message on _ADMIN is not a command: {fault}")
            return
        if not self._is_meant(request.scope):
            return
        if is_servers(request.reply):
            self._core.error(line, 0, "bad-topic", "Answers do not go to topics whose names begin with an underscore.")
            return
        if request.command in OWN:
            self._reply(request, not_for_clients(request.command), line.link)
            return
        user = _sender(section) or line.user
        self.once(request, lambda result: self._reply(request, result, line.link), user)

    def on_link(self, link: Link, number: int, facts: dict[str, Any]) -> None:
        """A command that the agent of a client manager passes on; its answer goes back over the link."""
        try:
            request = msgspec.convert(facts, Request)
        except msgspec.ValidationError as fault:
            link.error(0, 0, number, "bad-request", f"This is not a command: {fault}")
            return

        def answer(result: dict[str, Any]) -> None:
            body = msgspec.json.encode(result)
            if len(body) > ANSWER_BYTES_MAX:
                body = msgspec.json.encode(too_long(len(body)))
            link.frame(0, 0, KIND_ANSWER, number=number, body=body)

        self.once(request, answer, str(facts.get("user", "")))

    def once(self, request: Request, then: Then, user: str) -> None:
        """Execute it, unless a command with its id was executed before: then say again what was said (CLU-184)."""
        if request.id and request.id in self._told:
            told = self._told[request.id]
            if told is not None:
                then(told)
            return
        if request.id:
            self._told[request.id] = None
            while len(self._told) > REMEMBERED_MAX:
                self._told.popitem(last=False)

        def done(result: dict[str, Any]) -> None:
            if request.id in self._told:
                self._told[request.id] = result
            then(result)

        self.execute(request.command, request.args, done, user=user, quota=request.quota)

    def _is_meant(self, scope: Scope) -> bool:
        nodes = [scope.node] if isinstance(scope.node, str) else scope.node
        return (
            (nodes is None or self.node in nodes)
            and scope.kind in (None, KIND)
            and scope.group in (None, self._core.group)
            and scope.role in (None, "primary")
        )

    def _reply(self, request: Request, result: dict[str, Any], link: int) -> None:
        if not request.reply:
            return
        # One message manager is all there is: it alone answers, in a view of one (CLU-182, CLU-183).
        envelope = {"id": request.id, "node": self.node, "expected": 1, "view": self._core.epoch}
        body = msgspec.json.encode(envelope | result)
        if len(body) > ANSWER_BYTES_MAX:
            body = msgspec.json.encode(envelope | too_long(len(body)))
        if request.tenant:
            body = body.replace(prefix_of(request.tenant).encode(), b"")  # its names as it says them
        self._core.publish(request.reply, body, link=link)  # its manager answers commands, so it lives

    # ------------------------------------------------------------------ anywhere

    def execute(
        self,
        name: str,
        args: dict[str, Any],
        then: Then,
        *,
        user: str = "",
        quota: dict[str, dict[str, int]] | None = None,
    ) -> None:
        """Run a command; `then` gets `{"ok": …}` or `{"error": {"code", "text"}}` when what it did is safe."""

        def answer(result: Any) -> None:
            if isinstance(result, FairleadError):
                told: dict[str, Any] = {"error": {"code": result.code, "text": result.text}}
            elif isinstance(result, Exception):
                told = {"error": {"code": "internal", "text": f"{type(result).__name__}: {result}"}}
            else:
                told = {"ok": result}
            if name in self._offers and self._offers[name].changes:
                outcome = told["error"]["code"] if "error" in told else "done"
                text = f"{name!r} of {user or 'somebody'}: {outcome}."
                level = "info" if outcome == "done" else "warning"
                self._core.event(level, "admin-outcome", text, command=name, user=user, outcome=outcome)
            self._core.after(self._core.last_index, lambda: then(told))

        try:
            offer = self._offers.get(name)
            if offer is None:
                raise Refused(
                    f"There is no command {name!r:.60}; `commands` lists those there are.", code="bad-request"
                )
            arguments = _arguments(offer, args)
            if offer.changes:
                self._core.event(
                    "info", "admin", f"{user or 'somebody'} ordered {name!r}.", command=name, args=args, user=user
                )
            self.executed += 1
            if name == "create" and quota and self._core.find(str(args.get("destination"))) is None:
                self._core.allowances.check_new_destination({"quota": quota})
            result = offer.handler(arguments)
        except FairleadError as refusal:
            answer(refusal)
            return
        if isinstance(result, Later):
            result.begin(answer)
        else:
            answer(result)

    # ------------------------------------------------------------------ settings that last

    def change(self, settings: dict[str, Any]) -> int:
        """Set these for good: one revision more (CLU-184), which is returned."""
        self.revision += 1
        self.settings |= settings
        record = {"revision": self.revision, "settings": self.settings}
        self._core.append(records.CONFIG, msgspec.json.encode(record))
        return self.revision

    def apply(self, body: Bytes) -> None:
        """A CONFIG record, read again."""
        facts = msgspec.json.decode(body)
        self.restore(facts)

    def snapshot(self) -> dict[str, Any]:
        return {"revision": self.revision, "settings": self.settings}

    def restore(self, state: dict[str, Any]) -> None:
        self.revision, self.settings = state["revision"], dict(state["settings"])
        admin_commands.settings_changed(self._core, self.settings)


def _arguments(offer: Offer, args: dict[str, Any]) -> Struct:
    known = offer.arguments.__struct_fields__
    unknown = [name for name in args if name not in known]
    if unknown:
        takes = f"It takes: {', '.join(known)}." if known else "It takes none."
        raise BadParameter(f"{offer.name!r} has no argument {unknown[0]!r:.60}. {takes}")
    try:
        return msgspec.convert(args, offer.arguments)
    except msgspec.ValidationError as fault:
        raise BadParameter(f"{offer.name!r}: {fault}") from None


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return field.default_factory() if callable(field.default_factory) else None


def _sender(section: bytes) -> str:
    """The user a manager vouches for: the first pair, if it is `:from`."""
    try:
        pairs = decode_headers(section)
    except RemoteProtocolError:
        return ""
    return pairs[0][1].decode(errors="replace") if pairs and pairs[0][0] == ":from" else ""
