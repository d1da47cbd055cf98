"""All or nothing across replicated groups while their primaries fall; the client is told the truth (CLU-155)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.transactions.money import play
from tests.cluster.transactions.test_planted import Plant, before_it_is_safe, everybody_first, forgotten_early
from tests.simulation.transfers import ReplicatedGroup, ReplicatedWorld

SEEDS = 20
MANY = 400


def falls(world: ReplicatedWorld) -> int:
    groups = [group for group in world.groups.values() if isinstance(group, ReplicatedGroup)]
    return sum(group.members.falls for group in groups)


@pytest.mark.requirement("CLU-155", "CLU-153")
def test_money_is_neither_made_nor_lost_when_primaries_fall(tmp_path: Path) -> None:
    _play(tmp_path, range(SEEDS))


@pytest.mark.long
def test_money_is_neither_made_nor_lost_when_many_primaries_fall(tmp_path: Path) -> None:
    _play(tmp_path, range(SEEDS, SEEDS + MANY))


def _play(folder: Path, seeds: range) -> None:
    told: set[str] = set()
    fell = 0
    for seed in seeds:
        world = play(folder / str(seed), seed, ReplicatedWorld)
        assert isinstance(world, ReplicatedWorld)
        told.update(world.told.values())
        fell += falls(world)
    assert {"committed", "transaction-aborted"} <= told
    assert fell > len(seeds)


@pytest.mark.parametrize(
    "plant",
    [pytest.param(everybody_first, marks=pytest.mark.long), forgotten_early, before_it_is_safe],
)
def test_a_planted_bug_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant) -> None:
    """The decider first; its outcome is kept; nothing is said before it is safe."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(300):
            play(tmp_path / str(seed), seed, ReplicatedWorld)
