"""All nodes run with the same files, whatever order they come in and whoever changes what."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.cluster.configuration.distributor import ConfigNotes
from fairlead.cluster.configuration.documents import canonical, changed_settings, from_canonical, settings_digest
from fairlead.cluster.configuration.messages import decode
from fairlead.cluster.configuration.types import GroupSpec
from tests.cluster.configuration.world import SETTINGS, World


def running(names: str = "c1 a1 a2") -> World:
    world = World(names)
    world.start()
    world.run(2)
    assert set(world.states().values()) == {"checked"}
    return world


# --- The start ----------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-186")
def test_a_node_alone_starts_after_looking_around() -> None:
    world = World("c1 a1 a2")
    world.start("a1")
    assert world.states() == {"a1": "starting"}
    world.run(1.3)
    assert world.states() == {"a1": "checked"}


def test_with_everybody_there_nobody_waits() -> None:
    world = World("c1 a1 a2")
    world.start()
    while world.step():
        pass
    assert set(world.states().values()) == {"checked"}


@pytest.mark.requirement("CLU-189")
@pytest.mark.requirement("CLU-194")
def test_another_essential_file_ends_the_newcomer_and_nobody_else() -> None:
    world = World("c1 c2 a1 a2")
    world.start("c1", "a1", "a2")
    world.run(2)
    world.disks["c2"].essential += b" "
    world.start("c2")
    world.run(2)
    assert set(world.refused) == {"c2"}
    assert "a1, a2 and c1" in world.refused["c2"]
    assert "same bytes" in world.refused["c2"]
    assert set(world.states().values()) == {"checked"}


def test_two_that_start_together_with_different_essential_files_both_end() -> None:
    world = World("a1 a2")
    world.disks["a2"].essential = b"other"
    world.start()
    world.run(2)
    assert set(world.refused) == {"a1", "a2"}
    assert "a2" in world.refused["a1"]


@pytest.mark.requirement("CLU-47")
def test_a_member_on_other_buses_is_refused_with_both_sets() -> None:
    world = World("c1 a1 a2")
    world.start("c1", "a1")
    world.run(2)
    world.disks["a2"].buses = ("main", "second")
    world.start("a2")
    world.run(2)
    assert set(world.refused) == {"a2"}
    assert "main, second" in world.refused["a2"]
    assert "a1 on main" in world.refused["a2"]


@pytest.mark.requirement("CLU-191")
def test_a_node_that_was_away_takes_the_settings_of_one_that_was_there() -> None:
    world = running()
    world.stop("a2")
    world.change("a1", 1, min_copies=1)
    world.run(4)
    assert world.done[1].error == ""
    assert world.done[1].revision == 2
    world.start("a2")
    world.run(2)
    assert world.nodes["a2"].settings.min_copies == 1
    assert world.disks["a2"].settings.revision == 2
    assert len(world.digests()) == 1


@pytest.mark.requirement("CLU-191")
@pytest.mark.parametrize("seed", range(8))
def test_two_stale_nodes_at_once_take_it_from_the_live_one_not_from_each_other(seed: int) -> None:
    world = World("c1 a1 a2 a3 a4", seed)
    world.start()
    world.run(2)
    world.stop("a3", "a4")
    world.change("a1", 1, removal_s=9.0)
    world.run(4)
    edited = changed_settings(world.disks["a3"].settings, {"removal_s": 1.0})
    world.disks["a3"].settings = edited  # edited while the cluster ran, and even with the next revision
    world.start("a3", "a4")
    world.run(4)
    assert {node.settings.removal_s for node in world.nodes.values()} == {9.0}
    assert len(world.digests()) == 1


@pytest.mark.requirement("CLU-193")
def test_nobody_live_the_file_made_from_the_others_wins() -> None:
    world = World("c1 a1 a2")
    world.disks["a2"].settings = changed_settings(SETTINGS, {"min_copies": 1})
    world.start()
    world.run(3)
    assert set(world.states().values()) == {"checked"}
    assert {node.settings.min_copies for node in world.nodes.values()} == {1}
    assert {disk.settings.min_copies for disk in world.disks.values()} == {1}


@pytest.mark.requirement("CLU-193")
def test_nobody_live_and_neither_made_from_the_other_all_refuse_and_name_both() -> None:
    world = World("c1 a1 a2")
    world.disks["a1"].settings = changed_settings(SETTINGS, {"min_copies": 1})
    world.disks["a2"].settings = changed_settings(SETTINGS, {"min_copies": 3})
    world.start()
    world.run(3)
    assert set(world.refused) == {"c1", "a1", "a2"}
    assert all("a1" in reason and "a2" in reason and "choose one" in reason for reason in world.refused.values())


def test_a_decided_revision_survives_those_that_missed_it() -> None:
    """a1 alone knows revision 2 as decided; those that were away do not talk it back to 1."""
    world = running()
    world.change("a1", 1, min_copies=1)
    while "a1" in world.nodes and world.nodes["a1"].settings.revision == 1:
        assert world.step()
    world.wires.clear()  # the news of it is lost
    world.stop("c1", "a1", "a2")
    world.start("c1", "a2")
    world.run(2)
    world.start("a1")
    world.run(7)
    assert {node.settings.min_copies for node in world.nodes.values()} == {1}


# --- Changes ------------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-192")
def test_a_change_reaches_every_node_and_its_file() -> None:
    world = running("c1 c2 a1 a2")
    world.change("c2", 1, min_copies=1, **{"messages.cache_bytes": 1 << 21})
    world.run(1)
    assert world.done[1].error == ""
    assert world.done[1].missing == ()
    for disk in world.disks.values():
        assert disk.settings.min_copies == 1
        assert disk.settings.messages.cache_bytes == 1 << 21
        assert disk.settings.predecessor == settings_digest(canonical(SETTINGS))


@pytest.mark.requirement("CLU-188")
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"detection_s": 1.0}, "essential"),
        ({"min_copys": 1}, "did you mean `min_copies`"),
        ({"revision": 7}, "counts the changes by itself"),
        ({"kind": "mm"}, "node.toml"),
        ({"min_copies": 0}, "min_copies"),
        ({"groups": []}, "groups"),
        ({"groups": [{"name": "b"}]}, "place in the list"),
        ({"messages.site_id": 3}, "cluster.toml"),
        ({"messages.cache": 3}, "cache_bytes"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_a_reason(changes: dict[str, object], sentence: str) -> None:
    world = running()
    world.change("c1", 1, **changes)
    world.run(0.5)
    assert sentence in world.done[1].error
    assert world.nodes["a1"].settings.revision == 1


def test_without_a_majority_nothing_is_decided_and_the_command_says_so() -> None:
    world = running()
    world.stop("a2", "c1")
    world.change("a1", 1, min_copies=1)
    world.run(17)
    assert "no majority" in world.done[1].error
    assert world.nodes["a1"].settings.min_copies == 2
    world.start("a2", "c1")
    world.run(3)
    assert len(world.digests()) == 1


def test_a_new_voter_decides_only_once_it_is_one() -> None:
    world = World("c1 a1 a2 w1", voters="c1 a1 a2")
    world.start()
    world.run(2)
    world.change("a1", 1, voters=["c1", "a1", "a2", "w1"])
    world.run(2)
    assert world.done[1].error == ""
    world.stop("c1")
    world.change("a1", 2, min_copies=1)
    world.run(3)
    assert world.done[2].error == "", "three of four"
    world.stop("w1")
    world.change("a1", 3, min_copies=2)
    world.run(17)
    assert "no majority" in world.done[3].error, "two of four are none"


@pytest.mark.requirement("CLU-184")
@pytest.mark.parametrize("seed", range(40))
def test_administrators_who_change_the_same_while_nodes_come_and_go_leave_all_nodes_equal(seed: int) -> None:
    world = World("c1 c2 a1 a2 a3", seed)
    world.start()
    world.run(2)
    ticket = 0
    decided: dict[int, bytes] = {}
    for _ in range(40):
        kind = world.rng.randrange(6)
        alive, dead = sorted(world.nodes), sorted(world.disks.keys() - world.nodes.keys())
        if kind < 3 and alive:
            ticket += 1
            world.change(world.rng.choice(alive), ticket, removal_s=float(ticket))
        elif kind == 3 and len(alive) > 2:
            world.stop(world.rng.choice(alive))
        elif kind == 4 and dead:
            world.start(world.rng.choice(dead))
        elif kind == 5:
            names = sorted(world.disks)
            world.rng.shuffle(names)
            world.cut(" ".join(names[:3]), " ".join(names[3:])) if world.rng.random() < 0.5 else world.cut()
        for _ in range(world.rng.randrange(30)):
            world.step()
        world.run(world.rng.choice([0.1, 0.5, 2.0]))
        for name, node in world.nodes.items():
            if node.state == "checked":
                data = canonical(node.settings)
                assert decided.setdefault(node.settings.revision, data) == data, f"{name} has another revision"
    world.cut()
    if dead := sorted(world.disks.keys() - world.nodes.keys()):
        world.start(*dead)
    world.run(25)
    assert not world.refused
    assert set(world.states().values()) == {"checked"}
    assert len(world.nodes) == 5
    assert len(world.digests()) == 1
    for ticket, done in world.done.items():
        if not done.error and done.revision in decided:
            assert from_canonical(decided[done.revision]).removal_s == ticket, "told done, and it was"


@pytest.mark.requirement("CLU-144")
def test_a_voter_that_lost_its_notes_abstains_where_it_may_have_voted() -> None:
    world = running()
    world.change("a1", 1, min_copies=1)
    world.run(1)
    world.stop("a2")
    world.disks["a2"].notes = msgspec.json.encode(ConfigNotes())
    world.start("a2")
    world.run(2)
    assert msgspec.json.decode(world.disks["a2"].notes, type=ConfigNotes).ballots.abstain == 3
    world.stop("c1")
    world.change("a1", 2, min_copies=2)  # revision 3: a2 might have voted on it before
    world.run(17)
    assert "does not vote up to revision 3" in world.done[2].error
    world.start("c1")
    world.run(2)
    world.change("a1", 3, min_copies=2)
    world.run(2)
    assert world.done[3].error == ""
    world.stop("c1")
    world.change("a1", 4, min_copies=1)
    world.run(2)
    assert world.done[4].error == "", "it votes again on what comes after"


@pytest.mark.parametrize("seed", range(50))
def test_a_majority_of_forgetful_voters_never_decides_twice(seed: int) -> None:
    """One voter at a time loses its notes, at any moment; what was decided stays."""
    world = World("c1 a1 a2", seed)
    world.start()
    world.run(2)
    decided: dict[int, bytes] = {}
    for ticket in range(1, 15):
        world.change(world.rng.choice(sorted(world.nodes)), ticket, removal_s=float(ticket))
        for _ in range(world.rng.randrange(25)):
            world.step()
        if world.rng.random() < 0.3:
            name = world.rng.choice(sorted(world.nodes))
            everybody_remembers = all(
                msgspec.json.decode(disk.notes, type=ConfigNotes).ballots.abstain >= 0 for disk in world.disks.values()
            )
            if everybody_remembers:
                world.stop(name)
                world.disks[name].notes = msgspec.json.encode(
                    ConfigNotes(applied=settings_digest(canonical(world.disks[name].settings)))
                )
                world.start(name)
        world.run(world.rng.choice([0.1, 1.0, 3.0]))
        for name, node in world.nodes.items():
            if node.state == "checked":
                data = canonical(node.settings)
                assert decided.setdefault(node.settings.revision, data) == data, f"{name} has another revision"


def test_a_list_of_groups_grows_at_its_end() -> None:
    world = running()
    groups = [*SETTINGS.groups, GroupSpec(name="b", members=["a1", "a2"])]
    world.change("c1", 1, groups=msgspec.to_builtins(groups))
    world.run(1)
    assert [group.name for group in world.nodes["a2"].settings.groups] == ["a", "b"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x81\xa4type\xa5claim",
        b"\x82\xa4type\xa7prepare\xa4slot\xff",
        b"\x91" * 5000,
        b"\xdf\xff\xff\xff\xff",
    ],
)
def test_bytes_that_are_no_message_are_none(data: bytes) -> None:
    assert decode(data) is None
