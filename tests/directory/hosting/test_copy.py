"""What a member says while nobody leads: also what is in its log and was not told to be safe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.edge import directory_copy
from fairlead.cluster.edge.directory_copy import DirectoryCopy
from fairlead.cluster.options import Options
from fairlead.directory.operations import ADMIN
from fairlead.errors import NoDirectory
from fairlead.runtime.settings import Directory
from tests.cluster.grouplog.rig import Follower, Leader, feed
from tests.directory.hosting.test_keeping import row

ON = Options(directory=Directory(serve=True))


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    made = Leader(tmp_path / "leader")
    made.core.configure(ON)
    made.begin()
    return made


@pytest.fixture
def follower(tmp_path: Path) -> Follower:
    made = Follower(tmp_path / "follower")
    made.core.configure(ON)
    return made


def put(leader: Leader, *names: str) -> None:
    for name in names:
        assert "revision" in leader.ask(7, "directory", op="put_broker", broker=row(name), may=[ADMIN])


def names(answer: dict[str, Any]) -> list[str]:
    assert answer["stale"] is True
    return [one["name"] for one in answer["brokers"]]


def copy_of(follower: Follower) -> DirectoryCopy:
    return DirectoryCopy(lambda: (follower.core, follower.log))


def test_what_is_in_the_log_counts_although_nobody_said_that_it_is_safe(leader: Leader, follower: Follower) -> None:
    put(leader, "A", "B")
    feed(leader.log, follower.log)
    follower.log.settle(leader.log.last)
    put(leader, "C")
    feed(leader.log, follower.log)
    copy = copy_of(follower)
    assert names(copy.answer({"op": "list_brokers"})) == ["A", "B", "C"]
    assert len(follower.core.directory.snapshot()["brokers"]) == 2, "the state itself knows only what is safe"
    follower.log.settle(leader.log.last)
    assert names(copy.answer({"op": "list_brokers"})) == ["A", "B", "C"]


def test_after_a_start_all_of_the_log_counts(leader: Leader, follower: Follower) -> None:
    put(leader, "A", "B")
    feed(leader.log, follower.log)
    follower.restart()
    follower.core.configure(ON)
    assert names(copy_of(follower).answer({"op": "list_brokers"})) == ["A", "B"]


def test_what_was_undone_is_forgotten(leader: Leader, follower: Follower) -> None:
    put(leader, "A")
    feed(leader.log, follower.log)
    last = follower.log.last
    put(leader, "B")
    feed(leader.log, follower.log)
    copy = copy_of(follower)
    assert names(copy.answer({"op": "list_brokers"})) == ["A", "B"]
    follower.log.cut(last)
    assert names(copy.answer({"op": "list_brokers"})) == ["A"]


def test_a_long_log_is_read_in_pieces(leader: Leader, follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    put(leader, *"ABCDEF")
    feed(leader.log, follower.log)
    monkeypatch.setattr(directory_copy, "STEP_RECORDS", 4)
    copy, refused = copy_of(follower), 0
    while True:
        try:
            answer = copy.answer({"op": "list_brokers"})
            break
        except NoDirectory:
            refused += 1
    assert refused > 0
    assert names(answer) == list("ABCDEF")
