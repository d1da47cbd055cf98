"""The measurements of `benchmarks/directory` run, at a tiny scale, and their page can be written."""

from __future__ import annotations

import pytest

from benchmarks.directory.measure import measure, table
from benchmarks.directory.scenarios import ask, place
from fairlead.testing.directory_world import World

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(300)]


@pytest.mark.parametrize("placement", ["decentralised", "centralised"])
async def test_placing_is_measured(world: World, placement: str) -> None:
    row = await place(world, placement, 24, 4, 2)
    assert sum(row["brokers"].values()) == row["connections"] == 24
    assert row["worst_application"] == 0  # three of each client over three brokers, whoever chooses
    assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["worst_ms"]
    assert row["cpu_s"]["client"] > 0


@pytest.mark.parametrize("scenario", ["look-ups", "picks"])
async def test_asking_is_measured(world: World, scenario: str) -> None:
    assert world.directories is not None
    rows = await ask(scenario, (1, 8), 0.1, world.url(server=1), world.directories.pids("d1"))
    assert [row["outstanding"] for row in rows] == [1, 8]
    assert all(row["answers"] > 0 and row["per_s"] > 0 for row in rows)


@pytest.mark.long
def test_everything_is_measured_and_written_down() -> None:
    rows = list(measure(0.02, 0.2))
    placed = {row["placement"]: row for row in rows if row["scenario"] == "placing"}
    assert sum(placed["centralised"]["brokers"].values()) == placed["centralised"]["connections"] == 40
    assert placed["centralised"]["worst_application"] <= 1
    page = table(rows)
    assert page.count("look-ups") == page.count("| picks") == 3
