"""Who leads after whom: the cases that the specification spells out."""

from __future__ import annotations

import pytest

from fairlead.cluster.replication.events import Forced, HandedOver, Led, Role, SetAside, SteppedDown, Waiting
from tests.replication.rig import SETTINGS, Rig


@pytest.mark.requirement("CLU-128")
@pytest.mark.parametrize("seed", range(1, 7))
def test_a_new_group_has_one_primary_whatever_comes_first(seed: int) -> None:
    rig = Rig(3, 2, seed=seed)
    primary = rig.whole()
    assert primary.record.members == {"a1.0", "a2.0", "a3.0"}
    rig.run_for(10)
    assert primary is rig.primary()
    assert {rig.member(name).role for name in rig.backups()} == {Role.IN_SYNC}
    assert rig.confirms_within(1)


@pytest.mark.requirement("CLU-141")
def test_a_death_that_is_told_costs_less_than_half_a_second() -> None:
    times = []
    for seed in (*range(1, 7), 21, 100):  # in the last two, last words come after the notice
        rig = Rig(2 + seed % 3, 1 + seed % 2, seed=seed)
        dead = rig.whole()
        epoch, safe = dead.epoch, dead.safe
        rig.run_for(2)
        rig.kill(dead.node)
        times.append(rig.wait(rig.serving, step_s=0.001))
        assert rig.primary().epoch > epoch
        assert rig.primary().safe > safe
        assert rig.confirms_within(2)
    assert max(times) < 0.5, times


@pytest.mark.requirement("CLU-140")
def test_a_death_nobody_tells_is_noticed_by_silence() -> None:
    rig = Rig(3, 2)
    dead = rig.whole()
    rig.kill(dead.node, notice=False)
    took = rig.wait(rig.serving)
    assert SETTINGS.lease_s < took < 10
    assert rig.confirms_within(2)


@pytest.mark.requirement("CLU-140")
@pytest.mark.parametrize("seed", range(1, 5))
def test_a_backup_that_was_cut_off_with_its_own_vote_disturbs_nobody(seed: int) -> None:
    rig = Rig(3, 2, seed=seed)
    primary = rig.whole()
    lost = rig.backups()[seed % 2]
    rig.part_from(lost, *(node.name for node in rig.servers if node.name != lost))
    rig.run_for(8)
    assert rig.member(lost).role is Role.CANDIDATE, "it has stood, and its own vote is free"
    rig.world.cuts.clear()
    rig.run_for(8)
    assert rig.primary() is primary
    assert rig.member(lost).role is Role.IN_SYNC
    assert not rig.events(SteppedDown)


@pytest.mark.requirement("CLU-143")
def test_a_restarted_primary_does_not_go_on_in_its_epoch() -> None:
    rig = Rig(2, 1)
    first = rig.whole()
    rig.kill(first.node, notice=False)
    rig.start(first.node)
    rig.wait(rig.serving)
    assert rig.primary().epoch > first.epoch


@pytest.mark.requirement("CLU-149")
def test_a_primary_out_of_touch_serves_no_more_before_another_does() -> None:
    rig = Rig(2, 2)
    old = rig.whole()
    others = [node.name for node in rig.servers if node.name != old.node]
    rig.part_from(old.node, *others)
    rig.wait(lambda: not old.serving)
    assert old.role is Role.SUSPENDED
    assert rig.serving() is None, "the votes wait longer than the primary"
    rig.wait(rig.serving)
    assert rig.primary() is not old
    rig.world.cuts.clear()
    rig.wait(lambda: old.role is Role.IN_SYNC)
    assert rig.events(SteppedDown)


@pytest.mark.requirement("CLU-149")
def test_a_primary_back_in_touch_goes_on_in_its_epoch() -> None:
    rig = Rig(1, 2)
    old = rig.whole()
    rig.part_from("a1", "c1", "c2")
    rig.wait(lambda: not old.serving)
    rig.world.cuts.clear()
    rig.wait(rig.serving)
    assert (rig.primary(), old.epoch) == (old, rig.events(Led)[-1].epoch)


@pytest.mark.requirement("CLU-146")
def test_two_members_and_one_other_vote() -> None:
    rig = Rig(2, 1)
    first = rig.whole()
    other = rig.backups()[0]
    rig.part_from(other, first.node, "c1")  # the backup cut off: the primary goes on alone, degraded
    rig.wait(lambda: first.record.members == {first.store})
    assert first.facts()["degraded"]
    assert rig.confirms_within(2)
    rig.kill(first.node, notice=False)
    rig.world.cuts.clear()  # now it meets the vote again: it must not take over
    rig.run_for(30)
    assert rig.serving() is None
    waiting = [event for _, node, event in rig.told if node == other and isinstance(event, Waiting)]
    assert waiting[-1].whom == (first.store,), "it says for whom it waits"
    rig.start(first.node)
    rig.whole()
    rig.kill("c1", notice=False)  # the vote lost: both members go on
    rig.run_for(10)
    assert rig.confirms_within(1)


