"""Client managers of one cluster, joined by links: what is not stored reaches clients of all of them, once."""

from __future__ import annotations

import asyncio

import pytest

import fairlead
from fairlead.testing import Cluster

pytestmark = pytest.mark.nodes
WAIT_S = 20


@pytest.mark.requirement("SRV-117", scaled="broadcasts and requests between two client managers of a cluster")
async def test_what_is_not_stored_reaches_clients_of_every_client_manager() -> None:
    with Cluster(cms=2, groups=1, backups=0, links=True) as cluster:
        one, two = cluster.urls()
        async with (
            fairlead.connect(one, name="one") as left,
            fairlead.connect(two, name="two") as right,
            right.subscribe("news.>") as news,
        ):
            await right.respond("double", lambda request: request.body * 2)
            async with asyncio.timeout(WAIT_S):  # until the word of it has come over the link
                while True:
                    try:
                        assert (await left.request("double", b"ab", timeout=1)).body == b"abab"
                        break
                    except fairlead.FairleadError:
                        await asyncio.sleep(0.05)
            heard: list[bytes] = []

            async def listen() -> None:
                async for message in news:
                    heard.append(message.body)

            listening = asyncio.create_task(listen())
            async with asyncio.timeout(WAIT_S):
                while b"ready" not in heard:
                    await left.publish("news.ready", b"ready")
                    await asyncio.sleep(0.05)
            await left.admin.create(destination="news.kept", kind="topic")
            for number in range(20):
                await left.publish("news.plain", b"plain %d" % number)
                await left.topic("news.kept").send(b"kept %d" % number)
            async with asyncio.timeout(WAIT_S):
                while sum(body.startswith(b"kept") for body in heard) < 20 or b"plain 19" not in heard:
                    await asyncio.sleep(0.02)
            await asyncio.sleep(0.3)  # a second copy would come by now
            listening.cancel()
        assert [body for body in heard if body.startswith(b"plain")] == [b"plain %d" % n for n in range(20)]
        assert [body for body in heard if body.startswith(b"kept")] == [b"kept %d" % n for n in range(20)]
