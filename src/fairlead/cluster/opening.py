"""How a session's producers and consumers are opened and closed, and the small questions about destinations.

Every step that concerns a destination is posted to its queue; the answer goes out from there, when what it rests on
is safe. A consumer is attached only after its subscription's record is safe, so that no delivery comes before the
answer; one by pattern is paused until then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from fairlead import selector
from fairlead.cluster import requests
from fairlead.cluster.naming import is_pattern
from fairlead.cluster.parameters import Kind, Parameters
from fairlead.cluster.parties import Consumer, Line, Producer, Session
from fairlead.errors import (
    BadParameter,
    FairleadError,
    LocalProtocolError,
    NoDestination,
    NotAllowed,
    SessionLost,
    WrongKind,
)
from fairlead.security import spaces

if TYPE_CHECKING:
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.host import Host
    from fairlead.cluster.subscriptions import Patterns, Subscriptions

HANDLES_PER_LINE_MAX = 100_000


class Opening:
    """The commands `produce`, `consume`, `end`, `flow`, `unsubscribe`, `temporary`, `locate`, `schedules`, `cancel`."""

    def __init__(self, core: Host, subscriptions: Subscriptions, patterns: Patterns) -> None:
        self._core = core
        self._subscriptions = subscriptions
        self._patterns = patterns

    # ------------------------------------------------------------------ producers

    def produce(self, line: Line, number: int, request: dict[str, Any]) -> None:
        asked = requests.read(request, requests.Produce)
        session = self._session(line, asked.session)
        if spaces.is_servers(asked.destination):
            raise NotAllowed(f"Nobody sends to {asked.destination!r}: its messages come from the server itself.")
        destination = self.resolve(asked, request)
        producer = session.producers.get(destination.number)
        if producer is None:
            producer = Producer(handle=new_handle(line), session=session, destination=destination)
            session.producers[destination.number] = producer
            producer.allowances = self._core.allowances.of(request)
            line.handles[producer.handle] = producer
            self._core.sessions.uses(session, destination)
        one = producer

        def opened() -> None:
            blocked = self._core.is_blocked(destination)
            facts = {
                "producer": one.handle,
                "destination_id": destination.id.hex(),
                "kind": destination.kind,
                "accepted": session.accepted.get(destination.number, 0),
                "blocked": blocked,
            }
            one.told_blocked = blocked
            destination.marks.meet(one)
            self._core.after(self._core.last_index, lambda: self._core.answer(line, number, facts))

        self._core.post(destination, opened)

    # ------------------------------------------------------------------ consumers

    def consume(self, line: Line, number: int, request: dict[str, Any]) -> None:
        asked = requests.read(request, requests.Consume)
        session = self._session(line, asked.session)
        selector.compile(asked.selector)  # a bad one is refused before anything is made
        if is_pattern(asked.destination):
            self._consume_pattern(line, number, session, asked, tuple(request.get("but") or ()))
            return
        destination = self.resolve(asked, request)
        self._check_owner(line, session, destination)
        if asked.durable and destination.kind != "topic":
            raise WrongKind(f"{asked.destination!r} is a queue: only topics have durable subscriptions.")
        consumer = self.make_consumer(line, session, destination, asked)

        def attach(cursor: int) -> None:
            consumer.cursor = cursor
            if line.gone or session.line is not line:
                return
            try:
                self._attach(consumer, asked)
            except FairleadError as refusal:
                self.drop(line, consumer)
                self._core.error(line, number, refusal.code, refusal.text)
                return
            self._core.answer(line, number, self._opened(consumer))

        def begin() -> None:
            try:
                if asked.durable:
                    cursor, index = self._subscriptions.claim(consumer, asked)
                else:
                    cursor, index = 0, self._core.last_index
            except FairleadError as refusal:
                self.drop(line, consumer)
                self._core.error(line, number, refusal.code, refusal.text)
                return
            self._core.after(index, lambda: self._core.post(destination, lambda: attach(cursor)))

        self._core.post(destination, begin)

    def make_consumer(
        self, line: Line, session: Session, destination: Destination, asked: requests.Consume
    ) -> Consumer:
        """A consumer as asked for, known to its session and connection; not yet attached."""
        consumer = Consumer(
            handle=new_handle(line),
            session=session,
            destination=destination,
            selector=selector.compile(asked.selector),
            selector_text=asked.selector.strip(),
            no_local=asked.no_local,
            exclusive=asked.exclusive,
            browse=asked.browse,
            replay=asked.replay is not None,
            messages=asked.messages,
            bytes=asked.bytes,
            paused=session.stopped,
            own=asked.own,
            holds=asked.holds,
        )
        session.consumers[consumer.handle] = consumer
        line.handles[consumer.handle] = consumer
        self._core.sessions.uses(session, destination)
        return consumer

    def _attach(self, consumer: Consumer, asked: requests.Consume) -> None:
        start = asked.start if asked.replay is None else asked.replay
        consumer.destination.attach(consumer, start)

    def _opened(self, consumer: Consumer) -> dict[str, Any]:
        destination = consumer.destination
        return {
            "consumer": consumer.handle,
            "destination_id": destination.id.hex(),
            "kind": destination.kind,
            "cursor": consumer.cursor,
            "first": destination.first,
            "next": destination.next,
        }

    def _consume_pattern(
        self, line: Line, number: int, session: Session, asked: requests.Consume, but: tuple[str, ...]
    ) -> None:
        if asked.kind == "queue" or asked.browse or asked.replay is not None:
            raise WrongKind("A pattern stands for topics; queues are named one by one.")
        if asked.durable:
            self._subscriptions.declare(session, asked, asked.destination, but=but)
        group = self._patterns.open(session, new_handle(line), asked, but)
        waiting = self._patterns.matching(group)
        left = len(waiting)

        def answer() -> None:
            if line.gone or session.line is not line:
                return
            if group.refusal is None:
                self._patterns.answer(line, number, group)
                return
            self._patterns.take(line, group.handle)
            for member in group.consumers():
                self.close(line, member)
            self._core.error(line, number, group.refusal.code, group.refusal.text)

        def done() -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                self._core.after(self._core.last_index, answer)

        for destination in waiting:
            self._patterns.join(group, destination, done)
        if not waiting:
            done()

    def end(self, line: Line, number: int, request: dict[str, Any]) -> None:
        handle = requests.read(request, requests.OfHandle).handle
        group = self._patterns.take(line, handle)
        party = line.handles.get(handle)
        if group is None and party is None:
            raise LocalProtocolError(f"This connection has no producer or consumer {handle}.")
        members = group.consumers() if group is not None else [party]
        destinations = []
        for member in members:
            if member is not None:
                self.close(line, member)
                destinations.append(member.destination)

        def answer() -> None:
            self._core.after(self._core.last_index, lambda: self._core.answer(line, number, {}))

        self._core.sessions.join(destinations, answer)

    def close(self, line: Line, party: Producer | Consumer) -> None:
        """End it, behind what it has sent: an orderly end, in which nothing was shown to the application in vain."""
        self._core.transactions.closing(party.session, party.destination)
        if isinstance(party, Consumer):
            consumer = party
            self._core.post(party.destination, lambda: consumer.destination.detach(consumer, orderly=True))
        self.drop(line, party)

    def drop(self, line: Line, party: Producer | Consumer) -> None:
        line.handles.pop(party.handle, None)
        if isinstance(party, Consumer):
            party.session.consumers.pop(party.handle, None)
            self._core.transfers.downloads.drop(party)
        else:
            party.session.producers.pop(party.destination.number, None)

    def flow(self, line: Line, number: int, request: dict[str, Any]) -> None:
        """Stop or start deliveries of one consumer or of the whole session (CLU-30, CLU-104)."""
        asked = requests.read(request, requests.Flow)
        if asked.handle is not None:
            party = line.handles.get(asked.handle)
            group = self._patterns.get(line, asked.handle)
            consumers = group.consumers() if group else [party] if isinstance(party, Consumer) else []
            if not consumers and group is None:
                raise LocalProtocolError(f"This connection has no consumer {asked.handle}.")
        else:
            session = self._session(line, asked.session or 0)
            session.stopped = asked.stop
            consumers = list(session.consumers.values())
        for consumer in consumers:
            consumer.paused = asked.stop
            self._core.ready(consumer.destination)
        self._core.answer(line, number, {})

    # ------------------------------------------------------------------ subscriptions and destinations

    def unsubscribe(self, line: Line, number: int, request: dict[str, Any]) -> None:
        name = requests.read(request, requests.Unsubscribe).name
        clients = {line.user, *(session.client for session in line.sessions.values())}
        index = self._subscriptions.remove(clients, name)
        self._core.after(index, lambda: self._core.answer(line, number, {}))

    def temporary(self, line: Line, number: int, request: dict[str, Any]) -> None:
        """A destination only this connection may consume from, which goes when the session does (CLU-29)."""
        asked = requests.read(request, requests.Temporary)
        session = self._session(line, asked.session)
        stem, count = (
            spaces.temporary_stem(str(request.get("tenant") or ""), session.id.hex()),
            len(session.temporary) + 1,
        )
        while self._core.find(f"{stem}:{count}") is not None:
            count += 1
        destination = self._core.create(f"{stem}:{count}", kind_of(asked.kind), Parameters(), owner=session.id)
        session.temporary.add(destination.number)
        self._core.sessions.owners[destination.number] = session.id
        index = self._core.sessions.wrote_temporary(session)
        facts = {"name": destination.name, "destination_id": destination.id.hex()}
        self._core.after(index, lambda: self._core.answer(line, number, facts))

    def locate(self, line: Line, number: int, request: dict[str, Any]) -> None:
        destination = self._find(requests.read(request, requests.OfDestination).destination)
        facts = {"kind": destination.kind, "id": destination.id.hex(), "group": self._core.group}
        self._core.after(self._core.last_index, lambda: self._core.answer(line, number, facts))

    def schedules(self, line: Line, number: int, request: dict[str, Any]) -> None:
        destination = self._find(requests.read(request, requests.OfDestination).destination)
        self._later(line, number, destination, lambda: {"schedules": destination.schedules()})

    def cancel(self, line: Line, number: int, request: dict[str, Any]) -> None:
        asked = requests.read(request, requests.Cancel)
        destination = self._find(asked.destination)

        def cancelled() -> dict[str, Any]:
            if not destination.cancel(asked.order):
                raise NoDestination(f"{asked.destination!r} has no schedule {asked.order}.")
            return {}

        self._later(line, number, destination, cancelled)

    def _later(self, line: Line, number: int, destination: Destination, question: Callable[[], dict[str, Any]]) -> None:
        def ask() -> None:
            try:
                facts = question()
            except FairleadError as refusal:
                self._core.error(line, number, refusal.code, refusal.text)
                return
            self._core.after(self._core.last_index, lambda: self._core.answer(line, number, facts))

        self._core.post(destination, ask)

    # ------------------------------------------------------------------ who and what

    def _session(self, line: Line, number: int) -> Session:
        session = line.sessions.get(number)
        if session is None:
            raise SessionLost(f"This connection has no session {number}.")
        return session

    def _find(self, name: str) -> Destination:
        destination = self._core.find(name)
        if destination is None:
            raise NoDestination(f"There is no queue or topic {name!r}.")
        return destination

    def resolve(
        self, asked: requests.Produce | requests.Consume | requests.OpenStage, request: dict[str, Any]
    ) -> Destination:
        """The destination asked for, made now if the client wishes and may."""
        destination = self._core.find(asked.destination)
        if destination is None:
            if not asked.create:
                raise NoDestination(f"There is no queue or topic {asked.destination!r}.")
            may = request.get("may")
            if may is not None and "create" not in may:
                raise NotAllowed(f"There is no {asked.destination!r} yet, and this user may not create it.")
            self._core.allowances.check_new_destination(request)
            return self._core.create(asked.destination, kind_of(asked.kind or "queue"), parameters_of(asked.parameters))
        if asked.kind and destination.kind != asked.kind:
            raise WrongKind(f"{asked.destination!r} is a {destination.kind}, not a {asked.kind}.")
        return destination

    def _check_owner(self, line: Line, session: Session, destination: Destination) -> None:
        owner = self._core.sessions.owners.get(destination.number)
        if owner is None or owner == session.id or any(one.id == owner for one in line.sessions.values()):
            return
        raise NotAllowed(f"{destination.name!r} is temporary; only the connection that made it may consume from it.")


def new_handle(line: Line) -> int:
    if len(line.handles) >= HANDLES_PER_LINE_MAX:
        raise NotAllowed(f"A connection may have {HANDLES_PER_LINE_MAX} producers and consumers.")
    handle = line.next_handle
    line.next_handle += 1
    return handle


def kind_of(text: str) -> Kind:
    if text not in ("queue", "topic"):
        raise WrongKind(f"A destination is a queue or a topic, not {text!r:.40}.")
    return cast("Kind", text)


def parameters_of(values: dict[str, Any], base: Parameters | None = None) -> Parameters:
    """Parameters from plain values, over those there are; BadParameter names the one at fault."""
    merged = {name: getattr(base, name) for name in Parameters.__struct_fields__} if base is not None else {}
    try:
        return msgspec.convert(merged | values, Parameters)
    except msgspec.ValidationError as fault:
        raise BadParameter(f"{fault}. The parameters are: {', '.join(Parameters.__struct_fields__)}.") from None
