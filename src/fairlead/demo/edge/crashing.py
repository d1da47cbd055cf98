"""The message manager gets a `kill -9` while a queue is in use; then every message is counted by its number."""

from __future__ import annotations

import asyncio
import time

from fairlead.demo.books import percentiles
from fairlead.demo.edge.load import Parties, QueueFlow
from fairlead.demo.edge.stage import PATIENCE_S, Stage
from fairlead.demo.findings import Chart, Findings, Mark
from fairlead.demo.words import counted, spell

__all__ = ["run"]

ROLE = "message-manager"
MESSAGES, RATE = 9_000, 3_000.0
AFTER = 0.4
"""The kill comes when this part of the messages is confirmed."""


def run(stage: Stage) -> Findings:
    return asyncio.run(_run(stage))


async def _run(stage: Stage) -> Findings:
    server = stage.server()
    marks: list[Mark] = []
    killed = 0
    async with Parties() as parties:
        sender, receiver = await parties.connect(server.url, "tour-1"), await parties.connect(server.url, "tour-2")
        flow = QueueFlow(sender, receiver, "tour.orders", stage.say)

        async def kill() -> None:
            nonlocal killed
            while flow.confirmed.received < AFTER * MESSAGES:
                await asyncio.sleep(0.005)
            marks.append(Mark(time.monotonic() - flow.began_s, "kill -9"))
            killed = await asyncio.to_thread(server.kill, ROLE)

        await flow.run(MESSAGES, RATE, kill)
        disconnected = parties.disconnected
    successor = server.pids(ROLE)
    count = flow.book.count("queue", flow.confirmed.received, disconnected)
    pause = flow.confirmed.pause(marks[0].at_s, marks[0].at_s + PATIENCE_S, "nothing confirmed")
    return Findings(
        said=[
            f"{ROLE}: process {killed} killed after {marks[0].at_s:.1f} s, process {successor[0]} goes on",
            f"{flow.confirmed.received:,} of {MESSAGES:,} confirmed; nothing was confirmed for {spell(pause.length_s)}",
            counted(count),
        ],
        counts=[count],
        charts=[
            Chart(title="Messages a second", curves=[flow.confirmed.curve("confirmed"), flow.book.curve("received")],
                  marks=marks, pauses=[pause]),
        ],
        latencies={"queue, with a crash in it": percentiles(flow.book.delays_s)},
        checks={
            "everything was confirmed in the end": flow.confirmed.has_all(MESSAGES),
            "another process keeps the queues": [killed] != successor,
        },
    )  # fmt: skip
