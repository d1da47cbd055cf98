"""The end of a journal is undone: all of it or nothing, whenever process or power ends, and it never returns."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cli.journal import journal_group
from fairlead.journal.edge import cutting
from fairlead.journal.edge.begin import open_files
from fairlead.journal.edge.files import Files
from fairlead.journal.edge.journal import Journal
from fairlead.journal.edge.options import Options
from fairlead.journal.faults import JournalFailed
from tests.journal.power import RecordingFiles, lay_out, left_over
from tests.journal.small import Hasty
from tests.journal.test_exchange import carry, log_of
from tests.journal.test_journal import checkpoint, open_journal, store, until
from tests.journal.test_power_loss import folder  # noqa: F401 - a fixture

Log = list[tuple[int, bytes, int]]


def options(files: Files, **changes: Any) -> Options:
    return Options(**{"segment_bytes": 1200, "ahead": 1, "files": files, **changes})


def write(journal: Journal, epoch: int, sizes: list[int]) -> Log:
    journal.epoch = epoch
    out = []
    for size in sizes:
        body = bytes((epoch + size) % 256 for _ in range(size))
        journal.append(7, body)
        out.append((7, body, epoch))
    journal.flush()
    return out


def found_in(directory: Path) -> tuple[Log, list[Any]]:
    found, damage = by_index(directory)
    return list(found.values()), damage


def by_index(directory: Path) -> tuple[dict[int, tuple[int, bytes, int]], list[Any]]:
    opened = open_files(directory, options(Hasty()))
    try:
        records = {one.index: (one.kind, bytes(one.body), one.epoch) for one in opened.recovery.records()}
        return records, opened.recovery.damage
    finally:
        for fd in (opened.lock, opened.fd, *(spare[1] for spare in opened.spares)):
            os.close(fd)


SIZES = [40, 300, 8, 700, 120, 5, 600, 333, 80, 0, 450, 30]


@pytest.mark.requirement("CLU-138")
@pytest.mark.parametrize("last", range(len(SIZES)))
def test_what_is_cut_is_gone_and_the_rest_goes_on(tmp_path: Path, last: int) -> None:
    journal, _ = Journal.open(tmp_path, options(Hasty()))
    journal.stable = 0
    wanted = write(journal, 3, SIZES)
    path = journal.cut(last)
    assert path == tmp_path / f"set-aside-3-{last + 1}.journal"
    assert journal.last == journal.safe == last
    assert journal.epoch_at(last + 1) == -1
    assert log_of(journal) == wanted[:last]
    rest = write(journal, 5, [8, 8, 300, 900])
    assert log_of(journal) == wanted[:last] + rest
    journal.close()
    assert found_in(tmp_path) == (wanted[:last] + rest, [])


def test_what_is_safe_is_never_cut(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path, options(Hasty()))
    journal.stable = 0
    write(journal, 3, SIZES)
    journal.stable = 5
    with pytest.raises(ValueError, match="is safe"):
        journal.cut(4)
    assert journal.cut(journal.last) is None
    journal.stable = journal.last
    checkpoint(journal, 8)
    again, _ = Journal.open(tmp_path / "other", options(Hasty()))
    again.abort()
    with pytest.raises(ValueError, match="is safe"):
        journal.cut(7)
    journal.close()


def test_a_checkpoint_under_way_is_given_up(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path, options(Hasty()))
    journal.stable = 0
    write(journal, 3, SIZES)
    sheet = journal.checkpoint()
    sheet.add(b"state", b"x")
    journal.cut(2)
    sheet.add(b"more", bytes(2 << 20))
    sheet.finish(2)
    assert isinstance(sheet.error, OSError)
    assert not sheet.done
    journal.stable = 2
    checkpoint(journal, 2)
    journal.close()


@pytest.mark.parametrize("undo", [True, False])
def test_a_message_whose_move_was_undone_keeps_its_file(tmp_path: Path, undo: bool) -> None:
    journal, _ = open_journal(tmp_path, files=Hasty())
    journal.stable = 0
    for order in range(1, 40):
        journal.append(8, *store(order))
    journal.flush()
    before = journal.last
    journal.append(15, *store(1))  # compaction has copied it
    journal.flush()
    if undo:
        journal.cut(before)
    journal.stable = journal.last
    checkpoint(journal)
    journal.reclaim(lambda number, first, beyond: first <= 1 < beyond)
    until(journal, lambda: not any(one.leaving for one in journal._room.sealed))
    assert journal.first_readable > 1
    assert (tmp_path / "00000001.seg").exists() == undo
    journal.abort()


def test_what_was_set_aside_can_be_looked_at(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path / "j", options(Hasty()))
    journal.stable = 0
    write(journal, 3, SIZES)
    path = journal.cut(9, tmp_path)
    assert path is not None
    said = CliRunner().invoke(journal_group, ["dump", str(path), "--json"], catch_exceptions=False)
    assert [line.split('"index": ')[1].split(",")[0] for line in said.output.splitlines()] == ["10", "11", "12"]
    write(journal, 3, [1])
    assert journal.cut(9, tmp_path) == tmp_path / "set-aside-3-10.2.journal"
    path.write_bytes(path.read_bytes()[:-9])
    assert CliRunner().invoke(journal_group, ["dump", str(path)]).exit_code != 0
    journal.close()


class Deadly(Hasty):
    """Ends the process in front of the n-th thing that is done to the disk."""

    def __init__(self, left: int) -> None:
        self.left = left

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, fd: int, data: Any, offset: int) -> int:
        self._count()
        return super().write(fd, data, offset)

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._count()
        super().remove(path)


def in_a_child(work: Callable[[], None]) -> bool:
    """Was it able to finish?"""
    pid = os.fork()
    if not pid:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0
    return True


@pytest.mark.requirement("CLU-152")
def test_a_process_killed_between_any_two_steps_leaves_either(tmp_path: Path) -> None:
    steps, outcomes = 0, set()
    finished = False
    while not finished:
        steps += 1
        directory = tmp_path / str(steps)
        journal, _ = Journal.open(directory, options(Hasty()))
        wanted = write(journal, 3, SIZES)
        journal.close()

        def work(directory: Path = directory, left: int = steps) -> None:
            journal, found = Journal.open(directory, options(Deadly(1 << 40)))
            found.finish()
            journal.collect()
            journal.options.files.left = left  # type: ignore[union-attr]
            journal.stable = 0
            journal.cut(4)
            os._exit(0)

        finished = in_a_child(work)
        log, damage = found_in(directory)
        assert not damage
        assert log in (wanted, wanted[:4])
        assert not finished or log == wanted[:4]
        outcomes.add(len(log))
        assert found_in(directory) == (log, [])
    assert outcomes == {4, len(SIZES)}
    assert steps > 8


class NoZeros(RecordingFiles):
    """The planted fault: what is cut stays in the file, and is valid there."""

    def zero(self, fd: int, offset: int, size: int, *, sync_every: int = 0) -> None:
        if sync_every:
            super().zero(fd, offset, size, sync_every=sync_every)


class Loose(RecordingFiles):
    """The planted fault: nothing is synced."""

    def sync(self, fd: int) -> None:
        pass


def faults_of(folder: Path, files: RecordingFiles, seed: int) -> list[str]:  # noqa: F811
    chance = random.Random(seed)
    journal, _ = Journal.open(folder / "life", options(files))
    journal.stable = 0
    sizes = [chance.choice((0, 8, 40, 300, 700)) for _ in range(12)]
    old = write(journal, 3, sizes)
    began, last = len(files.log), chance.randrange(12)
    journal.cut(last)
    ended = len(files.log)
    new = old[:last] + write(journal, 4, [chance.choice((0, 8, 16, 40, 300)) for _ in range(6)])
    journal.flush()
    journal.abort()
    out = []
    directory = folder / "after"
    directory.mkdir()
    for moment in [*range(began, ended), *range(ended, len(files.log)), len(files.log)] * 2:
        lay_out(directory, left_over(files.log[:moment], chance))
        try:
            found, damage = by_index(directory)
            log = list(found.values())
        except JournalFailed as failed:
            out.append(f"moment {moment}: {failed}")
            continue
        if any(one.below_mark for one in damage):
            out.append(f"moment {moment}: damage {damage[0]}")
        elif moment < ended and log != old and log != old[:last]:
            out.append(f"moment {moment}: neither")
        elif moment >= ended and any(index > len(new) or new[index - 1] != one for index, one in found.items()):
            out.append(f"moment {moment}: something came back")
        elif moment == len(files.log) and len(log) != len(new):
            out.append("lost")
    return out


@pytest.mark.parametrize("seed", range(6))
def test_the_power_fails_during_a_cut(folder: Path, seed: int) -> None:  # noqa: F811
    assert faults_of(folder, RecordingFiles(), seed) == []


@pytest.mark.parametrize("faulty", [NoZeros, Loose])
def test_a_planted_fault_of_the_cut_is_noticed(tmp_path: Path, faulty: type[RecordingFiles]) -> None:
    found: list[str] = []
    for seed in range(12):
        (tmp_path / str(seed)).mkdir()
        found = faults_of(tmp_path / str(seed), faulty(), seed)
        if found:
            break
    assert found


step = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 1), st.lists(st.sampled_from((0, 7, 120, 600)), max_size=6)),
    st.tuples(st.just("carry"), st.integers(0, 1), st.integers(1, 3000)),
    st.tuples(st.just("cut"), st.integers(0, 1), st.integers(0, 12)),
    st.tuples(st.just("restart"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("checkpoint"), st.integers(0, 1), st.just(0)),
)


@given(st.lists(step, max_size=14))
@settings(max_examples=40, deadline=None)
def test_two_journals_are_what_two_lists_would_be(steps: list[tuple[str, int, Any]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / "a", Path(name) / "b"]
        journals = [Journal.open(one, options(Hasty(), cache_bytes=1000))[0] for one in folders]
        models: list[Log] = [[], []]
        stable = [0, 0]
        epoch = 0
        for journal in journals:
            journal.stable = 0
        for what, which, how in steps:
            journal, model = journals[which], models[which]
            if what == "write":
                epoch += 1
                model += write(journal, epoch, how)
            elif what == "cut":
                last = max(len(model) - how, stable[which])
                journal.cut(last)
                del model[last:]
            elif what == "checkpoint":
                journal.stable = stable[which] = len(model)
                checkpoint(journal)
            elif what == "restart":
                journal.flush()
                journal.close() if how else journal.abort()
                journals[which] = Journal.open(folders[which], options(Hasty(), cache_bytes=1000))[0]
                journals[which].stable = stable[which]
            else:
                source = journals[1 - which]
                agreed = 0
                for mine, other in zip(model, models[1 - which], strict=False):
                    if mine[2] != other[2]:  # who wrote an epoch wrote all of it
                        break
                    agreed += 1
                if agreed >= stable[which]:
                    journal.cut(agreed)
                    carry(source, journal, how)
                    journal.flush()
                    model[:] = models[1 - which]
            for one, log in zip(journals, models, strict=True):
                assert log_of(one) == log
                assert [one.epoch_at(index) for index in range(len(log) + 2)] == [0, *(item[2] for item in log), -1]
        for one in journals:
            one.close()


def test_a_note_that_is_not_what_was_written_stops_the_start(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path, options(Hasty()))
    journal.close()
    cutting.note(Hasty(), tmp_path, 0)
    (tmp_path / cutting.NAME).write_bytes(b"00000000 {}\n")
    with pytest.raises(Exception, match="nobody knows"):
        Journal.open(tmp_path, options(Hasty()))
