"""The in-sync set, the number of copies and the votes change one record at a time, and confirms never run ahead."""

from __future__ import annotations

import pytest

from fairlead.cluster.replication.events import SetChanged
from tests.replication.rig import SETTINGS, Rig


@pytest.mark.requirement("CLU-148")
def test_both_backups_frozen_leave_in_one_change() -> None:
    rig = Rig(3, 2)
    primary = rig.whole()
    rig.run_for(1)
    version, changes = primary.record.version, len(rig.events(SetChanged))
    for name in rig.backups():
        rig.world.nodes[name].pause(60)
    rig.run_for(0.1)
    assert not rig.confirms_within(2), "both copies are awaited"
    rig.wait(lambda: primary.record.members == {primary.store}, limit_s=SETTINGS.removal_s + 2)
    assert (primary.record.version, len(rig.events(SetChanged))) == (version + 1, changes + 1)
    assert rig.confirms_within(1)
    assert primary.facts()["degraded"]


@pytest.mark.requirement("CLU-116")
def test_strict_copies_block_instead() -> None:
    rig = Rig(2, 1, strict=True)
    primary = rig.whole()
    rig.kill(rig.backups()[0])
    rig.wait(lambda: primary.record.members == {primary.store})
    rig.run_for(1)
    assert not rig.confirms_within(10)
    rig.start(rig.backups()[0])
    rig.whole()
    assert rig.confirms_within(2)


@pytest.mark.requirement("CLU-116")
def test_a_group_without_backups_confirms_on_its_own() -> None:
    rig = Rig(1, 2)
    primary = rig.whole()
    assert rig.confirms_within(1)
    assert not primary.facts()["degraded"]


@pytest.mark.requirement("CLU-167")
def test_one_ill_backup_of_two_delays_nothing() -> None:
    rig = Rig(3, 2)
    rig.whole()
    rig.world.nodes[rig.backups()[0]].pause(60)
    for _ in range(10):
        assert rig.confirms_within(0.8)


@pytest.mark.requirement("CLU-148")
def test_copies_change_by_the_record() -> None:
    rig = Rig(3, 2)
    primary = rig.whole()
    version = primary.record.version
    rig.group.wishes["copies"] = 3
    for name in rig.members:
        rig.at(name).configure(rig.world.nodes[name].clock())
    rig.wait(lambda: primary.record.copies == 3)
    assert primary.record.version == version + 1
    rig.world.nodes[rig.backups()[0]].pause(2)
    rig.run_for(0.1)
    assert not rig.confirms_within(1.5), "all three are needed now"


@pytest.mark.requirement("CLU-145")
def test_a_lost_vote_goes_and_comes_back_under_a_new_name() -> None:
    rig = Rig(2, 2)
    primary = rig.whole()
    rig.kill("c1", notice=False)
    rig.world.nodes["c1"].disk.clear()
    rig.laws.lost_disks["c1"] = 1
    rig.start("c1")
    rig.wait(lambda: "c1.1" in primary.record.electorate)
    assert primary.record.electorate == {"a1.0", "a2.0", "c1.1", "c2.0"}
    electorates = [event.record.electorate for event in rig.events(SetChanged)]
    assert electorates[-2] == {"a1.0", "a2.0", "c2.0"}, "first out, then in"
    assert not primary.record.returning


@pytest.mark.requirement("CLU-145")
def test_votes_are_added_and_removed_by_the_administrator_alone() -> None:
    rig = Rig(2, 1)
    primary = rig.whole()
    clock = rig.world.nodes[primary.node].clock
    rig.run_for(5)
    assert "w1.0" not in primary.record.electorate, "nobody votes merely by being there"
    primary.change_electorate("w1.0", "c1.0", clock())
    rig.at(primary.node).after_call(clock())
    rig.wait(lambda: primary.record.electorate == {"a1.0", "a2.0", "w1.0"})
    rig.run_for(5)
    assert "c1.0" not in primary.record.electorate
    rig.kill("c1", notice=False)
    rig.kill(primary.node)
    rig.wait(rig.serving)


def test_a_node_taken_out_of_the_configuration_leaves_the_set() -> None:
    rig = Rig(3, 2)
    primary = rig.whole()
    out = rig.backups()[0]
    rig.group.peers.discard(out)
    for name in rig.members:
        rig.at(name).configure(rig.world.nodes[name].clock())
    rig.wait(lambda: f"{out}.0" not in primary.record.members)
    rig.run_for(10)
    assert len(primary.record.members) == 2


@pytest.mark.requirement("CLU-139")
def test_a_backup_behind_a_shortened_log_takes_a_whole_state() -> None:
    rig = Rig(2, 1)
    primary = rig.whole()
    behind = rig.backups()[0]
    rig.kill(behind)
    rig.run_for(5)
    log = rig.at(primary.node).log
    log.first = primary.safe + 1
    rig.start(behind)
    rig.whole()
    assert rig.world.count["NeedsState"]
    assert rig.world.count["swapped"]
    assert rig.at(behind).log.chain[rig.member(behind).safe] == log.chain[rig.member(behind).safe]
