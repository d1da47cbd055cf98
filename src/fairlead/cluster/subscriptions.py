"""Durable subscriptions by name, and subscriptions by pattern.

A durable subscription is known by its client and its name, over all topics: taken up again with another topic or
selector it is replaced, as in Jakarta Messaging. Each place it has is a cursor of one topic; one by pattern has a
place in every topic that matches, also in those made while nobody was there (CLU-173…175). What a pattern stands for
is kept in a SUBSCRIBE record of its own, with destination number 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlead import topics
from fairlead.cluster import records, requests
from fairlead.cluster.names import check_name
from fairlead.cluster.parties import Consumer, Line, Session
from fairlead.errors import DuplicateSubscription, FairleadError, NoDestination, TooMany

if TYPE_CHECKING:
    from fairlead.cluster.cursor import Cursor
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.host import Host

PATTERN_TOPICS_MAX: Final = 10_000
PIPELINE: Final = "pipeline"
"""The client all named cursors of topics belong to."""
Done = Callable[[], None]


@dataclass(slots=True, eq=False)
class Durable:
    """One durable subscription."""

    client: str
    name: str
    selector: str
    shared: bool
    pattern: str = ""
    but: tuple[str, ...] = ()  # patterns of what it does not get, whatever its own stands for
    places: dict[int, int] = field(default_factory=dict)  # destination number -> cursor
    users: set[Consumer] = field(default_factory=set)
    is_cursor: bool = False  # a named cursor: nobody consumes from it, and each place is by itself


class Subscriptions:
    """The durable subscriptions of all topics."""

    def __init__(self, core: Host) -> None:
        self._core = core
        self._known: dict[tuple[str, str], Durable] = {}

    def declare(
        self,
        session: Session,
        asked: requests.Consume,
        pattern: str = "",
        destination: int = 0,
        but: tuple[str, ...] | None = None,
    ) -> Durable:
        """The durable subscription asked for: the one there is, or a new one in place of a different one."""
        check_name(asked.durable)
        key = (session.client, asked.durable)
        text = asked.selector.strip()
        known = self._known.get(key)
        if known is not None:
            self._check(known)
            self._weed(known)
            same = (known.selector, known.shared, known.pattern) == (text, asked.shared, pattern)
            if same and (pattern or not known.places or destination in known.places):
                if but is not None and but != known.but:
                    self._leave_out(known, but)
                return known
            if known.users:
                raise DuplicateSubscription(f"The durable subscription {asked.durable!r} is in use for something else.")
            self._remove(known)
        known = self._known[key] = Durable(*key, text, asked.shared, pattern, but or ())
        if pattern:
            self._core.append(records.SUBSCRIBE, msgspec.json.encode(_lasting(known)))
        return known

    def _leave_out(self, known: Durable, but: tuple[str, ...]) -> None:
        """Rights changed: what it may not have any more goes, with what waits there for it."""
        known.but = but
        self._core.append(records.SUBSCRIBE, msgspec.json.encode(_lasting(known)))
        for number, cursor in list(known.places.items()):
            destination = self._core.destinations.get(number)
            if destination is not None and not stands_for(known.pattern, but, destination.name):
                destination.unsubscribe(cursor)
                del known.places[number]

    def claim(self, consumer: Consumer, asked: requests.Consume, pattern: str = "") -> tuple[int, int]:
        """The cursor of the subscription this consumer names, made if need be, and the index it is safe from."""
        destination = consumer.destination
        known = self.declare(consumer.session, asked, pattern, destination.number)
        if not known.shared and any(user.destination is destination for user in known.users):
            raise DuplicateSubscription(f"The durable subscription {asked.durable!r} is in use by another consumer.")
        cursor = known.places.get(destination.number)
        if cursor is None:
            cursor = self._place(known, destination, asked.start)
        known.users.add(consumer)
        return cursor, self._core.last_index

    def _place(self, known: Durable, destination: Destination, start: requests.Start) -> int:
        cursor, _ = destination.subscribe(
            name=known.name,
            client=known.client,
            selector=known.selector,
            shared=known.shared,
            start=start,
            pattern=known.pattern,
        )
        known.places[destination.number] = cursor
        return cursor

    def remove(self, clients: Iterable[str], name: str) -> int:
        """Unsubscribe: the index it is safe from. Refused while somebody consumes from it."""
        known = next((found for client in clients if (found := self._known.get((client, name)))), None)
        if known is None:
            raise NoDestination(f"There is no durable subscription {name!r}.")
        self._check(known)
        self._weed(known)
        if known.users:
            raise DuplicateSubscription(f"The durable subscription {name!r} is in use.")
        self._remove(known)
        return self._core.last_index

    def _remove(self, known: Durable) -> None:
        del self._known[known.client, known.name]
        for number, cursor in known.places.items():
            destination = self._core.destinations.get(number)
            if destination is not None:
                destination.unsubscribe(cursor)
        if known.pattern:
            record = {"number": 0, "cursor": 0, "name": known.name, "client": known.client}
            self._core.append(records.UNSUBSCRIBE, msgspec.json.encode(record))

    # ------------------------------------------------------------------ named cursors

    def open_cursor(self, destination: Destination, name: str, start: requests.Start) -> Cursor:
        """The named cursor of this topic, made if need be."""
        known = self._known.get((PIPELINE, name))
        if known is not None and not known.is_cursor:
            raise DuplicateSubscription(f"There is a durable subscription {name!r} of the client {PIPELINE!r}.")
        if known is None or destination.number not in known.places:
            now_ms = self._core.now_ms
            number, _ = destination.subscribe(
                name=name, client=PIPELINE, selector="", shared=False, start=start, opened_ms=now_ms
            )
            known = self._known.setdefault((PIPELINE, name), Durable(PIPELINE, name, "", False, is_cursor=True))
            known.places[destination.number] = number
        return destination.cursors[known.places[destination.number]]

    def find_cursor(self, destination: Destination, name: str) -> Cursor | None:
        known = self._known.get((PIPELINE, name))
        if known is None or not known.is_cursor or destination.number not in known.places:
            return None
        return destination.cursors[known.places[destination.number]]

    def release_cursor(self, destination: Destination, name: str) -> None:
        """The named cursor of this topic ends."""
        destination.unsubscribe(self._known[PIPELINE, name].places[destination.number])
        self.forget(destination.number, name)

    def _check(self, known: Durable) -> None:
        if known.is_cursor:
            raise DuplicateSubscription(f"{known.name!r} is a named cursor: nobody consumes from it; it is released.")

    def _weed(self, known: Durable) -> None:
        """Consumers that are over no longer use it."""
        known.users = {user for user in known.users if user.session.consumers.get(user.handle) is user}

    def on_created(self, destination: Destination) -> None:
        """Durable subscriptions by pattern begin at the first message of a new topic, whoever is there."""
        if destination.kind == "topic":
            for known in self._known.values():
                fit = known.pattern and stands_for(known.pattern, known.but, destination.name)
                if fit and destination.number not in known.places:
                    self._place(known, destination, "first")

    def forget(self, number: int, cursor: str = "") -> None:
        """The topic of this number is deleted; or one named cursor of it."""
        for key, known in list(self._known.items()):
            if cursor and key != (PIPELINE, cursor):
                continue
            if known.places.pop(number, None) is not None and not known.places and not known.pattern:
                del self._known[key]

    def listed(self) -> list[dict[str, Any]]:
        """For administration: each with its topics and how far it is behind in all of them together."""
        found = []
        for known in self._known.values():
            self._weed(known)
            homes = [
                (self._core.destinations[n], cursor)
                for n, cursor in known.places.items()
                if n in self._core.destinations
            ]
            found.append(
                {
                    "name": known.name,
                    "client": known.client,
                    "topics": [home.name for home, _ in homes],
                    "pattern": known.pattern,
                    "selector": known.selector,
                    "shared": known.shared,
                    "consumers": len(known.users),
                    "depth": sum(
                        one.depth for home, cursor in homes for one in home.subscriptions() if one.cursor == cursor
                    ),
                }
            )
        return found

    # ------------------------------------------------------------------ the journal

    def apply(self, kind: int, facts: dict[str, Any]) -> None:
        """A SUBSCRIBE or UNSUBSCRIBE record with destination number 0: a pattern."""
        key = (facts["client"], facts["name"])
        if kind == records.UNSUBSCRIBE:
            self._known.pop(key, None)
        else:
            known = self._known.setdefault(key, Durable(*key, facts["selector"], facts["shared"], facts["pattern"]))
            known.selector, known.shared, known.pattern = facts["selector"], facts["shared"], facts["pattern"]
            known.but = tuple(facts.get("but", ()))

    def snapshot(self) -> Sequence[dict[str, Any]]:
        """The patterns; everything else is in the topics' own snapshots."""
        return [_lasting(known) for known in self._known.values() if known.pattern]

    def recovered(self, destination: Destination) -> None:
        """Learn from a topic, once it is whole again, which subscriptions have a place in it."""
        if destination.kind != "topic":
            return
        for one in destination.subscriptions():
            key = (one.client, one.name)
            made = Durable(*key, one.selector, one.shared, one.pattern, is_cursor=bool(one.opened_ms))
            known = self._known.setdefault(key, made)
            known.places[destination.number] = one.cursor


