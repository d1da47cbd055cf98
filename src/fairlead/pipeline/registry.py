"""Which pipelines run on this machine: a small file for each, rewritten as it goes, left behind when it ends.

A pipeline is told from another process that got the same number by the time it was started; one that died without
a word is recognised so.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

from fairlead.errors import ConfigError
from fairlead.pipeline.progress import Tally
from fairlead.runtime.rundir import process_start_time

__all__ = ["Entry", "entries", "started_at", "state_directory", "stop", "write_atomically"]

NAME: Final = re.compile(r"[\w][\w.-]{0,99}")
LIVE: Final = frozenset(("starting", "running", "waiting", "stopping"))
WRITE_EVERY_S: Final = 1.0
FILE_BYTES_MAX: Final = 1 << 20
LOOK_S: Final = 0.05


def state_directory(given: str | Path | None = None) -> Path:
    """Where the files are: as said, or the user's own place for such things."""
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "fairlead" / "pipelines"


def write_atomically(file: Path, text: str) -> None:
    """Whoever reads it sees the old text or the new one, after a power cut as well."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=file.parent, prefix=".")
    try:
        with open(fd, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class Entry:
    """This process's own file, and the claim on its name: two pipelines cannot have one at a time."""

    def __init__(self, directory: Path, name: str, facts: Mapping[str, Any]) -> None:
        if not NAME.fullmatch(name):
            raise ConfigError(f"A pipeline's name has letters, digits, dots and dashes, at most 100; not {name!r}.")
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = directory / f"{name}.json"
        self._lock = claim(directory / f".{name}.lock", f"A pipeline called {name!r} is running: give --name.")
        self._facts = {
            "name": name,
            **facts,
            "pid": os.getpid(),
            "started": started_at(os.getpid()),
            "began": time.time(),
        }
        self._state, self._written_s = "", 0.0
        self.note(Tally(), "starting")

    def note(self, tally: Tally, state: str, **more: Any) -> None:
        """How far it is. Written at most once a second, unless the state is another."""
        if state == self._state and time.monotonic() < self._written_s + WRITE_EVERY_S:
            return
        self._state, self._written_s = state, time.monotonic()
        facts = {**self._facts, "state": state, "updated": time.time(), **tally.facts(), **more}
        write_atomically(self._file, json.dumps(facts, ensure_ascii=False))

    def close(self) -> None:
        self._lock.close()


def claim(file: Path, otherwise: str) -> IO[str]:
    """A lock that lasts as long as this file is open and this process lives; ConfigError if somebody has it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = open(file, "w", encoding="utf-8")  # noqa: SIM115 - the caller's
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise ConfigError(otherwise) from None
    return lock


def entries(directory: Path) -> Iterator[dict[str, Any]]:
    """What is known of each, the newest first; `state` is `dead` for one that ended without a word."""
    found = []
    for file in directory.glob("*.json") if directory.is_dir() else ():
        try:
            if file.stat().st_size > FILE_BYTES_MAX:
                continue
            facts = json.loads(file.read_text(encoding="utf-8"))
            began, pid = float(facts["began"]), int(facts["pid"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # somebody else's file
        if facts.get("state") in LIVE and started_at(pid) != facts.get("started"):
            facts["state"] = "dead"
        found.append((began, file.name, facts | {"name": file.stem}))
    for _, _, facts in sorted(found, key=lambda one: one[:2], reverse=True):
        yield facts


def stop(directory: Path, name: str, wait_s: float) -> bool:
    """Ask a pipeline to end in order; has it ended in time? ConfigError if none of that name runs."""
    facts = next((one for one in entries(directory) if one["name"] == name), None)
    if facts is None or facts["state"] not in LIVE:
        raise ConfigError(f"No pipeline called {name!r} is running.")
    pid = int(facts["pid"])
    try:
        fd = os.pidfd_open(pid)  # from here on the number cannot become somebody else's
    except OSError:
        return True
    try:
        if started_at(pid) != facts["started"]:
            return True
        signal.pidfd_send_signal(fd, signal.SIGTERM)
    except ProcessLookupError:
        return True
    finally:
        os.close(fd)
    deadline_s = time.monotonic() + wait_s
    while started_at(pid) == facts["started"]:
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(LOOK_S)
    return True


def started_at(pid: int) -> str:
    """When a process was started, in a form that only fits that one; empty if there is none, or only its remains."""
    ticks = process_start_time(pid)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return "" if ticks is None else f"{boot}/{ticks}"
