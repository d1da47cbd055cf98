"""Money is neither made nor lost, whatever dies in whatever order (CLU-155)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.transactions.money import play

SCHEDULES = 500


@pytest.mark.requirement("CLU-155", "CLU-169")
@pytest.mark.parametrize("tenth", range(10))
def test_money_is_neither_made_nor_lost_across_groups(tmp_path: Path, tenth: int) -> None:
    each = SCHEDULES // 10
    told: set[str] = set()
    for seed in range(tenth * each, (tenth + 1) * each):
        told.update(play(tmp_path / str(seed), seed).told.values())
    assert {"committed", "transaction-aborted"} <= told
