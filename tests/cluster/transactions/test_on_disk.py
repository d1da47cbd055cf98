"""What is prepared, in a journal on disk: its files are kept, all others taken back, and it ends after any restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.cluster.edge.group_log import GroupLog
from fairlead.cluster.recovery import Checkpoint
from fairlead.journal.edge.journal import Journal
from fairlead.journal.layout import segment_of
from tests.cluster.grouplog.rig import Leader, options
from tests.cluster.transactions.lone import ELSEWHERE

BODY = bytes(1000)


class Traffic:
    """So much that several files of the journal are full, and nothing of it is needed any more."""

    def __init__(self, leader: Leader, uid: int) -> None:
        self._leader, self._uid = leader, uid
        session = leader.session(uid)["session"]
        self._producer = leader.producer(uid, "busy", session=session)
        self._consumer = leader.consumer(uid, "busy", session=session)
        self._next = int(leader.core.find("busy").next)  # type: ignore[union-attr]
        self._sent = 1

    def pass_by(self) -> None:
        leader = self._leader
        for _ in range(20):
            leader.store(self._uid, self._producer, self._sent, *([BODY] * 20))
            leader.settle()
            leader.settle_range(self._uid, self._consumer, self._next, self._next + 20)
            leader.settle()
            self._sent += 20
            self._next += 20


def checkpoint(leader: Leader) -> None:
    sheet = leader.real.checkpoint()
    taking = Checkpoint(leader.core, sheet, 1)
    while not taking.step():
        pass
    while not sheet.done:
        assert sheet.error is None
        leader.turn(sync=True)


def reopened(leader: Leader, folder: Path) -> Leader:
    leader.real.abort()
    journal, found = Journal.open(folder / "journal", options())
    again = Leader(folder, journal)
    again.recovery.restore(found.blobs())
    again.recovery.place(found.entries())
    again.recovery.replay(found.records())
    found.finish()
    assert not found.damage
    again.core.last_index = again.core.safe = journal.last
    again.log = GroupLog(journal, applied=journal.last, apply=again._never, on_safe=again.core.on_safe)
    again.begin()
    return again


@pytest.mark.requirement("CLU-114", "CLU-166")
@pytest.mark.parametrize("outcome", ["committed", "rolled-back"])
def test_a_prepared_transaction_outlives_its_surroundings(tmp_path: Path, outcome: str) -> None:
    leader = Leader(tmp_path)
    leader.begin()
    traffic = Traffic(leader, 1)
    session = leader.session(2)["session"]
    producer = leader.producer(2, "quiet", session=session)
    traffic.pass_by()
    leader.store(2, producer, 1, b"hidden", transaction=1)
    about = {"id": ELSEWHERE, "decider": "z", "groups": ["a", "z"], "sends": {str(producer): 1}}
    assert leader.ask(2, "prepare", session=session, transaction=1, **about) == {"ready": True}
    quiet = leader.core.find("quiet")
    assert quiet is not None
    ((_, _, hidden, _),) = quiet.parts.snapshot()
    kept = segment_of(hidden[0][1])
    for _ in range(2):
        traffic.pass_by()
        checkpoint(leader)
        leader.real.reclaim(leader.core.manager.is_live, leader.core.transactions.oldest(), leader.core.needs)
        leader = reopened(leader, tmp_path)
        there = {int(path.stem) for path in (tmp_path / "journal").glob("*.seg")}
        assert kept in there
        assert there.isdisjoint((kept - 1, kept + 1)), "those around it are taken back"
        assert list(leader.core.prepared.by_id) == [ELSEWHERE]
        traffic = Traffic(leader, 1)
    quiet = leader.core.find("quiet")
    assert quiet is not None
    assert quiet.browse().messages == []
    leader.core.decisions.on_settle("z", {"do": "decide", "id": ELSEWHERE, "outcome": outcome})
    leader.settle()
    for _ in range(2):
        quiet = leader.core.find("quiet")
        assert quiet is not None
        assert [seen.body for seen in quiet.browse().messages] == ([b"hidden"] if outcome == "committed" else [])
        assert len(leader.core.prepared) == 0
        checkpoint(leader)
        leader = reopened(leader, tmp_path)
    leader.real.close()
