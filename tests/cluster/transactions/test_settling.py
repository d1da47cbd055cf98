"""Commits across groups, with whoever takes part dying between any two steps: all groups end alike (CLU-169)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.cluster import decisions, records
from fairlead.cluster.client_manager.coordinator import COMMIT_PENDING, COMMIT_UNKNOWN
from tests.cluster.transactions.world import TAGS, Transfer, World, verify

STEPS = 14
"""Messages and syncs of a commit over two groups that nothing disturbs, with the decider's note that it is complete."""
VICTIMS = (
    ("agent",), ("a",), ("b",), ("a", "b"), ("agent", "a"), ("agent", "b"), ("agent", "a", "b"), ("b", "agent"),
)  # fmt: skip


def begun(folder: Path, names: tuple[str, ...] = ("a", "b"), *, others: tuple[str, ...] = ()) -> tuple[World, Transfer]:
    """A coin is about to move from group b to group a, which is the decider."""
    world = World(folder, names)
    world.fill("b", b"coin")
    return world, world.begin("b", "a", b"coin", others=others)


def run(world: World, one: Transfer, at: int | None, strike: Callable[[], None]) -> None:
    """The commit, and at one step something happens."""
    world.after = lambda step: strike() if step == at else None
    world.commit(one)
    world.after(0)
    world.settle_down()


def kill(world: World, victims: tuple[str, ...]) -> None:
    for victim in victims:
        world.kill_agent() if victim == "agent" else world.crash(victim)


def ask_if_untold(world: World, one: Transfer, *, by_id: bool = False) -> None:
    if one.number not in world.told:
        outcome = world.ask(one, by_id=by_id)
        world.told[one.number] = "committed" if outcome == "committed" else "transaction-aborted"


@pytest.mark.requirement("CLU-155", "CLU-163", "CLU-167")
def test_without_trouble(tmp_path: Path) -> None:
    world, one = begun(tmp_path)
    run(world, one, None, lambda: None)
    assert world.told == {0: "committed"}
    assert world.where(b"coin") == ["a"]
    assert world.steps == STEPS
    verify(world)
    assert [len(group.core.prepared) for group in world.groups.values()] == [0, 0]


@pytest.mark.requirement("CLU-155", "CLU-164", "CLU-166", "CLU-168", "CLU-169")
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("victims", VICTIMS, ids="+".join)
def test_somebody_dies_between_two_steps(tmp_path: Path, victims: tuple[str, ...], checkpoint: bool) -> None:
    told = set()
    for at in range(STEPS + 1):
        world, one = begun(tmp_path / str(at))

        def strike(world: World = world) -> None:
            for group in world.groups.values():
                if checkpoint and group.core.safe == group.core.last_index:
                    group.checkpoint()  # it tells nothing a crash could take
            kill(world, victims)

        run(world, one, at, strike)
        ask_if_untold(world, one, by_id=at % 2 == 0)
        verify(world)
        told.add(world.told[0])
    assert told == {"committed", "transaction-aborted"}


@pytest.mark.requirement("CLU-127", "CLU-169")
@pytest.mark.parametrize("also", [(), ("a",), ("b",)], ids=["agent", "agent+a", "agent+b"])
def test_the_client_asks_at_once_wherever_its_manager_died(tmp_path: Path, also: tuple[str, ...]) -> None:
    for at in range(STEPS):
        world, one = begun(tmp_path / str(at))

        def strike(world: World = world, one: Transfer = one) -> None:
            kill(world, ("agent", *also))
            ask_if_untold(world, one)

        run(world, one, at, strike)
        verify(world)


@pytest.mark.requirement("CLU-155", "CLU-169")
@pytest.mark.parametrize(
    "victims", [("agent",), ("a",), ("c",), ("agent", "c"), ("agent", "a", "b", "c")], ids="+".join
)
def test_three_groups(tmp_path: Path, victims: tuple[str, ...]) -> None:
    for at in range(22):
        world, one = begun(tmp_path / str(at), ("a", "b", "c"), others=("c",))
        run(world, one, at, lambda world=world: kill(world, victims))  # type: ignore[misc]
        ask_if_untold(world, one)
        verify(world)


@pytest.mark.requirement("CLU-166")
def test_a_participant_restarted_between_ready_and_final_commits(tmp_path: Path) -> None:
    world, one = begun(tmp_path)
    ready = 6  # both answers have come, FINAL is on its way to the decider
    run(world, one, ready, lambda: world.crash("b"))
    assert world.told == {0: "committed"}
    verify(world)


@pytest.mark.requirement("CLU-169", "CLU-127")
def test_late_commands_of_a_frozen_agent_change_nothing(tmp_path: Path) -> None:
    world, one = begun(tmp_path)
    about = {"id": one.id, "decider": "a"}

    def strike() -> None:
        world.kill_agent()

    run(world, one, 6, strike)  # FINAL was sent and is lost with its link
    assert world.ask(one) == "rolled-back"
    world.safely()
    for name in ("a", "b"):
        group = world.groups[name]
        group.command(0, TAGS, {"do": "final", **about})
        group.turn()
        prepare = {"do": "prepare", "session": 1, "transaction": 1, "sends": {}, **about, "groups": ["a", "b"]}
        client = group.client()
        group.command(client.uid, TAGS, prepare)
        group.turn()
    world.told[0] = "transaction-aborted"
    verify(world)
    assert all(len(group.core.prepared) == 0 for group in world.groups.values())


