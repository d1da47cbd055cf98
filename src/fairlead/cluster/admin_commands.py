"""The commands a message manager offers to administrators; what each takes and gives is in docs/administration.md.

Those that look into the store in bulk answer in pages: `next` in an answer, given as `start` or `page` of the
following question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlead import selector as selectors
from fairlead.cluster.admin_arguments import (
    PAGE_MAX,
    Browse,
    CancelSchedule,
    Create,
    Delete,
    Drop,
    Figures,
    Listing,
    Message,
    Move,
    OfSession,
    One,
    Purge,
    Set,
    Unsubscribe,
)
from fairlead.cluster.admin_arguments import Nothing as Nothing
from fairlead.cluster.admin_request import Later
from fairlead.cluster.inspection import shown
from fairlead.cluster.opening import kind_of, parameters_of
from fairlead.cluster.redrive import Redrive, redrive
from fairlead.cluster.subscriptions import fits
from fairlead.errors import BadParameter, NoDestination, NotAllowed, Unavailable
from fairlead.security.spaces import is_servers

if TYPE_CHECKING:
    from fairlead.cluster.admin import Admin
    from fairlead.cluster.core import Core
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.parties import Consumer

ANSWER_ROOM: Final = 800 << 10
"""Bytes of messages in one answer."""


def register(admin: Admin, core: Core) -> None:
    """Offer everything below."""
    commands = Commands(admin, core)
    for name, arguments, changes in (
        ("status", Nothing, False),
        ("destinations", Listing, False),
        ("destination", One, False),
        ("figures", Figures, False),
        ("create", Create, True),
        ("delete", Delete, True),
        ("purge", Purge, True),
        ("browse", Browse, False),
        ("message", Message, False),
        ("drop", Drop, True),
        ("move", Move, True),
        ("redrive", Redrive, True),
        ("pause", One, True),
        ("resume", One, True),
        ("set", Set, True),
        ("subscriptions", Nothing, False),
        ("unsubscribe", Unsubscribe, True),
        ("sessions", OfSession, False),
        ("consumers", One, False),
        ("connections", Nothing, False),
        ("flow", Nothing, False),
        ("tasks", Listing, False),
        ("counters", Nothing, False),
        ("transactions", Nothing, False),
        ("transfers", Nothing, False),
        ("schedules", One, False),
        ("cancel-schedule", CancelSchedule, True),
    ):
        admin.register(name, arguments, getattr(commands, name.replace("-", "_")), changes=changes)


def settings_changed(core: Core, settings: dict[str, Any]) -> None:
    """Settings of the whole were changed, or read again: let them act."""
    idle_s = settings.get("transaction_idle_s")
    if isinstance(idle_s, int | float):
        core.transactions.idle_s = float(idle_s)


SETTINGS: Final[dict[str, type]] = {"transaction_idle_s": float}
"""What `set` can change for the message manager as a whole; everything else is in the configuration file."""


class Commands:
    """The handlers; the docstring of each is its description in `commands`."""

    def __init__(self, admin: Admin, core: Core) -> None:
        self._admin = admin
        self._core = core

    def _find(self, name: str) -> Destination:
        found = self._core.find(name)
        if found is None:
            raise NoDestination(f"There is no queue or topic {name!r}.")
        return found

    # ------------------------------------------------------------------ the whole

    def status(self, _: Nothing) -> dict[str, Any]:
        """How this message manager is doing, in a few figures."""
        core, destinations = self._core, self._core.destinations.values()
        return {
            "node": self._admin.node,
            "kind": "message-manager",
            "group": core.group,
            "role": "primary",
            "epoch": core.epoch,
            "time_ms": core.now_ms,
            "safe_index": core.safe,
            "last_index": core.last_index,
            "destinations": len(core.destinations),
            "messages": sum(one.depth for one in destinations),
            "bytes": sum(one.bytes for one in destinations),
            "sessions": len(core.sessions.by_id),
            "waiting_sessions": sum(one.line is None for one in core.sessions.by_id.values()),
            "transactions": len(core.transactions),
            "prepared": len(core.prepared),
            "in_doubt": sum(one.in_doubt for one in core.prepared.by_id.values()),
            "transfers": core.transfers.facts()["uploads"],
            "quotas_exceeded": core.allowances.facts(),
            "blocked": sum(core.is_blocked(one) for one in destinations),
            "protected": core.copies() > 1,  # another node has a copy of the well-known destinations (CLU-178)
            "sync": core.settings.sync,
            "configuration_revision": self._admin.revision,
            "settings": self._admin.settings,
        }

    def counters(self, _: Nothing) -> dict[str, Any]:
        """What went through since the start."""
        core = self._core
        return {
            **core.tally.facts(),
            **core.dispatchers.facts(),
            "committed": core.transactions.committed,
            "rolled_back": core.transactions.rolled_back,
            "admin_commands": self._admin.executed,
            "scans": core.bulk.scans.facts(),
            "faults": core.faults,
        }

    def tasks(self, asked: Listing) -> dict[str, Any]:
        """The tasks and their command queues."""
        found = [one.facts() for one in self._core.tasks if _wanted(asked.pattern, one.name)]
        return _page("tasks", found, asked)

    def flow(self, _: Nothing) -> dict[str, Any]:
        """What is blocked or held up, and why."""
        core = self._core
        tasks = [one.facts() for one in core.tasks if one.over_mark or one.holds]
        consumers = [
            self._consumer(consumer)
            for session in core.sessions.by_id.values()
            for consumer in session.consumers.values()
            if consumer.paused or consumer.stalled
        ]
        return {
            "store": core.flow.store_text,
            "blocked": [one.name for one in core.destinations.values() if core.is_blocked(one)],
            "tasks": tasks[:PAGE_MAX],
            "consumers": consumers[:PAGE_MAX],
            "blocks": core.flow.blocks,
            "stalls": core.flow.stalls,
        }

    def connections(self, _: Nothing) -> dict[str, Any]:
        """The managers' links, and the client connections that use queues and topics."""
        return {
            "links": [
                {"link": one.number, "manager": one.manager, "connections": len(one.lines), "waiting_bytes": one.bytes}
                for one in self._core.links.values()
            ],
            "connections": [
                {
                    "manager": link.manager,
                    "uid": line.uid,
                    "user": line.user,
                    "client": line.client,
                    "sessions": [session.id.hex() for session in line.sessions.values()],
                    "handles": len(line.handles),
                }
                for link in self._core.links.values()
                for line in link.lines.values()
            ][:PAGE_MAX],
        }

    def set(self, asked: Set) -> dict[str, Any]:
        """Change parameters of a destination, or settings of the whole, for good."""
        if asked.destination:
            destination = self._find(asked.destination)
            destination.change(parameters_of(asked.parameters, destination.parameters))
            revision = self._admin.change({})
            return {"parameters": msgspec.to_builtins(destination.parameters), "revision": revision}
        for name, value in asked.parameters.items():
            shape = SETTINGS.get(name)
            if shape is None:
                raise BadParameter(f"There is no setting {name!r:.60} that can be changed here: {', '.join(SETTINGS)}.")
            try:
                asked.parameters[name] = msgspec.convert(value, shape, strict=True)
            except msgspec.ValidationError as fault:
                raise BadParameter(f"{name}: {fault}") from None
        revision = self._admin.change(asked.parameters)
        settings_changed(self._core, self._admin.settings)
        return {"settings": self._admin.settings, "revision": revision}

    # ------------------------------------------------------------------ destinations

    def destinations(self, asked: Listing) -> dict[str, Any]:
        """Queues and topics with their figures; `pattern` as in subscriptions, `sort` by any of the figures."""
        producers = self._core.sessions.producers()
        found = [
            {**one.facts(), "group": self._core.group, "producers": producers[one.number]}
            for one in self._core.destinations.values()
            if (not asked.kind or one.kind == asked.kind) and _wanted(asked.pattern, one.name)
        ]
        return _page("destinations", found, asked)

    def figures(self, asked: Figures) -> Later:
        """For monitoring: depth, age and totals of up to `count` destinations by name, and of all others together."""
        core = self._core
        look = core.showcase.look(core.destinations, core.sessions.owners, asked.count)

        def begin(then: Callable[[Any], None]) -> None:
            found = next(look)
            if found is None:
                core.call_at(core.now_ms + 1, lambda: begin(then))  # others first
            else:
                then({**found, "group": core.group, "time_ms": core.now_ms})

        return Later(begin)

    def destination(self, asked: One) -> dict[str, Any]:
        """Everything about one destination."""
        one = self._find(asked.destination)
        parameters = {name: getattr(one.parameters, name) for name in one.parameters.__struct_fields__}
        owner = self._core.sessions.owners.get(one.number)
        return {
            **one.facts(),
            "group": self._core.group,
            "producers": self._core.sessions.producers()[one.number],
            "blocked": self._core.is_blocked(one),
            "parameters": parameters,
            "subscriptions": [subscription._asdict() for subscription in one.subscriptions()],
            "temporary_of": owner.hex() if owner else None,
        }

    def create(self, asked: Create) -> dict[str, Any]:
        """Make a queue or topic; one that is there already stays as it is."""
        existed = self._core.find(asked.destination) is not None
        made = self._core.create(asked.destination, kind_of(asked.kind), parameters_of(asked.parameters))
        return {"id": made.id.hex(), "number": made.number, "existed": existed}

    def delete(self, asked: Delete) -> dict[str, Any]:
        """Delete a queue or topic with its messages, or only if it is unused; its consumers and producers are told."""
        one = self._find(asked.destination)
        if is_servers(one.name):
            raise NotAllowed(f"{one.name!r} is one of the server's own and stays.")
        if one.parts.has_prepared:
            raise Unavailable(f"{one.name!r} has a part in a commit across groups that is not decided yet.")
        messages = one.depth
        if asked.unused and (messages or one.facts()["consumers"]):
            raise Unavailable(f"{one.name!r} is in use: {messages} messages, {one.facts()['consumers']} consumers.")
        self._core.delete(one, "It was deleted by an administrator.")
        return {"messages": messages}

    def purge(self, asked: Purge) -> dict[str, Any]:
        """Remove all messages, or those a selector matches, except what consumers hold just now."""
        one = self._find(asked.destination)
        selectors.compile(asked.selector)
        total, at = 0, 0
        while True:
            dropped, following = one.purge(asked.selector, at)
            total += dropped
            if following is None or following <= at:
                return {"messages": total, "next": following}
            at = following

    def pause(self, asked: One) -> dict[str, Any]:
        """Stop deliveries from a destination until it is resumed; sends go on."""
        return self._paused(asked.destination, True)

    def resume(self, asked: One) -> dict[str, Any]:
        """Let a paused destination deliver again."""
        return self._paused(asked.destination, False)

    def _paused(self, name: str, paused: bool) -> dict[str, Any]:
        one = self._find(name)
        one.change(parameters_of({"paused": paused}, one.parameters))
        return {"paused": paused}

    # ------------------------------------------------------------------ messages

    def browse(self, asked: Browse) -> dict[str, Any]:
        """Messages of a destination, a page at a time, without taking them."""
        page = self._find(asked.destination).browse(asked.start, asked.count, asked.selector)
        messages: list[dict[str, Any]] = []
        room = ANSWER_ROOM
        following = page.next
        for seen in page.messages:
            facts = shown(seen, asked.body, asked.body_bytes)
            room -= len(msgspec.json.encode(facts))
            if room < 0 and messages:
                following = seen.order
                break
            messages.append(facts)
        return {"messages": messages, "next": following, "waits": page.waits}

    def message(self, asked: Message) -> dict[str, Any]:
        """One message, with as much of its body as fits."""
        page = self._find(asked.destination).browse(asked.order, 1, kept=True)
        if page.messages and page.messages[0].order == asked.order:
            return {"message": shown(page.messages[0], asked.body, asked.body_bytes)}
        if page.waits:
            return {"message": None, "waits": True}
        raise NoDestination(f"{asked.destination!r} has no message {asked.order}.")

    def drop(self, asked: Drop) -> dict[str, Any]:
        """Remove single messages, by their order numbers."""
        return {"messages": self._find(asked.destination).drop(asked.orders)}

    def move(self, asked: Move) -> dict[str, Any]:
        """Messages from a queue to another destination, each in one step: by order numbers, or by selector."""
        source, target = self._find(asked.destination), self._find(asked.to)
        if asked.orders:
            return {"messages": source.move(asked.orders, target), "next": None}
        page = source.browse(0, asked.count, asked.selector)
        moved = source.move([seen.order for seen in page.messages if seen.state == "ready"], target)
        return {"messages": moved, "next": page.next, "waits": page.waits}

    def redrive(self, asked: Redrive) -> dict[str, Any]:
        """Dead messages back to where they came from, or elsewhere: by order, reason, origin or selector."""
        return redrive(self._core, asked)

    # ------------------------------------------------------------------ who uses what

    def subscriptions(self, _: Nothing) -> dict[str, Any]:
        """The durable subscriptions."""
        return {"subscriptions": self._core.sessions.subscriptions.listed()}

    def unsubscribe(self, asked: Unsubscribe) -> dict[str, Any]:
        """Remove a durable subscription with what it has not yet consumed."""
        self._core.sessions.subscriptions.remove([asked.client], asked.name)
        return {}

    def sessions(self, asked: OfSession) -> dict[str, Any]:
        """The sessions, held by a connection or waiting to be resumed."""
        sessions = self._core.sessions
        found = [one for one in sessions.by_id.values() if not asked.user or one.user == asked.user]
        first = asked.page * asked.count
        rows = [sessions.facts(one) for one in found[first : first + asked.count]]
        return {"sessions": rows, "total": len(found), "next": _next(asked.page, asked.count, len(found))}

    def consumers(self, asked: One) -> dict[str, Any]:
        """The consumers of a destination."""
        destination = self._find(asked.destination)
        found = [
            self._consumer(consumer)
            for session in self._core.sessions.by_id.values()
            for consumer in session.consumers.values()
            if consumer.destination is destination
        ]
        return {"consumers": found[:PAGE_MAX], "total": len(found)}

    def _consumer(self, consumer: Consumer) -> dict[str, Any]:
        return {
            "destination": consumer.destination.name,
            "session": consumer.session.id.hex(),
            "user": consumer.session.user,
            "handle": consumer.handle,
            "cursor": consumer.cursor,
            "selector": consumer.selector_text,
            "exclusive": consumer.exclusive,
            "browse": consumer.browse,
            "credit_messages": consumer.messages,
            "credit_bytes": consumer.bytes,
            "held": consumer.held,
            "paused": consumer.paused,
            "stalled": consumer.stalled,
        }

    def transactions(self, _: Nothing) -> dict[str, Any]:
        """The open transactions, first those across groups that are prepared and wait for the decider's word."""
        core = self._core
        found = [*core.prepared.listed(), *core.transactions.listed()]
        return {"transactions": found[:PAGE_MAX], "total": len(found), "settling": core.decisions.facts()}

    def transfers(self, _: Nothing) -> dict[str, Any]:
        """Very large messages on their way in and out."""
        return self._core.transfers.facts()

    def schedules(self, asked: One) -> dict[str, Any]:
        """The schedules of a destination."""
        return {"schedules": self._find(asked.destination).schedules()}

    def cancel_schedule(self, asked: CancelSchedule) -> dict[str, Any]:
        """End a schedule."""
        if not self._find(asked.destination).cancel(asked.order):
            raise NoDestination(f"{asked.destination!r} has no schedule {asked.order}.")
        return {}


def _wanted(pattern: str, name: str) -> bool:
    if not pattern:
        return True
    return pattern == name or fits(pattern, name)


def _page(what: str, found: list[dict[str, Any]], asked: Listing) -> dict[str, Any]:
    if found and asked.sort not in found[0]:
        raise BadParameter(f"Cannot sort by {asked.sort!r:.40}; possible are {', '.join(found[0])}.")
    found.sort(key=lambda one: (one[asked.sort], one["name"]), reverse=asked.descending)
    first = asked.page * asked.count
    return {
        what: found[first : first + asked.count],
        "total": len(found),
        "next": _next(asked.page, asked.count, len(found)),
    }


def _next(page: int, count: int, total: int) -> int | None:
    return page + 1 if (page + 1) * count < total else None
