"""For tests of sealed messages: listening in between brokers, and changing what a broker has stored."""

from __future__ import annotations

import asyncio
import functools
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from socket import SHUT_RDWR, SHUT_WR, create_connection, create_server, socket
from types import TracebackType
from typing import Any, Self

from fairlead.journal.crc import crc32c
from fairlead.journal.layout import FILE_HEAD, ITEM, ITEM_BYTES, RECORD_MAGIC, padded, place_of, read_file_head, seed_of
from fairlead.journal.records import BATCH_MAGIC, sealed


class Tap:
    """A port that passes on to `target` and remembers everything that went through it."""

    def __init__(self) -> None:
        self._listener = create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.target: int | None = None
        self._heard: list[bytes] = []
        self._open: list[socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def heard(self) -> bytes:
        return b"".join(self._heard)

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(SHUT_RDWR)
        self._listener.close()
        for end in list(self._open):
            _hang_up(end)
        for thread in list(self._threads):
            thread.join()
        for end in self._open:
            end.close()

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(one)
            try:
                other = create_connection(("127.0.0.1", self.target or 0))
            except OSError:
                _hang_up(one)
                continue
            self._open.append(other)
            self._start(self._pass, one, other)
            self._start(self._pass, other, one)

    def _pass(self, source: socket, sink: socket) -> None:
        try:
            while data := source.recv(65536):
                self._heard.append(data)
                sink.sendall(data)
            sink.shutdown(SHUT_WR)
        except OSError:
            _hang_up(sink)


def _hang_up(end: socket) -> None:
    try:
        end.shutdown(SHUT_RDWR)
    except OSError:
        pass


def stored(data: Path) -> bytes:
    """Every byte a server keeps, of all its files."""
    return b"\0".join(path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file())


def records(segment: bytes) -> Iterator[tuple[int, int]]:
    """Where the records of a segment lie, and how long their bodies are."""
    position = FILE_HEAD.size
    while position + ITEM_BYTES <= len(segment):
        magic, _, length, *_ = ITEM.unpack_from(segment, position)
        if magic == RECORD_MAGIC:
            yield position, length
            position += ITEM_BYTES + padded(length)
        elif magic == BATCH_MAGIC:
            position += ITEM_BYTES
        else:
            return


def change_stored(data: Path, change: Callable[[bytes], bytes]) -> int:
    """Change records in the journal of a server that is not running, checksums too; how many were another then."""
    changed = 0
    for path in sorted(data.rglob("*.seg")):
        segment = bytearray(path.read_bytes())
        head = read_file_head(bytes(segment[: FILE_HEAD.size]))
        if head is None:
            continue
        store_id, number = head[0], head[1]
        for position, length in list(records(bytes(segment))):
            start, end = position + ITEM_BYTES, position + ITEM_BYTES + length
            before = bytes(segment[start:end])
            body = change(before)
            assert len(body) == length
            if body == before:
                continue
            changed += 1
            seed = crc32c(struct.pack("<Q", place_of(number, position)), seed_of(store_id))
            header = bytearray(segment[position:start])
            struct.pack_into("<I", header, 12, crc32c(body, seed))
            segment[position:end] = sealed(bytes(header), seed) + body
        path.write_bytes(segment)
    return changed


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test that is a coroutine."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run