@pytest.mark.requirement("CLU-169")
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_participant_stopped_for_longer_than_any_memory_gets_the_true_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: bool
) -> None:
    monkeypatch.setattr(decisions, "KNOWN_MAX", 1)
    world, one = begun(tmp_path, ("a", "b", "c"))
    world.fill("c", b"other 1", b"other 2", b"other 3")
    run_until(world, one, 9)  # the decider has committed, the participant has not heard of it
    world.stop("b")
    world.run()
    world.kill_agent()
    for _ in range(10):
        world.later(61.0)  # sessions live for 120 s here
        world.run()
    assert one.secrets["a"]["id"] not in {key.hex() for key in world.groups["a"].core.sessions.by_id}
    for coin in (b"other 1", b"other 2", b"other 3"):  # later commits push it out of what is remembered by id
        other = world.begin("c", "a", coin)
        world.commit(other)
        world.run()
    world.later(2.0)
    world.run()
    if checkpoint:
        world.groups["a"].checkpoint()
        world.crash("a")
    assert list(world.groups["a"].core.decisions.unfinished) == [one.id]
    world.start("b")
    world.settle_down()
    world.told[0] = "committed"
    verify(world)
    world.later(2.0)
    world.crash("a")
    assert not world.groups["a"].core.decisions.unfinished  # that it is complete was written down


def run_until(world: World, one: Transfer, step: int) -> None:
    world.commit(one)
    while world.steps < step:
        assert world.step()


@pytest.mark.requirement("CLU-165")
def test_a_group_that_takes_no_part_delays_nothing(tmp_path: Path) -> None:
    world, one = begun(tmp_path, ("a", "b", "c"))
    world.groups["c"].is_frozen = True
    world.commit(one)
    world.run()
    assert (world.told, world.now_s) == ({0: "committed"}, 0.0)


@pytest.mark.requirement("CLU-164")
def test_a_frozen_participant_makes_the_commit_fail_after_the_limit(tmp_path: Path) -> None:
    world, one = begun(tmp_path)
    world.groups["b"].is_frozen = True
    world.commit(one)
    world.run()
    for _ in range(29):
        world.later(1.0)
        world.run()
        assert not world.told
    world.later(1.0)
    world.run()
    assert world.told == {0: "transaction-aborted"}
    world.groups["b"].is_frozen = False
    world.settle_down()
    verify(world)


@pytest.mark.requirement("CLU-164", "CLU-127")
def test_a_frozen_decider_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    world, one = begun(tmp_path)
    world.groups["a"].is_frozen = True
    world.commit(one)
    for _ in range(36):
        world.run()
        world.later(1.0)
    assert world.told == {0: COMMIT_UNKNOWN}
    world.groups["a"].is_frozen = False
    world.settle_down()
    verify(world)
    assert world.where(b"coin") == ["b"]


@pytest.mark.requirement("CLU-168")
def test_a_participant_frozen_after_final_leaves_the_completion_pending(tmp_path: Path) -> None:
    world, one = begun(tmp_path)
    run_until(world, one, 8)
    world.groups["b"].is_frozen = True
    for _ in range(32):
        world.run()
        world.later(1.0)
    assert world.told == {0: COMMIT_PENDING}
    world.groups["b"].is_frozen = False
    world.settle_down()
    verify(world)


@pytest.mark.requirement("CLU-168")
def test_a_decider_frozen_at_final_is_unknown_and_then_as_it_says(tmp_path: Path) -> None:
    world, one = begun(tmp_path)
    run_until(world, one, 6)
    world.groups["a"].is_frozen = True
    for _ in range(32):
        world.run()
        world.later(1.0)
    assert world.told == {0: COMMIT_UNKNOWN}
    world.groups["a"].is_frozen = False
    world.settle_down()
    world.told[0] = "committed"  # FINAL was on its way, and nobody had asked the decider meanwhile
    if world.ask(one) == "rolled-back":
        world.told[0] = "transaction-aborted"
    verify(world)


@pytest.mark.requirement("CLU-166", "CLU-169")
def test_in_doubt_everything_stays_locked_until_the_decider_answers(tmp_path: Path) -> None:
    world, one = begun(tmp_path)
    run_until(world, one, 6)
    world.stop("a")
    world.kill_agent()
    for _ in range(60):
        world.run()
        world.later(1.0)
    group = world.groups["b"]
    (shown,) = group.core.prepared.listed()
    assert (shown["state"], shown["decider"], shown["destinations"]) == ("in-doubt", "a", ["q"])
    assert world.held("b") == []
    assert group.core.decisions.asked > 20  # it goes on asking
    world.start("a")
    world.settle_down()
    world.told[0] = "transaction-aborted"
    verify(world)


@pytest.mark.requirement("CLU-163")
def test_an_aborted_part_aborts_all(tmp_path: Path) -> None:
    world, one = begun(tmp_path)
    missing = one.parts[0].sends  # group a is told of more messages than it has
    missing.update(dict.fromkeys(missing, 2))
    world.commit(one)
    world.settle_down()
    assert world.told == {0: "transaction-aborted"}
    assert world.now_s < 5
    verify(world)


@pytest.mark.requirement("CLU-170")
def test_a_commit_said_twice_is_answered_alike(tmp_path: Path) -> None:
    world, one = begun(tmp_path)
    world.commit(one)
    world.run()
    assert world.told.pop(0) == "committed"
    world.commit(one)
    world.settle_down()
    assert world.told == {0: "committed"}
    verify(world)


@pytest.mark.requirement("CLU-169")
def test_the_decider_repeats_its_decision_to_who_has_not_heard_it(tmp_path: Path) -> None:
    world, one = begun(tmp_path)
    run_until(world, one, 9)
    world.kill_agent()  # FINAL to the participant is lost with it
    world.flight.clear()
    world.later(3.0)
    assert [flying.what for flying in world.flight if flying.group == "b"] == ["settle"]
    world.settle_down()
    world.told[0] = "committed"
    verify(world)
    world.later(2.0)
    kinds = [record.kind for record in world.groups["a"].journal.records]
    assert records.DECIDED in kinds
