"""Broadcast, request and queue: the three ways in which most programs talk."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import fairlead
from fairlead.demo.books import Book, percentiles
from fairlead.demo.edge.load import Flow, Parties, QueueFlow
from fairlead.demo.edge.stage import PATIENCE_S, Stage
from fairlead.demo.findings import Findings
from fairlead.demo.words import counted, spell

__all__ = ["run"]

BROADCASTS, BROADCAST_RATE = 4_000, 4_000.0
REQUESTS = 400
QUEUED, QUEUE_RATE = 2_000, 2_000.0


def run(stage: Stage) -> Findings:
    return asyncio.run(_run(stage))


async def _run(stage: Stage) -> Findings:
    url = stage.server().url
    async with Parties() as parties:
        one, other = await parties.connect(url, "tour-1"), await parties.connect(url, "tour-2")
        broadcast = Flow(one, other, "tour.hello", stage.say)
        await broadcast.run(BROADCASTS, BROADCAST_RATE)
        answers, served = await _requests(parties, url, one, stage)
        queue = QueueFlow(one, other, "tour.first", stage.say)
        await queue.run(QUEUED, QUEUE_RATE)
        disconnected = parties.disconnected
    counts = [
        broadcast.book.count("broadcast", broadcast.sent),
        answers.count("requests", REQUESTS),
        queue.book.count("queue", queue.confirmed.received),
    ]
    delays = {
        "broadcast, one way": percentiles(broadcast.book.delays_s),
        "request and answer": percentiles(answers.delays_s),
        "queue, sent to received": percentiles(queue.book.delays_s),
    }
    return Findings(
        said=[
            *(counted(count) for count in counts),
            f"half of them took less than {spell(delays['broadcast, one way']['p50'])} (broadcast), "
            f"{spell(delays['request and answer']['p50'])} (request and answer), "
            f"{spell(delays['queue, sent to received']['p50'])} (queue, on disk)",
            f"the requests were served by {len(served)} programs: {' and '.join(map(str, served.values()))}",
        ],
        counts=counts,
        latencies=delays,
        checks={
            "nobody was disconnected": disconnected == 0,
            "all queued messages were confirmed": queue.confirmed.has_all(QUEUED),
            "both programs served requests": len(served) == 2,
        },
    )


async def _requests(
    parties: Parties, url: str, asker: fairlead.Connection, stage: Stage
) -> tuple[Book, Counter[int]]:  # fmt: skip
    """Numbered requests, one after the other, to two programs that double a number; who served how many."""
    for name in ("tour-doubler-1", "tour-doubler-2"):
        doubler = await parties.connect(url, name)
        await doubler.respond("tour.double", lambda request: str(2 * int(request.body)))
    book, served = Book(), Counter[int]()
    for number in range(REQUESTS):
        asked_s = time.monotonic()
        answer = await asker.request("tour.double", str(number), timeout=PATIENCE_S)
        served[answer.sender] += 1
        book.enter(int(answer.body) // 2, time.monotonic(), sent_s=asked_s)
        stage.say(f"{number + 1:,} of {REQUESTS:,} requests")
    return book, served
