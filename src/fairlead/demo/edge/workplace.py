"""Where the tour works, and how nothing of it is left: one directory, one mark that all its processes carry.

Everything the tour starts inherits an environment variable with a value of this run, and keeps its files below one
temporary directory. Whatever happened, `close` ends the processes that still carry the mark, by their ids, and removes
the directory and the segments of shared memory of the servers that had their data there.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from fairlead.errors import ConfigError
from fairlead.store.edge.segment import remove_directory, tmpfs_directory

__all__ = ["MARK", "Workplace", "marked"]

MARK: Final = "FAIRLEAD_TOUR"
FAREWELL_S: Final = 10.0


class Workplace:
    """`keep`: an empty or a new directory that stays, instead of a temporary one; its processes end all the same."""

    def __init__(self, keep: Path | None = None) -> None:
        if keep is not None:
            keep = keep.expanduser().absolute()
            if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
                raise ConfigError(f"{keep} is not an empty directory; choose another one for --keep.")
            keep.mkdir(parents=True, exist_ok=True)
        self._is_kept = keep is not None
        self.directory = keep or Path(tempfile.mkdtemp(prefix="fairlead-tour-"))
        self.mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._stores: list[Path] = []
        self._before = (os.environ.get(MARK), os.environ.get("TMPDIR"), tempfile.tempdir)
        scratch = self.directory / "tmp"
        scratch.mkdir(exist_ok=True)
        os.environ[MARK], os.environ["TMPDIR"], tempfile.tempdir = self.mark, str(scratch), str(scratch)

    def data(self, name: str) -> Path:
        """A data directory of a server, whose shared memory is ours to remove as well."""
        found = self.directory / name
        found.mkdir(exist_ok=True)
        self.watch(found)
        return found

    def watch(self, data: Path) -> None:
        """Remove the shared memory of this data directory, too."""
        self._stores.append(tmpfs_directory(data))

    def close(self) -> list[int]:
        """End what still runs and remove what still lies about; the ids of processes that had to be killed."""
        variable, temporary, tempfile.tempdir = self._before
        _restore(MARK, variable)
        _restore("TMPDIR", temporary)
        killed = _end(self.mark)
        for store in self._stores:
            remove_directory(store)
        shutil.rmtree(self.directory / "tmp" if self._is_kept else self.directory, ignore_errors=True)
        return killed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def marked(mark: str) -> list[int]:
    """Ids of the processes that carry it, this one left out. Those that are over, and wait to be reaped, have none."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (place / "environ").read_bytes().split(b"\0") and int(place.name) != os.getpid():
                found.append(int(place.name))
    return found


def _end(mark: str) -> list[int]:
    """SIGKILL, again and again until nobody is left: a process may have started another one meanwhile."""
    killed: set[int] = set()
    until_s = time.monotonic() + FAREWELL_S
    while (left := marked(mark)) and time.monotonic() < until_s:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(left)
        time.sleep(0.02)
    return sorted(killed)


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
