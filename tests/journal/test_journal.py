"""A journal from outside: what is confirmed when, what a full or failing disk does, and how files come and go."""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster import records
from fairlead.cluster.describe import Describer
from fairlead.journal import records as plain
from fairlead.journal import sidecar
from fairlead.journal.edge import identity, segments
from fairlead.journal.edge.checkpoint import check
from fairlead.journal.edge.files import Files
from fairlead.journal.edge.journal import Journal
from fairlead.journal.edge.opening import Recovery
from fairlead.journal.edge.options import Faults, Options
from fairlead.journal.faults import JournalDamaged, JournalFailed, JournalRefused, StoreFull
from fairlead.journal.layout import FORMAT_VERSION, segment_of
from fairlead.journal.recovery import Finding

SEGMENT = 16_384


def open_journal(directory: Path, **changes: Any) -> tuple[Journal, Recovery]:
    return Journal.open(directory, Options(**{"segment_bytes": SEGMENT, "describe": Describer(), **changes}))


def store(order: int, count: int = 1, size: int = 1000, destination: int = 1) -> tuple[bytes, bytes]:
    head = records.STORE_RECORD.pack(
        destination, 0, order, count, b"s" * 20, order, 0, 4, 4, 5, order * 10, b"i" * 20, size
    )
    return head, struct.pack("<Q", order) * (size // 8)


def settle(order: int) -> bytes:
    return records.SETTLE_RECORD.pack(1, 0, 0, 1) + records.SETTLE_LINE.pack(order, order + 1, 0, 0, 0)


def until(journal: Journal, condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        journal.collect()
        time.sleep(0.001)


def checkpoint(journal: Journal, covers: int | None = None) -> None:
    under_way = journal.checkpoint()
    under_way.add(b"state", b"as of %d" % journal.last)
    under_way.finish(journal.last if covers is None else covers)
    until(journal, lambda: under_way.done)


@pytest.mark.requirement("CLU-115")
def test_everybody_who_waited_is_confirmed_by_one_sync(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, faults=Faults(sync_delay_ms=50))
    journal.append(8, *store(1))
    journal.submit()
    for order in range(2, 10):  # while the first is being written
        journal.append(8, *store(order, size=64))
        journal.submit()
    assert journal.flush() == 9
    assert journal.syncs == 2
    journal.close()


@pytest.mark.requirement("CLU-115")
def test_no_confirm_comes_before_the_sync(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, faults=Faults(sync_delay_ms=100))
    began = time.monotonic()
    journal.append(8, *store(1))
    journal.submit()
    assert journal.collect() == 0
    assert journal.flush() == 1
    assert time.monotonic() - began >= 0.1
    journal.close()


@pytest.mark.requirement("CLU-114")
@pytest.mark.parametrize("files", [None, Files()], ids=["compiled", "plain"])
@pytest.mark.parametrize("which", ["sync", "write"])
def test_a_failed_sync_is_final_until_a_restart(tmp_path: Path, files: Files | None, which: str) -> None:
    faults = Faults(fail_sync_at=3) if which == "sync" else Faults(fail_write_at=3)
    journal, _ = open_journal(tmp_path, faults=faults, files=files)
    for order in (1, 2):
        journal.append(8, *store(order))
        assert journal.flush() == order
    journal.append(8, *store(3))
    with pytest.raises(JournalFailed, match="segment 1"):
        journal.flush()
    assert journal.safe == 2
    for attempt in (lambda: journal.append(8, b"x"), journal.collect, journal.flush):
        with pytest.raises(JournalFailed):
            attempt()
    journal.close()
    journal, recovery = open_journal(tmp_path)
    found = list(recovery.records())
    assert [record.index for record in found][:2] == [1, 2]
    # What lies beyond the last mark was written again, elsewhere: the old place is not to be trusted.
    assert all(segment_of(record.place) == 2 for record in found if record.index > 2)
    assert not recovery.damage
    index, place = journal.append(8, *store(9))
    assert segment_of(place) == 2
    assert journal.flush() == index
    journal.close()
    journal, recovery = open_journal(tmp_path)
    assert [record.index for record in recovery.records()] == list(range(1, index + 1))
    assert not recovery.damage
    journal.close()


@pytest.mark.parametrize("files", [None, Files()], ids=["compiled", "plain"])
def test_short_writes_are_carried_on(tmp_path: Path, files: Files | None) -> None:
    journal, _ = open_journal(tmp_path, faults=Faults(write_max=7), files=files)
    journal.append(8, *store(1))
    journal.flush()
    journal.close()
    _, recovery = both = open_journal(tmp_path)
    (record,) = recovery.records()
    assert bytes(record.body) == b"".join(store(1))
    both[0].close()


@pytest.mark.requirement("CLU-113")
def test_a_full_quota_refuses_messages_and_takes_acknowledgements(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, quota_bytes=6 * SEGMENT)
    floor = 0
    stored = 0
    with pytest.raises(StoreFull, match="quota"):
        for order in range(1, 1000):
            journal.append(8, *store(order))
            stored = order
            journal.flush()
    assert stored >= 40
    assert journal.full
    for order in range(1, stored + 1):  # everything is consumed
        journal.append(records.SETTLE, settle(order))
        floor = order
    journal.flush()
    checkpoint(journal)
    assert journal.reclaim(lambda number, first, beyond: beyond > floor + 1) > 0
    until(journal, lambda: not journal.full)
    journal.append(8, *store(stored + 1))
    journal.flush()
    journal.close()


class FullDisk(Files):
    """Has no room for new files while `full`."""

    full = False

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        if create and self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().open(path, create=create, write=write)


@pytest.mark.requirement("CLU-113")
def test_a_full_disk_is_asked_again_until_it_has_room(tmp_path: Path) -> None:
    disk = FullDisk()
    journal, _ = open_journal(tmp_path, files=disk)
    until(journal, lambda: len(list(tmp_path.glob("*.seg"))) == 3)
    disk.full = True
    order = 0
    with pytest.raises(StoreFull, match="No space left"):
        while True:
            order += 1
            journal.append(8, *store(order))
            journal.flush()
    for _ in range(10):
        journal.append(records.SETTLE, settle(1))
        journal.flush()
    journal.tick(1.0)
    journal.tick(2.5)
    until(journal, lambda: not journal._room._making)
    assert journal.full
    disk.full = False
    journal.tick(3.0)
    journal.tick(4.5)
    until(journal, lambda: not journal.full)
    journal.append(8, *store(order))
    journal.flush()
    journal.close()


def test_the_reserve_ends_and_says_so(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, quota_bytes=3 * SEGMENT)
    with pytest.raises(StoreFull):
        for _ in range(10_000):
            journal.append(records.SETTLE, settle(1) + bytes(200))
    journal.flush()
    journal.close()


def test_reading_from_every_source(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, cache_bytes=1)
    head, payload = store(1)
    _, place = journal.append(8, head, payload)
    whole = head + payload
    assert bytes(journal.read(place, len(whole)) or b"") == whole  # pending
    journal.submit()
    assert bytes(journal.read(place, len(whole)) or b"") == whole  # being written
    journal.flush()
    assert bytes(journal.read(place, len(whole)) or b"") == whole  # written last
    for order in range(2, 40):
        journal.append(8, *store(order))
        journal.flush()
    assert bytes(journal.read(place, len(whole)) or b"") == whole  # page cache
    assert bytes(journal.read(place + 10, 20, skip=10) or b"") == whole[10:30]
    journal._reader._from_page_cache = lambda header, size: None  # type: ignore[method-assign]
    assert journal.read(place, len(whole)) is None
    assert journal.read(place, len(whole)) is None
    places: list[int] = []
    until(journal, lambda: bool(places.extend(journal.loaded()) or places))
    assert places == [place]
    assert bytes(journal.read(place, len(whole)) or b"") == whole  # fetched by the thread
    journal.close()


@pytest.mark.requirement("CLU-114")
@pytest.mark.parametrize("by_thread", [False, True])
def test_damage_is_never_read_as_data(tmp_path: Path, by_thread: bool) -> None:
    journal, _ = open_journal(tmp_path, cache_bytes=1)
    head, payload = store(1)
    _, place = journal.append(8, head, payload)
    for order in range(2, 40):
        journal.append(8, *store(order))
        journal.flush()
    with open(tmp_path / "00000001.seg", "rb+") as file:
        file.seek((place & 0xFFFFFFFF) + 300)
        file.write(b"!")
    if by_thread:
        journal._reader._from_page_cache = lambda header, size: None  # type: ignore[method-assign]
        assert journal.read(place, 50) is None
        until(journal, lambda: place in journal.loaded())
    with pytest.raises(JournalDamaged, match="segment 1"):
        journal.read(place, 50)
    journal.close()


@pytest.mark.requirement("CLU-114")
@pytest.mark.parametrize("sidecars", ["there", "missing", "bad"])
def test_a_start_after_a_checkpoint_knows_what_is_where(tmp_path: Path, sidecars: str) -> None:
    journal, _ = open_journal(tmp_path)
    places = {}
    for order in range(1, 61):
        if order % 10 == 0:
            hidden, place = journal.append(records.HIDDEN, *store(0))
            commit = records.COMMIT_RECORD.pack(b"s" * 20, 1, 1, 0)
            commit += records.COMMIT_STORED.pack(1, 1, order, hidden, 77)
            places[order] = place
            journal.append(records.COMMIT, commit)
        else:
            _, places[order] = journal.append(8, *store(order))
        journal.flush()
    checkpoint(journal, covers=journal.last - 5)
    until(journal, lambda: len(list(tmp_path.glob("*.idx"))) == len(journal._room.sealed))
    journal.abort()
    for path in tmp_path.glob("*.idx"):
        if sidecars == "missing":
            path.unlink()
        elif sidecars == "bad":
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 4
            path.write_bytes(data)
    journal, recovery = open_journal(tmp_path)
    assert dict(recovery.blobs())[b"state"].startswith(b"as of")
    found = {row.facts.base: row.place for row in recovery.entries() if row.kind != records.HIDDEN}
    assert all(places[order] == place for order, place in found.items())
    behind = {record.index for record in recovery.records()}
    assert behind == set(range(recovery.covers + 1, recovery.last + 1))
    assert len(found) >= 55
    assert not recovery.damage
    until(journal, lambda: len(list(tmp_path.glob("*.idx"))) == len(journal._room.sealed))
    journal.close()


@pytest.mark.requirement("CLU-114")
def test_files_are_given_up_when_nobody_needs_them_and_used_again(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path)
    order = 0
    for _ in range(12):
        for _ in range(15):
            order += 1
            journal.append(8, *store(order))
            journal.flush()
        checkpoint(journal)
        until(journal, lambda: all(segment.described for segment in journal._room.sealed))
        floor = order - 20
        journal.reclaim(lambda number, first, beyond, floor=floor: beyond > floor)  # type: ignore[misc]
        until(journal, lambda: not journal._room._making)
    assert len(list(tmp_path.glob("*.seg"))) <= 6
    assert journal._room.active.number > 10
    journal.abort()
    journal, recovery = open_journal(tmp_path)
    kept = {row.facts.base for row in recovery.entries()} | {record.index for record in recovery.records()}
    assert kept >= set(range(order - 19, order + 1))
    assert not recovery.damage
    journal.close()


def test_a_pinned_record_keeps_its_segment(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path)
    for order in range(1, 40):
        journal.append(8, *store(order))
        journal.flush()
    checkpoint(journal)
    until(journal, lambda: all(segment.described for segment in journal._room.sealed))
    assert journal.reclaim(lambda *_: False, pinned=1) == 0
    sealed = [segment.number for segment in journal._room.sealed]
    journal.pin(sealed)  # they are being read in bulk, the first of them twice
    journal.pin(sealed[:1])
    assert journal.reclaim(lambda *_: False) == 0
    journal.unpin(sealed)
    assert journal.reclaim(lambda *_: False) == 1
    journal.unpin(sealed[:1])
    assert journal.reclaim(lambda *_: False) == 1
    journal.close()


def test_compaction_empties_a_sparse_segment(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path)
    for order in range(1, 60):
        journal.append(8, *store(order))
        journal.flush()
    live = {3, 4, 58}
    checkpoint(journal)
    until(journal, lambda: all(segment.described for segment in journal._room.sealed))

    def live_bytes(number: int, first: int, beyond: int) -> int:
        return 1100 * len(live & set(range(first, beyond)))

    def is_live(number: int, first: int, beyond: int) -> bool:
        return bool(live & set(range(first, beyond)))

    emptiest = {one.segment: one for one in journal.sparse(live_bytes)}
    assert emptiest[1].live_bytes == 2200
    assert journal.reclaim(is_live) == 3
    journal.append(records.PLACE, *store(3, 2))
    journal.flush()
    assert journal.reclaim(is_live) == 1
    until(journal, lambda: not journal._room._making)
    journal.abort()
    journal, recovery = open_journal(tmp_path)
    assert records.PLACE in [record.kind for record in recovery.records()]
    assert journal._room._segments[0].number > 1
    assert not recovery.damage
    journal.close()


def test_a_checkpoint_counts_only_when_what_it_tells_of_is_safe(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, faults=Faults(sync_delay_ms=150))
    journal.append(8, *store(1))
    under_way = journal.checkpoint()
    under_way.add(b"state", b"with the first record")
    under_way.finish(0)
    journal.submit()
    for _ in range(20):
        journal.collect()
        time.sleep(0.002)
    assert not list(tmp_path.glob("*.ckp"))
    until(journal, lambda: under_way.done)
    assert journal.safe == 1
    with pytest.raises(ValueError, match="has a key"):
        journal.checkpoint().add(b"", b"")
    journal.abort()


def test_a_bad_checkpoint_is_reported_and_not_used(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path)
    journal.append(8, *store(1))
    journal.flush()
    checkpoint(journal)
    journal.close()
    (path,) = tmp_path.glob("*.ckp")
    whole = path.read_bytes()
    for offset in range(len(whole)):
        path.write_bytes(whole[:offset] + bytes((whole[offset] ^ 1,)) + whole[offset + 1 :])
        journal, recovery = open_journal(tmp_path, files=None)
        journal.abort()
        assert list(recovery.blobs()) == [], offset
        assert [record.index for record in recovery.records()] == [1]
        assert any("checkpoint" in one.text for one in recovery.damage)
        if offset > 40:
            break
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert check(path, recovery.store_id) is None


def test_two_processes_never_have_it(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path)
    with pytest.raises(JournalRefused, match=f"in use by process {os.getpid()}"):
        open_journal(tmp_path)
    journal.close()
    journal.close()
    open_journal(tmp_path)[0].close()


def test_another_format_is_refused_with_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_journal(tmp_path)[0].close()
    monkeypatch.setattr(identity, "FORMAT_VERSION", FORMAT_VERSION + 1)
    with pytest.raises(JournalRefused, match=r"format version 1.*docs/journal\.md"):
        open_journal(tmp_path)


def finding_in_the_first_of_three(directory: Path) -> Finding:
    journal, _ = open_journal(directory)
    places = []
    for order in range(1, 4):
        places.append(journal.append(8, *store(order))[1])
        journal.flush()
    journal.abort()
    data = bytearray((directory / "00000001.seg").read_bytes())
    data[(places[0] & 0xFFFFFFFF) + 5] ^= 1
    (directory / "00000001.seg").write_bytes(data)
    journal, recovery = open_journal(directory)
    journal.close()
    (finding,) = recovery.damage
    assert recovery.torn is None
    return finding


def test_a_mark_tells_certain_damage_from_doubt(tmp_path: Path) -> None:
    finding = finding_in_the_first_of_three(tmp_path)
    assert (finding.segment, finding.first, finding.last, finding.below_mark) == (1, 1, 1, True)
    assert "segment 1" in str(finding)


def test_marks_that_are_not_written_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(plain.Batch):
        """The planted fault."""

        def finish(self, synced: int, time_ms: int) -> memoryview:
            return super().finish(0, time_ms)

    monkeypatch.setattr("fairlead.journal.edge.journal.Batch", Forgetful)
    assert not finding_in_the_first_of_three(tmp_path).below_mark


@pytest.mark.requirement("CLU-113")
def test_a_write_for_which_there_is_no_room_is_done_later(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, faults=Faults(fail_write_at=2, write_errno=errno.ENOSPC))
    journal.append(8, *store(1))
    journal.flush()
    journal.append(8, *store(2))
    with pytest.raises(StoreFull, match="No space left"):
        journal.flush()
    with pytest.raises(StoreFull):
        journal.append(8, *store(3))
    index, _ = journal.append(records.SETTLE, settle(1))
    assert journal.safe == 1
    journal.tick(0.0)
    journal.tick(2.0)
    assert journal.flush() == index
    until(journal, lambda: not journal.full)
    journal.close()


def test_epochs_go_on(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path)
    journal.epoch = 4
    journal.append(1, b"{}")
    journal.flush()
    journal.close()
    journal, recovery = open_journal(tmp_path)
    assert recovery.epoch == journal.epoch == 4
    journal.epoch = 5
    journal.append(1, b"{}")
    journal.flush()
    journal.close()
    _, recovery = both = open_journal(tmp_path)
    assert [(record.index, record.epoch) for record in recovery.records()] == [(1, 4), (2, 5)]
    both[0].close()


def test_half_made_files_are_swept(tmp_path: Path) -> None:
    open_journal(tmp_path)[0].close()
    for name in ("00000099.new", "snapshot-00000004.tmp", "00000077.idx"):
        (tmp_path / name).write_bytes(b"half")
    open_journal(tmp_path)[0].close()
    assert not {"00000099.new", "snapshot-00000004.tmp", "00000077.idx"} & set(os.listdir(tmp_path))


def test_what_nobody_waits_for_is_written_when_somebody_does(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path)
    before, synced = journal.safe, journal.syncs
    first, _ = journal.append(records.SETTLE, settle(1))
    assert journal.lingers
    journal.submit(patiently=True)
    assert journal.collect(patiently=True) == before
    assert journal.pending_bytes
    second, _ = journal.append(records.STORE, *store(1))
    journal.hurry = True
    assert not journal.lingers
    journal.submit(patiently=True)
    assert not journal.hurry
    until(journal, lambda: journal.safe == second)
    assert journal.syncs - synced == 1
    journal.append(records.SETTLE, settle(2))
    journal.submit()  # enough of patience
    until(journal, lambda: journal.safe == second + 1)
    assert first == before + 1
    journal.close()


def test_a_hurry_during_a_write_is_not_forgotten(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, faults=Faults(sync_delay_ms=50))
    journal.append(records.STORE, *store(1))
    journal.submit()
    last, _ = journal.append(records.STORE, *store(2))
    journal.hurry = True
    journal.submit(patiently=True)  # a write is under way
    assert journal.hurry
    end = time.monotonic() + 10
    while journal.collect(patiently=True) < last:
        assert time.monotonic() < end
        time.sleep(0.001)
    assert not journal.hurry
    journal.close()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_sidecar_says_what_its_segment_says(tmp_path: Path, restarted: bool) -> None:
    """Its rows are noted as records are appended; of a segment begun by an earlier process they are read from it."""
    journal, _ = open_journal(tmp_path)
    for order in range(1, 40):
        if restarted and order == 5:
            journal.close()
            journal, recovery = open_journal(tmp_path)
            assert len(list(recovery.records())) == 8
        journal.append(records.STORE, *store(order, destination=order % 3))
        journal.append(records.SETTLE, settle(order))
        journal.submit()
    journal.flush()
    sealed = segments.numbers_in(tmp_path)[:2]
    until(journal, lambda: all(segments.sidecar_of(tmp_path, number).exists() for number in sealed))
    for number in sealed:
        data = segments.sidecar_of(tmp_path, number).read_bytes()
        beside = sidecar.decode(data, journal.store_id, number)
        assert beside is not None
        read = segments.read(tmp_path, number, journal.store_id)
        found = segments.judged(read, expected=beside.first, beyond=beside.last + 1).records
        assert list(beside.rows()) == segments.rows_of(read, found, Describer())
        assert list(beside.rows())
    journal.close()
