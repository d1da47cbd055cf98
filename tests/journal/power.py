"""A disk that can lose power: it records what was asked of it, and says what may be left at any moment.

What was synced is left. Of what was written since, any part may be there and any may not, cut anywhere; of names made,
changed and removed since their directory was synced, likewise.
"""

from __future__ import annotations

import os
import random
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

from fairlead.journal.edge.files import Bytes, Files


class RecordingFiles(Files):
    """Does everything for real, and writes it down."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self._lock = threading.Lock()
        self._open: dict[int, int] = {}  # descriptor -> file
        self._names: dict[str, int] = {}
        self._count = 0

    def say(self, what: str, *facts: Any) -> None:
        with self._lock:
            self.log.append((what, *facts))

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        fd = super().open(path, create=create, write=write)
        with self._lock:
            if create:
                self._count += 1
                self._names[path.name] = self._count
                self.log.append(("create", path.name, self._count))
            self._open[fd] = self._names[path.name]
        return fd

    def write(self, fd: int, data: Bytes, offset: int) -> int:
        count = super().write(fd, data, offset)
        self.say("write", self._open[fd], offset, bytes(data[:count]))
        return count

    def sync(self, fd: int) -> None:
        self.say("sync", self._open[fd])

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        with self._lock:
            self._names[target.name] = self._names.pop(source.name)
            self.log.append(("rename", source.name, target.name))

    def remove(self, path: Path) -> None:
        super().remove(path)
        with self._lock:
            self._names.pop(path.name, None)
            self.log.append(("remove", path.name))

    def sync_directory(self, path: Path) -> None:
        self.say("sync-directory")


def left_over(log: list[tuple[Any, ...]], chance: random.Random) -> dict[str, bytes]:
    """Files as a power failure after the last entry of the log may leave them."""
    contents: dict[int, bytearray] = {}
    loose: dict[int, list[tuple[int, bytes]]] = {}
    names: dict[str, int] = {}
    loose_names: list[tuple[Any, ...]] = []
    for what, *facts in log:
        match what:
            case "create" | "rename" | "remove":
                loose_names.append((what, *facts))
                if what == "create":
                    contents[facts[1]] = bytearray()
            case "write":
                loose.setdefault(facts[0], []).append((facts[1], facts[2]))
            case "sync":
                for offset, data in loose.pop(facts[0], []):
                    _put(contents[facts[0]], offset, data)
            case "sync-directory":
                for change in loose_names:
                    _rename(names, change)
                loose_names = []
            case _:
                pass
    keep = chance.choice((0.0, 0.5, 0.9, 1.0))
    for change in loose_names:
        if chance.random() < keep:
            _rename(names, change)
    for file, writes in loose.items():
        for offset, data in writes:
            for start, piece in _torn(data, chance):
                if chance.random() < keep:
                    _put(contents[file], offset + start, piece)
    return {name: bytes(contents[file]) for name, file in names.items()}


def _torn(data: bytes, chance: random.Random) -> list[tuple[int, bytes]]:
    cuts = sorted({0, len(data), *(chance.randrange(len(data) + 1) for _ in range(chance.randrange(4)))})
    return [(low, data[low:high]) for low, high in pairwise(cuts)]


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _rename(names: dict[str, int], change: tuple[Any, ...]) -> None:
    match change:
        case ("create", name, file):
            names[name] = file
        case ("rename", source, target):
            if source in names:
                names[target] = names.pop(source)
        case ("remove", name):
            names.pop(name, None)


def lay_out(directory: Path, files: dict[str, bytes]) -> None:
    for name in os.listdir(directory):
        (directory / name).unlink()
    for name, data in files.items():
        (directory / name).write_bytes(data)