@dataclass(slots=True, eq=False)
class Group:
    """A consumer by pattern: a consumer for each topic that matches."""

    handle: int
    session: Session
    asked: requests.Consume
    but: tuple[str, ...] = ()  # patterns of topics it may not have
    members: dict[int, Consumer] = field(default_factory=dict)  # by destination number
    joined: list[dict[str, Any]] = field(default_factory=list)  # for the answer
    is_answered: bool = False
    refusal: FairleadError | None = None  # why it cannot have a topic that it began with

    def consumers(self) -> list[Consumer]:
        return list(self.members.values())


class Patterns:
    """Consumers by pattern, of all sessions."""

    def __init__(self, core: Host) -> None:
        self._core = core
        self._groups: dict[Session, dict[int, Group]] = {}

    def open(self, session: Session, handle: int, asked: requests.Consume, but: tuple[str, ...] = ()) -> Group:
        topics.validate_pattern(asked.destination)
        group = Group(handle, session, asked, but)
        if len(self.matching(group)) > PATTERN_TOPICS_MAX:
            raise TooMany(f"The pattern {asked.destination!r} stands for more than {PATTERN_TOPICS_MAX} topics.")
        self._groups.setdefault(session, {})[handle] = group
        return group

    def matching(self, group: Group) -> list[Destination]:
        pattern, but = group.asked.destination, group.but
        found = self._core.destinations.values()
        return [one for one in found if one.kind == "topic" and stands_for(pattern, but, one.name)]

    def join(self, group: Group, destination: Destination, done: Done = lambda: None) -> None:
        """Take this topic in. Nothing is delivered of it before the client was told its handle."""
        line, asked = group.session.line, group.asked
        if line is None or destination.number in group.members:
            done()
            return
        consumer = self._core.sessions.opening.make_consumer(line, group.session, destination, asked)
        consumer.paused |= not group.is_answered
        group.members[destination.number] = consumer

        def begin() -> None:
            try:
                if asked.durable:
                    consumer.cursor, _ = self._core.sessions.subscriptions.claim(consumer, asked, asked.destination)
                destination.attach(consumer, asked.start)
            except FairleadError as refusal:
                group.members.pop(destination.number, None)
                self._core.sessions.opening.drop(line, consumer)
                self._core.event("warning", refusal.code, refusal.text, destination=destination.name)
                group.refusal = refusal
            else:
                self._joined(group, consumer)
            done()

        self._core.post(destination, begin)

    def _joined(self, group: Group, consumer: Consumer) -> None:
        """It will be in the answer; when that was given already, it is told by NOTICE `joined`."""
        destination = consumer.destination
        facts = {"handle": consumer.handle, "destination": destination.name, "destination_id": destination.id.hex()}
        if group.is_answered:
            self._core.notice(group.session, event="joined", consumer=group.handle, **facts)
        else:
            group.joined.append(facts)

    def answer(self, line: Line, number: int, group: Group) -> None:
        """Everything it began with is taken in, and safe: now the client may get messages."""
        self._core.answer(line, number, {"consumer": group.handle, "joined": group.joined})
        group.is_answered = True
        for consumer in group.consumers():
            consumer.paused = group.session.stopped
            self._core.ready(consumer.destination)

    def on_created(self, destination: Destination) -> None:
        """A topic was made: consumers whose pattern it matches get it."""
        self._core.sessions.subscriptions.on_created(destination)
        if destination.kind != "topic":
            return
        for groups in self._groups.values():
            for group in groups.values():
                fit = stands_for(group.asked.destination, group.but, destination.name)
                if fit and len(group.members) < PATTERN_TOPICS_MAX:
                    self.join(group, destination)

    def get(self, line: Line, handle: int) -> Group | None:
        return next((g[handle] for s in line.sessions.values() if (g := self._groups.get(s)) and handle in g), None)

    def take(self, line: Line, handle: int) -> Group | None:
        group = self.get(line, handle)
        if group is not None:
            del self._groups[group.session][handle]
        return group

    def drop(self, session: Session) -> None:
        self._groups.pop(session, None)


def _lasting(known: Durable) -> dict[str, Any]:
    return {
        "number": 0,
        "cursor": 0,
        "name": known.name,
        "client": known.client,
        "selector": known.selector,
        "shared": known.shared,
        "start": "new",
        "pattern": known.pattern,
        **({"but": known.but} if known.but else {}),
    }


def fits(pattern: str, name: str) -> bool:
    """Does the pattern stand for this name? Never for a temporary one, nor by accident for a reserved one (CLU-175)."""
    return not name.startswith("temporary:") and _compiled(pattern).matches(name)


def stands_for(pattern: str, but: Sequence[str], name: str) -> bool:
    """The same, for a consumer that may not have everything its pattern stands for."""
    return fits(pattern, name) and not any(_compiled(one).matches(name) for one in but)


_cache: dict[str, topics.Pattern] = {}


def _compiled(pattern: str) -> topics.Pattern:
    found = _cache.get(pattern)
    if found is None:
        if len(_cache) >= 4096:
            _cache.clear()
        found = _cache[pattern] = topics.compile(pattern)
    return found
