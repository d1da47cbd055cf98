"""Client managers of one cluster as brokers: their queues are the same, so nothing is carried between them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import fairlead
from fairlead.directory.edge.client import DirectoryClient
from fairlead.runtime.admin import answer_of
from fairlead.testing.cluster import Cluster

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(240)]


def broker_facts(cluster: Cluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = answer_of(cluster.directory / name / "data" / "run", "status")["status"]["registrar"]
    return found


@pytest.mark.requirement("DIR-73", state="half", note="between brokers that share their queues")
def test_brokers_of_one_cluster_share_the_queues_of_applications() -> None:
    cluster = Cluster(cms=2, groups=1, backups=0, settings={"directory": {"serve": True}})
    servers = cluster.url.replace("fairlead://", "fairlead+directory://")
    for name in ("cm1", "cm2"):
        with open(cluster.directory / name / "node.toml", "a") as file:
            file.write(f'\n[directory]\nservers = "{servers}"\nname = "{name}"\nclusters = ["{name}-alone"]\n')

    async def main() -> None:
        async with DirectoryClient(servers) as directory, asyncio.timeout(120):
            while len((await directory.list_brokers()).brokers) < 2:
                await asyncio.sleep(0.1)
            stores = {row.store for row in (await directory.list_brokers()).brokers}
            assert len(stores) == 1
            async with (
                fairlead.connect(f"{servers}/cm1-alone", name="AX") as sender,
                fairlead.connect(f"{servers}/cm2-alone", name="AZ") as receiver,
            ):
                assert (sender.broker, receiver.broker) == ("cm1", "cm2")
                receipt = await sender.send_to("AZ", "hello")
                assert receipt is not None
                assert receipt.destination == "app.AZ"
                async with receiver.application() as inbox:
                    message = await inbox.receive(30)
                    assert message is not None
                    assert message.text() == "hello"
                    await message.ack()

    with cluster:
        asyncio.run(main())
        for name in ("cm1", "cm2"):
            facts = broker_facts(cluster, name)
            assert facts["registered"]
            assert facts["carrying"]["carried"] == 0
            assert facts["carrying"]["brokers"] == {}
