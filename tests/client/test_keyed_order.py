"""Keys through client and message manager together, frame by frame: in order, one at a time, never stuck (CLU-28)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.keyed_world import KeyedWorld

SEEDS = 60


@pytest.mark.requirement("CLU-28")
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in (1, 2))])
def test_a_key_is_seen_in_order_whatever_is_under_way_when_one_of_it_is_given_back(tmp_path: Path, part: int) -> None:
    _run(tmp_path, part, ())


@pytest.mark.requirement("CLU-28", "CLU-126")
@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.long) for part in (2, 3))])
def test_and_when_lines_are_lost_and_resumed_in_time(tmp_path: Path, part: int) -> None:
    _run(tmp_path, part, KeyedWorld.RARE)


def _run(folder: Path, part: int, rare: tuple[str, ...]) -> None:
    for seed in range(SEEDS * part, SEEDS * part + SEEDS):
        try:
            KeyedWorld(folder, seed, rare).run(400)
        except AssertionError as fault:
            fault.add_note(f"seed {seed}")
            raise
