"""Where a member of a group keeps what it has: `DATA/group-NAME/`, and how a whole state changes places with another.

| name | what |
|---|---|
| `journal/`, `large/` | the state: log with checkpoint, side files |
| `store.json` | the name of the store, `NODE.` and 8 random bytes |
| `notes.json` | what the member machine wants remembered |
| `incoming/` | a state on its way here; `complete` in it says that all of it is there |
| `swap` | it changes places with ours: every start finishes that |
| `replaced/` | what was ours before |
| `set-aside-*.journal` | what was undone when primaries met (CLU-152) |
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from fairlead.cluster.replication.notes import MemberNotes
from fairlead.cluster.replication.record import ControlRecord
from fairlead.errors import ConfigError
from fairlead.journal.edge.files import Files
from fairlead.journal.edge.journal import Journal
from fairlead.journal.edge.options import Options
from fairlead.journal.faults import JournalDamaged

PARTS: Final = ("journal", "large")
SWAP: Final = "swap"
COMPLETE: Final = "complete"

T = TypeVar("T")


class MemberHome:
    """One member's directory. `step` is called between every two steps that matter, by tests that end it there."""

    def __init__(self, data: Path, group: str, node: str, step: Callable[[str], None] = lambda name: None) -> None:
        self.group, self.node = group, node
        self.path = data / f"group-{group}"
        self.incoming = self.path / "incoming"
        self._replaced = self.path / "replaced"
        self._step = step
        self._files = Files()
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._files.sync_directory(data)
        self.finish_swap()
        self.store = self._store()

    # --- Who we are -----------------------------------------------------------------------------------------------
    def _store(self) -> str:
        path = self.path / "store.json"
        if path.exists() and (self.path / "journal").exists():
            return str(_read_json(path)["store"])
        return self.renew()

    def renew(self) -> str:
        """Be another store: what was promised under the old name is no longer here whole (CLU-129)."""
        self.store = f"{self.node}.{secrets.token_hex(8)}"
        self._put("store.json", json.dumps({"store": self.store}).encode())
        return self.store

    def notes(self, founding: ControlRecord, *, loaded: bool) -> MemberNotes:
        """As they were written last. `loaded` False: the journal was damaged, so this is another store from now on."""
        path = self.path / "notes.json"
        if not path.exists():
            if not loaded:
                self.renew()
            return MemberNotes.fresh(founding, loaded)
        try:
            notes = msgspec.json.decode(path.read_bytes(), type=MemberNotes)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        if not loaded and notes.loaded:
            self.distrust(notes)
        return notes

    def write_notes(self, notes: MemberNotes) -> None:
        """On stable storage when this returns."""
        self._put("notes.json", msgspec.json.encode(notes))

    def distrust(self, notes: MemberNotes) -> None:
        """What is here is damaged: another store, of which nothing counts until a whole state has come."""
        self.renew()
        notes.loaded = False
        self.write_notes(notes)

    # --- A whole state taken over ---------------------------------------------------------------------------------
    def begin_incoming(self) -> Path:
        """The folder for a state on its way; what an earlier attempt has left there is still in it."""
        self.incoming.mkdir(mode=0o700, exist_ok=True)
        (self.incoming / COMPLETE).unlink(missing_ok=True)
        for name in PARTS:
            (self.incoming / name).mkdir(mode=0o700, exist_ok=True)
        self._files.sync_directory(self.incoming)
        self._files.sync_directory(self.path)
        return self.incoming

    def drop_incoming(self) -> None:
        _remove(self.incoming)

    def complete_incoming(self, options: Options) -> tuple[int, int]:
        """Read all of it as a start would: its last index and the epoch of that. Takes its time: for a thread.

        Raises JournalDamaged if anything in it is not as it was written.
        """
        journal, found = Journal.open(self.incoming / "journal", options)
        try:
            if found.created:
                raise JournalDamaged("the state that came has no journal")
            found.finish()
            if found.damage:
                raise JournalDamaged(f"the state that came is damaged: {found.damage[0]}")
            last, epoch = journal.last, journal.epoch_at(journal.last)
        finally:
            journal.close()
        facts = json.dumps({"last": last, "epoch": epoch}).encode()
        self._files.put(self.incoming / COMPLETE, facts)
        return last, epoch

    def swap(self, last: int, epoch: int) -> None:
        """Put the state that came in the place of ours, whose end that is. Our journal is closed.

        Never to a state less up to date than ours (CLU-139): ConfigError then, and nothing has changed. The store keeps
        its name, since what it promised is in the new log as well.
        """
        coming = _read_json(self.incoming / COMPLETE)
        if (coming["epoch"], coming["last"]) < (epoch, last):
            raise ConfigError(
                f"the state that came ends with record {coming['last']} of epoch {coming['epoch']}, "
                f"ours with {last} of epoch {epoch}: it is not taken over"
            )
        _remove(self._replaced)
        self._step("checked")
        self._put(SWAP, json.dumps(coming).encode())
        self._step("noted")
        self.finish_swap()

    def finish_swap(self) -> None:
        """What a process that ended in the middle has left; without a note nothing was changed."""
        if (self.path / SWAP).exists():
            self._replaced.mkdir(mode=0o700, exist_ok=True)
            for name in PARTS:
                ours, new, old = self.path / name, self.incoming / name, self._replaced / name
                if not new.exists():
                    continue  # it is in its place already
                if ours.exists():
                    self._files.rename(ours, old)
                    self._files.sync_directory(self._replaced)
                    self._files.sync_directory(self.path)
                    self._step(f"{name} replaced")
                self._files.rename(new, ours)
                self._files.sync_directory(self.incoming)
                self._files.sync_directory(self.path)
                self._step(f"{name} in place")
            self._files.remove(self.path / SWAP)
            self._files.sync_directory(self.path)
            self._step("done")
            _remove(self.incoming)
        _remove(self._replaced)

    def _put(self, name: str, data: bytes) -> None:
        self._files.put(self.path / name, data)


class VoteFile:
    """`DATA/votes/GROUP.json`: what a voter wants remembered. Deleted, it is another voter's (CLU-145)."""

    def __init__(self, data: Path, group: str) -> None:
        self.path = data / "votes" / f"{group}.json"

    def read(self, kind: type[T]) -> T | None:
        if not self.path.exists():
            return None
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=kind)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{self.path} cannot be read: {error}") from error

    def write(self, notes: msgspec.Struct) -> None:
        """On stable storage when this returns."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        Files().put(self.path, msgspec.json.encode(notes))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(facts, dict):
        raise ConfigError(f"{path} cannot be read: it is no object")
    return facts


def _remove(folder: Path) -> None:
    """A folder that is of no use; what cannot be removed is tried again at the next start."""
    if folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        fd = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
