"""The simulation: every byte once and in order, whatever happens; and it notices what a wrong gateway does."""

from __future__ import annotations

import pytest

from tests.tunnel.gateway.plants import PLANTS, Plant
from tests.tunnel.gateway.simulate import faults_of, run
from tests.tunnel.gateway.simulation import Simulation, Violation

SEEDS = range(1, 13)


@pytest.mark.requirement(
    "TUN-49", state="scaled", note="simulated restarts, 20 kB each way; processes are shown elsewhere"
)
@pytest.mark.requirement(
    "TUN-34", state="scaled", note="simulated: answered requests whose answers or packets are lost"
)
@pytest.mark.requirement("TUN-68", state="scaled", note="simulated: a fifth of all answers is lost")
@pytest.mark.requirement("TUN-37", state="half", note="simulated: pushes overtake each other")
@pytest.mark.parametrize("seed", range(9))
def test_every_byte_comes_once_and_in_order(seed: int) -> None:
    simulation = run(seed)
    assert any(client.program and client.program.is_complete for client in simulation.clients), faults_of(seed)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_byte_comes_once_and_in_order_for_long() -> None:
    for seed in range(1000, 2000):
        run(seed)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_planted_bug_is_noticed(plant: Plant) -> None:
    for seed in SEEDS:
        try:
            Simulation(seed, plant.faults, limits=plant.limits, size=6000, make=plant.make).run()
        except Violation:
            Simulation(seed, plant.faults, limits=plant.limits, size=6000).run()
            return
    pytest.fail(f"nobody noticed: {plant.name}")
