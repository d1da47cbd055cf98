"""Many runs of the simulation: `python -m tests.tunnel.gateway.simulate --seed 1 --seeds 200`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from random import Random

from fairlead.tunnel.gateway import Gateway, Limits
from tests.tunnel.gateway.simulation import Faults, Simulation, Violation

__all__ = ["faults_of", "run"]


def faults_of(seed: int) -> Faults:
    """Every kind of trouble alone, and all of it together."""
    random = Random(f"faults {seed}")
    return (
        Faults(),
        Faults(lost_request=0.2),
        Faults(lost_answer=0.2),
        Faults(doubled=0.5, replayed=0.3),
        Faults(restarts=3),
        Faults(cuts=4, vanishing=1),
        Faults(attackers=2, replayed=0.2),
        Faults(streams=1.0, restarts=1),
        Faults(
            lost_request=random.uniform(0, 0.2),
            lost_answer=random.uniform(0, 0.2),
            doubled=random.uniform(0, 0.3),
            replayed=random.uniform(0, 0.3),
            restarts=random.randint(0, 3),
            cuts=random.randint(0, 4),
            vanishing=random.randint(0, 1),
            attackers=random.randint(0, 1),
            streams=random.choice((0.0, 0.4)),
        ),
    )[seed % 9]


def run(seed: int, make: Callable[..., Gateway] = Gateway, limits: Limits | None = None) -> Simulation:
    """Violation if anything goes wrong."""
    simulation = Simulation(seed, faults_of(seed), make=make, limits=limits)
    simulation.run()
    return simulation


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=100)
    asked = parser.parse_args()
    failed = 0
    for seed in range(asked.seed, asked.seed + asked.seeds):
        try:
            run(seed)
        except Violation as violation:
            failed += 1
            print(f"seed {seed} ({faults_of(seed)}): {violation}")
    print(f"{asked.seeds} runs, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
