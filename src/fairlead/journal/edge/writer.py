"""The thread that writes, syncs and reads for a journal: the plain twin of `_writer.pyx`.

It goes through a `Files`, so that tests can record what reaches the disk and lose a part of it.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque

from fairlead.journal.edge.files import Files
from fairlead.journal.edge.options import Faults
from fairlead.journal.records import Bytes
from fairlead.journal.sync_times import SyncTimes

__all__ = ["Writer"]

Job = tuple[int, int, int, Bytes | int, bool]
"""ticket, descriptor, offset, what to write or how much to read, sync."""


class Writer:
    """One thread and its jobs, done one after the other. `event` is an eventfd of the caller's."""

    def __init__(self, event: int, faults: Faults | None = None, files: Files | None = None) -> None:
        self._event = event
        self._faults = faults or Faults()
        self._files = files or Files()
        self._wake = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._done: list[tuple[int, int, bytes | None]] = []
        self._closing = False
        self._syncs = self._writes = 0
        self._times = SyncTimes()
        self._thread = threading.Thread(target=self._work, name="journal-writer", daemon=True)
        self._thread.start()

    def write(self, ticket: int, fd: int, offset: int, data: Bytes, sync: bool = True) -> None:
        """Write all of the data there and sync the file; the data must not change before it is told of."""
        self._push((ticket, fd, offset, memoryview(data), sync))

    def read(self, ticket: int, fd: int, offset: int, size: int) -> None:
        """Fetch bytes; fewer come if the file ends."""
        self._push((ticket, fd, offset, size, False))

    def finished(self) -> list[tuple[int, int, bytes | None]]:
        """What is done since the last call: (ticket, errno or 0, the bytes read), in the order asked.

        The errno of a failed sync is negative: what was written before it may be lost without another word.
        """
        with self._wake:
            done, self._done = self._done, []
        return done

    def times(self) -> list[int]:
        """How long syncs took, as numbers for a `SyncTimes`: how many, the newest, all, then by span."""
        with self._wake:
            return self._times.numbers()

    def close(self) -> None:
        """Do what was asked so far, then end the thread. `finished` still tells of it."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _push(self, job: Job) -> None:
        with self._wake:
            if self._closing:
                raise ValueError("the writer is closed")
            self._jobs.append(job)
            self._wake.notify()

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._jobs and not self._closing:
                    self._wake.wait()
                if not self._jobs:
                    return
                job = self._jobs.popleft()
            outcome = self._do(*job)
            with self._wake:
                self._done.append(outcome)
                os.eventfd_write(self._event, 1)

    def _do(self, ticket: int, fd: int, offset: int, what: Bytes | int, sync: bool) -> tuple[int, int, bytes | None]:
        try:
            if isinstance(what, int):
                return ticket, 0, self._fetch(fd, offset, what)
            self._put(fd, offset, memoryview(what))
        except OSError as error:
            return ticket, error.errno or errno.EIO, None
        try:
            if sync:
                self._sync(fd)
        except OSError as error:
            return ticket, -(error.errno or errno.EIO), None
        return ticket, 0, None

    def _put(self, fd: int, offset: int, data: memoryview) -> None:
        faults = self._faults
        done = 0
        while done < len(data):
            self._writes += 1
            if self._writes == faults.fail_write_at:
                raise OSError(faults.write_errno, os.strerror(faults.write_errno))
            want = min(len(data) - done, faults.write_max or len(data))
            count = self._files.write(fd, data[done : done + want], offset + done)
            if count == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            done += count

    def _sync(self, fd: int) -> None:
        faults = self._faults
        began_ns = time.monotonic_ns()
        if faults.sync_delay_ms:
            time.sleep(faults.sync_delay_ms / 1000)
        self._syncs += 1
        if self._syncs == faults.fail_sync_at:
            raise OSError(faults.sync_errno, os.strerror(faults.sync_errno))
        self._files.sync(fd)
        with self._wake:
            self._times.took(time.monotonic_ns() - began_ns)

    def _fetch(self, fd: int, offset: int, size: int) -> bytes:
        pieces = []
        while size > 0:
            piece = os.pread(fd, size, offset)
            if not piece:
                break
            pieces.append(piece)
            offset, size = offset + len(piece), size - len(piece)
        return b"".join(pieces)
