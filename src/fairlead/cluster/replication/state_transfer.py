"""A whole state from one member to another, file by file, in pieces: what each side says and does next (CLU-131 … 137).

The target asks a host; the host answers with the list of its files, their sizes and SHA-256, and keeps them from
changing; the target grants bytes (`StateWant`) as fast as its disk takes them, never more than a window ahead. When
anything breaks it asks anew: files of the new offer that it has already, whole or in part, are not sent again. The
machines hold no file and no piece; `jobs` is what the edge does for them (edge/state_files.py), `out` what it sends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from fairlead.errors import RemoteProtocolError

PIECE_BYTES: Final = 256 << 10
WINDOW_BYTES: Final = 4 << 20
HOSTED_MAX: Final = 2  # states given away at a time
FORGET_S: Final = 60.0  # a target that says nothing for so long is gone
PATIENCE_S: Final = 15.0  # a host that sends nothing for so long is asked anew, or another is
PAUSE_S: Final = 0.5
ATTEMPTS_PER_FILE: Final = 3
FILES_MAX: Final = 1_000_000


class StateFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a state: its first `size` bytes are sent, zeros follow up to `full`."""

    name: str
    size: int
    full: int
    sha256: bytes


class StateAsk(msgspec.Struct, frozen=True, tag="ask"):
    """Target to host: give me your state of this epoch."""

    number: int
    epoch: int


class StateOffer(msgspec.Struct, frozen=True, tag="offer"):
    number: int
    epoch: int
    last: int  # index up to which it goes
    last_epoch: int
    files: tuple[StateFile, ...]


class StateRefuse(msgspec.Struct, frozen=True, tag="refuse"):
    number: int
    why: str


class StateWant(msgspec.Struct, frozen=True, tag="want"):
    """Send the file from that offset on, up to there; unless `anew`, what is on its way already is not sent again."""

    number: int
    file: int
    offset: int
    up_to: int
    anew: bool


class StatePiece(msgspec.Struct, frozen=True, tag="piece"):
    """Bytes follow. None, before the file's end: it is no longer there, and no longer needed."""

    number: int
    file: int
    offset: int


class StateDone(msgspec.Struct, frozen=True, tag="done"):
    """Target to host: let your files go."""

    number: int


