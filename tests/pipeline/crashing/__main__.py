"""Random kills under two streaming queries; in the end every message is there once, in order.

::

    python -m tests.pipeline.crashing --seed 1 --rounds 20
    python -m tests.pipeline.crashing --seed 1 --rounds 5 --hurt published planned --flows queue
    python -m tests.pipeline.crashing --seed 1 --rounds 3 --plant forgets_the_batch --hurt published

The seed decides what is hurt and when, as far as that is up to the harness.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys

from tests.pipeline.crashing.flows import FLOWS
from tests.pipeline.crashing.plants import MISHAPS, PLANTS
from tests.pipeline.crashing.rounds import HURTS, world


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pipeline.crashing", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=None, help="another one each time if not given")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--hurt", nargs="+", choices=list(HURTS), default=list(HURTS))
    parser.add_argument("--flows", nargs="+", choices=list(FLOWS), default=list(FLOWS))
    parser.add_argument(
        "--plant", choices=[*PLANTS, *MISHAPS], default="", help="run with this bug: the books must notice"
    )
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is stopped
    seed = random.randrange(1 << 30) if asked.seed is None else asked.seed
    with world(seed, asked.flows, asked.plant) as crashing:
        report = crashing.run(asked.rounds, asked.hurt, say=lambda text: print(text, flush=True))
    print("\n".join(report.lines()))
    return 1 if report.faults.found else 0


if __name__ == "__main__":
    sys.exit(main())
