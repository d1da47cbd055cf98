"""What spans cost a program, per message: processor time of the client, with a real server on this machine.

    python benchmarks/tracing/cost.py [--count 20000] [--rounds 5] [--json FILE]

`off` is a connection without tracing, as most are. `dropped` has a tracer provider whose sampler records nothing: the
context is carried all the same. `spans` records every span and drops it: what is left is the SDK's making of spans and
ours. `span alone` is a span with the attributes of a send, made and ended by the SDK, without us. The best of all
rounds counts, since other programs only ever add to it. Run it on a tree from before tracing, and `off` is what was
before: the option `tracing` is left out where `connect` does not know it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import fairlead
from fairlead.testing import Server

BODY = b"x" * 100
KINDS = ("off", "dropped", "spans")
Work = Callable[[fairlead.Connection, int], Awaitable[None]]


def provider(kind: str) -> Any:
    if kind == "off":
        return False
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

    return TracerProvider(sampler=ALWAYS_ON if kind == "spans" else ALWAYS_OFF)


async def publish(connection: fairlead.Connection, count: int) -> None:
    for _ in range(count):
        await connection.publish("bench.nobody", BODY)
    await connection.flush()


async def publish_many(connection: fairlead.Connection, count: int) -> None:
    await connection.publish_many("bench.nobody", [BODY] * count)
    await connection.flush()


async def send(connection: fairlead.Connection, count: int) -> None:
    async with connection.queue("bench.send").sender() as sender:
        for _ in range(count):
            await sender.send(BODY)


async def send_many(connection: fairlead.Connection, count: int) -> None:
    await connection.queue("bench.send").send_many([BODY] * count)


async def process(connection: fairlead.Connection, count: int) -> None:
    """What `send` has sent."""
    done = 0
    async for message in connection.queue("bench.send").consume(prefetch=1000):
        async with message.process():
            done += 1
        if done == count:
            return


async def request(connection: fairlead.Connection, count: int) -> None:
    for _ in range(count // 10):
        await connection.request("bench.ask", BODY, timeout=30)


WORKS: dict[str, tuple[Work, float]] = {
    "publish": (publish, 1),
    "publish_many": (publish_many, 1),
    "send": (send, 1),
    "process": (process, 1),
    "send_many": (send_many, 1),
    "process again": (process, 1),
    "request": (request, 0.1),
}


async def measure(url: str, count: int, kind: str) -> dict[str, float]:
    options = {} if kind == "off" else {"tracing": provider(kind)}
    if kind == "off" and hasattr(fairlead, "tracing"):
        options = {"tracing": False}
    found: dict[str, float] = {}
    async with fairlead.connect(url, **options) as connection, fairlead.connect(url) as other:
        await other.respond("bench.ask", lambda request: b"answer")
        for name, (work, part) in WORKS.items():
            begun_s = time.process_time()
            await work(connection, count)
            found[name] = (time.process_time() - begun_s) / (count * part) * 1e6
    return found


def span_alone(count: int) -> float:
    from opentelemetry.trace import SpanKind

    tracer = provider("spans").get_tracer("bench")
    attributes = {
        "messaging.system": "fairlead",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "bench.send",
    }
    begun_s = time.process_time()
    for _ in range(count):
        span = tracer.start_span("send bench.send", kind=SpanKind.PRODUCER, attributes=attributes)
        span.set_attribute("messaging.message.body.size", 100)
        span.set_attribute("messaging.message.id", "7f000001000000010cf11d890200000040000002")
        span.end()
    return (time.process_time() - begun_s) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    kinds = KINDS if hasattr(fairlead, "tracing") else KINDS[:1]
    best: dict[str, dict[str, float]] = {kind: {} for kind in kinds}
    with Server(managers=1) as server:
        for _ in range(asked.rounds):
            for kind in kinds:
                for name, cost_us in asyncio.run(measure(server.url, asked.count, kind)).items():
                    best[kind][name] = min(best[kind].get(name, cost_us), cost_us)
    print(f"{'µs of the client per message':30}" + "".join(f"{kind:>10}" for kind in kinds))
    for name in WORKS:
        print(f"{name:30}" + "".join(f"{best[kind][name]:10.2f}" for kind in kinds))
    alone_us = min(span_alone(asked.count) for _ in range(asked.rounds)) if len(kinds) > 1 else 0.0
    print(f"{'span alone':30}{alone_us:10.2f}")
    if asked.json:
        asked.json.write_text(json.dumps({"us_per_message": best, "span_alone_us": alone_us}, indent=2) + "\n")


if __name__ == "__main__":
    main()
