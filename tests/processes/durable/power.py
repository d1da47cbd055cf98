"""Losing the power for real processes: everything written since the last sync may be there, torn, or gone.

`recorder.c`, preloaded into the server, writes down what it does to its files. `Disk.lose_power` replays that on a
model of a disk: what a sync covered is there; of later writes any subset is, each perhaps torn at a sector; of later
changes to directories, those before some instant are. The directory is then made to look like that.
"""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

HEAD: Final = struct.Struct("<IIQQ")  # kind, length of the path, offset or size, length of the data
SECTOR: Final = 512
SOURCE: Final = Path(__file__).with_name("recorder.c")

Change = tuple[str, int, bytes]  # W: write at, T: cut or lengthen to, A: lengthen to


@cache
def compiler() -> str | None:
    configured = (sysconfig.get_config_var("CC") or "cc").split()[0]
    return next((found for name in (configured, "cc", "gcc") if (found := shutil.which(name))), None)


@dataclass(eq=False)
class File:
    """One file on the disk: what is safe, and what was done since."""

    safe: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)

    def sync(self, covered: int) -> None:
        for change in self.pending[:covered]:
            apply(self.safe, change)
        del self.pending[:covered]

    def content(self) -> bytes:
        """As a process sees it now."""
        found = bytearray(self.safe)
        for change in self.pending:
            apply(found, change)
        return bytes(found)

    def after_power_loss(self, chance: random.Random) -> bytes:
        """Any subset of the later changes, some of them torn."""
        found = bytearray(self.safe)
        share = chance.choice((0.0, 0.5, 0.9, 1.0))
        for kind, at, data in self.pending:
            if chance.random() >= share:
                continue
            if kind == "W" and chance.random() < 0.3:
                kept = chance.randrange(len(data) // SECTOR + 1) * SECTOR
                data = data[:kept] if chance.random() < 0.5 else data
                if len(data) > SECTOR and chance.random() < 0.5:  # the end reached the disk, the beginning did not
                    apply(found, (kind, at + SECTOR, data[SECTOR:]))
                    continue
            apply(found, (kind, at, data))
        return bytes(found)


def apply(content: bytearray, change: Change) -> None:
    kind, at, data = change
    if kind == "W":
        if not data:
            return
        if len(content) < at:
            content.extend(bytes(at - len(content)))
        content[at : at + len(data)] = data
    elif len(content) < at:
        content.extend(bytes(at - len(content)))
    elif kind == "T":
        del content[at:]


@dataclass
class Model:
    """Files by name: as processes see them, as the disk has them, and the steps between."""

    names: dict[str, File] = field(default_factory=dict)
    safe_names: dict[str, File] = field(default_factory=dict)
    steps: list[tuple[str, str, File | None]] = field(default_factory=list)  # (kind, name, what it names from then on)
    _begun: dict[int, tuple[File | None, int]] = field(default_factory=dict)  # ticket -> file, changes that it covers

    def on_event(self, kind: str, path: str, at: int, data: bytes) -> None:
        match kind:
            case "W" | "T" | "A":
                if path in self.names:
                    self.names[path].pending.append((kind, at, data))
            case "C":
                self._name(path, File())
            case "R":
                if (file := self.names.get(path)) is not None:
                    self._name(data.decode(), file)
                    self._name(path, None)
            case "L":
                self._name(data.decode(), self.names.get(path))
            case "U":
                self._name(path, None)
            case "B":
                file = self.names.get(path)
                self._begun[at] = file, len(self.steps) if file is None else len(file.pending)
            case "S":
                file, covered = self._begun.pop(at, (None, 0))
                if file is not None:
                    file.sync(covered)
            case "D":
                _, covered = self._begun.pop(at, (None, 0))
                self._sync_directory(path, covered)

    def _name(self, path: str, file: File | None) -> None:
        if file is None:
            self.names.pop(path, None)
        else:
            self.names[path] = file
        self.steps.append(("name", path, file))

    def _sync_directory(self, directory: str, covered: int) -> None:
        kept = []
        for number, step in enumerate(self.steps):
            if number < covered and str(Path(step[1]).parent) == directory:
                self._take(self.safe_names, step)
            else:
                kept.append(step)
        self.steps = kept

    @staticmethod
    def _take(names: dict[str, File], step: tuple[str, str, File | None]) -> None:
        _, path, file = step
        if file is None:
            names.pop(path, None)
        else:
            names[path] = file

    def after_power_loss(self, chance: random.Random) -> dict[str, bytes]:
        names = dict(self.safe_names)
        for step in self.steps[: chance.randint(0, len(self.steps))]:
            self._take(names, step)
        contents = {
            id(file): file.after_power_loss(chance) for file in {id(one): one for one in names.values()}.values()
        }
        return {path: contents[id(file)] for path, file in names.items()}


class Disk:
    """The disk under one directory of a server that runs with `environment`."""

    def __init__(self, directory: Path, workplace: Path) -> None:
        self.directory = directory
        self._log = workplace / "events"
        self._library = workplace / "recorder.so"
        self._model = Model()
        self._read = 0
        tool = compiler()
        assert tool is not None, "a C compiler is needed to record what a server writes"
        subprocess.run(
            [tool, "-O2", "-shared", "-fPIC", "-o", str(self._library), str(SOURCE), "-ldl", "-lpthread"], check=True
        )

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "FAIRLEAD_RECORD_BELOW": str(self.directory.resolve()),
            "FAIRLEAD_RECORD_TO": str(self._log),
        }

    def catch_up(self) -> Model:
        """The model, with everything recorded so far."""
        if self._log.exists():
            with self._log.open("rb") as file:
                for event in events(file.read()):
                    self._model.on_event(*event)
            self._log.unlink()
        return self._model

    def lose_power(self, chance: random.Random) -> None:
        """Nobody runs any more: make the directory look as it may look when the machine starts again."""
        survived = self.catch_up().after_power_loss(chance)
        for path in sorted(self.directory.rglob("*"), reverse=True):
            if path.is_file() or path.is_symlink():
                path.unlink()
        self._model = Model()
        for name, content in survived.items():
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            file = File(bytearray(content))
            self._model.names[name] = self._model.safe_names[name] = file


def events(log: bytes) -> Iterator[tuple[str, str, int, bytes]]:
    """A last event that was cut short by a kill never happened."""
    at = 0
    while at + HEAD.size <= len(log):
        kind, path_length, where, size = HEAD.unpack_from(log, at)
        end = at + HEAD.size + path_length
        if chr(kind) in "WRL":
            end += size
        if end > len(log):
            return
        path = log[at + HEAD.size : at + HEAD.size + path_length].decode()
        yield chr(kind), path, where, log[at + HEAD.size + path_length : end]
        at = end
