"""The processes of a measurement. Each connects, says READY, waits for GO, works, and prints what it saw as JSON.

Every message carries its number and the time it was sent; a receiver counts what was lost, doubled or out of order. A
shared board of counters keeps the publisher at most `ahead` messages before the slowest subscriber.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import fairlead

STAMP = struct.Struct("<QQ")  # number, monotonic ns
BATCH = 256
STALL_S = 5.0


class Board:
    """64-bit cells in a file that all processes of a measurement map; cell 0: sent + 1 once the sending is over."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self.cells = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")

    def slowest(self, receivers: int) -> int:
        return min(self.cells[1 : 1 + receivers])


async def publish(connection: Any, plan: dict[str, Any], board: Board) -> dict[str, Any]:
    body, topic, now = bytes(plan["size"] - STAMP.size), plan["topic"], time.monotonic_ns
    begin, end_ns, sent = now(), now() + int(plan["seconds"] * 1e9), 0
    moved_ns, slowest = begin, 0
    while now() < end_ns:
        room = min(BATCH, plan["ahead"] - (sent - board.slowest(plan["receivers"])))
        if room <= 0:
            if (seen := board.slowest(plan["receivers"])) != slowest:
                moved_ns, slowest = now(), seen
            if now() - moved_ns > STALL_S * 1e9:
                break
            await asyncio.sleep(0.0002)
            continue
        await connection.publish_many(topic, [STAMP.pack(n, now()) + body for n in range(sent, sent + room)])
        sent += room
    await connection.flush()
    board.cells[0] = sent + 1
    return {"sent": sent, "begin_ns": begin}


async def publish_at_rate(connection: Any, plan: dict[str, Any], board: Board) -> dict[str, Any]:
    body, now, rate = bytes(plan["size"] - STAMP.size), time.monotonic_ns, plan["rate"]
    begin, sent = now(), 0
    while (elapsed := now() - begin) < plan["seconds"] * 1e9:
        due = int(elapsed * rate / 1e9) + 1
        while sent < due:
            await connection.publish(plan["topic"], STAMP.pack(sent, now()) + body)
            sent += 1
        await asyncio.sleep(0.0002)
    await connection.flush()
    board.cells[0] = sent + 1
    return {"sent": sent, "begin_ns": begin}


async def subscribe(connection: Any, plan: dict[str, Any], board: Board) -> dict[str, Any]:
    subscription, cell, unpack, now = (
        connection.subscribe(plan["topic"]),
        plan["cell"],
        STAMP.unpack_from,
        time.monotonic_ns,
    )
    await subscription.start()
    await ready()
    received = wrong = expected = 0
    delays: list[int] = []
    timed, last_ns = plan.get("timed", False), now()

    async def receive() -> None:
        nonlocal received, wrong, expected, last_ns
        async for batch in subscription.batches():
            for message in batch:
                number, stamp = unpack(message.body)
                wrong += number != expected
                expected = number + 1
                if timed:
                    delays.append(now() - stamp)
            received += len(batch)
            board.cells[1 + cell] = received
            last_ns = now()

    task = asyncio.create_task(receive())
    while not board.cells[0] or (received < board.cells[0] - 1 and now() - last_ns < STALL_S * 1e9):
        await asyncio.sleep(0.01)
    task.cancel()
    return {"received": received, "out_of_order": wrong, "end_ns": last_ns, "delays": spread(delays)}


async def request(connection: Any, plan: dict[str, Any], board: Board) -> dict[str, Any]:
    body, now, end_ns = bytes(plan["size"]), time.monotonic_ns, time.monotonic_ns() + int(plan["seconds"] * 1e9)
    delays: list[int] = []

    async def lane() -> None:
        while now() < end_ns:
            start = now()
            await connection.request(plan["topic"], body, timeout=10)
            delays.append(now() - start)

    begin = now()
    await asyncio.gather(*(lane() for _ in range(plan["outstanding"])))
    board.cells[0] = 1
    return {"sent": len(delays), "begin_ns": begin, "end_ns": now(), "delays": spread(delays)}


async def respond(connection: Any, plan: dict[str, Any], board: Board) -> dict[str, Any]:
    await connection.respond(plan["topic"], lambda message: message.body)
    await ready()
    while not board.cells[0]:
        await asyncio.sleep(0.01)
    return {}


def spread(values_ns: list[int]) -> dict[str, float]:
    """Percentiles in microseconds."""
    if not values_ns:
        return {}
    values = sorted(values_ns)

    def at(q: float) -> float:
        return round(values[min(len(values) - 1, int(q * len(values)))] / 1000, 1)

    return {"p50_us": at(0.5), "p99_us": at(0.99), "p999_us": at(0.999), "max_us": at(1.0)}


async def ready() -> None:
    print("READY", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


Role = Callable[[Any, dict[str, Any], Board], Awaitable[dict[str, Any]]]
ROLES: dict[str, Role] = {
    "publish": publish,
    "publish_at_rate": publish_at_rate,
    "subscribe": subscribe,
    "request": request,
    "respond": respond,
}
WAITS_ITSELF = ("subscribe", "respond")


async def work(plan: dict[str, Any]) -> None:
    async with fairlead.connect(plan["url"], type="bench") as connection:
        if plan["role"] not in WAITS_ITSELF:
            await ready()
        report = await ROLES[plan["role"]](connection, plan, Board(plan["board"]))
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    try:
        import uvloop

        uvloop.run(work(json.loads(sys.argv[1])))
    except ImportError:
        asyncio.run(work(json.loads(sys.argv[1])))
