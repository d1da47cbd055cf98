"""Run seeds of a stream under a storm, let it calm down, and check the laws.

python -m tests.feeds.simulation --seeds 500            seeds 1 to 500
python -m tests.feeds.simulation --seed 91 --trace      one seed, told event by event
python -m tests.feeds.simulation --plant gap_is_next    with a bug in it: is it caught?
python -m tests.feeds.simulation --each --seeds 100     every bug in turn: after how many seeds?
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from functools import partial
from multiprocessing import Pool

from tests.feeds.simulation.group import try_seed
from tests.feeds.simulation.plants import NAMES, planted

PROGRESS = 500


def law_of(seed: int, plants: tuple[str, ...]) -> tuple[int, str, Counter[str], float]:
    begun_s = time.process_time()
    with planted(*plants):
        law, group = try_seed(seed)
    count = Counter(group.count)
    count["messages delivered"] = sum(client.arbiter.counters["delivered"] for client in group.clients)
    count["failovers"] = sum(client.arbiter.counters["failovers"] for client in group.clients)
    count["messages lost, and said so"] = sum(client.arbiter.counters["lost"] for client in group.clients)
    return seed, law, count, time.process_time() - begun_s


def told(seed: int, plants: tuple[str, ...]) -> int:
    with planted(*plants):
        law, group = try_seed(seed, trace=True)
    print(*(group.world.trace or []), f"BROKEN {law}" if law else "all laws hold", sep="\n")
    return bool(law)


def each(names: list[str], seeds: range) -> int:
    missed = 0
    for name in names:
        found = next(((seed, law) for seed in seeds if (law := law_of(seed, (name,))[1])), None)
        missed += found is None
        text = f"seed {found[0]}: {found[1]}" if found else f"not caught in {len(seeds)} seeds"
        print(f"{name:24} {text}", flush=True)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="the first, or the only one")
    parser.add_argument("--seeds", type=int, help="how many")
    parser.add_argument("--plant", nargs="*", default=[], choices=NAMES)
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    plants = tuple(asked.plant)
    if asked.trace:
        return told(asked.seed, plants)
    seeds = range(asked.seed, asked.seed + (asked.seeds or 1))
    if asked.each:
        return each(asked.plant or NAMES, seeds)
    broken, count, cpu_s = 0, Counter[str](), 0.0
    with Pool(asked.jobs) as pool:
        for seed, law, tally, seconds in pool.imap(partial(law_of, plants=plants), seeds, chunksize=4):
            count.update(tally)
            cpu_s += seconds
            if law:
                broken += 1
                print(f"seed {seed}: {law}", flush=True)
            if (seed - asked.seed + 1) % PROGRESS == 0:
                print(f"up to seed {seed}: {broken} broken", flush=True)
    print(f"{len(seeds)} seeds, {broken} broken, {cpu_s / len(seeds) * 1000:.1f} ms of CPU each")
    print(*(f"{number:9,} {what}" for what, number in sorted(count.items())), sep="\n")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