Message = StateAsk | StateOffer | StateRefuse | StateWant | StatePiece | StateDone
_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """What goes before a piece's bytes: length and message."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "little") + body


def decode(data: memoryview) -> tuple[Message, memoryview]:
    """A message, and the bytes behind it. Raises RemoteProtocolError."""
    size = int.from_bytes(data[:4], "little")
    try:
        if len(data) < 4 or size > len(data) - 4:
            raise ValueError("it ends too early")
        message = _decoder.decode(data[4 : 4 + size])
        if isinstance(message, StateOffer):
            check_names(message.files)
        if isinstance(message, StateWant) and not 0 <= message.offset <= message.up_to < 1 << 62:
            raise ValueError("there is no such stretch")
    except (ValueError, msgspec.MsgspecError) as error:
        raise RemoteProtocolError(f"A message about a state cannot be read: {error}.") from error
    return message, data[4 + size :]


def check_names(files: tuple[StateFile, ...]) -> None:
    """Names that stay inside the folder they are meant for, and sizes that may be."""
    if len(files) > FILES_MAX:
        raise ValueError(f"a state has at most {FILES_MAX} files")
    for one in files:
        folder, _, name = one.name.partition("/")
        if folder not in ("journal", "large") or not name or "/" in name or name.startswith(".") or "\0" in name:
            raise ValueError(f"{one.name!r} is no name of a file in a state")
        if not 0 <= one.size <= one.full < 1 << 62 or len(one.sha256) != 32:
            raise ValueError(f"{one.name!r} has no such size or digest")
    if len({one.name for one in files}) != len(files):
        raise ValueError("a name comes twice")


# --- The host ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepare:
    """Hold the files of our state and find out their digests; then call `prepared`."""

    target: str
    number: int


@dataclass(frozen=True, slots=True)
class Read:
    """Read bytes of a file that is held; then call `loaded`."""

    target: str
    number: int
    file: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Release:
    """Hold the files of this transfer no longer."""

    target: str
    number: int


@dataclass(slots=True)
class _Giving:
    number: int
    heard_s: float
    files: tuple[StateFile, ...] | None = None  # None: they are being prepared
    file: int = 0
    offset: int = 0
    up_to: int = 0
    reading: bool = False


class Host:
    """The side that gives. `epoch`: of the primary we follow, or ours; 0: we can give nothing."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self.out: list[tuple[str, Message, bytes]] = []
        self.jobs: list[Prepare | Read | Release] = []
        self._giving: dict[str, _Giving] = {}

    def __len__(self) -> int:
        return len(self._giving)

    def on_epoch(self, epoch: int) -> None:
        """What we give belongs to another epoch now: whoever takes it over asks anew (CLU-131)."""
        if epoch != self.epoch:
            self.epoch = epoch
            for target in list(self._giving):
                self._refuse(target, self._giving[target].number, "the epoch has changed")
                self._release(target)

    def on_message(self, target: str, message: Message, now_s: float) -> None:
        giving = self._giving.get(target)
        if isinstance(message, StateAsk):
            if giving is not None:
                self._release(target)
            if message.epoch != self.epoch or not self.epoch:
                self._refuse(target, message.number, f"this member is in epoch {self.epoch}")
            elif len(self._giving) >= HOSTED_MAX:
                self._refuse(target, message.number, "this member gives its state to others")
            else:
                self._giving[target] = _Giving(message.number, now_s)
                self.jobs.append(Prepare(target, message.number))
        elif giving is None or giving.number != message.number:
            if isinstance(message, StateWant):
                self._refuse(target, message.number, "this member knows nothing of that transfer")
        elif isinstance(message, StateWant):
            giving.heard_s = now_s
            if giving.files is not None and 0 <= message.file < len(giving.files):
                if message.anew or message.file != giving.file:
                    giving.file, giving.offset = message.file, message.offset
                giving.up_to = min(message.up_to, giving.files[message.file].size)
                self._go_on(target, giving)
        elif isinstance(message, StateDone):
            self._release(target)

    def prepared(
        self, target: str, number: int, last: int, last_epoch: int, files: tuple[StateFile, ...] | None, why: str = ""
    ) -> None:
        """`files` None: it could not be done."""
        giving = self._giving.get(target)
        if giving is None or giving.number != number:
            return
        if files is None:
            self._refuse(target, number, why)
            self._release(target)
            return
        giving.files = files
        self.out.append((target, StateOffer(number, self.epoch, last, last_epoch, files), b""))

    def loaded(self, job: Read, data: bytes | None) -> None:
        """Bytes that were asked for; empty: the file is gone; None: it cannot be read."""
        giving = self._giving.get(job.target)
        if giving is None or giving.number != job.number:
            return
        giving.reading = False
        if data is None:
            self._refuse(job.target, job.number, "a file cannot be read")
            self._release(job.target)
            return
        if (giving.file, giving.offset) == (job.file, job.offset):
            self.out.append((job.target, StatePiece(job.number, job.file, job.offset), data))
            giving.offset = job.offset + len(data) if data else giving.up_to
        self._go_on(job.target, giving)

    def lost(self, target: str) -> None:
        """That node is gone, or order from and to it begins anew."""
        self._release(target)

    def tick(self, now_s: float) -> None:
        for target, giving in list(self._giving.items()):
            if giving.files is not None and now_s - giving.heard_s > FORGET_S:
                self._release(target)

    def _go_on(self, target: str, giving: _Giving) -> None:
        size = min(PIECE_BYTES, giving.up_to - giving.offset)
        if size > 0 and not giving.reading:
            giving.reading = True
            self.jobs.append(Read(target, giving.number, giving.file, giving.offset, size))

    def _refuse(self, target: str, number: int, why: str) -> None:
        self.out.append((target, StateRefuse(number, why), b""))

    def _release(self, target: str) -> None:
        giving = self._giving.pop(target, None)
        if giving is not None:
            self.jobs.append(Release(target, giving.number))


