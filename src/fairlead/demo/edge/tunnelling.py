"""A client that reaches the server through nothing but an HTTP proxy, which cuts its connections in the middle."""

from __future__ import annotations

import asyncio
import time

from fairlead.demo.books import percentiles
from fairlead.demo.edge.load import Flow, Parties
from fairlead.demo.edge.proxy import HttpOnlyProxy
from fairlead.demo.edge.stage import PATIENCE_S, Stage
from fairlead.demo.findings import Chart, Findings, Mark
from fairlead.demo.words import counted, spell
from fairlead.errors import FairleadError
from fairlead.tunnel import TunnelOptions

__all__ = ["run"]

MESSAGES, RATE = 6_000, 2_000.0
CUTS = (0.35, 0.65)


def run(stage: Stage) -> Findings:
    return asyncio.run(_run(stage))


async def _run(stage: Stage) -> Findings:
    server = stage.server()
    marks: list[Mark] = []
    async with HttpOnlyProxy() as proxy, Parties() as parties:
        stage.say("a client tries the proxy without a tunnel")
        refused = await _is_refused(parties, proxy)
        stage.say("a client connects through the proxy")
        receiver = await parties.connect(
            server.url.replace("fairlead://", "http://"), "tour-inside", tunnel=TunnelOptions(proxy=proxy.url)
        )
        sender = await parties.connect(server.url, "tour-outside")
        flow = Flow(sender, receiver, "tour.tunnel", stage.say)

        async def cut() -> None:
            for part in CUTS:
                while flow.book.received < part * MESSAGES:
                    await asyncio.sleep(0.005)
                marks.append(Mark(time.monotonic() - flow.began_s, "connections cut"))
                await proxy.cut_all()

        await asyncio.wait_for(flow.run(MESSAGES, RATE, cut), 2 * PATIENCE_S)
        disconnected, requests, cuts = parties.disconnected, proxy.requests, proxy.cut
    count = flow.book.count("through HTTP", flow.sent, disconnected)
    pause = flow.book.pause(marks[0].at_s, marks[-1].at_s + 1.0, "longest silence")
    delays = percentiles(flow.book.delays_s)
    return Findings(
        said=[
            "without a tunnel the proxy lets nobody through" if refused else "the proxy let a plain connection through",
            f"with one: {requests:,} HTTP requests, {cuts} connections cut under them; half of the messages took less "
            f"than {spell(delays.get('p50', 0.0))}",
            counted(count),
        ],
        counts=[count],
        charts=[
            Chart(title="Messages a second behind the proxy", curves=[flow.book.curve("received")],
                  marks=marks, pauses=[pause]),
        ],
        latencies={"broadcast through an HTTP proxy": delays},
        checks={
            "the proxy refuses what is not HTTP": refused,
            "everything went in HTTP requests": requests > 0,
            "connections were cut": cuts > 0,
        },
    )  # fmt: skip


async def _is_refused(parties: Parties, proxy: HttpOnlyProxy) -> bool:
    try:
        await parties.connect(f"fairlead://127.0.0.1:{proxy.port}", "tour-plain", connect_timeout_s=2, reconnect=False)
    except (FairleadError, OSError):
        return True
    return False
