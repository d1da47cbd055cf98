"""What rules cost the router: server time for each transient message, by what its sender may do.

::

    python benchmarks/micro/access.py            # microseconds a message, and the ratio to a server without rules

One ring in, one out, the compiled turn alone: no sockets, no other process. Each case is measured in turn, several
times over, and the best of each is shown, so that a busy machine does harm to all alike.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import time
from typing import Any

import msgspec

from fairlead.broker.decisions import Decisions, Terms
from fairlead.broker.routing_log import Follower
from fairlead.broker.turn import Rule
from fairlead.security.quotas import Quota
from fairlead.security.rules import Rights, Rules, principal
from fairlead.store import layout
from fairlead.store import memory as store
from fairlead.store.ring import format_ring
from fairlead.wire import kinds
from fairlead.wire.frames import encode_frame

AREA_BYTES = 1 << 20
RING_BYTES = 1 << 22
UP = struct.Struct(layout.UP_FORMAT)
BATCH = 1024
if store.MODE == layout.MODE_COMPILED:
    from fairlead.broker import _turn as made
else:
    from fairlead.broker import turn as made  # type: ignore[no-redef]

TOPICS = [f"prices.eur.{number}" for number in range(8)]


def cases() -> dict[str, tuple[Rules | None, str]]:
    """Name -> rules, and as whom to send."""
    many = tuple(f"area{number}.>" for number in range(99))
    return {
        "no users file": (None, ""),
        "may do everything": (Rules({"u": Rights()}), "u"),
        "narrow rules": (Rules({"u": Rights(publish=("prices.>",), subscribe=("prices.>",))}), "u"),
        "100 patterns": (Rules({"u": Rights(publish=(*many, "prices.>"), subscribe=(">",))}), "u"),
        "denies": (Rules({"u": Rights(deny=(("publish", "secret.>"), ("subscribe", "secret.>")))}), "u"),
        "tenant": (Rules({"u": Rights(tenant="acme")}, tenants={"acme": Quota()}), "u"),
    }


def new_ring() -> bytearray:
    ring = bytearray(layout.ring_bytes(RING_BYTES))
    format_ring(ring, RING_BYTES, 0)
    return ring


class Bench:
    """A router with one sender and one subscriber."""

    def __init__(self, rules: Rules | None, user: str, made: Any) -> None:
        self.up_ring, self.down_ring = new_ring(), new_ring()
        segment = bytearray(layout.routing_bytes(AREA_BYTES))
        struct.pack_into("<Q", segment, layout.ROUTING_AREA_BYTES, AREA_BYTES)
        self.wake = os.eventfd(0, os.EFD_NONBLOCK)
        self.up, self.down = store.Producer(self.up_ring), store.Consumer(self.down_ring)
        follower = Follower(segment, made.made_of, rules=rules)
        decisions = Decisions(follower.routing, Terms(), rules)
        words = memoryview(bytearray(256)).cast("Q")
        self.turn = made.Turn(
            [store.Consumer(self.up_ring)],
            [store.Producer(self.down_ring)],
            segment,
            decisions,
            [self.wake],
            Rule(),
            words,
        )
        self.turn.log_limit = AREA_BYTES
        self.turn.start(follower.catch_up())
        tenant = rules.tenant_of(user) if rules is not None else ""
        facts = {"type": "bench", "instance": "b", "org": "", "user": user, "who": principal(user), "tenant": tenant}
        self.push(layout.UP_ATTACH, 7, 0, msgspec.json.encode({"peer": "here"}))
        self.push(layout.UP_RESPONSE, 7, 0, msgspec.json.encode(facts))
        frame = encode_frame(kinds.KIND_SUBSCRIBE, 0, 1, 0, 0, b"prices.>", b"", b"")
        self.push(layout.UP_CONTROL, 7, 0, frame, layout.FLAG_COUNTED)
        self.run()
        self.entries = [
            UP.pack(7, 1 << 8, 0, 64, len(frame) - 64, 0) + frame[:-64]
            for topic in TOPICS
            for frame in [encode_frame(kinds.KIND_PUBLISH, 0, 0, 0, 0, topic.encode(), b"", bytes(64))]
        ]

    def push(self, kind: int, uid: int, handle: int, content: bytes, flags: int = 0) -> None:
        assert self.up.push(kind, flags, UP.pack(uid, handle, 0, 0, len(content), 0) + content)
        self.up.publish()

    def run(self) -> None:
        while self.turn.run(BATCH, 0):
            self.drain()
        self.drain()

    def drain(self) -> int:
        found = 0
        while (entry := self.down.next()) is not None:
            found += entry[0] == layout.DOWN_DELIVER
            self.down.advance()
        self.down.publish(1 << 62)
        return found

    def measure(self, messages: int) -> float:
        """Nanoseconds of the turn for each message."""
        spent = delivered = sent = 0
        while sent < messages:
            for number in range(BATCH):
                assert self.up.push(layout.UP_MESSAGE, layout.FLAG_COUNTED, self.entries[number % len(self.entries)])
            self.up.publish()
            sent += BATCH
            begun = time.perf_counter_ns()
            while self.turn.run(BATCH, 0):
                pass
            spent += time.perf_counter_ns() - begun
            delivered += self.drain()
        assert delivered == sent, f"{delivered} of {sent} came through"
        return spent / sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    benches = {name: Bench(rules, user, made) for name, (rules, user) in cases().items()}
    found: dict[str, list[float]] = {name: [] for name in benches}
    for _ in range(given.rounds):
        for name, bench in benches.items():
            found[name].append(bench.measure(given.messages))
    best = {name: min(times) for name, times in found.items()}
    base = best["no users file"]
    if given.json:
        print(json.dumps({name: {"ns": round(ns, 1), "ratio": round(ns / base, 3)} for name, ns in best.items()}))
        return
    for name, ns in best.items():
        print(f"{name:20} {ns / 1000:7.3f} us a message   {ns / base:5.3f}")


if __name__ == "__main__":
    main()