# --- The target -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """Make room for these files, and find out how many bytes of each are there already; then call `begun`."""

    number: int
    files: tuple[StateFile, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """Write the bytes at that offset; then call `written`."""

    number: int
    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Finish:
    """All bytes are there: sync the file and compare its digest; then call `finished`. `gone`: drop it instead."""

    number: int
    file: int
    gone: bool = False


@dataclass(slots=True)
class Target:
    """The side that takes over. `number` must be new in every life: whoever makes one hands in the first."""

    number: int
    hosts: list[str] = field(default_factory=list)  # to be asked, the best first
    epoch: int = 0
    host: str = ""  # being asked, or giving
    offer: StateOffer | None = None
    complete: bool = False
    why: str = ""  # the last trouble
    received_bytes: int = 0
    out: list[tuple[str, Message, bytes]] = field(default_factory=list)
    jobs: list[Begin | Write | Finish] = field(default_factory=list)
    _active: bool = False
    _turn: int = 0
    _next_s: float = 0.0
    _heard_s: float = 0.0
    _have: list[int] = field(default_factory=list)  # per file: bytes there
    _begun: bool = False
    _file: int = 0
    _received: int = 0
    _written: int = 0
    _granted: int = 0
    _attempts: int = 0

    @property
    def is_active(self) -> bool:
        return self._active

    @property
    def total_bytes(self) -> int:
        return sum(one.size for one in self.offer.files) if self.offer else 0

    def start(self, hosts: list[str], epoch: int, now_s: float) -> None:
        """Take over a state of this epoch from one of these; or the epoch has changed, or who can give."""
        if self._active and epoch == self.epoch and self.host in hosts:
            self.hosts = hosts
            return
        self._leave()
        self.hosts, self.epoch, self._active, self.complete, self._turn = hosts, epoch, True, False, 0
        self._ask(now_s)

    def stop(self) -> None:
        self._leave()
        self._active = False

    def on_message(self, host: str, message: Message, data: bytes, now_s: float) -> None:
        if not self._active or host != self.host or message.number != self.number:
            return
        if isinstance(message, StateRefuse):
            self._give_up(f"{host} refuses: {message.why}", now_s)
        elif isinstance(message, StateOffer) and self.offer is None:
            self._heard_s = now_s
            self.offer = message
            self.jobs.append(Begin(self.number, message.files))
        elif isinstance(message, StatePiece) and self._begun:
            self._on_piece(message, data, now_s)

    def _on_piece(self, piece: StatePiece, data: bytes, now_s: float) -> None:
        assert self.offer is not None
        if (piece.file, piece.offset) != (self._file, self._received):
            return
        self._heard_s = now_s
        size = self.offer.files[self._file].size
        if not data:
            self._received = self._written = size
            self.jobs.append(Finish(self.number, self._file, gone=True))
            return
        if self._received + len(data) > min(size, self._granted):
            self._give_up(f"{self.host} sends more than was asked for", now_s)
            return
        self._received += len(data)
        self.received_bytes += len(data)
        self.jobs.append(Write(self.number, piece.file, piece.offset, data))

    def begun(self, number: int, have: list[int] | None, now_s: float, why: str = "") -> None:
        """Bytes of each file that are there; None: it could not be done."""
        if number != self.number or not self._active:
            return
        if have is None:
            self._give_up(why, now_s)
            return
        self._heard_s = now_s
        self._have, self._begun, self._file, self._attempts = have, True, -1, 0
        self._next_file(now_s)

    def written(self, number: int, beyond: int, error: str, now_s: float) -> None:
        if number != self.number or not self._begun:
            return
        if error:
            self._give_up(error, now_s)
            return
        assert self.offer is not None
        self._heard_s = now_s
        self._written = beyond
        size = self.offer.files[self._file].size
        if beyond >= size:
            self.jobs.append(Finish(number, self._file))
        elif self._granted < size and self._granted - beyond <= WINDOW_BYTES // 2:
            self._grant(anew=False)

    def finished(self, number: int, good: bool, error: str, now_s: float) -> None:
        """The file is on disk; `good`: it is what was offered."""
        if number != self.number or not self._begun:
            return
        self._heard_s = now_s
        if error:
            self._give_up(error, now_s)
        elif good:
            self._attempts = 0
            self._next_file(now_s)
        elif self._attempts + 1 < ATTEMPTS_PER_FILE:
            self._attempts += 1
            self._have[self._file] = 0
            self._file -= 1
            self._next_file(now_s)
        else:
            self._give_up(f"a file from {self.host} is not what was offered", now_s)

    def lost(self, host: str, now_s: float) -> None:
        """That node is gone, or order from and to it begins anew."""
        if self._active and host == self.host and not self.complete:
            self._give_up(f"{host} was lost", now_s)

    def tick(self, now_s: float) -> None:
        if not self._active or self.complete:
            return
        if not self.host:
            if now_s >= self._next_s:
                self._ask(now_s)
        elif now_s - self._heard_s > PATIENCE_S:
            self._give_up(f"{self.host} says nothing", now_s)

    def _next_file(self, now_s: float) -> None:
        assert self.offer is not None
        self._file += 1
        if self._file >= len(self.offer.files):
            self.complete = True
            self.out.append((self.host, StateDone(self.number), b""))
            return
        self._received = self._written = self._have[self._file]
        if self._received >= self.offer.files[self._file].size:
            self.jobs.append(Finish(self.number, self._file))
        else:
            self._grant(anew=True)

    def _grant(self, *, anew: bool) -> None:
        """More of the file. What was granted already is on its way: the host goes on behind it."""
        assert self.offer is not None
        self._granted = min(self.offer.files[self._file].size, self._written + WINDOW_BYTES)
        self.out.append((self.host, StateWant(self.number, self._file, self._received, self._granted, anew), b""))

    def _ask(self, now_s: float) -> None:
        if not self.hosts:
            self._next_s = now_s + PAUSE_S
            return
        self.number += 1
        self.host = self.hosts[self._turn % len(self.hosts)]
        self._heard_s = now_s
        self.out.append((self.host, StateAsk(self.number, self.epoch), b""))

    def _give_up(self, why: str, now_s: float) -> None:
        self._leave()
        self.why = why
        self._turn += 1
        self._next_s = now_s + PAUSE_S

    def _leave(self) -> None:
        if self.host and not self.complete:
            self.out.append((self.host, StateDone(self.number), b""))
        self.number += 1
        self.host, self.offer, self._begun = "", None, False
