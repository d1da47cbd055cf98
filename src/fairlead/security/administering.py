"""Which right each command of administration asks for: the table, and the one place that judges by it.

Who administers the whole (`admin _ADMIN`) may give every command. Who has `admin` for some destinations may give those
that name one of them, and list them by a pattern that lies inside; to be shown messages takes `browse` there too. So a
command that is not in the table is for whole administrators alone, whatever it will be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from fairlead.errors import BadParameter
from fairlead.security import spaces
from fairlead.security.rights import Action
from fairlead.security.rules import ADMIN, ANSWERS, DEAD, Rules

WHOLE: Final = "whole"
"""Asked of a command that names no destination: the right to administer the whole."""


class Asks(NamedTuple):
    """The arguments that name something, each with the rights on it of which one is enough."""

    of: Mapping[str, tuple[Action, ...]] = {}
    optional: frozenset[str] = frozenset()  # who administers all of a tenant may leave it out
    reads: bool = False  # it shows what is in messages: who may not browse there may not do this either


_HERE: Final = Asks({"destination": ("admin",)})


COMMANDS: Final[dict[str, Asks]] = {
    **dict.fromkeys(("status", "counters", "tasks", "flow", "connections", "sessions", "subscriptions"), Asks()),
    **dict.fromkeys(("transactions", "transfers", "unsubscribe", "commands", "stages", "sinks"), Asks()),
    **dict.fromkeys(("drop-stage", "forget-sink", "agent", "cluster", "cluster-status", "figures", "audit"), Asks()),
    **dict.fromkeys(("destination", "create", "delete", "purge", "drop", "pause", "resume", "set"), _HERE),
    **dict.fromkeys(("consumers", "schedules", "cancel-schedule", "cursors", "release-cursor"), _HERE),
    **dict.fromkeys(("browse", "message"), Asks({"destination": ("admin",)}, reads=True)),
    "destinations": Asks({"pattern": ("admin",)}),
    "move": Asks({"destination": ("admin",), "to": ("admin", "send")}),
    "redrive": Asks({"destination": ("admin",), "to": ("admin", "send")}, frozenset({"to"})),
}
"""By command. No argument: the whole. All that stand here must be given, else it is about the whole too."""


def judge(rules: Rules, who: str, tenant: str, request: dict[str, Any]) -> str:
    """What this user may not do of what the request asks; empty: nothing. Its names are made the server's own."""
    command, arguments = str(request.get("command", ""))[:60], request.get("args")
    if not isinstance(arguments, dict):
        arguments = request["args"] = {}
    asks = COMMANDS.get(command, Asks())
    whole = rules.allows(who, "admin", spaces.inside(tenant, ADMIN))
    if tenant:
        _translate(tenant, asks, arguments, request)
    elif whole:
        return ""
    reply = request.get("reply")
    is_answer = isinstance(reply, str) and reply.startswith(spaces.inside(tenant, ANSWERS))
    if reply and not is_answer and not rules.allows(who, "publish", str(reply)):
        return f"have answers sent to {reply}"
    missing = {name for name in asks.of if not isinstance(arguments.get(name), str) or not arguments[name]}
    if not asks.of or (missing - asks.optional if whole else missing):
        return f"administer the server ({command})"
    if refusal := judge_parameters(rules, who, tenant, arguments):
        return f"{command} {refusal}"
    for name in asks.of.keys() - missing:
        wanted, rights = arguments[name], asks.of[name]
        if not whole and not any(rules.allows(who, right, wanted) for right in rights):
            return f"{command} {wanted}: that takes {' or '.join(rights)} there"
        if asks.reads and not whole and not rules.allows(who, "browse", wanted):
            return f"{command} {wanted}: that takes browse there too"
    return ""


def judge_parameters(rules: Rules, who: str, tenant: str, arguments: dict[str, Any]) -> str:
    """A destination's parameters may name a queue for its dead messages: to send there is the user's own doing."""
    parameters = arguments.get("parameters")
    queue = parameters.get("dead_queue") if isinstance(parameters, dict) else None
    if not isinstance(queue, str) or not queue:
        return ""
    assert isinstance(parameters, dict)
    parameters["dead_queue"] = queue = spaces.inside(tenant, queue)
    is_own = queue == spaces.inside(tenant, DEAD)
    return "" if is_own or rules.allows(who, "send", queue) else f"send dead messages to {queue}"


def _translate(tenant: str, asks: Asks, arguments: dict[str, Any], request: dict[str, Any]) -> None:
    """A tenant's names to the server's, in place; a list without a pattern is of all the tenant has."""
    if "pattern" in asks.of and not arguments.get("pattern"):
        arguments["pattern"] = ">"
    if request.get("command") == "redrive":
        arguments.setdefault("destination", DEAD)
    for name in asks.of:
        wanted = arguments.get(name)
        if isinstance(wanted, str) and wanted:
            if wanted.startswith(spaces.TEMPORARY):
                raise BadParameter("Temporary destinations are administered by whoever administers the whole server.")
            arguments[name] = spaces.inside(tenant, wanted)
    if isinstance(reply := request.get("reply"), str) and reply:
        request["reply"] = spaces.inside(tenant, reply)
    request["tenant"] = tenant


def label(tenant: str, request: dict[str, Any]) -> None:
    """The labels of a pipeline's batch, made the tenant's own in place; so are the destinations it publishes to."""
    prefix = spaces.prefix_of(tenant)
    if isinstance(request.get("query"), str):
        request["query"] = prefix + request["query"]
    stages = request.get("stages")
    if isinstance(stages, list):
        request["stages"] = [
            [one[0], {prefix + name: count for name, count in one[1].items()}]
            if isinstance(one, list) and len(one) == 2 and isinstance(one[1], dict)
            else one
            for one in stages
        ]
