"""The log task's thread: events as lines of JSON in `DATA/log/events.jsonl` and elsewhere (CLU-78, CLU-195…198).

Whoever reports something never waits for a disk. The queue is bounded; when it is full, unimportant records give way
first, and how many were lost is written as soon as there is room. Trouble with a place is told to the file alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

LEVELS: Final = ("debug", "info", "warning", "error")
QUEUE_MAX: Final = 10_000
FILE_BYTES_MAX: Final = 16 << 20
FILES_KEPT: Final = 4
TAIL_BYTES_MAX: Final = 8 << 20
SYSTEM_LOG: Final = "/dev/log"
_SEVERITY: Final = {"debug": 7, "info": 6, "warning": 4, "error": 3}
_FACILITY_DAEMON: Final = 3

Record = dict[str, Any]
Place = Callable[[Record], None]


class EventLog:
    """Takes records from any thread, writes them in its own."""

    def __init__(
        self,
        folder: Path,
        *,
        node: str = "mm-0",
        level: str = "info",
        queue_max: int = QUEUE_MAX,
        file_bytes_max: int = FILE_BYTES_MAX,
        files_kept: int = FILES_KEPT,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / "events.jsonl"
        self.node = node
        self.level = level
        self.places: dict[str, Place] = {}
        self.dropped = 0  # records lost since the start
        self.failed = 0  # records a place did not take
        self.written = 0
        self._queue_max = queue_max
        self._file_bytes_max = file_bytes_max
        self._files_kept = files_kept
        self._queue: deque[Record] = deque()
        self._unimportant = 0  # of those in the queue
        self._untold = 0  # drops not yet written down
        self._busy = False
        self._closing = False
        self._wake = threading.Condition()
        self._fd = -1
        self._size = 0
        self._thread = threading.Thread(target=self._run, name="event-log", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ any thread

    def write(self, record: Record) -> None:
        """Record something. Returns at once, whatever state the disk is in."""
        level = record.get("level", "info")
        if level in LEVELS and LEVELS.index(level) < LEVELS.index(self.level):
            return
        is_unimportant = level in ("debug", "info")
        with self._wake:
            if len(self._queue) >= self._queue_max:
                self.dropped += 1
                self._untold += 1
                if is_unimportant or not self._make_room():
                    return
            self._queue.append(record)
            self._unimportant += is_unimportant
            if not self._busy:
                self._wake.notify()

    def _make_room(self) -> bool:
        """Let the oldest unimportant record go for an important one."""
        if not self._unimportant:
            return False
        for position, record in enumerate(self._queue):
            if record.get("level", "info") in ("debug", "info"):
                del self._queue[position]
                self._unimportant -= 1
                return True
        return False

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until everything so far is written; for the end of the process and for tests."""
        until_s = time.monotonic() + timeout_s
        with self._wake:
            while self._queue or self._busy:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return False
                self._wake.wait(left_s)
        return True

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is left and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join(timeout_s)

    def add_system_log(self, address: str = SYSTEM_LOG) -> None:
        """The system log as a second place."""
        self.places["system"] = SystemLog(address)

    # ------------------------------------------------------------------ its own thread

    def _run(self) -> None:
        while True:
            with self._wake:
                self._busy = False
                self._wake.notify_all()
                while not self._queue and not self._closing:
                    self._wake.wait()
                if not self._queue:
                    break
                batch, self._queue = list(self._queue), deque()
                self._unimportant = 0
                lost, self._untold = self._untold, 0
                self._busy = True
            if lost:
                text = f"{lost} records were lost because the log could not be written fast enough."
                facts = {"level": "warning", "code": "log-dropped", "text": text, "count": lost}
                batch.append({"ms": int(time.time() * 1000), **facts})
            self._put(batch)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _put(self, batch: list[Record]) -> None:
        records = [{"node": self.node, **record} for record in batch]
        troubles = []
        for name, place in list(self.places.items()):
            try:
                for record in records:
                    place(record)
            except OSError as trouble:
                self.failed += len(records)
                text = f"The log place {name!r} does not take records: {trouble}"
                facts = {"level": "warning", "code": "log-place", "text": text}
                troubles.append({"node": self.node, "ms": records[-1].get("ms"), **facts})
        lines = b"".join(encoded(record) for record in (*records, *troubles))
        try:
            self._open()
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            self._size += len(lines)
            self.written += len(records)
        except OSError:
            self.failed += len(records)
            with self._wake:
                self._untold += len(records)
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _open(self) -> None:
        """The file to write to; a new one when it has grown long enough."""
        if self._fd >= 0 and self._size >= self._file_bytes_max:
            os.close(self._fd)
            self._fd = -1
            for number in range(self._files_kept, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    self._numbered(number - 1).replace(self._numbered(number))
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._size = os.fstat(self._fd).st_size

    def _numbered(self, number: int) -> Path:
        return self.path if number == 0 else self.path.with_name(f"{self.path.name}.{number}")


class SystemLog:
    """The system log of the machine, spoken to over its socket."""

    def __init__(self, address: str = SYSTEM_LOG) -> None:
        self._address = address
        self._socket: socket.socket | None = None

    def __call__(self, record: Record) -> None:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            try:
                self._socket.connect(self._address)
            except OSError:
                self._socket.close()
                self._socket = None
                raise
        severity = _FACILITY_DAEMON << 3 | _SEVERITY.get(record.get("level", "info"), 6)
        text = f"<{severity}>fairlead[{os.getpid()}]: {record.get('code', '')}: {record.get('text', '')}"
        try:
            self._socket.send(text.encode()[:8192])
        except OSError:
            self._socket.close()
            self._socket = None
            raise


def encoded(record: Record) -> bytes:
    """One line; what JSON has no form for becomes text."""
    return msgspec.json.encode(record, enc_hook=str) + b"\n"


def tail(path: Path, *, lines: int = 100, level: str = "debug", code: str = "", since_ms: int = 0) -> list[Record]:
    """The newest records of a log file that fit, oldest first. Reads no more than the last few megabytes."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(size - TAIL_BYTES_MAX, 0)
        file.seek(start)
        found: deque[Record] = deque(maxlen=max(lines, 1))
        for number, line in enumerate(file.read().split(b"\n")):
            if not line or (start and number == 0):
                continue  # the first may be half a line
            try:
                record = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue
            if isinstance(record, dict) and _fits(record, level, code, since_ms):
                found.append(record)
        return list(found)
    return []


def _fits(record: Record, level: str, code: str, since_ms: int) -> bool:
    its = record.get("level", "info")
    rank = LEVELS.index(its) if its in LEVELS else len(LEVELS)
    return (
        rank >= (LEVELS.index(level) if level in LEVELS else 0)
        and (not code or record.get("code") == code)
        and (record.get("ms") or 0) >= since_ms
    )