@pytest.mark.requirement("CLU-150")
def test_enough_of_the_set_must_take_part() -> None:
    rig = Rig(3, 3)
    primary = rig.whole()
    second, third = rig.backups()
    rig.run_for(1)
    rig.kill(primary.node)
    rig.kill(second)
    rig.run_for(15)
    assert rig.serving() is None
    assert rig.member(third).facts()["waiting"], "it says why it waits"
    rig.start(second)
    rig.wait(rig.serving)
    assert rig.confirms_within(2)


@pytest.mark.requirement("CLU-150")
def test_the_last_primary_alone_may_lead_again() -> None:
    rig = Rig(3, 3)
    primary = rig.whole()
    rig.run_for(1)
    for name in rig.members:
        rig.kill(name)
    rig.start(primary.node)
    rig.wait(rig.serving)
    assert rig.primary().node == primary.node


@pytest.mark.requirement("CLU-129")
def test_an_emptied_disk_is_a_newcomer() -> None:
    rig = Rig(2, 1)
    primary = rig.whole()
    lost = rig.backups()[0]
    for name in rig.members:
        rig.kill(name)
    node = rig.world.nodes[lost]
    node.disk.clear()
    rig.laws.lost_disks[lost] = 1
    rig.start(lost)
    rig.run_for(15)
    assert rig.serving() is None
    rig.start(primary.node)
    rig.wait(lambda: rig.serving() and f"{lost}.1" in rig.primary().record.members)
    assert f"{lost}.0" not in rig.primary().record.members


@pytest.mark.requirement("CLU-152")
def test_what_only_an_old_primary_had_is_set_aside() -> None:
    rig = Rig(3, 2)
    old = rig.whole()
    rig.part_from(old.node, *rig.backups())  # clients still reach it, and it orders what nobody stores
    rig.run_for(1)
    for other in ("c1", "c2", "w1"):
        rig.part_from(old.node, other)
    rig.wait(lambda: not old.leading or not old.serving)
    rig.wait(rig.serving)
    rig.world.cuts.clear()
    rig.wait(lambda: rig.serving() and old.role is Role.IN_SYNC and old.following.verified >= rig.primary().safe)
    aside = [event for _, node, event in rig.told if node == old.node and isinstance(event, SetAside)]
    assert aside
    assert len(rig.at(old.node).log.aside) == sum(event.last - event.first + 1 for event in aside)


@pytest.mark.requirement("CLU-151")
def test_a_forced_member_leads_and_tells_what_may_be_missing() -> None:
    rig = Rig(2, 1)
    primary = rig.whole()
    other = rig.backups()[0]
    rig.part_from(other, primary.node, "c1")
    rig.wait(lambda: primary.record.members == {primary.store})
    rig.kill(primary.node)
    rig.world.cuts.clear()
    rig.run_for(10)
    epoch = rig.member(other).epoch
    rig.laws.groups.clear()  # an administrator has accepted the loss, and so do the laws
    for producer in rig.producers.values():
        producer.confirmed.clear()
    rig.member(other).force(rig.world.nodes[other].clock())
    rig.at(other).after_call(rig.world.nodes[other].clock())
    rig.wait(rig.serving)
    assert rig.primary().node == other
    assert rig.primary().record.members == {rig.member(other).store}
    assert rig.primary().epoch > epoch
    assert [event.missing for event in rig.events(Forced)] == [(primary.store,)]


@pytest.mark.requirement("CLU-34")
@pytest.mark.parametrize("seed", range(1, 5))
def test_a_handover_loses_nothing_and_is_quick(seed: int) -> None:
    rig = Rig(3, 2, seed=seed)
    for _ in range(4):
        old = rig.whole()
        rig.run_for(0.5)
        to = rig.backups()[0]
        old.hand_over(to, rig.world.nodes[old.node].clock())
        rig.at(old.node).after_call(rig.world.nodes[old.node].clock())
        took = rig.wait(rig.serving, step_s=0.001)
        assert rig.primary().node == to
        assert took < 0.5
    assert all(event.done for event in rig.events(HandedOver))


def test_a_handover_to_one_that_is_not_in_sync_is_refused() -> None:
    rig = Rig(2, 1)
    primary = rig.whole()
    primary.hand_over("c1", rig.world.nodes[primary.node].clock())
    rig.at(primary.node).after_call(rig.world.nodes[primary.node].clock())
    assert [event.done for event in rig.events(HandedOver)] == [False]
    assert rig.serving() is primary


def test_a_handover_that_does_not_come_about_is_given_up() -> None:
    rig = Rig(2, 1)
    primary = rig.whole()
    to = rig.backups()[0]
    rig.world.nodes[to].pause(60)
    rig.run_for(0.5)
    primary.hand_over(to, rig.world.nodes[primary.node].clock())
    rig.at(primary.node).after_call(rig.world.nodes[primary.node].clock())
    assert not primary.serving
    rig.wait(lambda: primary.serving)
    assert primary.epoch == rig.events(Led)[-1].epoch


def test_a_primary_that_gives_up_is_followed_at_once() -> None:
    rig = Rig(3, 2)
    old = rig.whole()
    epoch = old.epoch
    old.give_up("its disk failed", rig.world.nodes[old.node].clock())
    rig.at(old.node).after_call(rig.world.nodes[old.node].clock())
    took = rig.wait(rig.serving)
    assert took < SETTINGS.detection_s + 1
    assert rig.primary().epoch > epoch
