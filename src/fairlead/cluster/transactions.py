"""The commit manager: which transactions are open, how they end, what is remembered of it (CLU-79, CLU-127, CLU-154).

All destinations of a group are in one journal, so a transaction becomes effective with one record that names
everything it stored and settled (CLU-161). What was not committed is rolled back: nothing needs to be written for
that, except when somebody asks for the outcome; then the rollback is recorded before it is told, so that no late
commit can change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from fairlead.cluster import records, requests
from fairlead.cluster.parties import Consumer, Line, Producer, Session
from fairlead.errors import SessionLost, Stale, StoreFull, TransactionAborted

if TYPE_CHECKING:
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.host import Host
    from fairlead.cluster.port import Bytes

OUTCOMES_MAX: Final = 256
"""Ends remembered per session, the newest: a session asks about its last commit, never about its hundredth last."""

Outcome = Literal["committed", "rolled-back"]


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
        if session.line is None or number in self._ended.get(session.id, ()):
            return False
        key = (session.id, number)
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
        if self._answer_ended(line, number, session, asked.transaction):
            return
        one = self._opened(session, asked.transaction)
        if one.ending:
            self._through(one, lambda: self._answer_ended(line, number, session, one.number))
            return
        expected: dict[int, int] = {}
        for handle, count in asked.sends.items():
            producer = line.handles.get(int(handle)) if handle.isdecimal() else None
            if not isinstance(producer, Producer) or producer.session is not session:
                self._through(
                    one, lambda: self._refuse(line, number, one, "it names a producer this session does not have")
                )
                return
            one.touched[producer.destination.number] = producer.destination
            expected[producer.destination.number] = count
        self._through(one, lambda: self._commit(line, number, one, expected))

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
        one = self._opened(session, asked.transaction)

        def rolled_back() -> None:
            ended = self._ended.get(session.id, {}).get(one.number)
            if ended is not None and ended.outcome == "committed":
                self._core.error(line, number, Stale.code, f"Transaction {one.number} is committed.")
                return
            index = self._roll_back(one, "rolled back by its client") if ended is None else ended.index
            self._core.after(index, lambda: self._core.answer(line, number, {}))

        self._through(one, rolled_back)

    def on_outcome(self, line: Line, number: int, request: dict[str, Any]) -> None:
        """What became of it (CLU-127). If nothing did, from now on nothing will."""
        asked = requests.read(request, requests.OfTransaction)
        session = _held(line, asked.session)
        ends = self._ended.get(session.id, {})
        if len(ends) >= OUTCOMES_MAX and asked.transaction < min(ends):
            raise Stale(f"Transaction {asked.transaction} is too long ago; its outcome is forgotten.")
        one = self._opened(session, asked.transaction)

        def tell() -> None:
            ended = self._ended.get(session.id, {}).get(one.number)
            if ended is None or ended.index == 0:
                index = self._roll_back(one, "its client asked for the outcome before it was committed", record=True)
                ended = Ended("rolled-back", index)
            facts = {"outcome": ended.outcome}
            self._core.after(ended.index, lambda: self._core.answer(line, number, facts))

        self._through(one, tell)

    def on_lost(self, session: Session, then: Callable[[], None]) -> None:
        """This life of the session is over: roll back what it has open (CLU-125), then go on."""
        lost = [one for one in self._open.values() if one.session is session]
        self._behind.pop(session, None)
        left = len(lost)
        if not left:
            then()
            return

        def gone(one: Open) -> None:
            nonlocal left
            if one.number not in self._ended.get(session.id, ()):
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

    def _answer_ended(self, line: Line, number: int, session: Session, transaction: int) -> bool:
        """A commit that came before gets the answer it got before (CLU-170)."""
        ended = self._ended.get(session.id, {}).get(transaction)
        if ended is None:
            return False
        if ended.outcome == "committed":
            self._core.after(ended.index, lambda: self._core.answer(line, number, {}))
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
            self._end(session_id, number, Ended("committed", index))
        elif kind == records.OUTCOME:
            facts = msgspec.json.decode(body)
            self._end(bytes.fromhex(facts["session"]), facts["transaction"], Ended(facts["outcome"], index))

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
