"""A transaction: sends that stay hidden and receipts that stay locked until all of it is committed.

The server is told what the application took when it commits or rolls back, not before: what only lies in the buffer
belongs to the next transaction (CLU-158). A transaction that only sent can be begun anew by itself after a loss; one
that received cannot, since others may have got the messages meanwhile. How it is committed is in `commit`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fairlead.client.durable.commands import Command, Facts, Reply, moot
from fairlead.client.durable.commit import Commit, Share
from fairlead.client.durable.content import Content
from fairlead.client.durable.sends import Sends
from fairlead.client.durable.session import all_told
from fairlead.client.durable.uploads import discard
from fairlead.errors import FairleadError, TransactionAborted
from fairlead.wire.entry_codec import Delivered

if TYPE_CHECKING:
    from fairlead.client.durable.consumer import DurableConsumer
    from fairlead.client.durable.part import Part
    from fairlead.client.durable.producer import Producer
    from fairlead.client.durable.session import DurableSession

__all__ = ["DurableTransaction", "Stage", "aborted"]


LIVES_MAX = 20
"""How often a transaction that only sends is begun anew before the application hears of it."""


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


class DurableTransaction:
    """`error` says why it cannot be committed any more. Its number is the same in all parts of the session."""

    def __init__(self, session: DurableSession) -> None:
        self.session = session
        session.transactions += 1
        self.number = session.transactions
        self.stage = Stage.OPEN
        self.error: TransactionAborted | None = None
        self._sends: dict[Producer, Sends] = {}
        self._taken: dict[DurableConsumer, list[Delivered]] = {}
        self._transfers: list[tuple[Part, int]] = []  # very large messages it sends
        self._reply: Reply | None = None
        self._lives = 1
        self._commit: Commit | None = None
        session.transaction = self

    @property
    def is_empty(self) -> bool:
        return not self._sends and not self._taken

    @property
    def parts(self) -> list[Part]:
        """Those of the session in which it did something."""
        found = [producer.part for producer in self._sends] + [consumer.part for consumer in self._taken]
        return list(dict.fromkeys(found))

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
        self._transfers.append((producer.part, transfer))
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
            self._reply = reply
            self.session.road.touch(self)

    def rollback(self, reply: Reply) -> None:
        """What was taken goes back with its count raised, what was not seen goes back as it was (CLU-159)."""
        if self.stage is not Stage.OPEN or self.error is not None or self.is_empty:
            self._end()
            reply({}, None)
            return
        parts = self.parts
        self._end()
        self._roll_back(parts, reply)

    def _roll_back(self, parts: Iterable[Part], reply: Reply) -> None:
        """In these parts; one that lost its line has had its own rolled back."""
        said = [part for part in parts if part.is_open and self._has_said_in(part)]
        told = all_told(said, reply)
        for part in said:
            self._roll_back_in(part, told)

    def _has_said_in(self, part: Part) -> bool:
        if any(consumer.part is part for consumer in self._taken):
            return True
        return any(
            len(sends.unsent) < len(sends.batches) for producer, sends in self._sends.items() if producer.part is part
        )

    def _roll_back_in(self, part: Part, told: Reply) -> None:
        unseen: list[tuple[DurableConsumer, int, list[Delivered]]] = []
        for consumer, messages in self._taken.items():
            if consumer.part is part:
                unseen.append((consumer, consumer.epoch, consumer.withdraw()))
                consumer.settle_in(self.number, messages)

        def done(facts: Facts, error: Exception | None) -> None:
            # Only now, so that what was taken comes first when all of it comes again.
            for consumer, epoch, messages in unseen:
                if consumer.epoch == epoch and consumer.handle:
                    consumer.release([*messages, *consumer.withdraw()])
            told({}, error)

        part.ask(Command("rollback", {"transaction": self.number}, done, on_loss="moot"))

    def _of(self, producer: Producer) -> Sends:
        found = self._sends.get(producer)
        if found is None:
            found = self._sends[producer] = Sends()
        return found

    # The line's side.

    def flush(self) -> None:
        if self.stage is Stage.ENDED or self.error is not None:
            return
        for producer, sends in self._sends.items():
            sends.seal()
            self._send(producer, sends)
        if self.stage is Stage.COMMITTING and not any(sends.unsent for sends in self._sends.values()):
            parts = self.parts
            if all(part.is_open for part in parts):
                self._say_commit(parts)

    def _send(self, producer: Producer, sends: Sends) -> None:
        part = producer.part
        while sends.unsent and producer.handle and part.is_open:
            batch = sends.unsent[0]
            if not batch.id_first:
                batch.id_first = part.take_ids(batch.count)
                if not batch.id_first:
                    return
                batch.sent_ms = part.road.now_ms()
            sends.unsent.popleft()
            part.road.send(batch.frame(producer.handle, self.number))

    def _say_commit(self, parts: list[Part]) -> None:
        self.stage = Stage.ASKING  # from here on only an answer decides
        for consumer, messages in self._taken.items():
            consumer.flush()
            consumer.settle_in(self.number, messages)
        self._commit = Commit(self.number, [self._share(part) for part in parts], self._on_outcome)
        self._commit.say()

    def _share(self, part: Part) -> Share:
        sends = {producer: sends.count for producer, sends in self._sends.items() if producer.part is part}
        ids = {producer.destination_id for producer in sends}
        for consumer, messages in self._taken.items():
            if consumer.part is part:
                ids |= consumer.destination_ids(messages)
        return Share(part, {str(producer.handle): count for producer, count in sends.items()}, min(ids, default=""))

    def _on_outcome(self, outcome: str, error: Exception | None) -> None:
        """What the commit came to: `committed`, `refused` or `unknown` with the reason, or `undone` by a loss."""
        if outcome != "undone":
            self._settle(error)
        elif self._taken or self._lives >= LIVES_MAX:
            self._settle(aborted("The connection was lost during the commit, which did not happen: do it again."))
        else:
            self.stage = Stage.COMMITTING
            self._begin_anew()
            self.session.road.touch(self)

    def _settle(self, error: Exception | None) -> None:
        reply = self._reply
        self._end(undone=isinstance(error, TransactionAborted))
        if reply is not None:
            reply({}, error)

    def on_lost(self, part: Part) -> None:
        """A part of the session lost its line; if something of the transaction was there, all of it is undone."""
        if self._commit is not None and part in self.parts:
            self._commit.on_lost()
        if self.stage not in (Stage.OPEN, Stage.COMMITTING) or self.error is not None or part not in self.parts:
            return
        others = [other for other in self.parts if other is not part]
        if self._taken:
            self._abort(
                aborted("The connection was lost before the commit: everything is undone; do it again."), others
            )
        else:
            self._roll_back(others, moot)
            self._begin_anew()
            self.session.road.touch(self)

    def on_resumed(self, part: Part) -> None:
        """A part of the session is open again."""
        if self.stage is Stage.ASKING and self._commit is not None:
            self._commit.on_resumed(part)
        else:
            self.session.road.touch(self)

    def _begin_anew(self) -> None:
        """The same sends, under a new number: nothing of the old one will ever happen."""
        self.session.transactions += 1
        self.number = self.session.transactions
        self._commit = None
        self._lives += 1
        for sends in self._sends.values():
            sends.begin_anew()

    def on_refused(self, error: FairleadError) -> None:
        """A send of it was refused: the rest is of no use."""
        if self.stage in (Stage.OPEN, Stage.COMMITTING):
            why = aborted(f"A send of the transaction was refused: {error}", error, retryable=error.retryable)
            self._abort(why, self.parts)

    def on_producer_failed(self, producer: Producer, error: FairleadError) -> None:
        if producer in self._sends:
            self.on_refused(error)

    def on_session_lost(self, part: Part, error: Exception) -> None:
        """A part of the session is gone for good."""
        if self.stage is Stage.ASKING and self._commit is not None:
            self._commit.on_session_lost(part, error)
        elif self.stage is not Stage.ENDED and (part in self.parts or self.session.is_over):
            others = [other for other in self.parts if other is not part]
            self._abort(aborted(f"The session was lost before the commit: {error}", error), others)

    def _abort(self, error: TransactionAborted, parts: list[Part]) -> None:
        """It cannot be committed; in `parts` it is still open."""
        if self.error is not None:
            return
        self.error = error
        self._roll_back(parts, moot)
        reply, self._reply = self._reply, None
        if reply is not None:
            self._end()
            reply({}, error)

    def _end(self, *, undone: bool = True) -> None:
        self.stage = Stage.ENDED
        transfers, self._transfers = self._transfers, []
        for part, number in transfers if undone else ():
            discard(part, number)
        if self.session.transaction is self:
            self.session.transaction = None
