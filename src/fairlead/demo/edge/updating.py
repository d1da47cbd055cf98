"""The router is replaced while messages flow through it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fairlead.demo.books import percentiles
from fairlead.demo.edge.load import Flow, Parties
from fairlead.demo.edge.stage import Stage
from fairlead.demo.findings import Chart, Findings, Mark
from fairlead.demo.words import counted, spell

__all__ = ["run"]

MESSAGES, RATE = 20_000, 5_000.0
AFTER = 0.4
"""The update begins when this part of the messages is sent."""


def run(stage: Stage) -> Findings:
    return asyncio.run(_run(stage))


async def _run(stage: Stage) -> Findings:
    server = stage.server()
    before = server.pids("router")
    marks: list[Mark] = []
    records: list[dict[str, Any]] = []
    async with Parties() as parties:
        sender, receiver = await parties.connect(server.url, "tour-1"), await parties.connect(server.url, "tour-2")
        flow = Flow(sender, receiver, "tour.load", stage.say)

        async def update() -> None:
            while flow.sent < AFTER * MESSAGES:
                await asyncio.sleep(0.005)
            marks.append(Mark(time.monotonic() - flow.began_s, "fairlead update router"))
            answer = await asyncio.to_thread(server.update, "router")
            marks.append(Mark(time.monotonic() - flow.began_s, "done"))
            records.extend(answer.get("updates", ()))

        await flow.run(MESSAGES, RATE, update)
        disconnected = parties.disconnected
    after = server.pids("router")
    count = flow.book.count("under load", flow.sent, disconnected)
    outcome: dict[str, Any] = records[-1] if records else {"outcome": "no answer", "pause_ms": 0.0}
    pause = flow.book.pause(marks[0].at_s, marks[-1].at_s, "longest silence")
    delays = percentiles(flow.book.delays_s)
    return Findings(
        said=[
            f"router: process {before[0]} -> process {after[0]}, {outcome['outcome']}",
            f"it routed nothing for {spell(outcome['pause_ms'] / 1000)}; longest silence at the subscriber "
            f"meanwhile: {spell(pause.length_s)}",
            counted(count),
        ],
        counts=[count],
        charts=[
            Chart(title="Messages a second at the subscriber", curves=[flow.book.curve("received")],
                  marks=marks, pauses=[pause]),
        ],
        latencies={"broadcast during the update": delays},
        checks={"the update was carried out": outcome["outcome"] == "done", "another process routes": before != after},
    )  # fmt: skip
