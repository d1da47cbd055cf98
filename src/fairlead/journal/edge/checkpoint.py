"""Writing a checkpoint beside the traffic, and reading the newest one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from fairlead.journal import snapshot
from fairlead.journal.edge.files import Files
from fairlead.journal.epochs import BLOB_KEY

NAME = re.compile(r"snapshot-(\d{8})\.ckp")
FLUSH_BYTES = 1 << 20


class Checkpoint:
    """A checkpoint in the making: `add` blobs over as many turns as it takes, then `finish` or `abandon`."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        number: int,
        store_id: bytes,
        finish: Callable[[Checkpoint], None],
        epochs: Callable[[int], bytes],
    ) -> None:
        self.number = number
        self.covers = -1
        self.done = False  # it is safe, and the one before is gone
        self.error: OSError | None = None  # why it will never be done
        self.needs = 0  # records up to here may be in the blobs: they must be safe first
        self._files = files
        self._temporary = directory / f"snapshot-{number:08d}.tmp"
        self._path = directory / f"snapshot-{number:08d}.ckp"
        self._encoder = snapshot.Encoder(store_id)
        self._buffer = bytearray(snapshot.head(store_id))
        self._offset = 0
        self._finish = finish
        self._epochs = epochs
        self._temporary.unlink(missing_ok=True)
        self._fd = files.open(self._temporary, create=True)

    def add(self, key: bytes, blob: bytes) -> None:
        self._buffer += self._encoder.blob(key, blob)
        if self._fd < 0:
            self._buffer.clear()  # it was abandoned
        elif len(self._buffer) >= FLUSH_BYTES:
            self._flush()

    def finish(self, covers: int) -> None:
        """Everything up to the index is in the blobs. It counts when `done` is set, some turns later."""
        if self._fd < 0:
            return
        self._buffer += self._encoder.blob(BLOB_KEY, self._epochs(covers))
        self._buffer += self._encoder.end(covers)
        self._flush()
        self.covers = covers
        self._finish(self)

    def abandon(self, why: str = "it was abandoned") -> None:
        """It will never be done; whoever is at it may go on adding and is told by `error`."""
        self._files.close(self._fd)
        self._fd = -1
        self.error = OSError(why)
        self._temporary.unlink(missing_ok=True)

    def settle(self) -> None:
        """The slow part: sync, rename, sync the directory, remove the older ones."""
        try:
            self._files.sync(self._fd)
        finally:
            self._files.close(self._fd)
        self._files.rename(self._temporary, self._path)
        self._files.sync_directory(self._path.parent)
        for number in numbers_in(self._path.parent):
            if number < self.number:
                self._files.remove(path_of(self._path.parent, number))

    def _flush(self) -> None:
        self._files.write_all(self._fd, self._buffer, self._offset)
        self._offset += len(self._buffer)
        self._buffer = bytearray()


def path_of(directory: Path, number: int) -> Path:
    return directory / f"snapshot-{number:08d}.ckp"


def numbers_in(directory: Path) -> list[int]:
    return sorted(int(match[1]) for name in os.listdir(directory) if (match := NAME.fullmatch(name)))


def check(path: Path, store_id: bytes, kept: dict[bytes, bytes] | None = None) -> int | None:
    """Read it all: the index it covers, or None if it is not what was written. `kept` gets the journal's own blobs."""
    decoder = snapshot.Decoder(store_id)
    try:
        for key, blob in _blobs(path, store_id, decoder):
            if kept is not None and key == BLOB_KEY:
                kept[key] = blob
    except OSError:
        return None
    return decoder.covers if decoder.covers >= 0 else None


def blobs(path: Path, store_id: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Of a checkpoint that was checked."""
    return (one for one in _blobs(path, store_id, snapshot.Decoder(store_id)) if one[0] != BLOB_KEY)


def _blobs(path: Path, store_id: bytes, decoder: snapshot.Decoder) -> Iterator[tuple[bytes, bytes]]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        if file.read(snapshot.HEAD.size) != snapshot.head(store_id):
            return
        while True:
            here = file.tell()
            start = file.read(snapshot.BLOB.size)
            lengths = decoder.lengths(start)
            if lengths is None or sum(lengths) > size - here:
                return
            if lengths == (0, 0):
                _end(file, here, decoder)
                return
            key, blob = file.read(lengths[0]), file.read(lengths[1])
            if not decoder.blob(start, key, blob):
                return
            yield key, blob


def _end(file: BinaryIO, here: int, decoder: snapshot.Decoder) -> None:
    file.seek(here)
    decoder.end(file.read())
