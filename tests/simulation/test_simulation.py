"""A few storms with every run of the suite; `make simulate` and docs/simulation.md tell of the many."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from tests.simulation.cluster import Cluster, try_seed
from tests.simulation.plants import ALL, DRILLS

SEEDS = range(1, 25)
ANYWHERE = [
    *("count_copies", "only_members", "adopt_record", "copy_best", "repeat_waits", "serve_by_lease", "keep_keys"),
    *("gapless", "enough_members", "match_previous", "obey_lease", "store_identity", "restart_new_epoch"),
    "notes_first",
]
TELLING = "from tests.simulation.test_simulation import story; print(story(3))"


@pytest.mark.requirement("CLU-153")
@pytest.mark.parametrize("seeds", [SEEDS[i::4] for i in range(4)], ids=lambda seeds: f"from-{seeds[0]}")
def test_all_laws_hold_in_a_storm(seeds: range) -> None:
    broken = {seed: law for seed in seeds if (law := try_seed(seed)[0])}
    assert not broken, "python -m tests.simulation --seed N --trace tells more"


def test_nothing_confirmed_is_lost_when_clocks_run_wild() -> None:
    broken = {seed: law for seed in range(1, 6) if (law := try_seed(seed, wild=True)[0])}
    assert not broken


def is_of_safety(law: str) -> bool:
    """That a group does not recover is not enough."""
    return bool(law) and not law.startswith("all converges")


@pytest.mark.parametrize("plant", ANYWHERE)
def test_a_planted_bug_is_caught(plant: str) -> None:
    laws = (try_seed(seed, ALL.without(plant))[0] for seed in range(1, 61))
    assert any(map(is_of_safety, laws)), f"60 storms and {plant} is not missed"


@pytest.mark.parametrize(("plant", "drill"), DRILLS.items())
def test_a_drill_catches_what_it_is_for(plant: str, drill: str) -> None:
    laws = (try_seed(seed, ALL.without(plant), focus=drill)[0] for seed in range(1, 31))
    assert any(map(is_of_safety, laws))


@pytest.mark.parametrize("seed", [27, 52])
def test_a_candidate_that_parts_from_a_better_log_far_back_copies_it_all_the_same(seed: int) -> None:
    """It once asked for the same records for ever, when those it shared with the other filled a message."""
    assert not try_seed(seed, focus="relay")[0]


@pytest.mark.long
@pytest.mark.parametrize("tenth", range(10))
def test_all_laws_hold_in_many_storms(tenth: int) -> None:
    broken = {seed: law for seed in range(100 + tenth * 100, 200 + tenth * 100) if (law := try_seed(seed)[0])}
    assert not broken


def story(seed: int) -> str:
    cluster = Cluster(seed, trace=True)
    cluster.run()
    return hashlib.sha256("\n".join(cluster.world.trace or []).encode()).hexdigest()


def test_same_seed_same_run() -> None:
    told = [
        subprocess.run(
            [sys.executable, "-c", TELLING],
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    ]
    assert told[0] == told[1] == story(3) + "\n"
