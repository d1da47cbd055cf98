"""The journal's way to the file system, in one place so that a test can record what was asked and lose a part of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

Bytes = bytes | bytearray | memoryview
ZEROS = bytes(1 << 20)
RWF_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


class Files:
    """Directories and files of one journal. Names are paths; what is open is a descriptor."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        flags = os.O_CLOEXEC | (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT | os.O_EXCL if create else 0)
        return os.open(path, flags, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, data: Bytes, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def resize(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)  # noqa: PTH104 - one system call, whatever pathlib may become

    def remove(self, path: Path) -> None:
        path.unlink()

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # Made of the above.

    def write_all(self, fd: int, data: Bytes, offset: int) -> None:
        """Write all of it, in as many steps as the system wants."""
        view = memoryview(data)
        done = 0
        while done < len(view):
            count = self.write(fd, view[done:], offset + done)
            if count <= 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            done += count

    def zero(self, fd: int, offset: int, size: int, *, sync_every: int = 0) -> None:
        """Write zeros; synced now and then, so that nobody else's sync has to wait for all of them."""
        unsynced = 0
        while size > 0:
            count = min(size, len(ZEROS))
            self.write_all(fd, memoryview(ZEROS)[:count], offset)
            offset, size, unsynced = offset + count, size - count, unsynced + count
            if sync_every and unsynced >= sync_every:
                self.sync(fd)
                unsynced = 0

    def put(self, path: Path, data: bytes) -> None:
        """A whole small file, in one step: there is the old one or the new one, also after a power failure."""
        temporary = path.with_suffix(path.suffix + ".tmp")
        temporary.unlink(missing_ok=True)
        with self.opened(temporary, create=True) as fd:
            self.write_all(fd, data, 0)
            self.sync(fd)
        self.rename(temporary, path)
        self.sync_directory(path.parent)

    @contextmanager
    def opened(self, path: Path, *, create: bool = False, write: bool = True) -> Iterator[int]:
        fd = self.open(path, create=create, write=write)
        try:
            yield fd
        finally:
            self.close(fd)


def read_whole(fd: int, size: int) -> tuple[bytearray, list[tuple[int, int]]]:
    """A file's bytes, and (offset, length) of what the device cannot read; that is 0xFF in the bytes, never data."""
    data = bytearray(size)
    view = memoryview(data)
    unreadable: list[tuple[int, int]] = []
    offset, step = 0, 1 << 20
    while offset < size:
        want = min(step, size - offset)
        try:
            count = os.preadv(fd, [view[offset : offset + want]], offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            if want > 4096:
                step = 4096
                continue
            view[offset : offset + want] = b"\xff" * want
            unreadable.append((offset, want))
            count = want
        if count == 0:  # the file is shorter than it was
            view.release()
            del data[offset:]
            break
        offset += count
        if step < 1 << 20 and offset % (1 << 20) == 0:
            step = 1 << 20
    return data, unreadable
