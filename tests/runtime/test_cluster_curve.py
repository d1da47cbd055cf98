"""The simulated curve of `benchmarks/cluster/curve.py`: it obeys its own model."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cluster.curve import COPIES, MEASURED, Costs, draw, simulate, table

WIDE = 1e12
COSTS = Costs(manager_s=5e-6, primary_s=10e-6, backup_s=6e-6, bus_bytes=3000)


def test_one_unit_is_as_fast_as_its_slowest_node() -> None:
    point = simulate(1, 2, COSTS, WIDE)
    assert point.per_s == pytest.approx(1 / COSTS.primary_s, rel=0.02)
    assert point.primary == pytest.approx(1.0, rel=0.02)
    assert point.manager == pytest.approx(0.5, rel=0.05)
    assert point.backup == pytest.approx(0.6, rel=0.05)


def test_units_share_the_bus_and_nothing_else() -> None:
    alone = simulate(1, 2, COSTS, WIDE, 0.3)
    for units in (2, 8):
        assert simulate(units, 2, COSTS, WIDE, 0.3).per_s == pytest.approx(units * alone.per_s, rel=0.02)
    narrow = 3 * alone.per_s * COSTS.bus_bytes
    assert simulate(8, 2, COSTS, narrow, 0.3).per_s == pytest.approx(3 * alone.per_s, rel=0.05)
    assert simulate(8, 2, COSTS, narrow, 0.3).bus > 0.98


def test_what_was_measured_can_be_drawn(tmp_path: Path) -> None:
    assert set(MEASURED) == set(COPIES)
    points = [simulate(1, copies, MEASURED[copies], WIDE, 0.1) for copies in COPIES]
    assert all(point.per_s > 1000 for point in points)
    assert len(table(points).splitlines()) == 2 + len(points)
    if draw(tmp_path / "curve.png", {"one": points}):
        assert (tmp_path / "curve.png").stat().st_size > 1000
