"""The bodies of very large messages on their way to the backups, and what waits for them there.

A backup that is told of a transfer pulls its file from the primary while it grows. The record that says that a transfer
is complete does not count as stored before the file is on this disk, whole (`limit`); so a message that names it is
safe only where its body is. A file only grows, so a pull goes on where the file here ends. Port `side:GROUP`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead.bus.port import Bus
from fairlead.cluster.edge.state_files import HASH_BYTES, Work
from fairlead.journal.edge.files import Files

PIECE_BYTES: Final = 256 << 10
WINDOW_BYTES: Final = 2 << 20
ASK_S: Final = 1.0  # an unanswered question is put to the next one
LOOK_S: Final = 0.02  # how often a file that somebody waits for is looked at
WANTS_MAX: Final = 4096


class SideWant(msgspec.Struct, frozen=True, tag="want"):
    """Send the file from that offset on, as far as it goes, up to there."""

    file: int
    offset: int
    up_to: int


class SidePiece(msgspec.Struct, frozen=True, tag="piece"):
    """Bytes follow; none: the sender has no such file."""

    file: int
    offset: int


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(SideWant | SidePiece)


@dataclass(slots=True)
class Pull:
    """A file that comes."""

    number: int
    length: int = 0  # bytes here
    known: bool = False  # the disk has been asked how many those are
    busy: bool = False
    asked_s: float = -ASK_S
    turn: int = 0  # which source
    wanted: tuple[int, bytes] | None = None  # length and SHA-256, when it is complete
    indexes: tuple[int, ...] = ()  # records that wait for it
    fruitless: int = 0  # questions since the last piece that brought nothing
    recalled: bool = False  # from an earlier life: the message may be gone, and its file with it


@dataclass(slots=True)
class Want:
    """A file that somebody pulls from here."""

    offset: int
    up_to: int
    looked_s: float = 0.0
    busy: bool = False


class SideFeed:
    """Both ends; turned by the loop with `tick`. `ready` is called when `limit` may have grown."""

    def __init__(
        self, bus: Bus, group: str, work: Work, large: Path, clock_s: Callable[[], float], ready: Callable[[], None]
    ) -> None:
        self.sources: list[str] = []  # nodes to be asked, the primary first
        self.strange = 0
        self.missing: Callable[[int], None] | None = None  # while we lead: told of a file that nobody has whole
        self._bus, self._port, self._work, self._large = bus, f"side:{group}", work, large
        self._clock_s, self._ready = clock_s, ready
        self._pulls: dict[int, Pull] = {}
        self._wants: dict[tuple[str, int], Want] = {}
        large.mkdir(mode=0o700, parents=True, exist_ok=True)
        bus.listen(self._port, self._on_message)

    # --- What the log is told (group_log.Gate) ----------------------------------------------------------------------
    def told(self, index: int, body: memoryview) -> None:
        facts = msgspec.json.decode(body)
        number = int(facts["id"])
        if facts["state"] == "gone":
            self._pulls.pop(number, None)
            return
        pull = self._pulls.setdefault(number, Pull(number))
        if facts["state"] == "complete":
            pull.wanted = int(facts["length"]), bytes.fromhex(facts["sha256"])
            pull.indexes = (*pull.indexes, index)
        else:
            pull.wanted, pull.indexes = None, ()  # begun, perhaps once more
        self._go_on(pull)

    def recall(self, index: int, body: memoryview) -> None:
        """A TRANSFER record that was here at the start: its file may not have come before the end of the last life."""
        self.told(index, body)
        pull = self._pulls.get(int(msgspec.json.decode(body)["id"]))
        if pull is not None:
            pull.recalled = True

    def settled(self, safe: int) -> None:
        """What is safe, of what was recalled, waits no longer: others have it, or nobody needs it any more."""
        for pull in self._pulls.values():
            if pull.recalled and pull.indexes and pull.indexes[0] <= safe:
                pull.indexes = tuple(index for index in pull.indexes if index > safe)

    def limit(self, durable: int) -> int:
        waiting = [min(pull.indexes) for pull in self._pulls.values() if pull.indexes]
        return min(durable, min(waiting) - 1) if waiting else durable

    def cut(self, last: int) -> None:
        for pull in list(self._pulls.values()):
            if pull.indexes:
                pull.indexes = tuple(index for index in pull.indexes if index <= last)
                if not pull.indexes:
                    pull.wanted = None

    def lead(self, known: Collection[int], missing: Callable[[int], None]) -> set[int]:
        """We lead: pull on only what records wait for, of the files that are known to be needed; which these are.

        Whoever took part in the choice has each of them, if its record was safe; of others `missing` is told.
        """
        self._pulls = {number: pull for number, pull in self._pulls.items() if pull.indexes and number in known}
        for pull in self._pulls.values():
            pull.fruitless, pull.recalled = 0, False
        self.missing = missing
        return set(self._pulls)

    def follow(self) -> None:
        self.missing = None

    @property
    def waiting(self) -> list[int]:
        """Numbers of the files that records wait for."""
        return [pull.number for pull in self._pulls.values() if pull.indexes]

    def tick(self) -> None:
        for pull in list(self._pulls.values()):
            self._go_on(pull)
        for (node, number), want in list(self._wants.items()):
            self._look(node, number, want)

    @property
    def patience_s(self) -> float:
        return LOOK_S if self._wants else ASK_S

    def lost(self, node: str) -> None:
        for key in [one for one in self._wants if one[0] == node]:
            del self._wants[key]
        for pull in self._pulls.values():
            pull.asked_s = -ASK_S

    def close(self) -> None:
        self._bus.deaf(self._port)

    # --- Pulling --------------------------------------------------------------------------------------------------
    def _go_on(self, pull: Pull) -> None:
        if pull.busy:
            return
        if not pull.known:
            self._job(pull, lambda: _size(self._path(pull.number)), lambda size: self._known(pull, size))
        elif pull.wanted is not None and pull.length >= pull.wanted[0]:
            wanted = pull.wanted
            self._job(pull, lambda: _check(self._path(pull.number), *wanted), lambda good: self._checked(pull, good))
        elif self.missing is not None and pull.fruitless > len(self.sources):
            del self._pulls[pull.number]
            self.missing(pull.number)
            self._ready()
        elif self._clock_s() - pull.asked_s >= ASK_S:
            if pull.asked_s > 0:  # unanswered
                pull.turn += 1
                pull.fruitless += 1
            self._ask(pull)

    def _known(self, pull: Pull, size: int) -> None:
        pull.known, pull.length = True, size

    def _checked(self, pull: Pull, good: bool) -> None:
        if good:
            if self._pulls.get(pull.number) is pull:
                del self._pulls[pull.number]
            self._ready()
        else:
            pull.length = 0  # not what it should be: from the beginning, from somebody else
            pull.turn += 1

    def _ask(self, pull: Pull) -> None:
        if not self.sources:
            pull.fruitless += 1
            return
        pull.asked_s = self._clock_s()
        source = self.sources[pull.turn % len(self.sources)]
        want = SideWant(pull.number, pull.length, pull.length + WINDOW_BYTES)
        if not self._bus.send(source, self._port, _head(want)):
            self._in_vain(pull)

    def _in_vain(self, pull: Pull) -> None:
        """That one is not there, or has it not: the next one is asked, soon if somebody waits for it here."""
        pull.turn += 1
        pull.fruitless += 1
        if self.missing is not None:
            pull.asked_s = -ASK_S

    def _on_piece(self, sender: str, piece: SidePiece, data: bytes) -> None:
        pull = self._pulls.get(piece.file)
        if pull is None or not pull.known or pull.busy or piece.offset != pull.length:
            return
        if not data:
            if pull.indexes:
                self._in_vain(pull)
            elif pull.recalled:
                del self._pulls[piece.file]
            return
        path = self._path(pull.number)

        def written(beyond: int) -> None:
            pull.length, pull.fruitless = beyond, 0
            if pull.wanted is None or pull.length < pull.wanted[0]:
                self._ask(pull)

        self._job(pull, lambda: _write(path, piece.offset, data), written)

    def _job(self, pull: Pull, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        pull.busy = True

        def done(result: Any) -> None:
            pull.busy = False
            if isinstance(result, Exception):
                pull.known = False
                pull.asked_s = self._clock_s()
                return
            then(result)
            if self._pulls.get(pull.number) is pull:
                self._go_on(pull)

        self._work(job, done)

    # --- Giving ---------------------------------------------------------------------------------------------------
    def _look(self, node: str, number: int, want: Want) -> None:
        now_s = self._clock_s()
        if want.busy or now_s - want.looked_s < LOOK_S:
            return
        want.busy, want.looked_s = True, now_s
        path, offset, size = self._path(number), want.offset, min(PIECE_BYTES, want.up_to - want.offset)

        def read(result: Any) -> None:
            want.busy = False
            if self._wants.get((node, number)) is not want or want.offset != offset:
                return
            if isinstance(result, OSError):
                result = b""
            elif not result:
                return  # it has not grown; it is looked at again
            if not self._bus.send(node, self._port, _head(SidePiece(number, offset)), result):
                self._wants.pop((node, number), None)
                return
            del self._wants[node, number]  # who got a piece asks for the next

        self._work(lambda: _read(path, offset, size), read)

    def _on_message(self, sender: str, data: memoryview) -> None:
        size = int.from_bytes(data[:4], "little")
        try:
            message = _decoder.decode(data[4 : 4 + size])
        except msgspec.MsgspecError:
            self.strange += 1
            return
        if isinstance(message, SidePiece):
            self._on_piece(sender, message, bytes(data[4 + size :]))
        elif (
            len(self._wants) < WANTS_MAX
            and 0 <= message.file < 1 << 64
            and 0 <= message.offset < message.up_to < 1 << 62
        ):
            want = self._wants[sender, message.file] = Want(message.offset, message.up_to)
            self._look(sender, message.file, want)
        else:
            self.strange += 1

    def _path(self, number: int) -> Path:
        return self._large / f"{number:016x}"


def _head(message: SideWant | SidePiece) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(4, "little") + body


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read(path: Path, offset: int, size: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, size, offset)
    finally:
        os.close(fd)


def _write(path: Path, offset: int, data: bytes) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        Files().write_all(fd, data, offset)
    finally:
        os.close(fd)
    return offset + len(data)


def _check(path: Path, length: int, sha256: bytes) -> bool:
    """Is it whole? Then it is on stable storage when this returns; else nothing of it is left."""
    found, offset = hashlib.sha256(), 0
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while piece := os.pread(fd, HASH_BYTES, offset):
            found.update(piece)
            offset += len(piece)
        if offset != length or found.digest() != sha256:
            os.ftruncate(fd, 0)
            return False
        os.fsync(fd)
    finally:
        os.close(fd)
    Files().sync_directory(path.parent)
    return True
