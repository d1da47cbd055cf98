"""Many tunnels of many kinds, each from its seed: `python -m tests.tunnel.end.simulate --seed 1 --seeds 500`.

A seed that breaks a law is printed with its plan, and gives the same run every time.
"""

from __future__ import annotations

import argparse
import sys
from math import inf
from random import Random

from tests.tunnel.end.model import Broken, Plan, Work, run

__all__ = ["plan_of", "simulate"]


def plan_of(seed: int) -> Plan:
    """Everything that may happen has its chance."""
    random = Random(seed)
    some = random.choice
    closes = [(0.0, inf), (inf, 0.0), (0.0, 0.0), (3.0, 3.0), (0.5, 8.0), (40.0, inf), (inf, inf)]
    closes_at_s = some(closes)
    aborts_at_s = (inf, inf)
    if random.random() < 0.25:
        # CONN_ABORT may be lost: then the other end learns of it when it sends, at the latest its close.
        aborts_at_s = some([(random.uniform(0, 10), inf), (inf, random.uniform(0, 10))])
        closes_at_s = 40.0, 40.0
    payload_max = some([1, 20, 50, 50, 1500])
    size = 100 * payload_max
    works = tuple(
        Work(
            writes=some([0, 1, 20, 100, 300]),
            chunk=some([1, max(1, size // 100), max(1, size // 300)]),
            write_gap_s=some([0.0, 0.0, 0.05, 0.3]),
            read_chunk=some([max(1, size // 150), size // 50, size]),
            read_gap_s=some([0.0, 0.01, 0.1]),
            asleep_until_s=some([0.0, 0.0, 0.0, 2.0, 15.0, 350.0]),
            closes_at_s=closes_at_s[side],
            aborts_at_s=aborts_at_s[side],
            is_early=some([False, True]),
            option=some([0, 0, 2]),
        )
        for side in (0, 1)
    )
    heals_at_s = some([0.0, 20.0, 20.0, 60.0])
    begin = random.uniform(0, heals_at_s)
    return Plan(
        seed=seed,
        version=some([1, 2, 2]),
        first_sequence=some([1, 1, 2**32 - 10, 2**31 - 3, 2**32 - 1]),
        capacities=(some([1, 2, 5, 16, 60]), some([1, 2, 5, 16, 60])),
        transmit_max=some([1, 4, 32, 100]),
        payload_max=payload_max,
        loss=some([0.0, 0.05, 0.2, 0.5]),
        duplicate=some([0.0, 0.0, 0.2, 1.0]),
        flip=some([0.0, 0.0, 0.02, 0.2]),
        delay_s=some([0.001, 0.05, 0.4]),
        jitter_s=some([0.0, 0.0, 0.1, 1.0]),
        bodies=some([False, True]),
        room=some([1, 200, 1 << 16]),
        busy_s=some([0.0, 0.0, 0.01, 0.1]),
        silences=((begin, begin + some([1.0, 10.0, 40.0])),) if random.random() < 0.3 else (),
        heals_at_s=heals_at_s,
        works=(works[0], works[1]),
    )


def simulate(seed: int, seeds: int) -> dict[int, str]:
    """The seeds that broke a law, each with how."""
    broken = {}
    for number in range(seed, seed + seeds):
        try:
            run(plan_of(number))
        except Broken as error:
            broken[number] = str(error)
    return broken


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--seeds", type=int, default=500)
    asked = arguments.parse_args()
    broken = simulate(asked.seed, asked.seeds)
    for number, how in broken.items():
        print(f"seed {number}: {how}\n    {plan_of(number)}")
    print(f"{asked.seeds} seeds from {asked.seed}: {len(broken)} broke a law")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
