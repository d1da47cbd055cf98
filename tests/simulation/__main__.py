"""Run seeds of a small cluster under faults, heal it, and check the laws.

python -m tests.simulation --seeds 500              seeds 1 to 500
python -m tests.simulation --seed 91 --trace        one seed, told event by event
python -m tests.simulation --plant joint_sets       with a bug in it: is it caught?
python -m tests.simulation --each --seeds 400       every bug in turn: after how many seeds?
python -m tests.simulation --focus falls --seeds 50     one kind of storm alone
python -m tests.simulation --wild-clocks            leases cannot be trusted; nothing confirmed may be lost
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import Pool
from random import Random

from tests.simulation import drills
from tests.simulation.cluster import try_seed
from tests.simulation.plants import ALL, DRILLS, NAMES

PROGRESS = 250


def law_of(seed: int, plants: tuple[str, ...], wild: bool, focus: str | None = None) -> tuple[int, str, dict[str, int]]:
    law, cluster = try_seed(seed, ALL.without(*plants), wild=wild, focus=focus)
    return seed, law, cluster.world.count


@contextmanager
def runner(jobs: int) -> Iterator[object]:
    if jobs < 2:
        yield map
    else:
        with Pool(jobs) as pool:
            yield partial(pool.imap, chunksize=2)


def told(seed: int, plants: tuple[str, ...], wild: bool, focus: str | None) -> int:
    law, cluster = try_seed(seed, ALL.without(*plants), wild=wild, trace=True, focus=focus)
    print(*(cluster.world.trace or []), f"BROKEN {law}" if law else "all laws hold", sep="\n")
    return bool(law)


def each(names: list[str], seeds: range, wild: bool, focus: str | None) -> None:
    """The first seed that catches each planted bug by a law of safety; where a drill is for it, only that drill's."""
    for name in names:
        law, seed = "", 0
        for seed in seeds:
            drill = drills.chosen(Random(seed)) if focus is None else focus
            law = "" if DRILLS.get(name, drill) != drill else law_of(seed, (name,), wild, focus)[1]
            if law and not law.startswith("all converges"):
                break
            law = ""
        print(f"{name:20} {f'seed {seed}: {law}' if law else f'not caught in {len(seeds)} seeds'}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="the first, or the only one")
    parser.add_argument("--seeds", type=int, help="how many")
    parser.add_argument("--plant", nargs="*", default=[], choices=NAMES)
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--wild-clocks", action="store_true")
    parser.add_argument("--focus", choices=["", *drills.NAMES], help="one drill alone; empty: the general storm")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    plants = tuple(asked.plant)
    if asked.trace:
        return told(asked.seed, plants, asked.wild_clocks, asked.focus)
    seeds = range(asked.seed, asked.seed + (asked.seeds or 1))
    if asked.each:
        each(asked.plant or NAMES, seeds, asked.wild_clocks, asked.focus)
        return 0
    broken, count = 0, Counter[str]()
    with runner(asked.jobs) as run:
        play = partial(law_of, plants=plants, wild=asked.wild_clocks, focus=asked.focus)
        for seed, law, tally in run(play, seeds):  # type: ignore[operator]
            count.update(tally)
            if (seed - asked.seed + 1) % PROGRESS == 0:
                print(f"up to seed {seed}: {broken} broken", flush=True)
            if law:
                broken += 1
                print(f"seed {seed}: {law}", flush=True)
    print(f"{len(seeds)} seeds, {broken} broken; {dict(sorted(count.items()))}")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
