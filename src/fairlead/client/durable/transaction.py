"""A transaction: sends that stay hidden and receipts that stay locked until all of it is committed.

The server is told what the application took when it commits or rolls back, not before: what only lies in the buffer
belongs to the next transaction (CLU-158). A transaction that only sent can be begun anew by itself after a loss; one
that received cannot, since others may have got the messages meanwhile. A commit whose answer was lost is asked about,
never said again (CLU-127).
"""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING

from fairlead.client.durable.batch import Batch
from fairlead.client.durable.commands import Command, Facts, Reply
from fairlead.client.durable.content import Content
from fairlead.client.durable.producer import Gathered
from fairlead.client.durable.uploads import discard
from fairlead.errors import ConnectionLost, FairleadError, TransactionAborted
from fairlead.wire.entry_codec import Delivered

if TYPE_CHECKING:
    from fairlead.client.durable.consumer import DurableConsumer
    from fairlead.client.durable.producer import Producer
    from fairlead.client.durable.session import DurableSession

__all__ = ["DurableTransaction", "Stage", "aborted"]


class Stage(enum.Enum):
    OPEN = "open"
    COMMITTING = "committing"
    ASKING = "asking"  # was it committed?
    ENDED = "ended"


def aborted(text: str, cause: Exception | None = None, *, retryable: bool = True) -> TransactionAborted:
    """All of it is undone; `retryable` says whether doing it again can help."""
    error = TransactionAborted(text)
    error.retryable = retryable
    error.__cause__ = cause
    return error


class Sends:
    """What a transaction sends to one destination, numbered from 1."""

    __slots__ = ("_gathered", "_next", "batches", "unsent")

    def __init__(self) -> None:
        self._gathered = Gathered()
        self._next = 1
        self.batches: list[Batch] = []
        self.unsent: deque[Batch] = deque()

    @property
    def count(self) -> int:
        return self._next - 1 + len(self._gathered.tickets)

    def add(self, body: bytes, like: Content) -> bool:
        """True: there is so much that it should be sent on its way."""
        if not self._gathered.fits(body, like):
            self.seal()
        return self._gathered.add(body, like, None) < 0

    def add_entry(self, entry: bytes) -> None:
        self.seal()
        self._append(Batch(self._next, 1, entry, ()))

    def seal(self) -> None:
        if self._gathered.tickets:
            entries, tickets = self._gathered.take()
            self._append(Batch(self._next, len(tickets), entries, ()))

    def _append(self, batch: Batch) -> None:
        self._next += batch.count
        self.batches.append(batch)
        self.unsent.append(batch)


