"""Very large messages: their way in piece by piece to a side file, and out again to whoever reads (CLU-93…100).

Nothing here ever holds more of a message than a window. A transfer has one job at a time in the thread pool, so many
of them take turns. The record that a transfer is complete is written after its file was synced, and a message that
names it can only be stored after that; what the client sends behind a large message waits with it (`defer`), so
nothing overtakes it (CLU-99). The file lives as long as stored messages name it (`kept`, `gone`) or somebody reads
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlead.cluster import records, requests
from fairlead.cluster.downloads import Downloads
from fairlead.cluster.parties import Consumer, Line, Producer, Session
from fairlead.cluster.uploads import Files as Files
from fairlead.cluster.uploads import Upload, large_bodies
from fairlead.errors import LocalProtocolError, SessionLost, TooMany, TransferFailed
from fairlead.wire.durable import LARGE

if TYPE_CHECKING:
    from fairlead.cluster.host import Host
    from fairlead.cluster.port import Bytes

WINDOW_FRAGMENTS: Final = 8
"""Fragments a client may be ahead of the disk."""
UPLOADS_PER_SESSION_MAX: Final = 64


class Transfers:
    """All transfers of this message manager."""

    def __init__(self, core: Host, files: Files) -> None:
        self._core = core
        self._files = files
        self._uploads: dict[tuple[bytes, int], Upload] = {}
        self._by_id: dict[int, Upload] = {}
        self._references: dict[int, int] = {}  # stored entries that name the file
        self._deferred: dict[Producer, list[Callable[[], None]]] = {}
        self._next = 1
        self.coming: set[int] = set()  # files that are fetched from another member
        self.downloads = Downloads(core, files, self.let_go)

    # ------------------------------------------------------------------ the way in

    def on_transfer(self, line: Line, number: int, request: dict[str, Any]) -> None:
        """COMMAND `transfer`: begin one, or learn from where to go on."""
        asked = requests.read(request, requests.Transfer)
        session = line.sessions.get(asked.session)
        producer = line.handles.get(asked.producer)
        if session is None:
            raise SessionLost(f"This connection has no session {asked.session}.")
        if asked.drop:
            found = self._uploads.get((session.id, asked.transfer))
            if found is not None:
                self._discard(found, "It was given up.")
            self._core.after(self._core.last_index, lambda: self._core.answer(line, number, {}))
            return
        if not isinstance(producer, Producer) or producer.session is not session:
            raise LocalProtocolError(f"The session has no producer {asked.producer}.")
        upload = self._uploads.get((session.id, asked.transfer))
        if upload is None or upload.failed:
            upload = self._begin(session, asked.transfer)
        elif not asked.resume:
            raise LocalProtocolError(f"Transfer {asked.transfer} has begun already; say that it is resumed.")
        upload.producer, upload.length = producer, asked.length
        one = upload
        upload.waiting.clear()  # of an earlier life; the client sends it again

        def ready() -> None:
            if one.complete is None and one.writer is None and not one.failed:
                self._job(one, lambda: self._files.writer(one.id), ready)
                return
            if one.failed:
                self._core.error(line, number, TransferFailed.code, one.failed)
                return
            offset = one.complete[0] if one.complete else one.written
            one.received, one.is_last = offset, one.complete is not None
            one.granted = offset + self.window
            facts = {"offset": offset, "window": self.window, "complete": one.complete is not None}
            self._core.after(self._core.last_index, lambda: self._core.answer(line, number, facts))

        self._when_idle(upload, ready)

    @property
    def window(self) -> int:
        return WINDOW_FRAGMENTS * self._core.settings.fragment_bytes

    def _begin(self, session: Session, number: int) -> Upload:
        if sum(key[0] == session.id for key in self._uploads) >= UPLOADS_PER_SESSION_MAX:
            raise TooMany(f"A session may have {UPLOADS_PER_SESSION_MAX} very large messages under way.")
        upload = Upload(self._next, session.id, number)
        self._next += 1
        self._add(upload)
        facts = {"id": upload.id, "session": session.id.hex(), "number": number, "state": "begun"}
        self._core.append(records.TRANSFER, msgspec.json.encode(facts))
        return upload

    def _add(self, upload: Upload) -> None:
        self._uploads[upload.session_id, upload.number] = upload
        self._by_id[upload.id] = upload

    def on_piece(self, producer: Producer, number: int, offset: int, body: Bytes, is_last: bool) -> None:
        """A PIECE frame."""
        upload = self._uploads.get((producer.session.id, number))
        if upload is None or upload.producer is not producer or upload.is_last or upload.failed:
            return  # of an earlier life, or after a failure the client has been told of
        if offset != upload.received:
            return  # the rest of what it sent before a resume
        if upload.received + len(body) > upload.granted:
            self._fail(upload, "More was sent than was asked for.")
            return
        upload.received += len(body)
        if upload.length is not None and (
            upload.received > upload.length or (is_last and upload.received < upload.length)
        ):
            self._fail(upload, f"It is not {upload.length} bytes long, as was said.")
            return
        upload.waiting.append(bytes(body))
        if is_last:
            upload.is_last = True
            producer.uploads += 1
        self._go_on(upload)

    def _go_on(self, upload: Upload) -> None:
        """The next job of this transfer, if none is under way."""
        writer = upload.writer
        if upload.busy or writer is None or upload.failed or upload.complete:
            return
        if upload.waiting:
            pieces, upload.waiting = upload.waiting, []
            self._job(upload, lambda: writer.write(pieces), lambda: self._wrote(upload))
        elif upload.is_last:
            self._job(upload, writer.finish, lambda: self._finished(upload))

    def _job(self, upload: Upload, job: Callable[[], Any], then: Callable[[], None]) -> None:
        upload.busy = True

        def done(result: Any) -> None:
            upload.busy = False
            if isinstance(result, Exception):
                self._fail(upload, f"It could not be written: {result}.")
            elif isinstance(result, tuple):
                upload.complete = result
            elif isinstance(result, int):
                upload.written = result
            else:
                upload.writer, upload.written = result, result.length
            if not isinstance(result, Exception):
                then()
            waiting, upload.then = upload.then, []
            for action in waiting:
                action()
            self._go_on(upload)

        self._core.work(job, done)

    def _when_idle(self, upload: Upload, action: Callable[[], None]) -> None:
        if upload.busy:
            upload.then.append(action)
        else:
            action()

    def _wrote(self, upload: Upload) -> None:
        if upload.is_last or upload.producer is None:
            return
        if upload.granted - upload.written <= self.window // 2:
            upload.granted = upload.written + self.window
            self._tell(upload, offset=upload.granted)

    def _finished(self, upload: Upload) -> None:
        assert upload.complete is not None
        if upload.failed:
            return  # given up while the last of it was written
        upload.writer = None
        length, digest = upload.complete
        facts = {
            "id": upload.id,
            "session": upload.session_id.hex(),
            "number": upload.number,
            "state": "complete",
            "length": length,
            "sha256": digest.hex(),
        }
        index, _ = self._core.append(records.TRANSFER, msgspec.json.encode(facts))
        producer = upload.producer

        def safe() -> None:
            if not upload.failed:
                self._tell(upload, offset=length, complete=True)
            self._let_go_on(producer)

        self._core.after(index, safe)  # a message that names it is never stored where its body may be missing

    def _tell(self, upload: Upload, **facts: Any) -> None:
        producer = upload.producer
        if producer is not None and producer.session.line is not None:
            self._core.notice(
                producer.session, event="transfer", producer=producer.handle, transfer=upload.number, **facts
            )

    def _fail(self, upload: Upload, why: str) -> None:
        upload.failed = why
        upload.waiting.clear()
        if upload.producer is not None and upload.producer.session.line is not None:
            self._core.notice(
                upload.producer.session,
                event="refused",
                producer=upload.producer.handle,
                transfer=upload.number,
                first=0,
                count=0,
                code=TransferFailed.code,
                text=why,
            )
        self._release(upload)
        self._give_up(upload)

    # ------------------------------------------------------------------ what waits behind it

    def defer(self, producer: Producer, action: Callable[[], None]) -> None:
        """A STORE of a producer with `uploads` > 0: run it when these are on disk, in order."""
        self._deferred.setdefault(producer, []).append(action)

    def _release(self, upload: Upload) -> None:
        if upload.is_last:
            self._let_go_on(upload.producer)

    def _let_go_on(self, producer: Producer | None) -> None:
        if producer is None:
            return
        producer.uploads = max(producer.uploads - 1, 0)
        if not producer.uploads:
            for action in self._deferred.pop(producer, ()):
                action()

    # ------------------------------------------------------------------ stored, and gone

    def admit(self, session: Session, entries: Bytes) -> bytes:
        """See `Port.large`: each must name a complete transfer of this session, with its length and SHA-256."""
        whole = bytearray(entries)
        for at in large_bodies(whole):
            number, length, digest = LARGE.unpack_from(whole, at)
            upload = self._uploads.get((session.id, number))
            if upload is None or upload.complete is None:
                raise TransferFailed(f"Transfer {number} is not complete; it cannot be stored.")
            if upload.complete != (length, digest):
                raise TransferFailed(f"Transfer {number} is not what it was when it was sent: its SHA-256 differs.")
            LARGE.pack_into(whole, at, upload.id, length, digest)
        return bytes(whole)

    def kept(self, transfer: int) -> None:
        self._references[transfer] = self._references.get(transfer, 0) + 1
        upload = self._by_id.pop(transfer, None)
        if upload is not None:
            self._uploads.pop((upload.session_id, upload.number), None)

    def gone(self, transfer: int) -> None:
        left = self._references.get(transfer, 0) - 1
        if left > 0:
            self._references[transfer] = left
        elif left == 0:
            del self._references[transfer]
            self.let_go(transfer)

    def let_go(self, transfer: int) -> None:
        """Delete the file when what let it go is safe, unless somebody still needs it."""

        def delete() -> None:
            if not self._is_needed(transfer):
                self._core.work(lambda: self._files.delete(transfer), lambda _: None)

        if not self._is_needed(transfer):
            self._core.after(self._core.last_index, delete)

    def _is_needed(self, transfer: int) -> bool:
        return transfer in self._references or transfer in self._by_id or self.downloads.reads(transfer)

    def _give_up(self, upload: Upload) -> None:
        self._uploads.pop((upload.session_id, upload.number), None)
        self._by_id.pop(upload.id, None)
        facts = {"id": upload.id, "session": upload.session_id.hex(), "number": upload.number, "state": "gone"}
        self._core.append(records.TRANSFER, msgspec.json.encode(facts))
        if upload.writer is not None:
            writer, upload.writer = upload.writer, None
            self._when_idle(upload, lambda: self._core.work(writer.close, lambda _: None))
        self._when_idle(upload, lambda: self.let_go(upload.id))

    def forget(self, session_id: bytes) -> None:
        """The session is over for good: what it began and never stored is discarded (CLU-98)."""
        for upload in [one for one in self._uploads.values() if one.session_id == session_id]:
            self._discard(upload, "Its session ended.")

    def _discard(self, upload: Upload, why: str) -> None:
        upload.failed = why
        upload.waiting.clear()
        if upload.complete is None:
            self._release(upload)
        self._give_up(upload)

    # ------------------------------------------------------------------ the way out

    def on_pull(self, consumer: Consumer, order: int, up_to: int, stop: bool) -> None:
        """A PULL frame."""
        self.downloads.on_pull(consumer, order, up_to, stop)

    # ------------------------------------------------------------------ the journal

    def apply(self, body: Bytes) -> None:
        """A TRANSFER record, read again."""
        facts = msgspec.json.decode(body)
        number = facts["id"]
        self._next = max(self._next, number + 1)
        if facts["state"] == "gone":
            upload = self._by_id.pop(number, None)
            if upload is not None:
                self._uploads.pop((upload.session_id, upload.number), None)
            return
        if number in self._references:
            return  # a stored message names it already
        upload = self._by_id.get(number) or Upload(number, bytes.fromhex(facts["session"]), facts["number"])
        upload.is_last = facts["state"] == "complete"
        upload.complete = (facts["length"], bytes.fromhex(facts["sha256"])) if upload.is_last else None
        self._add(upload)

    def snapshot(self) -> dict[str, Any]:
        uploads = []
        for one in self._by_id.values():
            facts: dict[str, Any] = {
                "id": one.id,
                "session": one.session_id.hex(),
                "number": one.number,
                "state": "begun",
            }
            if one.complete:
                facts |= {"state": "complete", "length": one.complete[0], "sha256": one.complete[1].hex()}
            uploads.append(facts)
        return {"next": self._next, "uploads": uploads}

    def restore(self, state: dict[str, Any]) -> None:
        self._next = state["next"]
        for facts in state["uploads"]:
            self.apply(msgspec.json.encode(facts))

    def recovered(self) -> None:
        """All records are read: count who names which file, and discard what nobody will ever name."""
        self.recount()
        for upload in list(self._by_id.values()):
            if upload.session_id not in self._core.sessions.by_id:
                self._give_up(upload)
        self._core.work(self._files.listed, self._collect)

    def recount(self) -> None:
        """Who names which file."""
        self._references.clear()
        for destination in self._core.destinations.values():
            for number in (*destination.large.values(), *destination.parts.files()):
                self.kept(number)

    @property
    def known(self) -> set[int]:
        """Files that messages name, or may name one day."""
        return self._references.keys() | self._by_id.keys()

    def missing(self, number: int) -> None:
        """We lead now, and no member has the whole of that file: its client goes on where ours ends (CLU-98)."""
        self.coming.discard(number)
        upload = self._by_id.get(number)
        if number in self._references:
            self._say_lost([number])
        elif upload is not None and upload.complete is not None:
            upload.complete, upload.is_last = None, False
            facts = {"id": number, "session": upload.session_id.hex(), "number": upload.number, "state": "begun"}
            self._core.append(records.TRANSFER, msgspec.json.encode(facts))

    def _say_lost(self, numbers: list[int]) -> None:
        text = f"{len(numbers)} very large messages have lost their files."
        self._core.event("error", "large-lost", text, files=numbers[:100])

    def _collect(self, found: dict[int, int] | Exception) -> None:
        if isinstance(found, Exception):
            self._core.event("error", "large-files", f"The folder of very large messages cannot be read: {found}")
            return
        self._next = max(self._next, *(number + 1 for number in found), 1) if found else self._next
        for number in found:
            self.let_go(number)
        missing = [number for number in self._references if number not in found and number not in self.coming]
        if missing:
            self._say_lost(missing)

    def facts(self) -> dict[str, Any]:
        return {
            "uploads": len(self._uploads),
            "downloads": len(self.downloads),
            "files": len(self._references),
            "under_way": [
                {
                    "session": one.session_id.hex(),
                    "transfer": one.number,
                    "bytes": one.written,
                    "complete": bool(one.complete),
                }
                for one in self._uploads.values()
            ],
        }
