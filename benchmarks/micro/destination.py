"""What one batch costs a destination in storing, handing out and settling, without a journal, links or processes.

    python benchmarks/micro/destination.py [--batch 512] [--size 1024] [--rounds 2000] [--consumers 1] [--keys 0]

The port keeps the newest records in memory and drops what is sent. A round is one STORE of a batch, one turn that
delivers it, and one SETTLE of what was delivered. Also told: what 10,000 idle queues take in memory.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

from fairlead.cluster.destination import Destination
from fairlead.cluster.parameters import Parameters
from fairlead.cluster.parties import Consumer, Line, Producer, Session
from fairlead.cluster.port import Bytes
from fairlead.wire.entry_codec import COMPILED, encode, encode_many

MANY = 1 << 50


class Port:
    """Everything is safe when `flush` is called."""

    def __init__(self) -> None:
        self.place = 0
        self.now_ms = 1_800_000_000_000
        self.index = 0
        self.records = [bytearray(2 << 20) for _ in range(8)]
        self.actions: list[Callable[[], None]] = []
        self.confirmed = 0
        self.delivered: list[tuple[Consumer, int]] = []

    def append(self, kind: int, head: bytes, payload: Bytes = b"") -> tuple[int, int]:
        self.index += 1
        if payload:
            self.place = (self.place + 1) % len(self.records)
            record = self.records[self.place]
            record[: len(head)] = head
            record[len(head) : len(head) + len(payload)] = payload
        return self.index, self.place

    def read(self, place: int, size: int) -> memoryview | None:
        return memoryview(self.records[place])[:size]

    def after(self, index: int, action: Callable[[], None], *, patient: bool = False) -> None:
        self.actions.append(action)

    def flush(self) -> None:
        actions, self.actions = self.actions, []
        for action in actions:
            action()

    def stored(self, producer: Producer, first: int, count: int, status: int, order: int, arrival_ms: int) -> None:
        self.confirmed += count

    def deliver(self, consumer: Consumer, pieces: Sequence[Bytes]) -> None:
        self.delivered.append((consumer, len(pieces)))

    def _nothing(self, *args: Any, **facts: Any) -> None: ...

    settled = notice = broadcast = find = ready = wake_at = event = large_kept = large_gone = _nothing


def measure(batch: int, size: int, rounds: int, consumers: int, keys: int) -> dict[str, float]:
    """Microseconds per batch in each step."""
    port = Port()
    queue = Destination(port, 1, bytes(20), "q", "queue", Parameters())  # type: ignore[arg-type]
    session = Session(bytes(20), 1, 1, "individual", Line(0, 0, 0), id_first=1, id_last=MANY)
    producer = Producer(1, session, queue)
    takers = [Consumer(2 + at, session, queue, messages=MANY, bytes=MANY) for at in range(consumers)]
    for taker in takers:
        queue.attach(taker)
    if keys:
        entries = b"".join(encode(bytes(size), key=b"%d" % (at % keys)) for at in range(batch))
    else:
        entries = encode_many([bytes(size)] * batch)
    view = memoryview(entries)
    spent = dict.fromkeys(("store", "safe", "deliver", "settle"), 0.0)
    clock = time.thread_time  # others may use the machine, too
    for at in range(rounds):
        first = at * batch + 1
        began = clock()
        queue.on_store(producer, first, 0, port.now_ms, first, view, 0)
        queue.turn()
        stored = clock()
        port.flush()
        safe = clock()
        while queue.turn():
            pass
        delivered = clock()
        for taker in takers:
            if consumers == 1:
                queue.on_settle(taker, [(first, first + batch, 0, 0)], 0, 1)
            else:
                share = queue.cursors[0].share_of(taker)
                items = [(low, high, 0, 0) for low, high in share.locked] if share else []
                queue.on_settle(taker, items, 0, 1)
        queue.turn()
        settled = clock()
        port.flush()
        for name, seconds in zip(
            spent, (stored - began, safe - stored, delivered - safe, settled - delivered), strict=True
        ):
            spent[name] += seconds
    assert queue.depth == 0
    assert port.confirmed == rounds * batch
    return {name: seconds / rounds * 1e6 for name, seconds in spent.items()}


def idle(count: int) -> float:
    """Bytes of one queue that nobody uses."""
    port = Port()
    tracemalloc.start()
    queues = [Destination(port, at, bytes(20), f"q{at}", "queue", Parameters()) for at in range(count)]  # type: ignore[arg-type]
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / len(queues)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--consumers", type=int, default=1)
    parser.add_argument("--keys", type=int, default=0)
    asked = parser.parse_args()
    found = measure(asked.batch, asked.size, asked.rounds, asked.consumers, asked.keys)
    whole = sum(found.values())
    print(f"entries {'compiled' if COMPILED else 'plain'}, batches of {asked.batch} messages of {asked.size} bytes")
    for name, microseconds in found.items():
        print(f"{name:>8} {microseconds:8.1f} us a batch")
    print(f"{'all':>8} {whole:8.1f} us a batch, {asked.batch / whole * 1e6:,.0f} messages/s")
    print(f"an idle queue takes {idle(10_000):,.0f} bytes")


if __name__ == "__main__":
    main()
