"""Sessions: how they begin, are resumed, lose their holder and end; and the door through which every COMMAND comes.

A session has lives. Each resume raises its incarnation and begins a new `Session` object that shares with the old one
what lasts: id, accepted send numbers, temporary destinations. The surprising part is the order at a resume: whatever
the old life still has in command queues is worked off, its consumers are given up, its open transaction is rolled
back; then the new incarnation is written down, and only when that is safe is the client told how far its sends were
accepted (CLU-124).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlead.cluster import lasting, records, requests
from fairlead.cluster.opening import Opening
from fairlead.cluster.parties import Consumer, Line, Session
from fairlead.cluster.subscriptions import Patterns, Subscriptions
from fairlead.errors import FairleadError, LocalProtocolError, SessionLost, TooMany

if TYPE_CHECKING:
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.host import Host
    from fairlead.cluster.port import Bytes

ID_BLOCK: Final = 1 << 24
"""Message id numbers given at once: few clients ever ask for a second block."""
OLDER_BLOCKS_MAX: Final = 8
SESSIONS_PER_LINE_MAX: Final = 10_000
ID_BYTES: Final = 20


class Sessions:
    """All sessions of this message manager, held or waiting to be resumed."""

    def __init__(self, core: Host) -> None:
        self._core = core
        self.by_id: dict[bytes, Session] = {}
        self.owners: dict[int, bytes] = {}  # temporary destination -> the session it belongs to
        self._using: dict[int, set[Session]] = {}  # destination -> sessions with a producer or consumer there
        self._ids_beyond = 0  # of all message id numbers given in earlier lives of this store
        self._expiry_ms = 0  # when `expire` is called next; 0: not at all
        self.subscriptions = Subscriptions(core)
        self.patterns = Patterns(core)
        self.opening = Opening(core, self.subscriptions, self.patterns)
        self.commands: dict[str, Callable[[Line, int, dict[str, Any]], None]] = {
            "session": self._open,
            "end-session": self._end,
            "ids": self._ids,
            "produce": self.opening.produce,
            "consume": self.opening.consume,
            "end": self.opening.end,
            "flow": self.opening.flow,
            "unsubscribe": self.opening.unsubscribe,
            "temporary": self.opening.temporary,
            "locate": self.opening.locate,
            "schedules": self.opening.schedules,
            "cancel": self.opening.cancel,
            "commit": lambda line, number, request: core.transactions.on_commit(line, number, request),
            "prepare": lambda line, number, request: core.transactions.on_prepare(line, number, request),
            "rollback": lambda line, number, request: core.transactions.on_rollback(line, number, request),
            "outcome": lambda line, number, request: core.transactions.on_outcome(line, number, request),
            "transfer": lambda line, number, request: core.transfers.on_transfer(line, number, request),
        }

    def on_command(self, line: Line, number: int, request: dict[str, Any]) -> None:
        """One COMMAND of a client. It is answered, now or when what it did is safe; a bad one with an ERROR."""
        for fact in ("user", "client"):
            if isinstance(value := request.get(fact), str):
                setattr(line, fact, value)
        do = request.get("do")
        try:
            command = self.commands.get(do) if isinstance(do, str) else None
            if command is None:
                raise LocalProtocolError(f"There is no command {do!r:.60}.")
            command(line, number, request)
        except FairleadError as refusal:
            self._core.error(line, number, refusal.code, refusal.text)

    # ------------------------------------------------------------------ lives

    def _open(self, line: Line, number: int, request: dict[str, Any]) -> None:
        asked = requests.read(request, requests.OpenSession)
        if len(line.sessions) >= SESSIONS_PER_LINE_MAX:
            raise TooMany(f"A connection may have {SESSIONS_PER_LINE_MAX} sessions.")
        if asked.resume is not None:
            self._resume(line, number, asked, asked.resume)
            return
        secret = self._core.token()
        session = Session(
            id=self._core.new_session_id(),
            number=0,
            incarnation=1,
            ack=asked.ack,
            line=line,
            secret=sha256(secret).digest(),
            opened_ms=self._core.now_ms,
        )
        self.by_id[session.id] = session
        self._begin(session, line, number, asked, secret.hex())

    def _resume(self, line: Line, number: int, asked: requests.OpenSession, resume: requests.Resume) -> None:
        old = self.by_id.get(_unhex(resume.id))
        if old is None or not compare_digest(old.secret, sha256(_unhex(resume.secret)).digest()):
            # The same words for both: whoever does not know the secret does not learn which sessions there are.
            raise SessionLost("There is no session of this id and secret; it may have waited too long to be resumed.")
        if resume.incarnation <= old.incarnation:
            raise SessionLost(
                f"Incarnation {resume.incarnation} is not newer than {old.incarnation}: the session lives elsewhere."
            )
        session = Session(
            id=old.id,
            number=0,
            incarnation=resume.incarnation,
            ack=asked.ack,
            line=line,
            accepted=old.accepted,
            id_first=old.id_first,
            id_last=old.id_last,
            secret=old.secret,
            opened_ms=old.opened_ms,
            older_ids=old.older_ids,
            temporary=old.temporary,
        )
        self.by_id[session.id] = session  # from here on the old life is refused, and a third one has to be newer still
        self._release(old, lambda: self._begin(session, line, number, asked, resume.secret))

    def _begin(self, session: Session, line: Line, number: int, asked: requests.OpenSession, secret: str) -> None:
        if self.by_id.get(session.id) is not session:
            self._core.error(line, number, SessionLost.code, "The session was resumed elsewhere meanwhile.")
            return
        if line.gone:  # it left while the old life was worked off; the incarnation counts all the same
            session.line = None
            self._write(session)
            self._wait(session)
            return
        session.user = line.user
        session.client = f"{line.user}/{asked.client_name}" if asked.client_name else line.user
        session.number = max(line.sessions, default=self._core.handles) + 1
        line.sessions[session.number] = session
        if session.id_last:
            session.older_ids = [*session.older_ids, (session.id_first, session.id_last)][-OLDER_BLOCKS_MAX:]
        self._give_ids(session)
        answer = {
            "session": session.number,
            "id": session.id.hex(),
            "secret": secret,
            "incarnation": session.incarnation,
            "ids": [session.id_first, ID_BLOCK],
            "accepted": self._accepted(session),
            "window_messages": self._core.settings.window_messages,
            "window_bytes": self._core.settings.window_bytes,
        }
        self._core.after(self._write(session), lambda: self._core.answer(line, number, answer))

    def _end(self, line: Line, number: int, request: dict[str, Any]) -> None:
        session = held(line, requests.read(request, requests.OfSession).session)
        del line.sessions[session.number]

        def ended() -> None:
            if self.by_id.get(session.id) is session:
                self._forget(session)
            self._core.after(self._core.last_index, lambda: self._core.answer(line, number, {}))

        self._release(session, ended, orderly=True)

    def _ids(self, line: Line, number: int, request: dict[str, Any]) -> None:
        session = held(line, requests.read(request, requests.OfSession).session)
        session.older_ids = [*session.older_ids, (session.id_first, session.id_last)][-OLDER_BLOCKS_MAX:]
        self._give_ids(session)
        answer = {"ids": [session.id_first, ID_BLOCK]}
        self._core.after(self._write(session), lambda: self._core.answer(line, number, answer))

    def on_gone(self, line: Line) -> None:
        """The connection ended, or its manager did: its sessions wait to be resumed (CLU-125)."""
        line.gone = True
        for session in list(line.sessions.values()):
            self._release(session, lambda: None)
            self._wait(session)
        line.sessions.clear()
        line.handles.clear()

    def on_created(self, destination: Destination) -> None:
        """A destination was made: patterns take it in before anything is stored there (CLU-173, CLU-174)."""
        self.patterns.on_created(destination)

    def on_deleted(self, destination: Destination, reason: str) -> None:
        """A destination was deleted: whoever used it is told, and nothing refers to it any more."""
        self.subscriptions.forget(destination.number)
        self.owners.pop(destination.number, None)
        for session in self._using.pop(destination.number, ()):
            parties: list[Any] = [session.producers.pop(destination.number, None)]
            parties += [consumer for consumer in session.consumers.values() if consumer.destination is destination]
            for party in parties:
                if party is not None:
                    session.consumers.pop(party.handle, None)
                    if session.line is not None:
                        session.line.handles.pop(party.handle, None)
                    self._core.notice(
                        session, event="ended", handle=party.handle, code="destination-deleted", text=reason
                    )

    def uses(self, session: Session, destination: Destination) -> None:
        """It has a producer or a consumer there from now on."""
        self._using.setdefault(destination.number, set()).add(session)

    def expire(self) -> int:
        """End sessions nobody has resumed in time (CLU-118, CLU-29); how many ended."""
        limit_ms = int(self._core.settings.resend_retention_s * 1000)
        late = [s for s in self.by_id.values() if s.line is None and s.lost_ms + limit_ms <= self._core.now_ms]
        for session in late:
            self._forget(session)
        self._expiry_ms = 0
        waiting = [session.lost_ms for session in self.by_id.values() if session.line is None]
        if waiting:
            self._expire_at(min(waiting) + limit_ms)
        return len(late)

    def _expire_at(self, ms: int) -> None:
        if self._expiry_ms and self._expiry_ms <= ms:
            return
        self._expiry_ms = ms

        def due() -> None:
            if self._expiry_ms == ms:  # else another call was asked for after this one
                self.expire()

        self._core.call_at(ms, due)

    # ------------------------------------------------------------------ parts of a life

    def _release(self, session: Session, then: Callable[[], None], *, orderly: bool = False) -> None:
        """Give up what this life holds, behind everything it has already sent; then go on."""
        touched = [producer.destination for producer in session.producers.values()]
        consumers = list(session.consumers.values())
        for destination in (*touched, *(consumer.destination for consumer in consumers)):
            users = self._using.get(destination.number, set())
            users.discard(session)
            if not users:
                self._using.pop(destination.number, None)
        line = session.line
        session.line = None
        session.producers.clear()
        session.consumers.clear()
        if line is not None:
            line.sessions.pop(session.number, None)
            for handle, party in list(line.handles.items()):
                if party.session is session:
                    del line.handles[handle]
        self.patterns.drop(session)

        def consumers_given_up() -> None:
            self._core.transactions.on_lost(session, then)

        for consumer in consumers:
            self._core.transfers.downloads.drop(consumer)
            self._core.post(consumer.destination, lambda one=consumer: _give_up(one, orderly))  # type: ignore[misc]
        self.join([*touched, *(consumer.destination for consumer in consumers)], consumers_given_up)

    def join(self, destinations: Iterable[Destination], then: Callable[[], None], *, holdable: bool = False) -> None:
        """Run `then` when each of these destinations has worked off what is in its queue now."""
        waiting = {destination.number: destination for destination in destinations}
        if not waiting:
            then()
            return
        left = set(waiting)

        def arrived(number: int) -> None:
            left.discard(number)
            if not left:
                then()

        for number, destination in waiting.items():
            self._core.post(destination, lambda one=number: arrived(one), holdable=holdable)  # type: ignore[misc]

    def _wait(self, session: Session) -> None:
        session.lost_ms = self._core.now_ms
        self._expire_at(session.lost_ms + int(self._core.settings.resend_retention_s * 1000))

    def _forget(self, session: Session) -> None:
        """The end of a session: its records may go, its temporary destinations do."""
        self.by_id.pop(session.id, None)
        self._core.transactions.forget(session.id)
        self._core.transfers.forget(session.id)
        for number in sorted(session.temporary):
            self.owners.pop(number, None)
            destination = self._core.destinations.get(number)
            if destination is not None:
                self._core.delete(destination, "The session it belonged to ended.")
        record = {"id": session.id.hex(), "incarnation": session.incarnation, "ended_ms": self._core.now_ms}
        self._core.append(records.SESSION, msgspec.json.encode(record))

    def _give_ids(self, session: Session) -> None:
        session.id_first = self._core.id_block(ID_BLOCK)
        session.id_last = session.id_first + ID_BLOCK

    def _write(self, session: Session) -> int:
        index, _ = self._core.append(records.SESSION, msgspec.json.encode(lasting.facts(session)))
        return index

    def _accepted(self, session: Session) -> dict[str, int]:
        names = ((self._core.destinations.get(number), last) for number, last in session.accepted.items())
        return {destination.name: last for destination, last in names if destination is not None}

    # ------------------------------------------------------------------ the journal

    def accept(self, session_id: bytes, destination: int, last: int) -> None:
        """A STORE record says that this send number was accepted; `Destination.apply` or recovery calls it."""
        session = self.by_id.get(session_id)
        if session is not None and last > session.accepted.get(destination, 0):
            session.accepted[destination] = last

    def apply(self, kind: int, body: Bytes) -> None:
        """Read again what was written: SESSION, PRODUCER, and of STORE the send numbers."""
        if kind == records.SESSION:
            self._restore_one(msgspec.json.decode(body))
        elif kind == records.PRODUCER:
            facts = msgspec.json.decode(body)
            for number, last in facts["numbers"].items():
                self.accept(bytes.fromhex(facts["session"]), int(number), last)
        elif kind == records.STORE:
            fields = records.STORE_RECORD.unpack_from(body)
            destination, count, session_id, first = fields[0], fields[3], fields[4], fields[5]
            if first:
                self.accept(session_id, destination, first + count - 1)
        elif kind in (records.SUBSCRIBE, records.UNSUBSCRIBE):
            facts = msgspec.json.decode(body)
            if facts["number"] == 0:  # a pattern's; others are for their topic
                self.subscriptions.apply(kind, facts)

    def snapshot(self) -> dict[str, Any]:
        """Everything about sessions that lasts, for a checkpoint."""
        sessions = [lasting.facts(session, accepted=True) for session in self.by_id.values()]
        return {"sessions": sessions, "patterns": self.subscriptions.snapshot()}

    def restore(self, state: dict[str, Any]) -> None:
        for facts in state["sessions"]:
            self._restore_one(facts)
        for facts in state["patterns"]:
            self.subscriptions.apply(records.SUBSCRIBE, facts)

    def recovered(self) -> int:
        """All records are read, nobody holds any session yet. One beyond the last message id number ever given."""
        for session in self.by_id.values():
            self._wait(session)
            session.accepted = {n: last for n, last in session.accepted.items() if n in self._core.destinations}
        for destination in self._core.destinations.values():
            self.subscriptions.recovered(destination)
        return self._ids_beyond

    def _restore_one(self, facts: dict[str, Any]) -> None:
        session_id = bytes.fromhex(facts["id"])
        if facts.get("ended_ms"):
            self.by_id.pop(session_id, None)
            return
        session = self.by_id[session_id] = lasting.read(facts, self.by_id.get(session_id))
        self.owners.update((number, session_id) for number in session.temporary)
        self._ids_beyond = max(self._ids_beyond, session.id_last)

    def wrote_temporary(self, session: Session) -> int:
        """Its temporary destinations changed: the index of the record that says so."""
        return self._write(session)

    # ------------------------------------------------------------------ administration

    def producers(self) -> Counter[int]:
        """How many each destination has, by its number."""
        return Counter(number for session in self.by_id.values() for number in session.producers)

    def facts(self, session: Session) -> dict[str, Any]:
        line = session.line
        return {
            "id": session.id.hex(),
            "incarnation": session.incarnation,
            "user": session.user,
            "client": line.client if line else "",
            "ack": session.ack,
            "connection": None if line is None else {"manager": line.link, "uid": line.uid},
            "waiting_ms": 0 if line else self._core.now_ms - session.lost_ms,
            "opened_ms": session.opened_ms,
            "producers": len(session.producers),
            "consumers": len(session.consumers),
            "held": sum(consumer.held for consumer in session.consumers.values()),
            "temporary": len(session.temporary),
        }


def held(line: Line, number: int) -> Session:
    """The session of this number on this connection, or SessionLost."""
    session = line.sessions.get(number)
    if session is None:
        raise SessionLost(f"This connection has no session {number}.")
    return session


def _give_up(consumer: Consumer, orderly: bool) -> None:
    if orderly:
        consumer.destination.detach(consumer, orderly=True)
    else:
        consumer.destination.lost(consumer)


def _unhex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
