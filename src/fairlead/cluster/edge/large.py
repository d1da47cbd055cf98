"""Side files: the bodies of very large messages, one file each, named by its number.

All of this runs in threads of the pool. A file that is being written is hashed on the way, so that its end costs no
second reading; written pages are pushed to the disk every few megabytes, so that the last sync is short.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SYNC_BYTES: Final = 16 << 20
READ_BYTES: Final = 1 << 20


class SideWriter:
    """One side file that grows."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._hash = hashlib.sha256()
        self.length = 0
        self._unsynced = 0
        while piece := os.pread(self._fd, READ_BYTES, self.length):  # what an earlier life has written
            self._hash.update(piece)
            self.length += len(piece)

    def write(self, pieces: Sequence[bytes]) -> int:
        """Append these; the length there is now."""
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                written = os.pwrite(self._fd, rest, self.length)
                self._hash.update(rest[:written])
                self.length += written
                self._unsynced += written
                rest = rest[written:]
        if self._unsynced >= SYNC_BYTES:
            self.sync()
        return self.length

    def sync(self) -> None:
        os.fdatasync(self._fd)
        self._unsynced = 0

    def finish(self) -> tuple[int, bytes]:
        """Everything is written: onto the disk with it. Its length and SHA-256."""
        os.fsync(self._fd)
        self.close()
        return self.length, self._hash.digest()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SideFiles:
    """The folder of side files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sync_folder()

    def path(self, number: int) -> Path:
        return self.folder / f"{number:016x}"

    def writer(self, number: int) -> SideWriter:
        """Begin to write a file, or go on with one; its name is on disk when this returns."""
        found = SideWriter(self.path(number))
        self._sync_folder()
        return found

    def read(self, number: int, offset: int, size: int) -> bytes:
        fd = os.open(self.path(number), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, size, offset)
        finally:
            os.close(fd)

    def length(self, number: int) -> int:
        return self.path(number).stat().st_size

    def delete(self, number: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path(number).unlink()

    def listed(self) -> dict[int, int]:
        """The files there are, with their lengths."""
        found = {}
        for entry in os.scandir(self.folder):
            with contextlib.suppress(ValueError, FileNotFoundError):
                found[int(entry.name, 16)] = entry.stat().st_size
        return found

    def _sync_folder(self) -> None:
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
