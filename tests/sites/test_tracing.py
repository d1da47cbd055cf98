"""The trace context of messages that cross a link between sites, broadcast or stored."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

import fairlead
from tests.sites.tools import answered, reached, started
from tests.spans import Tracer, is_child

pytestmark = pytest.mark.processes


def has_consumers(report: dict[str, Any], count: int) -> bool:
    return int(report["messages"]["consumers"]) >= count


async def test_links_carry_the_trace_of_what_they_carry() -> None:
    settings = {"messages.enabled": "true", "links.durable": "orders.>"}
    tracer = Tracer()
    with started({"root": [], "leaf": ["root"]}, settings=settings) as servers:
        async with (
            fairlead.connect(servers["leaf"].url, tracing=tracer.provider) as below,
            fairlead.connect(servers["root"].url, tracing=tracer.provider) as above,
        ):
            for client in (below, above):
                await client.topic("orders.eu").send("first")  # so that the topic is there
            async with above.topic("orders.eu").subscribe("reader") as reader, above.subscribe("news") as news:
                for server, count in ((servers["root"], 2), (servers["leaf"], 1)):  # the reader, and the link's own
                    await asyncio.to_thread(server.wait_until, partial(has_consumers, count=count), 30)
                await reached(below, "news", news)
                tracer.exporter.clear()
                await below.publish("news", b"hello")
                message = await news.next(timeout=30)
                with fairlead.tracing.process(message, tracing=tracer.provider):
                    pass
                await below.topic("orders.eu").send("crossing")
                while (stored := await reader.receive(timeout=30)) is not None and stored.text() != "crossing":
                    stored.ack()
                assert stored is not None
                async with stored.process():
                    pass
                await above.respond("ask", lambda request: b"ok")
                await answered(lambda: below.request("ask", timeout=5))
                await tracer.wait_for("respond ask")
    assert is_child(tracer.one("process news"), tracer.one("publish news"))
    assert is_child(tracer.one("process orders.eu"), tracer.one("send orders.eu"))
    assert is_child(tracer.spans("respond ask")[-1], tracer.spans("request ask")[-1])
