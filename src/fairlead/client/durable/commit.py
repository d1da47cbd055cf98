"""How a transaction is committed: said once, and from then on only asked about (CLU-127).

With one part the commit goes to its group. With several it goes to the server's coordinator, with what is in each part;
what the *decider* has recorded, the group of the lowest destination id among those touched, is the outcome (CLU-169).
So when the answer is lost, or nobody knows it in time, the decider is asked; the commit is never said again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fairlead.client.durable.commands import Command, Facts, Reply, moot
from fairlead.errors import (
    CommitPending,
    CommitUnknown,
    ConnectionLost,
    LocalProtocolError,
    SessionLost,
    TransactionAborted,
)

if TYPE_CHECKING:
    from fairlead.client.durable.part import Identity, Part
    from fairlead.client.durable.road import Road

__all__ = ["Commit", "Doubt", "Share", "Told", "ask_outcome", "transaction_id"]

Told: TypeAlias = Callable[[str, Exception | None], None]
"""`committed`, `refused` or `unknown` with what to raise, or `undone` by a loss: it can be begun anew."""

UNKNOWN = (
    "It is not known whether transaction {} was committed: {} Do not do its work again before you know; "
    "ask with `connection.outcome(error.transaction)`, or look with `fairlead admin transactions`."
)
PENDING = "Transaction {} is committed and is not to be done again; some of it will be visible later: {}"


STRANGERS_MAX = 5


class Share(NamedTuple):
    """What a transaction did in one part: how much it sent by each producer, and the lowest destination id."""

    part: Part
    sends: dict[str, int]
    lowest: str


def transaction_id(session: str, number: int) -> str:
    """By which all groups know it: the decider's session id and the number of the transaction, in hexadecimal."""
    return f"{session}{number:016x}"


class Doubt(NamedTuple):
    """A transaction about which nobody could say whether it was committed: whom to ask, and as whom."""

    group: str
    identity: Identity
    number: int


def ask_outcome(road: Road, transaction: str, reply: Reply) -> None:
    """What became of it: only the session that said the commit may ask, so it is resumed for that."""
    doubt = road.doubts.get(transaction)
    if doubt is None:
        reply({}, LocalProtocolError(f"This connection has no transaction {transaction!r} in doubt."))
        return
    session = road.session("transacted")
    part = session.part(doubt.group)
    part.take_over(doubt.identity)

    def told(facts: Facts, error: Exception | None) -> None:
        if error is None:
            road.doubts.pop(transaction, None)
        session.end(moot)
        reply(facts, error)

    part.ask(Command("outcome", {"transaction": doubt.number}, told))


class Commit:
    """One attempt, under one number."""

    def __init__(self, number: int, shares: list[Share], told: Told) -> None:
        self._number = number
        self._shares = shares
        self._told = told
        self._is_waiting = False  # for the answer to the commit itself
        self._is_asking = False  # the decider
        self._is_over = False
        self._was_interrupted = False
        self._strangers = 0  # how often the decider did not know our session
        self.decider = min(shares, key=lambda share: share.lowest).part
        self.id = transaction_id(self.decider.id, number)

    @property
    def _is_simple(self) -> bool:
        return len(self._shares) == 1

    def say(self) -> None:
        self._is_waiting = True
        if self._is_simple:
            fields: Facts = {"transaction": self._number, "sends": self._shares[0].sends}
            self.decider.ask(Command("commit", fields, self._on_answer, on_loss="fail"))
        else:
            parts = [
                {
                    "session": share.part.number,
                    "id": share.part.id,
                    "transaction": self._number,
                    "sends": share.sends,
                    "lowest": share.lowest,
                }
                for share in self._shares
            ]
            self.decider.road.ask(Command("commit", {"parts": parts}, self._on_answer, on_loss="fail"))

    def _on_answer(self, facts: Facts, error: Exception | None) -> None:
        self._is_waiting = False
        if error is None:
            self._end("committed", None)
        elif isinstance(error, CommitPending):
            self._end("committed", CommitPending(PENDING.format(self.id, error), transaction=self.id))
        elif isinstance(error, TransactionAborted):
            self._end("undone" if self._was_interrupted else "refused", error)
        elif self.decider.state is self.decider.state.ENDED:
            self._unknown(error)
        elif isinstance(error, (ConnectionLost, SessionLost)) or not self._is_simple:
            self._ask()  # now, or when the decider can be reached again
        else:
            self._unknown(error)

    def on_lost(self) -> None:
        """One of its groups was lost: if it is rolled back now, that may be why, and it can be begun anew."""
        self._was_interrupted = True

    def on_resumed(self, part: Part) -> None:
        if part is self.decider:
            self._is_asking = False
            self._ask()

    def on_session_lost(self, part: Part, error: Exception) -> None:
        """Nobody is left to ask; with the answer of a coordinator still to come, that decides."""
        if part is self.decider and not self._is_waiting:
            self._unknown(error)

    def _ask(self) -> None:
        if self._is_waiting or self._is_asking or self._is_over or not self.decider.is_open:
            return
        self._is_asking = True
        fields: Facts = {"transaction": self._number}
        if not self._is_simple:
            fields["id"] = self.id
        self.decider.ask(Command("outcome", fields, self._on_outcome, on_loss="drop"))

    def _on_outcome(self, facts: Facts, error: Exception | None) -> None:
        self._is_asking = False
        if isinstance(error, SessionLost) and self._strangers < STRANGERS_MAX:
            self._strangers += 1
            self.decider.group.unreachable()  # another member leads it, and we have not heard of that yet
        elif error is not None:
            self._unknown(error)
        elif facts.get("outcome") == "committed":
            self._end("committed", None)
        else:
            self._end("undone", None)

    def _unknown(self, error: Exception) -> None:
        if self.decider.id:
            doubt = Doubt(self.decider.group.name, self.decider.identity, self._number)
            self.decider.road.doubts[self.id] = doubt
        unknown = CommitUnknown(UNKNOWN.format(self.id, error), transaction=self.id)
        unknown.__cause__ = error
        self._end("unknown", unknown)

    def _end(self, outcome: str, error: Exception | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._told(outcome, error)
