"""`fairlead streams record` as a process: killed again and again, and each message is in its files once."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from fairlead.pipeline.recording import state_of
from fairlead.testing.feeds import FeedWorld

pytestmark = pytest.mark.processes

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def world() -> Iterator[FeedWorld]:
    with FeedWorld("ab", relays=False, adapter={"feed.heartbeat_s": 0.5, "retain.messages": 1_000_000}) as world:
        yield world


@contextmanager
def recorder(world: FeedWorld, directory: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    words = ["streams", "record", world.stream, "--server", world.url, "--output", str(directory), "--every", "0.2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead", *words, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def rows(directory: Path) -> int:
    state = state_of(directory)
    return state.rows if state else -1


def sequences(directory: Path) -> list[int]:
    table = ds.dataset(directory, format="parquet").to_table(["order_number", "sequence", "number_", "body"])
    table = table.sort_by("order_number")
    assert table["number_"].to_pylist() == table["sequence"].to_pylist()
    assert set(table["body"].to_pylist()) <= {None}
    assert table["order_number"].to_pylist() == list(range(len(table)))
    return list(table["sequence"].to_pylist())


@pytest.mark.requirement(
    "STR-24", half="the position is kept by the recorder, in its files, and not through a failover alone"
)
@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_whenever_the_recorder_is_killed_each_message_is_there_once(
    world: FeedWorld, tmp_path: Path, kills: int
) -> None:
    asyncio.run(world.restore())
    begin = world.source.sent
    with recorder(world, tmp_path) as process:
        until(lambda: rows(tmp_path) == 0, process)  # where "new" is, is written down before anything comes
        process.kill()
    world.source.run(3000)
    try:
        for number in range(kills):
            with recorder(world, tmp_path) as process:
                had = rows(tmp_path)
                until(lambda had=had: rows(tmp_path) > had, process)
                if number == kills // 2:
                    world.adapters[asyncio.run(world.active())].kill()
                    had = rows(tmp_path)
                    until(lambda had=had: rows(tmp_path) > had + 1000, process)
                process.kill()
    finally:
        world.source.pause()
    with recorder(world, tmp_path, "--idle", "1", "--json") as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    facts = json.loads(out)
    assert sequences(tmp_path) == list(range(begin + 1, world.source.sent + 1))
    assert (facts["rows"], facts["lost"]) == (world.source.sent - begin, [])


def test_a_signal_ends_it_in_order_with_all_it_has(world: FeedWorld, tmp_path: Path) -> None:
    asyncio.run(world.restore())
    directory = tmp_path / "some"
    with recorder(world, directory, "--every", "3600") as process:
        until(lambda: rows(directory) == 0, process)
        first = world.source.sent + 1
        world.source.send(500)
        with recorder(world, directory) as second:  # what has the directory has it alone
            assert "Something else is recording" in second.communicate(timeout=PATIENCE_S)[1]
        until(lambda: "part-00000000.parquet" in {file.name for file in directory.iterdir()}, process)
        with recorder(world, tmp_path / "counted", "--from", "oldest", "--count", "500") as counted:
            assert "500 messages in" in counted.communicate(timeout=PATIENCE_S)[0]
        assert rows(tmp_path / "counted") == 500
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    found = sequences(directory)
    assert found == list(range(first, first + len(found)))
    assert f"{len(found):,} messages in" in out


@pytest.mark.requirement(
    "STR-52", half="of a recorder that was away too long; what a failover loses is shown elsewhere"
)
def test_what_the_adapters_no_longer_have_is_told_by_range(tmp_path: Path) -> None:
    tiny = {"retain.messages": 100, "retain.seconds": 0.1, "feed.heartbeat_s": 0.5}
    with FeedWorld("a", relays=False, adapter=tiny) as world:
        world.source.send(50)
        with recorder(world, tmp_path, "--from", "oldest", "--count", "50") as process:
            out, err = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, err
        world.source.send(1000)
        time.sleep(0.3)  # now these are old enough to be let go when others come
        world.source.send(1000)
        with recorder(world, tmp_path, "--count", "100", "--json") as process:
            until(lambda: (state := state_of(tmp_path)) is not None and state.lost, process)
            world.source.send(100)
            out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        assert "-- Lost" in err
        lost = {n for _, first, last in json.loads(out)["lost"] for n in range(first, last + 1)}
        found = sequences(tmp_path)
        assert lost
        assert not lost & set(found)
        assert found == sorted(found)
        assert sorted(lost | set(found)) == list(range(1, max(found) + 1))
