"""A session of the durable road: what it has open, and how it goes on when its line was lost.

::

    NEW ──open──► OPENING ──answer──► OPEN ──loss──► LOST ──line──► OPENING (a resume)
                                       └──end──► ENDED

A resume keeps the id and raises the incarnation; then producers and consumers are opened again, each learns how far it
was heard, and whatever was not confirmed is sent again under its old numbers (CLU-122, CLU-123).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from fairlead.client.durable.commands import Command, Facts, moot
from fairlead.client.durable.producer import Producer
from fairlead.errors import ConnectionLost, FairleadError, NoMessageManager, SessionLost, WrongKind

if TYPE_CHECKING:
    from fairlead.client.durable.consumer import DurableConsumer
    from fairlead.client.durable.road import Road
    from fairlead.client.durable.transaction import DurableTransaction
    from fairlead.client.durable.uploads import Upload

__all__ = ["DurableSession", "State"]

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


class DurableSession:
    """Producers by destination, consumers, and at most one transaction at a time."""

    def __init__(self, road: Road, ack: str) -> None:
        self.road = road
        self.ack = ack
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
        self.transaction: DurableTransaction | None = None
        self.consumed = 0  # consumers it ever had: the number of the newest
        self.transactions = 0  # how many it has begun: the number of the newest
        self.transfers = 0  # the same of very large messages
        self.waiting: list[Command] = []  # for the session to be open
        self.stopped = False
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
    def has_room(self) -> bool:
        """May more be sent before something is confirmed?"""
        return self.in_flight < self.window_messages and self.in_flight_bytes < self.window_bytes

    @property
    def is_idle(self) -> bool:
        """Is everything sent confirmed or refused?"""
        return all(producer.is_idle for producer in self.producers.values()) and not self.uploads

    # What the application opens.

    def open(self) -> None:
        """Begin, or go on; no-op when that is under way."""
        if self.state in (State.OPEN, State.OPENING, State.ENDED):
            return
        if not self.road.is_live:
            self.road.missed()
            return
        fields: Facts = {"ack": self.ack, "client_name": self.road.client_name}
        if self.id:
            self._incarnation += 1  # at every attempt: the answer to the last one may be what was lost
            fields["resume"] = {"id": self.id, "secret": self._secret, "incarnation": self._incarnation}
        self.state = State.OPENING
        self.road.ask(Command("session", fields, self._on_open, on_loss="drop"))

    def producer(
        self, destination: str, kind: str, *, create: bool = False, parameters: dict[str, Any] | None = None
    ) -> Producer:
        """The way to a destination; opened when it is first asked for."""
        found = self.producers.get(destination)
        if found is not None and kind and found.kind and kind != found.kind:
            raise WrongKind(f"{destination!r} is a {found.kind}, and not a {kind}.")
        if found is None:
            found = Producer(self, destination, kind, create=create, parameters=parameters or {})
            self.producers[destination] = found
            self._produce(found)
        return found

    def add_consumer(self, consumer: DurableConsumer) -> None:
        self.consumed += 1
        consumer.own = self.consumed
        self.consumers.append(consumer)
        self._consume(consumer)

    def remove_consumer(self, consumer: DurableConsumer) -> None:
        if consumer in self.consumers:
            self.consumers.remove(consumer)

    def ask(self, command: Command) -> None:
        """Ask when the session is open."""
        command.session = self
        if self.state is State.ENDED:
            command.reply({}, self.error or SessionLost())
        elif self.is_open:
            self.road.ask(command)
        else:
            self.waiting.append(command)
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
                self.road.unreachable(error)
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
        self.road.reached()
        if self.stopped:
            self.road.ask(Command("flow", {"stop": True}, moot, self, on_loss="drop"))
        for producer in list(self.producers.values()):
            self._produce(producer)
        for consumer in list(self.consumers):
            self._consume(consumer)
        if self.transaction is not None:
            self.transaction.on_resumed()
        waiting, self.waiting = self.waiting, []
        for command in waiting:
            self.road.ask(command)
        self.road.changed()

    def _begin_anew(self, error: Exception) -> None:
        """The server does not know it any more: what was not confirmed has an unknown outcome; the rest goes on."""
        self.id, self._incarnation, self._id_next, self._id_beyond = "", 1, 0, 0
        for producer in list(self.producers.values()):
            producer.fail(_as_fairlead(error))
        for upload in list(self.uploads):
            upload.fail(error)
        if self.transaction is not None:
            self.transaction.on_session_lost(error)
        self.open()

    def _produce(self, producer: Producer) -> None:
        if not self.is_open:
            self.open()
            return
        fields: Facts = {"destination": producer.destination, "kind": producer.kind}
        if producer.create:
            fields |= {"create": True, "parameters": producer.parameters}

        def opened(facts: Facts, error: Exception | None) -> None:
            if producer.error is not None or self.producers.get(producer.destination) is not producer:
                return
            if error is not None:
                producer.fail(_as_fairlead(error))
                return
            self.road.handles[int(facts["producer"])] = producer
            producer.on_open(facts)
            for upload in list(self.uploads):
                if upload.producer is producer:
                    upload.begin()

        self.road.ask(Command("produce", fields, opened, self, on_loss="drop"))

    def ask_blocked(self, producer: Producer) -> None:
        """Is it blocked still? (CLU-112)"""

        def told(facts: Facts, error: Exception | None) -> None:
            if error is None and producer.handle:
                producer.on_blocked(bool(facts.get("blocked")))

        fields = {"destination": producer.destination, "kind": producer.kind}
        self.road.ask(Command("produce", fields, told, self, on_loss="drop"))

    def _consume(self, consumer: DurableConsumer) -> None:
        if not self.is_open:
            self.open()
            return

        def opened(facts: Facts, error: Exception | None) -> None:
            if consumer not in self.consumers:
                if error is None:
                    self.road.ask(Command("end", {"handle": facts["consumer"]}, moot, on_loss="moot"))
            elif error is not None:
                consumer.fail(error)
            else:
                self.road.handles[int(facts["consumer"])] = consumer
                consumer.on_open(facts)
                self.road.late(int(facts["consumer"]))

        self.road.opening += 1
        self.road.ask(Command("consume", consumer.request(), opened, self, on_loss="drop"))

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
            self.transaction.on_lost()

    def fail(self, error: Exception) -> None:
        """It is over: everybody who waits is told."""
        if self.state is State.ENDED:
            return
        self.state = State.ENDED
        self.error = error
        waiting, self.waiting = self.waiting, []
        for command in waiting:
            command.reply({}, error)
        for upload in list(self.uploads):
            upload.fail(error)
        for producer in list(self.producers.values()):
            producer.fail(_as_fairlead(error))
        for consumer in list(self.consumers):
            consumer.fail(error)
        if self.transaction is not None:
            self.transaction.on_session_lost(error)
        self.road.forget(self)
        self.road.changed()

    def end(self, command: Command) -> None:
        """An orderly end, behind everything said so far; `fail` is called when it is answered."""
        reply = command.reply

        def ended(facts: Facts, error: Exception | None) -> None:
            self.fail(ConnectionLost("The session was closed by this program."))
            reply({}, None)

        if self.state in (State.NEW, State.ENDED) or not self.road.is_live:
            ended({}, None)
            return
        command.reply = ended
        command.on_loss = "moot"
        self.ask(command)

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

        self.road.ask(Command("ids", {}, told, self, on_loss="fail"))

    def _take_block(self, facts: Facts) -> None:
        first, count = facts["ids"]
        self._id_next, self._id_beyond = int(first), int(first) + int(count)


def _as_fairlead(error: Exception) -> FairleadError:
    return error if isinstance(error, FairleadError) else FairleadError(str(error))
