"""A cluster of two nodes with a copy of everything each; the one that leads loses all its processes at once."""

from __future__ import annotations

import asyncio
import time

from fairlead.demo.books import percentiles
from fairlead.demo.edge.load import Parties, QueueFlow
from fairlead.demo.edge.stage import PATIENCE_S, Stage
from fairlead.demo.findings import Chart, Findings, Mark
from fairlead.demo.words import counted, spell
from fairlead.testing import Cluster

__all__ = ["run"]

GROUP = "a"
MESSAGES, RATE = 6_000, 2_000.0
AFTER = 0.4


def run(stage: Stage) -> Findings:
    stage.say("the nodes of the cluster start")
    began_s = time.monotonic()
    cluster = Cluster(cms=1, groups=1, backups=1, directory=stage.place.directory / "cluster")
    for node in cluster.nodes:
        stage.place.watch(cluster.data(node))
    with cluster:
        cluster.wait_in_sync(GROUP, 2, PATIENCE_S)
        return asyncio.run(_run(stage, cluster, time.monotonic() - began_s))


async def _run(stage: Stage, cluster: Cluster, ready_s: float) -> Findings:
    victim = cluster.primary(GROUP)
    marks: list[Mark] = []
    async with Parties() as parties:
        sender, receiver = await parties.connect(cluster.url, "tour-1"), await parties.connect(cluster.url, "tour-2")
        flow = QueueFlow(sender, receiver, "tour.orders", stage.say)

        async def kill() -> None:
            while flow.confirmed.received < AFTER * MESSAGES:
                await asyncio.sleep(0.005)
            marks.append(Mark(time.monotonic() - flow.began_s, f"power off: {victim}"))
            await asyncio.to_thread(cluster.kill, victim)

        await flow.run(MESSAGES, RATE, kill)
        disconnected = parties.disconnected
    leads = cluster.primary(GROUP)
    count = flow.book.count("queue in the cluster", flow.confirmed.received, disconnected)
    pause = flow.confirmed.pause(marks[0].at_s, marks[0].at_s + PATIENCE_S, "nothing confirmed")
    return Findings(
        said=[
            f"nodes {', '.join(cluster.nodes)}, in sync after {spell(ready_s)}",
            f"node {victim} lost all its processes after {marks[0].at_s:.1f} s, {leads} leads now; "
            f"nothing was confirmed for {spell(pause.length_s)}",
            counted(count),
        ],
        counts=[count],
        charts=[
            Chart(title="Messages a second", curves=[flow.confirmed.curve("confirmed"), flow.book.curve("received")],
                  marks=marks, pauses=[pause]),
        ],
        latencies={"queue in a cluster, with a failover in it": percentiles(flow.book.delays_s)},
        checks={
            "everything was confirmed in the end": flow.confirmed.has_all(MESSAGES),
            "the other node leads": bool(leads) and leads != victim,
        },
    )  # fmt: skip
