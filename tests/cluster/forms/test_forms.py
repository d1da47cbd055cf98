"""Two buses in both forms, with real processes: the same for clients, whatever the buses are (CLU-46 … 50)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from fairlead.cluster.configuration.overview import differing
from fairlead.runtime.local_cluster import free_ports
from fairlead.testing.cluster import Cluster
from tests.cluster.forms import suite

SMALL = {"messages": {"segment_bytes": 4 << 20}}
QUICK = {"detection_s": 1.0, "lease_s": 1.0, "margin_s": 0.3}
EXIT_S = 30.0


def cluster_of(form: str, **more: Any) -> Cluster:
    """Form a: nodes of its own for each group, each group on a bus; form b: nodes that host both, on both buses."""
    return Cluster(form=form, buses=2, shared=form == "b", faults=True, settings=SMALL, essential=QUICK, **more)


@pytest.fixture(scope="module")
def form_a() -> Iterator[Cluster]:
    with cluster_of("a") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def form_b() -> Iterator[Cluster]:
    with cluster_of("b") as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def healed(request: pytest.FixtureRequest) -> None:
    """Every test begins with two copies of everything."""
    for name in ("form_a", "form_b"):
        if name in request.fixturenames:
            whole(request.getfixturevalue(name))


def is_healed(cluster: Cluster, node: str) -> bool:
    return node in cluster.ask("fault", [node], fault="heal")["nodes"]


def whole(cluster: Cluster) -> None:
    for group in cluster.local.groups():
        cluster.wait_in_sync(group, 2)


def edited(cluster: Cluster, node: str, file: str, change: Callable[[str], str]) -> str:
    """Start a node with a file changed, wait until it ends, and have the file as it was again; what it printed."""
    path = cluster.directory / node / file
    before = path.read_text()
    assert change(before) != before
    path.write_text(change(before))
    try:
        seen = len((cluster.directory / node / "output.txt").read_text())
        cluster.start(node)
        cluster.wait_until(lambda: cluster.local.pid(node) is None, f"{node} ends", EXIT_S)
        return (cluster.directory / node / "output.txt").read_text()[seen:]
    finally:
        if cluster.local.pid(node) is not None:
            cluster.stop(node)
        path.write_text(before)


# --- Form a -------------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-46", scaled="a few client checks instead of the whole suite, 2 buses")
def test_clients_before_form_a(form_a: Cluster) -> None:
    suite.check_all(form_a)


@pytest.mark.requirement("CLU-46", half="the tap; the clients' checks are tests of their own")
def test_a_bus_of_form_a_carries_nothing_of_the_other_groups(form_a: Cluster) -> None:
    node = form_a.directory / "cm1" / "node.toml"
    tap = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "cluster", "tap", "--node", str(node)], stdout=subprocess.PIPE, text=True
    )
    try:
        suite.run(_exchange(form_a))
        time.sleep(1)  # heads are mirrored while there is a tap: a second of leases at least
        suite.run(_exchange(form_a))
    finally:
        tap.terminate()
        lines = (tap.communicate()[0] or "").splitlines()
    found: dict[str, set[str]] = {}
    for line in lines:
        _, bus, _, _, port, *_ = line.split()
        found.setdefault(bus, set()).add(port)
    traffic = {bus: {port for port in ports if port.startswith(("link:", "member:", "side:", "state:"))}
               for bus, ports in found.items()}  # fmt: skip
    assert traffic == {"bus1": {"link:a", "member:a"}, "bus2": {"link:b", "member:b"}}


async def _exchange(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        first, last = await suite.connections(stack, cluster)
        for queue in (await suite.queues_by_group(first)).values():
            await suite.send_numbers(first, queue, 10)
            assert await suite.taken(last, queue, 10) == list(range(10))


@pytest.mark.requirement("CLU-50", "CLU-44")
@pytest.mark.parametrize("form", ["form_a", "form_b"])
def test_status_has_one_answer_of_each_node_and_names_the_carrier(form: str, request: pytest.FixtureRequest) -> None:
    cluster: Cluster = request.getfixturevalue(form)
    for node in cluster.nodes:  # whoever is asked
        found = cluster.local.ask({"do": "status", "via": node}, [*cluster.nodes])
        assert sorted(found["nodes"]) == sorted(cluster.nodes)
        assert not found["missing"]
    assert {node["carrier"] for node in cluster.status()["nodes"]} == {"tcp"}


@pytest.mark.requirement("CLU-48")
def test_a_client_manager_that_is_not_on_all_buses_is_refused_in_form_a(form_a: Cluster) -> None:
    form_a.stop("cm2")
    path = form_a.directory / "cm2" / "node.toml"
    before = path.read_text()
    path.write_text("".join(line for line in before.splitlines(True) if not line.startswith("bus2 =")))
    try:
        command = [sys.executable, "-m", "fairlead", "node", "cm", "--node", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=EXIT_S, check=False)
    finally:
        path.write_text(before)
    assert done.returncode == 2
    assert "cm2 is not on bus2" in done.stderr
    suite.run(_one_exchange(form_a, form_a.urls()[0]))
    form_a.start("cm2")
    form_a.wait_serving()


async def _one_exchange(cluster: Cluster, url: str) -> None:
    import fairlead

    async with fairlead.connect(url) as connection:
        for queue in (await suite.queues_by_group(connection)).values():
            await suite.send_numbers(connection, queue, 10)
            assert await suite.taken(connection, queue, 10) == list(range(10))


@pytest.mark.requirement("CLU-47")
def test_a_member_on_another_bus_than_its_group_is_refused(form_a: Cluster) -> None:
    backup = form_a.backups("b")[0]
    form_a.stop(backup)
    node = _moved_to(form_a, backup, (form_a.directory / "a1" / "node.toml").read_text())
    printed = edited(form_a, backup, "node.toml", lambda _: node)
    assert "members of group b must be on the same buses" in printed
    assert "bus1" in printed
    assert "bus2" in printed
    assert form_a.backups("b") == []
    form_a.start(backup)
    form_a.wait_in_sync("b", 2)


def _moved_to(cluster: Cluster, node: str, other: str) -> str:
    """node.toml of a node that is where that other one is."""
    address = other.partition("[buses]")[2].partition('"')[2].partition('"')[0]
    return other.replace('name = "a1"', f'name = "{node}"').replace(address, f"127.0.0.1:{free_ports(1)[0]}")


# --- Form b -------------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-46", scaled="a few client checks instead of the whole suite, 2 buses")
def test_clients_before_form_b(form_b: Cluster) -> None:
    suite.check_all(form_b)


@pytest.mark.long
@pytest.mark.requirement("CLU-49", half="the delay; cuts are tests of their own")
def test_a_slow_bus_changes_nothing_about_the_state(form_b: Cluster) -> None:
    form_b.fault("delay", bus="bus2", value=0.2)
    try:
        suite.run(_both_ways(form_b))
    finally:
        form_b.fault("heal")
    for group in ("a", "b"):
        form_b.wait_until(lambda group=group: _differing(form_b, group) == [], f"copies of {group} are equal")  # type: ignore[misc]


def _differing(cluster: Cluster, group: str) -> list[str] | None:
    answers = cluster.ask("scrub", group=group, nodes=["mm1", "mm2"])["nodes"]
    assert not any(answer.get("damage") for answer in answers.values())
    return differing(answers)


async def _both_ways(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        first, last = await suite.connections(stack, cluster)
        for queue in (await suite.queues_by_group(first)).values():
            await asyncio.gather(suite.send_numbers(first, queue, 5), suite.send_numbers(last, f"{queue}-kept", 5))
            assert await suite.taken(last, queue, 5) == list(range(5))


@pytest.mark.requirement("CLU-49", half="one bus of a backup; the other cases are tests of their own")
def test_a_backup_that_lost_a_bus_is_not_in_sync(form_b: Cluster) -> None:
    leader = form_b.primary("a")
    (backup,) = form_b.backups("a")
    for sender, receiver in ((backup, "*"), ("*", backup)):
        form_b.fault("cut", sender=sender, receiver=receiver, bus="bus2")
    try:
        form_b.wait_until(lambda: form_b.backups("a") == [], f"{backup} is not in sync")
        assert form_b.primary("a") == leader
    finally:
        form_b.fault("heal")
    form_b.wait_in_sync("a", 2)


@pytest.mark.requirement("CLU-49", half="a whole bus; the other cases are tests of their own")
def test_without_one_bus_the_clients_of_the_other_go_on(form_b: Cluster) -> None:
    form_b.fault("cut", bus="bus2")
    try:
        form_b.wait_until(lambda: form_b.ask("status", ["mm1"])["nodes"].keys() == {"mm1"}, "mm1 answers")
        suite.run(_one_exchange(form_b, form_b.urls()[0]))
    finally:
        for name in form_b.nodes:  # those on the cut bus are asked directly
            form_b.wait_until(partial(is_healed, form_b, name), f"{name} is healed")
    whole(form_b)
    suite.run(_one_exchange(form_b, form_b.urls()[1]))


@pytest.mark.requirement("CLU-194")
def test_other_values_on_the_other_bus_are_refused(form_b: Cluster) -> None:
    form_b.stop("cm2")
    printed = edited(form_b, "cm2", "cluster.toml", lambda text: text.replace("margin_s = 0.3", "margin_s = 0.4"))
    assert "cluster.toml" in printed
    form_b.start("cm2")
    form_b.wait_serving()


# --- The other carriers -------------------------------------------------------------------------------------------
@pytest.mark.long
@pytest.mark.requirement("CLU-46", "CLU-44", scaled="a few client checks instead of the whole suite")
@pytest.mark.parametrize("carrier", ["udp", "local"])
@pytest.mark.parametrize("form", ["a", "b"])
def test_clients_before_other_carriers(form: str, carrier: Any) -> None:
    with cluster_of(form, carrier=carrier) as cluster:
        whole(cluster)
        suite.check_all(cluster)
        assert {node["carrier"] for node in cluster.status()["nodes"]} == {carrier}


@pytest.mark.long
@pytest.mark.requirement("CLU-37", half="one bus; bytes per backup are measured in tests/bus")
def test_clients_before_multicast() -> None:
    with Cluster(carrier="udp", settings=SMALL, essential=QUICK) as cluster:
        whole(cluster)
        suite.check_all(cluster)
        assert {node["carrier"] for node in cluster.status()["nodes"]} == {"udp"}
