"""A link that is cut keeps what goes up for a while; a server that is lost takes its receivers with it."""

from __future__ import annotations

import asyncio

import pytest

import fairlead
from fairlead import errors
from tests.sites.tools import Relay, Servers, are_up, clients, free_ports, reached, started, until

pytestmark = pytest.mark.processes


@pytest.mark.requirement("SRV-122")
async def test_a_cut_link_keeps_broadcasts_and_goes_on_where_it_was() -> None:
    [port] = free_ports(1)
    relay = Relay(port)
    try:
        with started({"leaf": ["root"], "root": []}, via={("leaf", "root"): relay.port}, ports={"root": port}) as two:
            await cut_and_mend(two, relay)
            await lost_with_its_receivers(two)
    finally:
        relay.close()


async def cut_and_mend(servers: Servers, relay: Relay) -> None:
    async with (
        clients(servers["leaf"], servers["root"]) as [below, above],
        above.subscribe("up.>") as up,
        below.subscribe("down.>") as down,
    ):
        await reached(below, "up.probe", up)
        await reached(above, "down.probe", down)
        relay.cut()
        servers["leaf"].wait_until(lambda report: report["links"][0]["state"] == "held")
        for number in range(500):
            await below.publish("up.numbers", str(number))
        await below.flush()
        servers["leaf"].wait_until(lambda report: report["links"][0]["queued"] == 500)
        relay.mend()
        assert [int((await up.next(10)).body) for _ in range(500)] == list(range(500))
        await reached(above, "down.probe", down)
        report = servers["leaf"].wait_until(lambda report: are_up(report, 1))
        assert report["links"][0]["dropped"] == 0


async def lost_with_its_receivers(servers: Servers) -> None:
    leaf, root = servers["leaf"], servers["root"]
    async with clients(root) as [asker]:
        worker = await fairlead.connect([leaf.url, root.url], connect_timeout_s=2)
        await worker.respond("work", lambda request: worker.server.encode())
        first = await served(asker)
        assert first in (leaf.status()["server_id"].encode(), root.status()["server_id"].encode())
        helper = await fairlead.connect(leaf.url, reconnect=False)
        await helper.respond("only.there", lambda request: b"yes")
        await until_true(asker, "only.there")
        await asyncio.to_thread(leaf.kill_everything)
        loop = asyncio.get_running_loop()
        lost_s = loop.time()
        await until(lambda: worker.connected and worker.server == root.status()["server_id"])
        assert await served(asker) == root.status()["server_id"].encode()
        assert loop.time() - lost_s < 10
        with pytest.raises(errors.NoReceiver):
            await asker.request("only.there", timeout=5)
        await helper.close()
        await worker.close()


async def served(asker: fairlead.Connection) -> bytes:
    while True:
        try:
            return (await asker.request("work", timeout=5)).body
        except errors.FairleadError:
            await asyncio.sleep(0.05)


async def until_true(asker: fairlead.Connection, topic: str) -> None:
    while True:
        try:
            await asker.request(topic, timeout=5)
            return
        except errors.NoReceiver:
            await asyncio.sleep(0.05)
