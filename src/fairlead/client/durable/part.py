"""The part of a session that is in one group: what it has open there, and how it goes on when its line was lost.

::

    NEW ──open──► OPENING ──answer──► OPEN ──loss──► LOST ──line──► OPENING (a resume)
                                       └──end──► ENDED

A resume keeps the id and raises the incarnation; then producers and consumers are opened again, each learns how far it
was heard, and whatever was not confirmed is sent again under its old numbers (CLU-122, CLU-123). Without a cluster a
session has one part, and it is the whole of it.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from fairlead.client.durable.commands import Command, Facts, Reply, moot
from fairlead.client.durable.places import is_misplaced
from fairlead.client.durable.producer import Producer
from fairlead.errors import ConnectionLost, DestinationDeleted, FairleadError, NoMessageManager, SessionLost

if TYPE_CHECKING:
    from fairlead.client.durable.consumer import DurableConsumer
    from fairlead.client.durable.group import Group
    from fairlead.client.durable.session import DurableSession
    from fairlead.client.durable.transaction import DurableTransaction
    from fairlead.client.durable.uploads import Upload

__all__ = ["Identity", "Part", "State", "as_fairlead"]

WINDOW_MESSAGES = 4096
WINDOW_BYTES = 8 << 20
"""Until the server has said how much may be unconfirmed."""
MESSAGE_ID = 2
"""The kind of id of messages, in the thirteenth byte (docs/durable.md, section 3)."""


class State(enum.Enum):
    NEW = "new"
    OPENING = "opening"
    OPEN = "open"
    LOST = "lost"
    ENDED = "ended"


class Identity(NamedTuple):
    """By which the server knows a part again."""

    id: str
    secret: str
    incarnation: int


class Part:
    """Producers by destination, consumers, and at most one transaction at a time, which is the session's.

    `unplaced` are those whose group is not known yet: they only wait here.
    """

    def __init__(self, session: DurableSession, group: Group) -> None:
        self.session = session
        self.road = session.road
        self.ack = session.ack
        self.group = group
        self.state = State.NEW
        self.number = 0
        self.id = ""
        self.error: Exception | None = None
        self.window_messages = WINDOW_MESSAGES
        self.window_bytes = WINDOW_BYTES
        self.in_flight = 0
        self.in_flight_bytes = 0
        self.producers: dict[str, Producer] = {}
        self.consumers: list[DurableConsumer] = []
        self.uploads: list[Upload] = []
        self.unplaced: set[Producer | DurableConsumer] = set()
        self.consumed = 0  # consumers it ever had: the number of the newest
        self.waiting: list[Command] = []  # for it to be open
        self._awaiting: list[Reply] = []  # the same
        self._secret = ""
        self._incarnation = 1
        self._id_next = 0
        self._id_beyond = 0
        self.id_base = ""  # what the ids of all its messages begin with: node and start of its own, and the kind
        self._asking_ids = False

    @property
    def is_open(self) -> bool:
        return self.state is State.OPEN

    @property
    def is_wanted(self) -> bool:
        """Is there anything to open it for?"""
        if self.id or self.waiting or self._awaiting:
            return True
        if not self.road.is_cluster:
            return bool(self.producers or self.consumers)
        return any(one not in self.unplaced for one in (*self.producers.values(), *self.consumers))

    @property
    def transaction(self) -> DurableTransaction | None:
        return self.session.transaction

    @property
    def has_room(self) -> bool:
        """May more be sent before something is confirmed?"""
        return self.in_flight < self.window_messages and self.in_flight_bytes < self.window_bytes

    @property
    def is_idle(self) -> bool:
        """Is everything sent confirmed or refused?"""
        return all(producer.is_idle for producer in self.producers.values()) and not self.uploads

    @property
    def identity(self) -> Identity:
        return Identity(self.id, self._secret, self._incarnation)

    def take_over(self, identity: Identity) -> None:
        """Go on as one that was given up; before it is opened."""
        self.id, self._secret, self._incarnation = identity

    # What the application opens.

    def open(self) -> None:
        """Begin, or go on; no-op when that is under way."""
        if self.state in (State.OPEN, State.OPENING, State.ENDED):
            return
        if not self.group.is_live:
            self.group.missed()
            return
        fields: Facts = {"ack": self.ack, "client_name": self.road.client_name}
        if self.road.is_cluster or self.road.scouted:
            fields["group"] = self.group.name or self.road.scouted
        if self.id:
            self._incarnation += 1  # at every attempt: the answer to the last one may be what was lost
            fields["resume"] = {"id": self.id, "secret": self._secret, "incarnation": self._incarnation}
        self.state = State.OPENING
        self.road.ask(Command("session", fields, self._on_open, part=self, on_loss="drop"))

    def add_producer(self, producer: Producer) -> None:
        self.producers[producer.destination] = producer
        self._produce(producer)

    def add_consumer(self, consumer: DurableConsumer) -> None:
        self.consumed += 1
        consumer.own = self.consumed
        consumer.part = self
        self.consumers.append(consumer)
        self._consume(consumer)

    def remove_consumer(self, consumer: DurableConsumer) -> None:
        self.unplaced.discard(consumer)
        if consumer in self.consumers:
            self.consumers.remove(consumer)

    def remove_producer(self, producer: Producer) -> None:
        self.unplaced.discard(producer)
        if self.producers.get(producer.destination) is producer:
            del self.producers[producer.destination]

    def hand_over(self, one: Producer | DurableConsumer, part: Part) -> None:
        """It was waiting here, and belongs there. Nothing of it was ever said to the server."""
        self.unplaced.discard(one)
        if isinstance(one, Producer):
            if part is not self:
                self.remove_producer(one)
                one.move(part)
                moving = [upload for upload in self.uploads if upload.producer is one]
                self.uploads = [upload for upload in self.uploads if upload.producer is not one]
                part.uploads += moving
            part.add_producer(one)
        elif part is self:
            self._consume(one)
        else:
            self.remove_consumer(one)
            part.add_consumer(one)

    def ask(self, command: Command) -> None:
        """Ask when it is open."""
        command.part = self
        command.of_session = True
        if self.state is State.ENDED:
            command.reply({}, self.error or SessionLost())
        elif self.is_open:
            self.road.ask(command)
        else:
            self.waiting.append(command)
            self.open()

    def when_open(self, then: Reply) -> None:
        """Told when it was opened, or why it will not be."""
        if self.state is State.ENDED:
            then({}, self.error or SessionLost())
        elif self.is_open:
            then({}, None)
        else:
            self._awaiting.append(then)
            self.open()

    def take_ids(self, count: int) -> int:
        """The first of so many message id numbers; 0: there are none left, and more were asked for."""
        left = self._id_beyond - self._id_next
        if left < count or left < 1 << 16:
            self._ask_ids()
        if left < count:
            return 0
        first = self._id_next
        self._id_next += count
        return first

    # What the server says.

    def _on_open(self, facts: Facts, error: Exception | None) -> None:
        if self.state is not State.OPENING:
            return
        if error is not None:
            self.state = State.LOST if self.id else State.NEW
            if isinstance(error, NoMessageManager):
                self.group.unreachable()
            elif isinstance(error, SessionLost) and self.id:
                self._begin_anew(error)
            else:
                self.fail(error)
            return
        self.state = State.OPEN
        self.number = int(facts["session"])
        self.id = str(facts["id"])
        self.id_base = f"{self.id[:24]}{MESSAGE_ID:02x}"
        self._secret = str(facts["secret"])
        self._incarnation = int(facts["incarnation"])
        self.window_messages = int(facts.get("window_messages") or WINDOW_MESSAGES)
        self.window_bytes = int(facts.get("window_bytes") or WINDOW_BYTES)
        self._take_block(facts)
        self.road.learn(facts, first=self.group)
        self.group.reached()
        if self.session.stopped:
            self._say(Command("flow", {"stop": True}, moot, on_loss="drop"))
        for producer in list(self.producers.values()):
            self._produce(producer)
        for consumer in list(self.consumers):
            self._consume(consumer)
        if self.transaction is not None:
            self.transaction.on_resumed(self)
        waiting, self.waiting = self.waiting, []
        for command in waiting:
            self.road.ask(command)
        awaiting, self._awaiting = self._awaiting, []
        for then in awaiting:
            then({}, None)
        self.road.changed()

    def _begin_anew(self, error: Exception) -> None:
        """The server does not know it any more: what was not confirmed has an unknown outcome; the rest goes on."""
        self.id, self._incarnation, self._id_next, self._id_beyond = "", 1, 0, 0
        for producer in list(self.producers.values()):
            producer.fail(as_fairlead(error))
        for upload in list(self.uploads):
            upload.fail(error)
        if self.transaction is not None:
            self.transaction.on_session_lost(self, error)
        self.open()

    def _say(self, command: Command) -> None:
        """It is open."""
        command.part = self
        command.of_session = True
        self.road.ask(command)

    def _waits(self, one: Producer | DurableConsumer) -> bool:
        """Is it not yet time to open this one?"""
        if one in self.unplaced and self.road.is_known:
            if self.road.is_cluster:
                self.session.place(one)
                return True
            self.unplaced.discard(one)
        if not self.is_open:
            self.open()
            return True
        return False

    def _misplaced(self, one: Producer | DurableConsumer, error: Exception) -> bool:
        """It may be in another group, if it never was in this one: asked again, once in the same place."""
        if not self.road.is_cluster or not is_misplaced(error):
            return False
        self.road.places.forget(one.destination)
        if one.was_open or one.refused_by is self:
            return False
        one.refused_by = self
        self.unplaced.add(one)
        self.session.place(one)
        return True

    def _produce(self, producer: Producer) -> None:
        if self._waits(producer):
            return
        fields: Facts = {"destination": producer.destination, "kind": producer.kind}
        if producer.create:
            fields |= {"create": True, "parameters": producer.parameters}

        def opened(facts: Facts, error: Exception | None) -> None:
            if producer.error is not None or self.producers.get(producer.destination) is not producer:
                return
            if error is not None:
                if not self._misplaced(producer, error):
                    producer.fail(as_fairlead(error))
                return
            self.road.handles[int(facts["producer"])] = producer
            producer.on_open(facts)
            for upload in list(self.uploads):
                if upload.producer is producer:
                    upload.begin()

        self._say(Command("produce", fields, opened, on_loss="drop"))

    def ask_blocked(self, producer: Producer) -> None:
        """Is it blocked still? (CLU-112)"""

        def told(facts: Facts, error: Exception | None) -> None:
            if error is None and producer.handle:
                producer.on_blocked(bool(facts.get("blocked")))

        fields = {"destination": producer.destination, "kind": producer.kind}
        self._say(Command("produce", fields, told, on_loss="drop"))

    def _consume(self, consumer: DurableConsumer) -> None:
        if self._waits(consumer):
            return

        def opened(facts: Facts, error: Exception | None) -> None:
            if consumer not in self.consumers:
                if error is None:
                    self.road.ask(Command("end", {"handle": facts["consumer"]}, moot, part=self, on_loss="moot"))
            elif error is not None:
                if not self._misplaced(consumer, error):
                    consumer.fail(error)
            elif consumer.is_of_another(facts):
                self.road.ask(Command("end", {"handle": facts["consumer"]}, moot, part=self, on_loss="moot"))
                consumer.fail(DestinationDeleted(f"{consumer.destination!r} is another one than it was: open it anew."))
            else:
                self.road.handles[int(facts["consumer"])] = consumer
                consumer.on_open(facts)
                self.road.late(int(facts["consumer"]), *(int(topic["handle"]) for topic in facts.get("joined", ())))

        self.road.opening += 1
        consumer.is_opening = True
        self._say(Command("consume", consumer.request(), opened, on_loss="drop"))

    def on_lost(self) -> None:
        if self.state is State.ENDED:
            return
        self.state = State.LOST if self.id else State.NEW
        self.number = 0
        for producer in self.producers.values():
            producer.on_lost()
        for upload in self.uploads:
            upload.on_lost()
        for consumer in self.consumers:
            consumer.on_lost()
        if self.transaction is not None:
            self.transaction.on_lost(self)

    def fail(self, error: Exception) -> None:
        """It is over: everybody who waits is told."""
        if self.state is State.ENDED:
            return
        self.state = State.ENDED
        self.error = error
        waiting, self.waiting = self.waiting, []
        for command in waiting:
            command.reply({}, error)
        awaiting, self._awaiting = self._awaiting, []
        for then in awaiting:
            then({}, error)
        for upload in list(self.uploads):
            upload.fail(error)
        for producer in list(self.producers.values()):
            producer.fail(as_fairlead(error))
        for consumer in list(self.consumers):
            consumer.fail(error)
        if self.transaction is not None:
            self.transaction.on_session_lost(self, error)
        if self in self.group.parts:
            self.group.parts.remove(self)
        self.session.on_part_over(self, error)
        self.road.changed()

    def end(self, reply: Reply) -> None:
        """An orderly end, behind everything said so far; `fail` is called when it is answered."""

        def ended(facts: Facts, error: Exception | None) -> None:
            self.fail(ConnectionLost("The session was closed by this program."))
            reply({}, None)

        if self.state in (State.NEW, State.ENDED) or not self.group.is_live:
            ended({}, None)
        else:
            self.ask(Command("end-session", {}, ended, on_loss="moot"))

    # Ids.

    def _ask_ids(self) -> None:
        if self._asking_ids or not self.is_open:
            return
        self._asking_ids = True

        def told(facts: Facts, error: Exception | None) -> None:
            self._asking_ids = False
            if error is None:
                self._take_block(facts)
                for producer in self.producers.values():
                    self.road.touch(producer)

        self._say(Command("ids", {}, told, on_loss="fail"))

    def _take_block(self, facts: Facts) -> None:
        first, count = facts["ids"]
        self._id_next, self._id_beyond = int(first), int(first) + int(count)


def as_fairlead(error: Exception) -> FairleadError:
    return error if isinstance(error, FairleadError) else FairleadError(str(error))
