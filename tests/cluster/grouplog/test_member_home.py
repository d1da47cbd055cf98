"""A member's directory: who the store is, what it remembers, and how a whole state changes places with another."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from fairlead.cluster.edge.member_home import MemberHome, VoteFile
from fairlead.cluster.edge.state_files import begin_files, digest, finish_file, read_part, side_parts, write_piece
from fairlead.cluster.replication.notes import VoterNotes
from fairlead.cluster.replication.record import ControlRecord
from fairlead.cluster.replication.state_transfer import StateFile
from fairlead.errors import ConfigError
from fairlead.journal.edge.journal import Journal
from fairlead.journal.faults import JournalDamaged
from tests.cluster.grouplog.rig import options
from tests.journal.test_cut import in_a_child

FOUNDING = ControlRecord(epoch=0, version=0, primary="", members=frozenset(), electorate=frozenset(), copies=2)


def write(home: MemberHome, epoch: int, count: int) -> tuple[int, int]:
    """Records in its journal, and a side file; its end."""
    journal, found = Journal.open(home.path / "journal", options())
    found.finish()
    journal.epoch = epoch
    for number in range(count):
        journal.append(7, b"%s %d" % (home.node.encode(), number), bytes(random.Random(number).randrange(900)))
    journal.flush()
    large = home.path / "large"
    large.mkdir(exist_ok=True)
    (large / "0000000000000001").write_bytes(home.node.encode() * 1000)
    end = journal.last, journal.epoch_at(journal.last)
    journal.close()
    return end


def copy(source: MemberHome, target: MemberHome) -> None:
    """A whole state to `incoming`, by hand."""
    journal, found = Journal.open(source.path / "journal", options())
    found.finish()
    state = journal.state()
    parts = state.parts + side_parts(source.path / "large")
    files = tuple(StateFile(one.name, one.size, one.full, digest(one)) for one in parts)
    begin_files(target, files)
    for part, file in zip(parts, files, strict=True):
        write_piece(target.incoming, file, 0, read_part(part, 0, part.size))
        assert finish_file(target.incoming, file, gone=False)
    journal.release(state)
    journal.close()


def bodies(home: MemberHome) -> list[bytes]:
    journal, found = Journal.open(home.path / "journal", options())
    out = [bytes(one.body).rstrip(b"\0") for one in found.records()]
    assert not found.damage
    journal.close()
    return out


@pytest.mark.requirement("CLU-129")
def test_a_store_has_a_name_until_it_is_lost_or_damaged(tmp_path: Path) -> None:
    home = MemberHome(tmp_path, "a", "n1")
    first = home.store
    assert first.startswith("n1.")
    assert len(first) == 3 + 16
    write(home, 1, 3)
    home.write_notes(home.notes(FOUNDING, loaded=True))
    home = MemberHome(tmp_path, "a", "n1")
    assert home.store == first
    notes = home.notes(FOUNDING, loaded=False)
    assert not notes.loaded
    second = home.store
    assert second != first
    home = MemberHome(tmp_path, "a", "n1")
    home.notes(FOUNDING, loaded=False)  # the same damage, found again
    assert home.store == second
    for path in (home.path / "journal").iterdir():
        path.unlink()
    (home.path / "journal").rmdir()
    assert MemberHome(tmp_path, "a", "n1").store not in (first, second)


def test_notes_are_what_was_written(tmp_path: Path) -> None:
    home = MemberHome(tmp_path, "a", "n1")
    notes = home.notes(FOUNDING, loaded=True)
    notes.fence = 7
    home.write_notes(notes)
    assert MemberHome(tmp_path, "a", "n1").notes(FOUNDING, loaded=True) == notes
    (home.path / "notes.json").write_bytes(b"{")
    with pytest.raises(ConfigError):
        home.notes(FOUNDING, loaded=True)
    votes = VoteFile(tmp_path, "a")
    assert votes.read(VoterNotes) is None
    votes.path.parent.mkdir()
    votes.path.write_bytes(b"[]")
    with pytest.raises(ConfigError):
        votes.read(VoterNotes)


@pytest.mark.requirement("CLU-139")
def test_the_old_state_stays_until_the_new_one_is_whole_and_not_older(tmp_path: Path) -> None:
    source, target = MemberHome(tmp_path / "s", "a", "n1"), MemberHome(tmp_path / "t", "a", "n2")
    write(source, 3, 40)
    ours = write(target, 3, 50)
    store, before = target.store, bodies(target)
    copy(source, target)
    assert target.complete_incoming(options()) == (40, 3)
    with pytest.raises(ConfigError, match="not taken over"):
        target.swap(*ours)
    assert bodies(target) == before
    write(source, 4, 1)
    copy(source, target)
    assert target.complete_incoming(options()) == (41, 4)
    target.swap(*ours)
    assert bodies(target) == bodies(source)
    assert (target.path / "large" / "0000000000000001").read_bytes() == b"n1" * 1000
    assert target.store == store == MemberHome(tmp_path / "t", "a", "n2").store
    assert sorted(one.name for one in target.path.iterdir()) == ["journal", "large", "store.json"]
    journal, found = Journal.open(target.path / "journal", options())  # and it goes on
    found.finish()
    journal.append(7, b"more")
    journal.close()
    assert bodies(target) == [*bodies(source), b"more"]


def test_a_state_that_is_damaged_is_not_taken_over(tmp_path: Path) -> None:
    source, target = MemberHome(tmp_path / "s", "a", "n1"), MemberHome(tmp_path / "t", "a", "n2")
    write(source, 3, 400)
    copy(source, target)
    path = target.incoming / "journal" / "00000001.seg"
    data = bytearray(path.read_bytes())
    data[3000] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalDamaged):
        target.complete_incoming(options())
    with pytest.raises(ConfigError):
        target.swap(0, 0)
    target.drop_incoming()
    assert not target.incoming.exists()


@pytest.mark.requirement("CLU-139")
def test_a_process_killed_between_any_two_steps_of_the_swap_has_either(tmp_path: Path) -> None:
    seen, outcomes, number = [], set(), 0
    while True:
        source = MemberHome(tmp_path / f"s{number}", "a", "n1")
        target = MemberHome(tmp_path / f"t{number}", "a", "n2")
        write(source, 3, 20)
        ours = write(target, 2, 30)
        old, new = bodies(target), bodies(source)
        copy(source, target)
        target.complete_incoming(options())

        def swap(data: Path = tmp_path / f"t{number}", left: int = number, ours: tuple[int, int] = ours) -> None:
            def step(name: str) -> None:
                nonlocal left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1

            home = MemberHome(data, "a", "n2", step)
            home.swap(*ours)

        finished = in_a_child(swap)
        seen.append(sorted(one.name for one in target.path.iterdir()))
        home = MemberHome(tmp_path / f"t{number}", "a", "n2")
        found = bodies(home)
        assert found in (old, new)
        large = (home.path / "large" / "0000000000000001").read_bytes()
        assert large == (b"n2" if found == old else b"n1") * 1000
        assert not (home.path / "replaced").exists()
        outcomes.add(found == new)
        number += 1
        if finished:
            assert found == new
            break
    assert outcomes == {True, False}
    assert number > 6
