"""Two groups, one client, and chance: order, exactly once, no loss, over seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.cluster_chance import ChanceWorld

SEEDS = 12
STEPS = 350


@pytest.mark.requirement("CLU-118", "CLU-123", "CLU-127", "CLU-142", "CLU-155")
@pytest.mark.parametrize("part", range(4))
def test_nothing_is_lost_doubled_or_out_of_order(tmp_path: Path, part: int) -> None:
    for seed in range(SEEDS * part, SEEDS * part + SEEDS):
        try:
            ChanceWorld(tmp_path / str(seed), seed).run(STEPS)
        except AssertionError as fault:
            fault.add_note(f"seed {seed}")
            raise