class DurableTransaction:
    """`error` says why it cannot be committed any more."""

    def __init__(self, session: DurableSession) -> None:
        self.session = session
        session.transactions += 1
        self.number = session.transactions
        self.stage = Stage.OPEN
        self.error: TransactionAborted | None = None
        self._sends: dict[Producer, Sends] = {}
        self._taken: dict[DurableConsumer, list[Delivered]] = {}
        self._transfers: list[int] = []  # very large messages it sends
        self._commit: Reply | None = None
        session.transaction = self

    @property
    def is_empty(self) -> bool:
        return not self._sends and not self._taken

    # The application's side.

    def send(self, producer: Producer, body: bytes, like: Content) -> None:
        """Hidden until the commit; nothing is waited for (CLU-156)."""
        self.check()
        if self._of(producer).add(body, like):
            self.session.road.flush_early(self)
        else:
            self.session.road.touch(self)

    def send_entry(self, producer: Producer, entry: bytes, transfer: int) -> None:
        """A very large message whose body the server has."""
        self.check()
        self._transfers.append(transfer)
        self._of(producer).add_entry(entry)
        self.session.road.touch(self)

    def took(self, consumer: DurableConsumer, messages: list[Delivered]) -> None:
        """The application has these now."""
        self._taken.setdefault(consumer, []).extend(messages)

    def check(self) -> None:
        if self.error is not None:
            raise self.error
        if self.stage is not Stage.OPEN:
            raise aborted("The transaction is over.", retryable=False)

    def commit(self, reply: Reply) -> None:
        """All of it, or nothing: `reply` gets None, or TransactionAborted with the reason."""
        if self.error is not None or self.stage is not Stage.OPEN:
            error = self.error or aborted("The transaction is over.", retryable=False)
            self._end()
            reply({}, error)
        elif self.is_empty:
            self._end()
            reply({}, None)
        else:
            self.stage = Stage.COMMITTING
            self._commit = reply
            self.session.road.touch(self)

    def rollback(self, reply: Reply) -> None:
        """What was taken goes back with its count raised, what was not seen goes back as it was (CLU-159)."""
        if self.stage is not Stage.OPEN or self.error is not None or self.is_empty:
            self._end()
            reply({}, None)
            return
        session = self.session
        unseen: list[tuple[DurableConsumer, int, list[Delivered]]] = []
        for consumer, messages in self._taken.items():
            unseen.append((consumer, consumer.epoch, consumer.withdraw()))
            consumer.settle_in(self.number, messages)
        said = any(len(sends.unsent) < len(sends.batches) for sends in self._sends.values()) or self._taken
        self._end()
        if not said or not session.is_open:
            reply({}, None)  # a session that lost its line has had its transaction rolled back
            return

        def done(facts: Facts, error: Exception | None) -> None:
            # Only now, so that what was taken comes first when all of it comes again.
            for consumer, epoch, messages in unseen:
                if consumer.epoch == epoch and consumer.handle:
                    consumer.release([*messages, *consumer.withdraw()])
            reply({}, error)

        session.ask(Command("rollback", {"transaction": self.number}, done, on_loss="moot"))

    def _of(self, producer: Producer) -> Sends:
        found = self._sends.get(producer)
        if found is None:
            found = self._sends[producer] = Sends()
        return found

    # The line's side.

    def flush(self) -> None:
        session = self.session
        if not session.is_open or self.stage is Stage.ENDED or self.error is not None:
            return
        for producer, sends in self._sends.items():
            sends.seal()
            while sends.unsent and producer.handle:
                batch = sends.unsent[0]
                if not batch.id_first:
                    batch.id_first = session.take_ids(batch.count)
                    if not batch.id_first:
                        return
                    batch.sent_ms = session.road.now_ms()
                sends.unsent.popleft()
                session.road.send(batch.frame(producer.handle, self.number))
        if self.stage is Stage.COMMITTING and not any(sends.unsent for sends in self._sends.values()):
            self._say_commit()

    def _say_commit(self) -> None:
        self.stage = Stage.ASKING  # from here on only an answer decides
        for consumer, messages in self._taken.items():
            consumer.flush()
            consumer.settle_in(self.number, messages)
        sends = {str(producer.handle): sends.count for producer, sends in self._sends.items()}
        fields: Facts = {"transaction": self.number, "sends": sends}
        self.session.ask(Command("commit", fields, self._on_commit, on_loss="fail"))

    def _on_commit(self, facts: Facts, error: Exception | None) -> None:
        if isinstance(error, ConnectionLost) and self.session.state is not self.session.state.ENDED:
            return  # `on_resumed` asks for the outcome
        self._settle(error)

    def _settle(self, error: Exception | None) -> None:
        reply = self._commit
        self._end(undone=isinstance(error, TransactionAborted))
        if error is not None and not isinstance(error, TransactionAborted):
            error = aborted(f"It is not known whether the transaction was committed: {error}", error, retryable=False)
        if reply is not None:
            reply({}, error)

    def on_lost(self) -> None:
        if self.stage in (Stage.OPEN, Stage.COMMITTING):
            if self._taken:
                self._abort(aborted("The connection was lost before the commit: everything is undone; do it again."))
            else:
                self._begin_anew()

    def on_resumed(self) -> None:
        """The session is open again."""
        if self.stage is Stage.ASKING:
            fields = {"transaction": self.number}
            self.session.ask(Command("outcome", fields, self._on_outcome, on_loss="drop"))
        else:
            self.session.road.touch(self)

    def _on_outcome(self, facts: Facts, error: Exception | None) -> None:
        if error is not None:
            self._settle(error)
        elif facts.get("outcome") == "committed":
            self._settle(None)
        elif self._taken:
            self._settle(aborted("The connection was lost during the commit, which did not happen: do it again."))
        else:
            self.stage = Stage.COMMITTING
            self._begin_anew()
            self.session.road.touch(self)

    def _begin_anew(self) -> None:
        """The same sends, under a new number: nothing of the old one will ever happen."""
        self.session.transactions += 1
        self.number = self.session.transactions
        for sends in self._sends.values():
            sends.seal()
            sends.unsent = deque(sends.batches)

    def on_refused(self, error: FairleadError) -> None:
        """A send of it was refused: the rest is of no use."""
        if self.stage in (Stage.OPEN, Stage.COMMITTING):
            self._abort(aborted(f"A send of the transaction was refused: {error}", error, retryable=error.retryable))

    def on_producer_failed(self, producer: Producer, error: FairleadError) -> None:
        if producer in self._sends:
            self.on_refused(error)

    def on_session_lost(self, error: Exception) -> None:
        if self.stage is Stage.ASKING:
            self._settle(error)
        elif self.stage is not Stage.ENDED:
            self._abort(aborted(f"The session was lost before the commit: {error}", error))

    def _abort(self, error: TransactionAborted) -> None:
        self.error = error
        reply, self._commit = self._commit, None
        if reply is not None:
            self._end()
            reply({}, error)

    def _end(self, *, undone: bool = True) -> None:
        self.stage = Stage.ENDED
        transfers, self._transfers = self._transfers, []
        for number in transfers if undone else ():
            discard(self.session, number)
        if self.session.transaction is self:
            self.session.transaction = None
