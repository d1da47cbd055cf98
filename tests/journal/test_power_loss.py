"""The power fails at any moment of a journal's life, and takes any part of what was not synced."""

from __future__ import annotations

import os
import random
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.journal.codec import read_record
from fairlead.journal.edge.begin import open_files
from fairlead.journal.edge.files import Files
from fairlead.journal.edge.journal import Journal
from fairlead.journal.edge.opening import Recovery
from fairlead.journal.edge.options import Options
from fairlead.journal.edge.segments import path_of
from fairlead.journal.facts import Bytes, Facts
from fairlead.journal.layout import ITEM_BYTES, offset_of, seed_of, segment_of
from tests.journal.power import RecordingFiles, lay_out, left_over
from tests.journal.small import Hasty

ORDER = struct.Struct("<Q")
STORE = 8


class Describer:
    """Every record is one message whose order number begins its body."""

    kinds: frozenset[int] = frozenset((STORE,))
    moved: frozenset[int] = frozenset()

    def __call__(self, kind: int, body: Bytes, size: int = -1) -> list[Facts]:
        return [Facts(1, ORDER.unpack_from(body)[0], 1, len(body) if size < 0 else size)]


def options(files: Files, **changes: Any) -> Options:
    return Options(segment_bytes=1200, ahead=2, cache_bytes=1, describe=Describer(), files=files, **changes)


@pytest.fixture
def folder() -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


def body_of(index: int, size: int) -> bytes:
    return ORDER.pack(index) + bytes((index % 251,)) * size


class Life:
    """A journal that is used for a while; its `log` says what was promised, and when."""

    def __init__(self, folder: Path, files: RecordingFiles, seed: int, **changes: Any) -> None:
        self.bodies: dict[int, bytes] = {}
        chance = random.Random(seed)
        journal, _ = Journal.open(folder / "life", options(files, **changes))
        floor = 1
        for _ in range(40):
            for _ in range(chance.randrange(1, 6)):
                body = body_of(journal.last + 1, chance.choice((0, 1, 40, 300)))
                index, _ = journal.append(STORE, body[:8], body[8:])
                self.bodies[index] = body
            journal.submit()
            if chance.random() < 0.9:
                files.say("confirmed", journal.flush())
            if chance.random() < 0.25:
                floor = chance.randrange(floor, journal.safe + 1) if journal.safe >= floor else floor
                files.say("floor", floor)
                self._checkpoint(journal, files)
                journal.reclaim(lambda number, first, beyond, floor=floor: beyond > floor)  # type: ignore[misc]
        journal.flush()
        journal.abort()
        self.log = files.log

    def _checkpoint(self, journal: Journal, files: RecordingFiles) -> None:
        checkpoint = journal.checkpoint()
        checkpoint.add(b"state", b"x" * 50)
        checkpoint.finish(journal.last)
        while not checkpoint.done:
            files.say("confirmed", journal.flush())


def lost(life: Life, log: list[tuple[Any, ...]], folder: Path, chance: random.Random) -> str:
    """What a start after the power failed misses, or reports without reason; empty: nothing."""
    directory = folder / "after"
    directory.mkdir(exist_ok=True)
    lay_out(directory, left_over(log, chance))
    confirmed = max((facts[1] for facts in log if facts[0] == "confirmed"), default=0)
    floor = max((facts[1] for facts in log if facts[0] == "floor"), default=1)
    opened = open_files(directory, options(Hasty()))
    recovery = opened.recovery
    try:
        found = {row.facts.base: read_at(directory, recovery.store_id, row.place) for row in recovery.entries()}
        found |= {record.index: bytes(record.body) for record in recovery.records()}
    finally:
        for fd in (opened.lock, opened.fd, *(spare[1] for spare in opened.spares)):
            os.close(fd)
    for index in range(floor, confirmed + 1):
        if found.get(index) != life.bodies[index]:
            return f"record {index} was confirmed and is lost"
    if any(life.bodies.get(index) != body for index, body in found.items()):
        return "something was read that was not written"
    again = open_and_close(directory)
    if [one for one in again.damage if one.segment] or again.torn or again.last != recovery.last:
        return f"a second start finds more: {again.damage} {again.torn}"
    for finding in recovery.damage:
        if finding.below_mark and finding.segment and not finding.first > confirmed:
            return f"reported without reason: {finding}"
    return ""


def open_and_close(directory: Path) -> Recovery:
    opened = open_files(directory, options(Hasty()))
    opened.recovery.finish()
    for fd in (opened.lock, opened.fd, *(spare[1] for spare in opened.spares)):
        os.close(fd)
    return opened.recovery


def read_at(directory: Path, store_id: bytes, place: int) -> bytes:
    data = path_of(directory, segment_of(place)).read_bytes()[offset_of(place) - ITEM_BYTES :]
    record = read_record(data, place - ITEM_BYTES, seed_of(store_id))
    return data[ITEM_BYTES : ITEM_BYTES + record[1]] if record is not None and record[5] else b""


def losses(life: Life, folder: Path, seed: int, times: int) -> list[str]:
    chance = random.Random(seed)
    out = []
    for _ in range(times):
        moment = chance.randrange(1, len(life.log) + 1)
        what = lost(life, life.log[:moment], folder, chance)
        if what:
            out.append(f"seed {seed}, moment {moment}: {what}")
    return out


@pytest.mark.requirement("CLU-114")
@pytest.mark.parametrize("seed", range(3))
def test_nothing_confirmed_is_lost_when_the_power_fails(folder: Path, seed: int) -> None:
    life = Life(folder, RecordingFiles(), seed)
    assert losses(life, folder, seed, 250) == []


class NoSync(RecordingFiles):
    """The planted fault: a confirm before the sync."""

    def sync(self, fd: int) -> None:
        pass


class NoDirectorySync(RecordingFiles):
    """The planted fault: names that are not synced."""

    def sync_directory(self, path: Path) -> None:
        pass


@pytest.mark.parametrize("faulty", [NoSync, NoDirectorySync])
def test_a_planted_fault_is_noticed(folder: Path, faulty: type[RecordingFiles]) -> None:
    life = Life(folder, faulty(), 1)
    assert losses(life, folder, 1, 60)


def test_a_journal_that_does_not_sync_is_noticed(folder: Path) -> None:
    life = Life(folder, RecordingFiles(), 2, sync=False)
    assert losses(life, folder, 2, 60)
