"""A copy of a running journal, and the way back.

What is sealed does not change, what is safe of the active segment does not either: those are copied by a thread while
the journal goes on. Nothing is given up meanwhile. The manifest is written last; without it a copy is no backup.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fairlead.errors import ConfigError

MANIFEST = "manifest.json"
CHUNK = 1 << 20


class Part(NamedTuple):
    """A file to be copied: its first `size` bytes, then zeros up to `full`."""

    name: str
    path: Path | int  # a descriptor, if the name may go before the copy is made
    size: int
    full: int


class Backup:
    """A copy under way; `done` is set at its end, `error` says what went wrong."""

    def __init__(
        self, target: Path, parts: list[Part], facts: dict[str, Any], ended: Callable[[], None], extra: Path | None
    ) -> None:
        self.target = target
        self.facts = facts
        self.error = ""
        self._parts = parts
        self._ended = ended
        self._extra = extra
        self._thread = threading.Thread(target=self._run, name="journal-backup", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The facts of the finished copy; raises what went wrong."""
        self._thread.join(timeout_s)
        if not self.done:
            raise TimeoutError("the backup is not finished")
        if self.error:
            raise ConfigError(self.error)
        return self.facts

    def _run(self) -> None:
        try:
            files = [_copy(part, self.target) for part in self._parts]
            if self._extra is not None and self._extra.is_dir():
                files += _copy_folder(self._extra, self.target)
            self.facts["files"] = files
            _write_synced(self.target / MANIFEST, json.dumps(self.facts, indent=1).encode())
            _sync_folder(self.target)
        except OSError as error:
            self.error = f"the backup to {self.target} failed: {error}"
        finally:
            self._ended()


def restore(source: Path, target: Path) -> dict[str, Any]:
    """Check a backup and copy it to a directory that is empty or does not exist; its facts."""
    try:
        facts: dict[str, Any] = json.loads((source / MANIFEST).read_bytes())
        files = [(str(one["name"]), int(one["size"]), str(one["sha256"])) for one in facts["files"]]
    except FileNotFoundError as error:
        raise ConfigError(f"{source} has no {MANIFEST}: it is no backup, or one that was not finished.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{source / MANIFEST} cannot be read: {error}") from error
    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"{target} is not empty.")
    for name, size, sha256 in files:
        path = source / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise ConfigError(f"{name} is no name of a file in a backup.")
        if not path.is_file() or path.stat().st_size != size or _hash(path) != sha256:
            raise ConfigError(f"{path} is not what was backed up: nothing was restored.")
    for name, _, _ in files:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(source / name, "rb") as original, open(path, "xb", opener=_for_us) as copy:
            shutil.copyfileobj(original, copy, CHUNK)
            copy.flush()
            os.fsync(copy.fileno())
        _sync_folder(path.parent)
    return facts


def _copy(part: Part, target: Path) -> dict[str, Any]:
    path = target / part.name
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest = hashlib.sha256()
    with open(part.path, "rb") as source, open(path, "xb", opener=_for_us) as copy:
        left = part.size
        while left > 0:
            piece = source.read(min(CHUNK, left))
            if not piece:
                raise OSError(f"{part.name} ends {left} bytes too early")
            copy.write(piece)
            digest.update(piece)
            left -= len(piece)
        zeros = part.full - part.size
        while zeros > 0:
            piece = bytes(min(CHUNK, zeros))
            copy.write(piece)
            digest.update(piece)
            zeros -= len(piece)
        copy.flush()
        os.fsync(copy.fileno())
    _sync_folder(path.parent)
    return {"name": part.name, "size": max(part.size, part.full), "sha256": digest.hexdigest()}


def _copy_folder(folder: Path, target: Path) -> list[dict[str, Any]]:
    """Side files; one that goes meanwhile belongs to a message that went."""
    out = []
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        try:
            size = path.stat().st_size
            out.append(_copy(Part(str(Path(folder.name) / path.relative_to(folder)), path, size, size), target))
        except FileNotFoundError:
            continue
    return out


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "xb", opener=_for_us) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _for_us(path: str, flags: int) -> int:
    """Copies of messages are for the same eyes as the messages."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
