"""What arbitration costs a message: from blocks as they come off a line to message objects, and the parts of that.

    python -m benchmarks.feeds.arbitration                    # a million messages each
    python -m benchmarks.feeds.arbitration --messages 100000  # a quick look

Only CPU time counts, and no sockets are in it. "repeats" is the second line of `mode="both"`: each of its messages is
judged, compared with what was delivered, and dropped. The plain twins do a tenth of the messages.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Literal

from fairlead.feeds.arbitration import Arbiter
from fairlead.feeds.block_codec import COMPILED, Block, pack
from fairlead.feeds.records import MESSAGE, Record
from fairlead.feeds.words import Brokered, LineOffer, Source, Welcome
from fairlead.runtime.version import VERSION

SOURCE = "day:1"
BODY_BYTES = 60
PURE_PART = 10


def blocks_of(messages: int, size: int) -> list[bytes]:
    body = bytes(range(BODY_BYTES))
    return [
        pack(SOURCE, at + 1, [Record(0, MESSAGE, "", s, 1, 1, s - 1, body) for s in range(at + 1, at + size + 1)])
        for at in range(0, messages, size)
    ]


def arbiter_of(mode: Literal["single", "both"]) -> Arbiter:
    arbiter = Arbiter(stream="bench", mode=mode)
    offers = tuple(
        LineOffer(adapter=name, address="-", token="-", incarnation=1, role=role)
        for name, role in (("a", "active"), ("b", "backup"))
    )
    arbiter.on_brokered(
        Brokered(
            stream="bench",
            epoch=1,
            lines=offers,
            sources=(Source(id=SOURCE),),
            positions={SOURCE: (0, 1, 1)},
            threshold=8,
            heartbeat_s=0.2,
            token_life_s=3600,
        ),
        1.0,
    )
    for offer in offers:
        welcome = Welcome(
            adapter=offer.adapter,
            stream="bench",
            incarnation=1,
            epoch=1,
            role=offer.role,
            first=1,
            last=0,
            heartbeat_s=0.2,
        )
        arbiter.on_line_up(offer.adapter, welcome, 1.0)
    arbiter.take()
    return arbiter


def active_alone(blocks: list[bytes]) -> Iterator[int]:
    arbiter = arbiter_of("single")
    for block in blocks:
        arbiter.on_block("a", 1, block, 1.0)
        yield sum(len(item) for item in arbiter.take()[0] if isinstance(item, list))


def with_repeats(blocks: list[bytes]) -> Iterator[int]:
    arbiter = arbiter_of("both")
    for block in blocks:
        arbiter.on_block("a", 1, block, 1.0)
        arbiter.on_block("b", 1, block, 1.0)
        yield sum(len(item) for item in arbiter.take()[0] if isinstance(item, list))


def no_arbitration(blocks: list[bytes]) -> Iterator[int]:
    """What a program without it would do: read the block, make the messages."""
    for data in blocks:
        block = Block.parse(data)
        yield len(block.messages(0, block.count))


WAYS: dict[str, Callable[[list[bytes]], Iterator[int]]] = {
    "read and make the messages, no arbitration": no_arbitration,
    "arbitration of the active line": active_alone,
    "arbitration with repeats of a second line": with_repeats,
}


def measure(way: Callable[[list[bytes]], Iterator[int]], blocks: list[bytes], messages: int) -> float:
    """The best of three, in seconds of CPU."""
    best_s = float("inf")
    for _ in range(3):
        begun_s = time.process_time()
        delivered = sum(way(blocks))
        best_s = min(best_s, time.process_time() - begun_s)
        if delivered != messages:
            raise SystemExit(f"{delivered} messages came out of {messages}")
    return best_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--blocks", type=int, nargs="*", default=[1, 10, 100, 1000])
    asked = parser.parse_args()
    twin = "compiled" if COMPILED else "plain Python"
    print(f"fairlead {VERSION} ({twin}), Python {platform.python_version()}, {processor()}, {BODY_BYTES}-byte bodies")
    for size in asked.blocks:
        messages = asked.messages // size * size
        blocks, alone_s = blocks_of(messages, size), 0.0
        for name, way in WAYS.items():
            took_s = measure(way, blocks, messages)
            alone_s = alone_s or took_s
            added = f", {(took_s - alone_s) / messages * 1e9:6.0f} ns added" if took_s != alone_s else ""
            print(
                f"  blocks of {size:4}: {name:44} {messages / took_s / 1e6:7.2f} million messages/s{added}", flush=True
            )
    if COMPILED:
        command = [sys.executable, "-m", "benchmarks.feeds.arbitration", "--messages", str(asked.messages // PURE_PART)]
        sizes = ["--blocks", *(str(size) for size in asked.blocks if size <= asked.messages // PURE_PART)]
        subprocess.run([*command, *sizes], env=os.environ | {"FAIRLEAD_PURE": "1"}, check=True)


def processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "?")
    except OSError:
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
