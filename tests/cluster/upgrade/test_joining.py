"""Nodes, members, groups and voters come and go while clients work: no error, no event, nothing lost (CLU-8)."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

import fairlead
from fairlead.cluster.configuration.documents import to_toml
from fairlead.cluster.configuration.edge.files import write_file
from fairlead.cluster.configuration.types import Kind, NodeConfig
from fairlead.runtime.local_cluster import free_ports
from fairlead.runtime.settings import Server
from fairlead.testing.cluster import Cluster
from tests.cluster.upgrade.load import Load, queues_by_group


def prepare(cluster: Cluster, name: str, kind: Kind) -> None:
    """The files of a node that was not there when the cluster began."""
    home = cluster.directory / name
    for file in ("cluster.toml", "settings.toml"):
        write_file(home / file, (cluster.directory / "mm1" / file).read_bytes())
    bus, client = free_ports(2)
    seeds = [address for other in cluster.nodes for address in cluster.local.files(other).node.buses.values()]
    server = Server(listen=[f"127.0.0.1:{client}"]) if kind == "cm" else Server()
    node = NodeConfig(
        name=name, kind=kind, data="data", buses={"main": f"127.0.0.1:{bus}"}, seeds={"main": seeds}, server=server
    )
    write_file(home / "node.toml", to_toml(node).encode())


def command(cluster: Cluster, *words: str) -> None:
    """A `fairlead cluster` command."""
    full = [sys.executable, "-m", "fairlead", "cluster", *words, "--data", str(cluster.directory)]
    done = subprocess.run(full, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.requirement("CLU-8", "CLU-10", half="CLU-10: what is added is not lost again")
@pytest.mark.requirement("CLU-87", half="a new group; names that exist stay where they are")
def test_nodes_come_and_go_under_load() -> None:
    with Cluster(cms=2, groups=2, managers=1, settings={"messages": {"segment_bytes": 4 << 20}}) as cluster:
        for group in ("a", "b"):
            cluster.wait_in_sync(group, 2)
        asyncio.run(_come_and_go(cluster))


async def _come_and_go(cluster: Cluster) -> None:
    async with Load(cluster, transient=False) as load:
        await load.grows()
        await load.during(_add_client_manager, cluster)
        async with fairlead.connect(cluster.urls()[2]) as third:
            before = await queues_by_group(third, each=2, prefix="old")
            for step in (_grow, _vote, _shrink, _third_group):
                await load.during(step, cluster)
                await load.grows(5)
        async with fairlead.connect(cluster.urls()[2]) as third:
            assert sorted(await queues_by_group(third, each=1, prefix="new", groups=3)) == ["a", "b", "c"]
            assert await queues_by_group(third, each=2, prefix="old") == before
        await load.during(cluster.stop, "cm3")
        await load.finish()


def _add_client_manager(cluster: Cluster) -> None:
    prepare(cluster, "cm3", "cm")
    cluster.start("cm3")
    cluster.wait_serving()


def _grow(cluster: Cluster) -> None:
    prepare(cluster, "mm3", "mm")
    cluster.start("mm3")
    cluster.wait_serving()
    command(cluster, "grow", "a", "mm3")
    cluster.wait_in_sync("a", 3)


def _vote(cluster: Cluster) -> None:
    command(cluster, "add-voter", "mm3")
    assert any(vote.startswith("mm3.") for vote in _votes(cluster, "a"))
    command(cluster, "remove-voter", "cm1", "--yes")
    assert not any(vote.startswith("cm1.") for vote in _votes(cluster, "a"))


def _votes(cluster: Cluster, group: str) -> list[str]:
    return list(next(one for one in cluster.status()["groups"] if one["group"] == group)["votes"])


def _shrink(cluster: Cluster) -> None:
    leader = cluster.primary("a")
    command(cluster, "shrink", "a", leader, "--yes")
    cluster.wait_until(lambda: cluster.primary("a") not in ("", leader), f"{leader} does not lead a")
    cluster.wait_in_sync("a", 2)


def _third_group(cluster: Cluster) -> None:
    command(cluster, "grow", "c", "mm3")
    cluster.wait_until(lambda: cluster.primary("c") == "mm3", "mm3 leads c")
    command(cluster, "grow", "c", "mm1")
    cluster.wait_in_sync("c", 2)
