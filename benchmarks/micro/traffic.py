"""How fast one connection manager's engine takes messages in and hands them out, without a router or a network.

    python benchmarks/micro/traffic.py [--pure] [--size 128] [--count 200000] [--recipients 1]

A client on a socketpair sends, the engine takes the messages into the up ring, a stand-in for the router turns every
entry into an instruction, the engine delivers. Only the engine's turns are timed; clients and stand-in are not.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.broker.rig import PUBLISH, Rig, frame

BATCH = 500


def measure(rig: Rig, size: int, count: int, recipients: int) -> tuple[float, float]:
    """Seconds in intake and in delivery."""
    sender = rig.live()
    receivers = [rig.live() for _ in range(recipients)]
    batch = frame(PUBLISH, topic=b"prices.eur.usd", body=bytes(size)) * BATCH
    intake_s = delivery_s = 0.0
    for _ in range(count // BATCH):
        unsent, entries = batch, []
        while len(entries) < BATCH:
            try:
                unsent = unsent[sender.send(unsent) :] if unsent else b""
            except BlockingIOError:
                pass
            began = time.perf_counter()
            rig.traffic.turn(0)
            intake_s += time.perf_counter() - began
            entries += rig.pop()
        for entry in entries:
            rig.deliver(entry, *receivers)
        expected = rig.statistics()["instructions"] + BATCH
        while True:
            began = time.perf_counter()
            rig.traffic.turn(0)
            delivery_s += time.perf_counter() - began
            for receiver in receivers:
                receiver.read()
                receiver.received.clear()
            found = rig.statistics()
            if found["instructions"] >= expected and not found["open_instructions"]:
                break
    assert rig.stored() == 0
    return intake_s, delivery_s


def engine(pure: bool) -> tuple[type[Any], Any]:
    if pure:
        from types import SimpleNamespace

        from fairlead.broker.edge.traffic import Traffic as Plain
        from fairlead.store import arena, ring

        return Plain, SimpleNamespace(Arena=arena.Arena, Consumer=ring.Consumer, Producer=ring.Producer)
    from fairlead.broker.edge._traffic import Traffic
    from fairlead.store import _store

    return Traffic, _store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pure", action="store_true")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--recipients", type=int, default=1)
    options = parser.parse_args()
    rig = Rig(*engine(options.pure), ring=1 << 22, blocks=1024)
    intake_s, delivery_s = measure(rig, options.size, options.count, options.recipients)
    rig.close()
    deliveries = options.count * options.recipients
    print(f"{options.size} B, {options.count:,} messages, {options.recipients} recipients")
    print(f"intake    {options.count / intake_s:12,.0f} messages/s  {intake_s / options.count * 1e9:8,.0f} ns each")
    print(f"delivery  {deliveries / delivery_s:12,.0f} deliveries/s {delivery_s / deliveries * 1e9:8,.0f} ns each")


if __name__ == "__main__":
    main()
