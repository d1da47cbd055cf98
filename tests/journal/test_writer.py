"""The writing thread, both twins: it does what it is asked, in order, and says what went wrong."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.journal.edge import writer as plain
from fairlead.journal.edge.options import Faults
from fairlead.journal.sync_times import SPANS_US, SyncTimes
from fairlead.runtime import extensions

TWINS: list[Any] = [plain.Writer]
if not extensions.is_pure() and "fairlead.journal.edge._writer" not in extensions.missing():
    from fairlead.journal.edge._writer import Writer

    TWINS.append(Writer)


@pytest.fixture
def event() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def outcomes(writer: Any, count: int) -> list[tuple[int, int, bytes | None]]:
    done: list[tuple[int, int, bytes | None]] = []
    end = time.monotonic() + 10
    while len(done) < count and time.monotonic() < end:
        done += writer.finished()
        time.sleep(0.001)
    return done


@pytest.mark.parametrize("twin", TWINS)
def test_jobs_are_done_in_order(twin: Any, event: int, file: int) -> None:
    writer = twin(event)
    for number in range(20):
        writer.write(number, file, number * 10, b"%010d" % number)
    writer.read(20, file, 35, 10)
    writer.read(21, file, 195, 100)
    done = outcomes(writer, 22)
    assert [one[:2] for one in done] == [(number, 0) for number in range(22)]
    assert done[20][2] == b"0000300000"
    assert done[21][2] == b"00019"  # the file ends
    assert os.eventfd_read(event) == 22
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(1, file, 0, b"late")


@pytest.mark.parametrize("twin", TWINS)
def test_errors_of_writes_and_syncs_differ(twin: Any, event: int, file: int) -> None:
    writer = twin(event, Faults(fail_write_at=2, write_errno=errno.ENOSPC, fail_sync_at=2))
    for number in range(4):
        writer.write(number, file, 0, b"x")
    assert [one[1] for one in outcomes(writer, 4)] == [0, errno.ENOSPC, -errno.EIO, 0]
    writer.write(5, 987654, 0, b"x")
    writer.read(6, 987654, 0, 1)
    assert [one[1] for one in outcomes(writer, 2)] == [errno.EBADF, errno.EBADF]
    writer.close()


@pytest.mark.parametrize("twin", TWINS)
def test_what_was_asked_is_done_before_it_ends(twin: Any, event: int, file: int) -> None:
    writer = twin(event, Faults(sync_delay_ms=20))
    for number in range(3):
        writer.write(number, file, number, b"abc"[number : number + 1])
    writer.close()
    assert len(writer.finished()) == 3
    assert os.pread(file, 3, 0) == b"abc"


@pytest.mark.parametrize("twin", TWINS)
def test_a_write_without_a_sync_does_not_wait_for_one(twin: Any, event: int, file: int) -> None:
    writer = twin(event, Faults(sync_delay_ms=5000))
    writer.write(1, file, 0, b"x", False)
    assert outcomes(writer, 1) == [(1, 0, None)]
    writer.close()


@pytest.mark.parametrize("twin", TWINS)
def test_one_that_is_dropped_leaves_no_thread(twin: Any, event: int, file: int) -> None:
    writer = twin(event)
    with pytest.raises(TypeError):
        writer.write(1, file, 0, None)
    writer.write(2, file, 0, b"x")
    writer.close()
    del writer


@pytest.mark.parametrize("twin", TWINS)
def test_syncs_are_timed_and_nothing_else_is(twin: Any, event: int, file: int) -> None:
    writer = twin(event, Faults(sync_delay_ms=6, fail_sync_at=3))
    assert set(writer.times()) == {0}
    writer.write(1, file, 0, b"x", False)
    writer.read(2, file, 0, 1)
    outcomes(writer, 2)
    assert writer.times()[0] == 0
    for number in range(3, 6):
        writer.write(number, file, 0, b"x")
    assert [bool(one[1]) for one in outcomes(writer, 3)] == [False, False, True]
    times = SyncTimes(writer.times())
    assert times.count == 2, "a failed one has no time"
    assert times.total_ns >= times.last_ns + 6_000_000 >= 12_000_000
    assert sum(times.spans) == 2
    assert times.at_most()[SPANS_US.index(5000)] == 0
    writer.close()
