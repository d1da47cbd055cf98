"""The commit manager: which transactions are open, how they end, what is remembered of it (CLU-79, CLU-127, CLU-154).

All destinations of a group are in one journal, so a transaction becomes effective with one record that names
everything it stored and settled (CLU-161). What was not committed is rolled back: nothing needs to be written for
that, except when somebody asks for the outcome; then the rollback is recorded before it is told, so that no late
commit can change it. A transaction that has parts in other groups is not committed here but prepared (prepared.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from fairlead.cluster import records, requests
from fairlead.cluster.parties import Consumer, Line, Producer, Session
from fairlead.cluster.prepared import id_of, key_of
from fairlead.errors import FairleadError, LocalProtocolError, SessionLost, Stale, StoreFull, TransactionAborted

if TYPE_CHECKING:
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.host import Host
    from fairlead.cluster.port import Bytes
    from fairlead.cluster.prepared import Prepared

OUTCOMES_MAX: Final = 256
"""Ends remembered per session, the newest: a session asks about its last commit, never about its hundredth last."""

Outcome = Literal["committed", "rolled-back"]
PREPARED: Final = "Transaction {} is prepared; it ends when the group that decides about it says so."


@dataclass(slots=True, eq=False)
class Open:
    """A transaction that has begun to do something here."""

    session: Session
    number: int
    began_ms: int
    active_ms: int
    touched: dict[int, Destination] = field(default_factory=dict)
    ending: bool = False  # its commit or rollback is on its way through the command queues


@dataclass(slots=True)
class Ended:
    outcome: Outcome
    index: int  # of the record that says so; 0: no record, it is so because nothing says otherwise
    reason: str = ""


Finish = Callable[[Line, int, Open, dict[int, int]], None]
"""What becomes of a transaction, with how many messages are expected in which destination."""


class Transactions:
    """All transactions of this message manager."""

    def __init__(self, core: Host, *, idle_s: float = 0.0) -> None:
        self._core = core
        self.idle_s = idle_s  # an open one without activity for so long is rolled back; 0: never (CLU-170)
        self._open: dict[tuple[bytes, int], Open] = {}
        self._ended: dict[bytes, dict[int, Ended]] = {}
        self._behind: dict[Session, dict[int, Destination]] = {}  # of consumers that were closed meanwhile
        self.committed = 0
        self.rolled_back = 0

    def __len__(self) -> int:
        return len(self._open)

    def oldest(self) -> int | None:
        """Index of the oldest record of an open transaction: the journal must keep it, though nobody counts it yet."""
        found = (d.parts.oldest() for one in self._open.values() for d in one.touched.values())
        return min((index for index in found if index is not None), default=None)

    # ------------------------------------------------------------------ work in a transaction

    def touch(self, session: Session, number: int, destination: Destination) -> bool:
        """A STORE or SETTLE of it is for that destination. False: it is over; the frame shall have no effect."""
        key = (session.id, number)
        if session.line is None or number in self._ended.get(session.id, ()) or key in self._core.prepared.by_key:
            return False
        one = self._open.get(key)
        now_ms = self._core.now_ms
        if one is None:
            one = self._open[key] = Open(session, number, now_ms, now_ms)
            self._watch(one)
        one.active_ms = now_ms
        one.touched[destination.number] = destination
        return True

    def _watch(self, one: Open) -> None:
        if self.idle_s > 0:
            self._core.call_at(one.active_ms + int(self.idle_s * 1000), lambda: self._look_at(one))

    def _look_at(self, one: Open) -> None:
        if self._open.get((one.session.id, one.number)) is not one or one.ending:
            return
        if one.active_ms + int(self.idle_s * 1000) > self._core.now_ms:
            self._watch(one)
            return
        reason = f"Nothing happened in the transaction for {self.idle_s:g} s."
        self._core.event(
            "warning", "transaction-abandoned", reason, session=one.session.id.hex(), transaction=one.number
        )
        self._through(one, lambda: self._roll_back(one, reason))

    # ------------------------------------------------------------------ the commands

    def on_commit(self, line: Line, number: int, request: dict[str, Any]) -> None:
        asked = requests.read(request, requests.Commit)
        session = _held(line, asked.session)
        if not self._answer_ended(line, number, session, asked.transaction):
            self._finish(line, number, asked, session, self._commit)

    def on_prepare(self, line: Line, number: int, request: dict[str, Any]) -> None:
        """A coordinator asks whether it could be committed; if so it will be kept until there is a word (CLU-162)."""
        asked = requests.read(request, requests.Prepare)
        session = _held(line, asked.session)
        if self._core.group not in asked.groups or asked.decider not in asked.groups:
            raise LocalProtocolError(f"Group {self._core.group!r} has no part in this transaction.")
        if asked.decider == self._core.group and asked.id != id_of(session.id, asked.transaction):
            raise LocalProtocolError("The id of a transaction is made of the decider's session and transaction number.")
        ends = self._ended.get(session.id, {})
        if len(ends) >= OUTCOMES_MAX and asked.transaction < min(ends):
            raise Stale(f"Transaction {asked.transaction} is too long ago.")
        if not self._answer_prepared(line, number, session, asked.transaction, asked.id):

            def prepare(line: Line, number: int, one: Open, expected: dict[int, int]) -> None:
                self._prepare(line, number, one, expected, asked)

            self._finish(line, number, asked, session, prepare)

    def _finish(self, line: Line, number: int, asked: requests.Commit, session: Session, finish: Finish) -> None:
        """Commit or prepare it, behind everything it has in command queues."""
        one = self._opened(session, asked.transaction)
        expected: dict[int, int] = {}

        def run() -> None:
            try:
                finish(line, number, one, expected)
            except FairleadError as refusal:
                self._core.error(line, number, refusal.code, refusal.text)

        if one.ending:  # it has ended when that runs
            self._through(one, run)
            return
        for handle, count in asked.sends.items():
            producer = line.handles.get(int(handle)) if handle.isdecimal() else None
            if not isinstance(producer, Producer) or producer.session is not session:
                self._through(
                    one, lambda: self._refuse(line, number, one, "it names a producer this session does not have")
                )
                return
            one.touched[producer.destination.number] = producer.destination
            expected[producer.destination.number] = count
        self._through(one, run)

    def _prepare(self, line: Line, number: int, one: Open, expected: dict[int, int], asked: requests.Prepare) -> None:
        if self._answer_prepared(line, number, one.session, one.number, asked.id):
            return
        why = self._core.decisions.refusal(asked.id) or self._why_not(one, expected)
        if why is None:
            try:
                prepared = self._core.prepared.write(one, asked)
            except StoreFull as fault:
                why = fault.text
            else:
                self._open.pop((one.session.id, one.number), None)
                self._core.decisions.prepared()
                self._core.after(prepared.index, lambda: self._core.answer(line, number, {"ready": True}))
                return
        self._refuse(line, number, one, why)

    def _answer_prepared(self, line: Line, number: int, session: Session, transaction: int, identity: str) -> bool:
        """A `prepare` that came before gets the answer it got before (CLU-170)."""
        one = self._core.prepared.by_key.get((session.id, transaction))
        if one is None:
            return self._answer_ended(line, number, session, transaction, {"outcome": "committed"})
        if one.id != identity:
            raise LocalProtocolError(f"Transaction {transaction} is prepared under another id.")
        self._core.after(one.index, lambda: self._core.answer(line, number, {"ready": True}))
        return True

    def _commit(self, line: Line, number: int, one: Open, expected: dict[int, int]) -> None:
        if self._answer_ended(line, number, one.session, one.number):
            return
        why = self._why_not(one, expected)
        if why is None:
            try:
                index = self._write(one)
            except StoreFull as fault:
                why = fault.text
            else:
                self._core.after(index, lambda: self._core.answer(line, number, {}))
                return
        self._refuse(line, number, one, why)

    def _why_not(self, one: Open, expected: dict[int, int]) -> str | None:
        """Each destination checks that everything sent is stored and everything consumed is still locked (CLU-162)."""
        for destination in one.touched.values():
            if self._core.destinations.get(destination.number) is not destination:
                return f"{destination.name!r} was deleted"
            why = destination.prepare(one.session, one.number)
            if why is not None:
                return f"{destination.name!r}: {why}"
            stored = destination.hidden(one.session, one.number)
            if stored != expected.get(destination.number, 0):
                return f"{destination.name!r} has {stored} messages of it, not {expected.get(destination.number, 0)}"
        return None

    def _write(self, one: Open) -> int:
        stored: list[bytes] = []
        settled: list[bytes] = []
        for destination in one.touched.values():
            new, gone = destination.commit_parts(one.session, one.number)
            stored += [records.COMMIT_STORED.pack(*item) for item in new]
            settled += [records.COMMIT_SETTLED.pack(*item) for item in gone]
        head = records.COMMIT_RECORD.pack(one.session.id, one.number, len(stored), len(settled))
        body = b"".join((head, *stored, *settled))
        index, place = self._core.append(records.COMMIT, body)
        for destination in one.touched.values():
            destination.apply(records.COMMIT, index, place, memoryview(body))
        self._end(one.session.id, one.number, Ended("committed", index))
        return index

    def _refuse(self, line: Line, number: int, one: Open, reason: str) -> None:
        """Nothing of it happened, and that is final."""
        index = self._roll_back(one, reason)
        text = f"The transaction is rolled back: {reason}."
        self._core.after(index, lambda: self._core.error(line, number, TransactionAborted.code, text))

    def on_rollback(self, line: Line, number: int, request: dict[str, Any]) -> None:
        asked = requests.read(request, requests.OfTransaction)
        session = _held(line, asked.session)
        ended = self._ended.get(session.id, {}).get(asked.transaction)
        if ended is not None and ended.outcome == "committed":
            raise Stale(f"Transaction {asked.transaction} is committed.")
        self._refuse_prepared(session.id, asked.transaction)
        one = self._opened(session, asked.transaction)

        def rolled_back() -> None:
            if (one.session.id, one.number) in self._core.prepared.by_key:
                self._core.error(line, number, Stale.code, PREPARED.format(one.number))
                return
            ended = self._ended.get(session.id, {}).get(one.number)
            if ended is not None and ended.outcome == "committed":
                self._core.error(line, number, Stale.code, f"Transaction {one.number} is committed.")
                return
            index = self._roll_back(one, "rolled back by its client") if ended is None else ended.index
            self._core.after(index, lambda: self._core.answer(line, number, {}))

        self._through(one, rolled_back)

    def on_outcome(self, line: Line, number: int, request: dict[str, Any]) -> None:
        """What became of it (CLU-127). If nothing did, from now on nothing will."""
        asked = self._asked(line, request)
        session = _held(line, asked.session)
        ends = self._ended.get(session.id, {})
        if len(ends) >= OUTCOMES_MAX and asked.transaction < min(ends):
            raise Stale(f"Transaction {asked.transaction} is too long ago; its outcome is forgotten.")
        prepared = self._core.prepared.by_key.get((session.id, asked.transaction))
        if prepared is not None and prepared.decider != self._core.group:
            raise Stale(f"Group {prepared.decider!r} decides about transaction {asked.transaction}: ask there.")

        def tell(ended: Ended) -> None:
            facts = {"outcome": ended.outcome}
            self._core.after(ended.index, lambda: self._core.answer(line, number, facts))

        self.resolve(session.id, asked.transaction, tell)

    @staticmethod
    def _asked(line: Line, request: dict[str, Any]) -> requests.OfTransaction:
        """By number, or by the id of a transaction across groups; either way it is one of this connection's."""
        if "id" not in request:
            return requests.read(request, requests.OfTransaction)
        session_id, number = key_of(requests.read(request, requests.ById).id)
        for session in line.sessions.values():
            if session.id == session_id:
                return requests.OfTransaction(session=session.number, transaction=number)
        raise SessionLost("The session of this transaction is not this connection's.")

    def resolve(self, session_id: bytes, number: int, then: Callable[[Ended], None]) -> None:
        """How it ended. What has not ended does so now: it is rolled back, and that is recorded."""
        prepared = self._core.prepared.by_key.get((session_id, number))
        session = self._core.sessions.by_id.get(session_id)
        if prepared is not None:
            behind = self._core.prepared.destinations(prepared)
            self._core.sessions.join(behind, lambda: then(self._resolved(session_id, number)))
        elif session is None:  # nobody can begin or commit anything in its name any more
            then(self._ended.get(session_id, {}).get(number) or Ended("rolled-back", self._core.last_index))
        else:
            one = self._opened(session, number)
            self._through(one, lambda: then(self._resolved(session_id, number, one)))

    def _resolved(self, session_id: bytes, number: int, one: Open | None = None) -> Ended:
        prepared = self._core.prepared.by_key.get((session_id, number))
        ended = self._ended.get(session_id, {}).get(number)
        if prepared is not None:
            return self._core.decisions.roll_back(prepared)
        if one is not None and (ended is None or ended.index == 0):
            index = self._roll_back(one, "its outcome was asked for before it was committed", record=True)
            return Ended("rolled-back", index)
        return ended or Ended(*self._core.decisions.known(id_of(session_id, number)))

    def on_lost(self, session: Session, then: Callable[[], None]) -> None:
        """This life of the session is over: roll back what it has open (CLU-125), then go on."""
        lost = [one for one in self._open.values() if one.session is session]
        self._behind.pop(session, None)
        self._core.decisions.on_lost(session)
        left = len(lost)
        if not left:
            then()
            return

        def gone(one: Open) -> None:
            nonlocal left
            if (session.id, one.number) in self._core.prepared.by_key:
                self._core.decisions.on_lost(session)
            elif one.number not in self._ended.get(session.id, ()):
                self._roll_back(one, "its session was lost", record=False)
            left -= 1
            if not left:
                then()

        for one in lost:
            self._through(one, lambda one=one: gone(one))  # type: ignore[misc]

    # ------------------------------------------------------------------ endings

    def _opened(self, session: Session, number: int) -> Open:
        """The transaction of this number; one of which nothing has been worked off yet is open from now on.

        What it did may still be in the command queues: `touch` has to find the same one that is being ended.
        """
        known = self._open.get((session.id, number))
        if known is None:
            known = Open(session, number, self._core.now_ms, self._core.now_ms)
            if number not in self._ended.get(session.id, ()):
                self._open[session.id, number] = known
        return known

    def _through(self, one: Open, then: Callable[[], object]) -> None:
        """Go on behind everything the session has in command queues: the transaction may have more there."""
        one.ending = True
        uploading = next((producer for producer in one.session.producers.values() if producer.uploads), None)
        if uploading is not None:  # its sends wait behind a very large message, so this does too
            self._core.transfers.defer(uploading, lambda: self._through(one, then))
            return
        behind = {destination.number: destination for destination in self._behind.pop(one.session, {}).values()}
        parties: list[Producer | Consumer] = [*one.session.producers.values(), *one.session.consumers.values()]
        behind.update((party.destination.number, party.destination) for party in parties)
        self._core.sessions.join((behind | one.touched).values(), lambda: _ignore(then()), holdable=True)

    def closing(self, session: Session, destination: Destination) -> None:
        """A consumer or producer is closed; what it has sent before may still be in the destination's queue."""
        if session.ack == "transacted":
            self._behind.setdefault(session, {})[destination.number] = destination

    def _roll_back(self, one: Open, reason: str, *, record: bool = True) -> int:
        """Undo it. The index from which on that may be told."""
        for destination in one.touched.values():
            if self._core.destinations.get(destination.number) is destination:
                destination.abort(one.session, one.number)
        index = 0
        if record:
            facts = {"session": one.session.id.hex(), "transaction": one.number, "outcome": "rolled-back"}
            index, _ = self._core.append(records.OUTCOME, msgspec.json.encode(facts))
        self._end(one.session.id, one.number, Ended("rolled-back", index, reason))
        return index or self._core.last_index

    def _end(self, session_id: bytes, number: int, ended: Ended) -> None:
        self._open.pop((session_id, number), None)
        ends = self._ended.setdefault(session_id, {})
        ends[number] = ended
        if len(ends) > OUTCOMES_MAX:
            del ends[next(iter(ends))]
        if ended.outcome == "committed":
            self.committed += 1
        else:
            self.rolled_back += 1

    def ended(self, one: Prepared, ended: Ended) -> None:
        """A prepared one came to its end."""
        if one.session.id in self._core.sessions.by_id:
            self._end(one.session.id, one.number, ended)

    def _refuse_prepared(self, session_id: bytes, transaction: int) -> None:
        if (session_id, transaction) in self._core.prepared.by_key:
            raise Stale(PREPARED.format(transaction))

    def _answer_ended(
        self, line: Line, number: int, session: Session, transaction: int, facts: dict[str, Any] | None = None
    ) -> bool:
        """A commit that came before gets the answer it got before (CLU-170)."""
        self._refuse_prepared(session.id, transaction)
        ended = self._ended.get(session.id, {}).get(transaction)
        if ended is None:
            return False
        if ended.outcome == "committed":
            self._core.after(ended.index, lambda: self._core.answer(line, number, facts or {}))
        else:
            text = f"The transaction is rolled back: {ended.reason or 'it was never committed'}."
            self._core.after(ended.index, lambda: self._core.error(line, number, TransactionAborted.code, text))
        return True

    def forget(self, session_id: bytes) -> None:
        """The session is over for good: nobody can ask any more."""
        self._ended.pop(session_id, None)
        for key in [key for key in self._open if key[0] == session_id]:
            del self._open[key]
        for session in [session for session in self._behind if session.id == session_id]:
            del self._behind[session]

    # ------------------------------------------------------------------ the journal

    def apply(self, kind: int, index: int, body: Bytes) -> None:
        """Read again how transactions ended: COMMIT and OUTCOME."""
        if kind == records.COMMIT:
            session_id, number, _, _ = records.COMMIT_RECORD.unpack_from(body)
            if session_id in self._core.sessions.by_id:  # of one that was prepared its session may be over
                self._end(session_id, number, Ended("committed", index))
        elif kind == records.OUTCOME:
            facts = msgspec.json.decode(body)
            if (session_id := bytes.fromhex(facts["session"])) in self._core.sessions.by_id:
                self._end(session_id, facts["transaction"], Ended(facts["outcome"], index))

    def snapshot(self) -> dict[str, list[tuple[int, Outcome]]]:
        return {
            session_id.hex(): [(number, ended.outcome) for number, ended in ends.items() if ended.index]
            for session_id, ends in self._ended.items()
        }

    def restore(self, state: dict[str, Iterable[tuple[int, Outcome]]]) -> None:
        for session_id, ends in state.items():
            for number, outcome in ends:
                self._end(bytes.fromhex(session_id), number, Ended(outcome, 1))

    def recovered(self) -> None:
        """All records are read: ends of sessions that are over are forgotten, figures begin anew."""
        for session_id in [one for one in self._ended if one not in self._core.sessions.by_id]:
            del self._ended[session_id]
        self.committed = self.rolled_back = 0

    # ------------------------------------------------------------------ administration

    def listed(self) -> list[dict[str, Any]]:
        return [
            {
                "session": one.session.id.hex(),
                "transaction": one.number,
                "user": one.session.user,
                "began_ms": one.began_ms,
                "active_ms": one.active_ms,
                "destinations": [destination.name for destination in one.touched.values()],
                "messages": sum(d.hidden(one.session, one.number) for d in one.touched.values()),
                "ending": one.ending,
                "state": "open",
            }
            for one in self._open.values()
        ]


def _held(line: Line, number: int) -> Session:
    session = line.sessions.get(number)
    if session is None:
        raise SessionLost(f"This connection has no session {number}.")
    return session


def _ignore(_: object) -> None:
    """Whatever a step says on its way is for itself."""
