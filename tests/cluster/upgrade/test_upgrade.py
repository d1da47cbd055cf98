"""Planned changes under load: hand-overs and the rolling update. Clients wait for a moment, and notice nothing else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fairlead.testing.cluster import Cluster
from tests.cluster.upgrade.load import Load

PAUSE_S = 10.0  # on a machine as busy as it may be; benchmarks say what is usual


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(cms=2, groups=2, managers=2, settings={"messages": {"segment_bytes": 4 << 20}}) as made:
        whole(made)
        yield made


def whole(cluster: Cluster) -> None:
    for group in cluster.local.groups():
        cluster.wait_in_sync(group, 2)


async def hand_over(cluster: Cluster, load: Load, times: int) -> list[float]:
    """In turn; the longest pause of confirms in each."""
    pauses = []
    for number in range(times):
        group = cluster.local.groups()[number % 2]
        (target,) = await asyncio.to_thread(cluster.backups, group)
        pauses.append(await load.during(cluster.move_primary, group, target))
        await load.grows(5)
        await asyncio.to_thread(cluster.wait_in_sync, group, 2)
    return pauses


@pytest.mark.requirement("CLU-34", scaled="3 hand-overs; 20 are a long test")
def test_hand_overs_under_load(cluster: Cluster) -> None:
    asyncio.run(_hand_overs(cluster, 3))


@pytest.mark.long
@pytest.mark.requirement("CLU-34")
def test_twenty_hand_overs_under_load(cluster: Cluster) -> None:
    asyncio.run(_hand_overs(cluster, 20))


async def _hand_overs(cluster: Cluster, times: int) -> None:
    async with Load(cluster) as load:
        await load.grows()
        pauses = await hand_over(cluster, load, times)
        await load.finish()
    assert max(pauses) < PAUSE_S
    print(f"pauses: {', '.join(f'{pause * 1000:.0f}' for pause in pauses)} ms")


@pytest.mark.requirement("CLU-11", half="message managers' nodes, to the same version; all nodes are a long test")
def test_a_member_node_is_updated_under_load(cluster: Cluster) -> None:
    """It is restarted, and what it leads is handed over first; so not even a delivery is marked."""
    leader = cluster.primary("a")
    asyncio.run(_update(cluster, [leader], may_repeat=False))


@pytest.mark.long
@pytest.mark.requirement("CLU-11", half="from a version to itself: there is no older one yet")
def test_all_nodes_are_updated_under_load(cluster: Cluster) -> None:
    asyncio.run(_update(cluster, cluster.nodes, may_repeat=True))


async def _update(cluster: Cluster, nodes: list[str], *, may_repeat: bool) -> None:
    before = await asyncio.to_thread(pids, cluster)
    async with Load(cluster) as load:
        await load.grows()
        pause = await load.during(update, cluster, nodes)
        await load.grows(5)
        await load.finish(may_repeat=may_repeat)
    after = await asyncio.to_thread(pids, cluster)
    assert {name for name, pid in after.items() if before[name] != pid} == set(nodes)
    assert pause < PAUSE_S


def update(cluster: Cluster, nodes: list[str]) -> None:
    """`fairlead cluster update`, of these nodes."""
    chosen = [word for name in nodes for word in ("--node", name)]
    command = [sys.executable, "-m", "fairlead", "cluster", "update", "--data", str(cluster.directory), *chosen]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def pids(cluster: Cluster) -> dict[str, int]:
    """Of what answers for each node: member node or agent."""
    return {node["node"]: node["pid"] for node in cluster.status()["nodes"]}
