"""One very large message on its way in, and what is asked of the side files it goes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from fairlead.cluster.parties import Producer
from fairlead.errors import TransferFailed
from fairlead.wire.durable import ENTRY, ENTRY_LARGE, ENTRY_TIMED, LARGE, TIMES

if TYPE_CHECKING:
    from fairlead.cluster.port import Bytes


class Writer(Protocol):
    """One growing side file; its methods run in a thread (edge/large.py)."""

    length: int

    def write(self, pieces: Sequence[bytes]) -> int: ...
    def finish(self) -> tuple[int, bytes]: ...
    def close(self) -> None: ...


class Files(Protocol):
    """All side files; the methods run in a thread."""

    def writer(self, number: int) -> Writer: ...
    def read(self, number: int, offset: int, size: int) -> bytes: ...
    def length(self, number: int) -> int: ...
    def delete(self, number: int) -> None: ...
    def listed(self) -> dict[int, int]: ...


@dataclass(slots=True, eq=False)
class Upload:
    """A message on its way in, until a stored entry names it."""

    id: int  # number of the side file
    session_id: bytes
    number: int  # the client's
    producer: Producer | None = None
    length: int | None = None  # what the client said
    received: int = 0
    written: int = 0
    granted: int = 0
    is_last: bool = False  # the last piece is here
    complete: tuple[int, bytes] | None = None  # length and SHA-256: it is on the disk
    failed: str = ""
    busy: bool = False
    writer: Writer | None = None
    waiting: list[bytes] = field(default_factory=list)
    then: list[Callable[[], None]] = field(default_factory=list)  # when no job is under way


def large_bodies(entries: Bytes) -> Iterable[int]:
    """Where the bodies of LARGE entries begin. The entries have been checked by `survey`."""
    at, end = 0, len(entries)
    while at + ENTRY.size <= end:
        length, flags, _, key_bytes, header_bytes, _ = ENTRY.unpack_from(entries, at)
        if flags & ENTRY_LARGE:
            body = at + ENTRY.size + (TIMES.size if flags & ENTRY_TIMED else 0) + key_bytes + header_bytes
            if body + LARGE.size > end:
                raise TransferFailed("An entry for a very large message is too short to name its transfer.")
            yield body
        if length < ENTRY.size:
            return
        at += length
