"""Every operation through the public client, on a real server, and what the tables show after it."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest

import fairlead
from fairlead.directory import DirectoryClient, open_directory
from fairlead.directory.operations import OPERATIONS
from fairlead.directory.rows import AppKind, Application, Broker, Link
from fairlead.errors import BadParameter, NoDirectory, NoneAvailable, Refused, UnknownBroker, UnknownCluster
from fairlead.testing import Server
from tests.directory.client.conftest import Keeper

pytestmark = pytest.mark.processes


def row(name: str, **more: Any) -> Broker:
    facts: dict[str, Any] = {"ip": "127.0.0.1", "port": 7400, "identity": f"id-{name}"}
    return Broker(name=name, **(facts | more))


async def cluster_of(directory: DirectoryClient, cluster: str, *names: str, **more: Any) -> None:
    for name in names:
        await directory.put_broker(row(name, **more))
        await directory.join_cluster(cluster, name)


async def names_of(directory: DirectoryClient, cluster: str) -> list[str]:
    return [broker.name for broker in (await directory.get_cluster(cluster)).brokers]


async def app_of(directory: DirectoryClient, name: str) -> Application | None:
    found = {app.name: app for app in (await directory.list_apps()).apps}.get(name)
    assert (await directory.lookup_app(name)).app == found
    return found


def identity() -> str:
    return secrets.token_hex(16)


def link(broker: str, **more: Any) -> Link:
    return Link(identity=identity(), broker=broker, client="client/1", user="ann", **more)


@pytest.mark.requirement("DIR-5")
async def test_every_operation_shows_its_effect(empty: Keeper) -> None:
    said: set[str] = set()
    revisions: list[int] = []

    async with open_directory(empty.url()) as directory:
        ask = directory.ask

        async def noted(op: str, *args: Any, **options: Any) -> Any:
            answer = await ask(op, *args, **options)
            said.add(op)
            revisions.append(answer.revision)
            assert not answer.stale
            return answer

        directory.ask = noted  # type: ignore[method-assign]

        await directory.put_broker(row("A"), clusters=["cluster-A", "cluster-B"])
        await directory.put_broker(row("B", port=7401, secure_port=7443, host="b.example.org", limit=5))
        listed = {broker.name: broker for broker in (await directory.list_brokers()).brokers}
        assert set(listed) == {"A", "B"}
        assert listed["A"].clusters == ("cluster-A", "cluster-B")
        assert (listed["B"].port, listed["B"].secure_port, listed["B"].host) == (7401, 7443, "b.example.org")
        assert listed["B"].limit == 5
        assert listed["A"].available
        assert listed["B"].available

        renewed = await directory.renew("B", identity="id-B", state="draining")
        assert renewed.known
        assert {b.name: (b.state, b.available) for b in (await directory.list_brokers()).brokers} == {
            "A": ("up", True),
            "B": ("draining", False),
        }
        assert not (await directory.renew("C", identity="id-C")).known
        await directory.renew("B", identity="id-B")

        await directory.join_cluster("cluster-A", "B", position=0)
        await directory.set_cluster("cluster-A", heuristic="centralised", rule="least_connections")
        clusters = {cluster.name: cluster for cluster in (await directory.list_clusters()).clusters}
        assert clusters["cluster-A"].brokers == ("B", "A")
        assert (clusters["cluster-A"].heuristic, clusters["cluster-A"].rule) == ("centralised", "least_connections")
        assert clusters["cluster-B"].brokers == ("A",)
        view = await directory.get_cluster("cluster-A")
        assert ([b.name for b in view.brokers], view.heuristic, view.rule) == (
            ["B", "A"],
            "centralised",
            "least_connections",
        )
        await directory.set_cluster("cluster-A", heuristic="default", rule="default")
        await directory.leave_cluster("cluster-A", "B")
        assert await names_of(directory, "cluster-A") == ["A"]
        await directory.join_cluster("cluster-A", "B")
        assert await names_of(directory, "cluster-A") == ["A", "B"]

        await directory.register_app(app="AZ", kind="static", broker="B", user="zoe")
        az = await app_of(directory, "AZ")
        assert az is not None
        assert (az.kind, az.broker, az.user, az.links) == ("static", "B", "zoe", ())

        picked = await directory.pick_broker(app="AX", cluster="cluster-A", request="r1")
        again = await directory.pick_broker(app="AX", cluster="cluster-A", request="r1")
        assert (again.broker.name, again.reservation) == (picked.broker.name, picked.reservation)
        first = picked.broker.name
        assert {b.name: b.reserved for b in (await directory.list_brokers()).brokers}[first] == 1
        one, two = link(first), link(first)
        opened = await directory.connection_opened(app="AX", link=one, reservation=picked.reservation)
        assert opened.label == "AX-1"
        counts = {b.name: (b.connections, b.reserved) for b in (await directory.list_brokers()).brokers}
        assert counts[first] == (1, 0)
        ax = await app_of(directory, "AX")
        assert ax is not None
        assert [(one.label, one.broker) for one in ax.links] == [("AX-1", first)]
        found = await directory.lookup_app("AX")
        assert [(b.name, b.ip, b.port) for b in found.brokers] == [(first, "127.0.0.1", listed[first].port)]
        totals = await directory.totals("AX")
        assert (totals.total, totals.brokers[first]) == (1, 1)

        picked = await directory.pick_broker(app="AX", cluster="cluster-A")
        assert picked.broker.name != first
        await directory.report_failure(
            app="AX", broker=picked.broker.name, client="c/1", reason="refused", reservation=picked.reservation
        )
        assert all(b.reserved == 0 for b in (await directory.list_brokers()).brokers)

        await directory.publish_key("AX", {"id": "k1", "public": "abc"})
        ax = await app_of(directory, "AX")
        assert ax is not None
        assert [key["id"] for key in ax.keys] == ["k1"]

        stated: list[tuple[str, AppKind, Link]] = [("AX", "dynamic", one), ("AX", "dynamic", two)]
        restated = await directory.restate(first, identity=f"id-{first}", links=stated)
        assert restated.labels == {one.identity: "AX-1", two.identity: "AX-2"}
        assert (await directory.totals("AX", "cluster-A")).total == 2
        moves = await directory.rebalance("cluster-A")
        assert set(moves.moves) <= {"A", "B"}

        await directory.connection_closed(app="AX", identity=one.identity, broker=first)
        await directory.connection_closed(app="AX", identity=two.identity, broker=first)
        assert await app_of(directory, "AX") is None, "a dynamic one goes with its last connection"
        await directory.deregister_app("AZ")
        assert await app_of(directory, "AZ") is None

        await directory.remove_broker("A")
        assert [broker.name for broker in (await directory.list_brokers()).brokers] == ["B"]
        assert await names_of(directory, "cluster-A") == ["B"]

        status = await directory.status()
        assert status.facts["picks"] >= 2
    assert said == set(OPERATIONS), "all of them"
    assert revisions == sorted(revisions)
    assert revisions[-1] > revisions[0]


@pytest.mark.requirement("DIR-5", state="half", note="the documented errors")
async def test_errors_are_those_of_the_documentation(empty: Keeper) -> None:
    async with open_directory(empty.url()) as directory:
        before = (await directory.status()).revision
        with pytest.raises(UnknownCluster, match="no-such-cluster"):
            await directory.get_cluster("no-such-cluster")
        with pytest.raises(UnknownCluster, match="no-such-cluster"):
            await directory.pick_broker(app="AX", cluster="no-such-cluster")
        with pytest.raises(UnknownBroker, match="Q"):
            await directory.register_app(app="AX", kind="static", broker="Q")
        with pytest.raises(UnknownBroker, match="Q"):
            await directory.connection_opened(app="AX", link=link("Q"))
        with pytest.raises(BadParameter):
            await directory.put_broker(row("A", port="seven"))
        with pytest.raises(Refused):
            await directory.put_broker(row("x" * 5000))
        with pytest.raises(BadParameter, match="no operation"):
            await directory.ask("drop_tables", {}, fairlead.directory.answers.Done)
        with pytest.raises(BadParameter):
            await directory.ask("lookup_app", {"app": "AX", "more": 1}, fairlead.directory.answers.Done)
        assert (await directory.status()).revision == before, "nothing was changed"
        await cluster_of(directory, "cluster-A", "A", limit=1)
        await directory.pick_broker(app="AX", cluster="cluster-A")
        with pytest.raises(NoneAvailable):
            await directory.pick_broker(app="AX", cluster="cluster-A")


@pytest.mark.requirement("DIR-9")
async def test_two_brokers_are_two_rows_and_clients_connect_to_the_listed_address(empty: Keeper, other: Server) -> None:
    async with open_directory(empty.url()) as directory:
        await directory.put_broker(row("A", port=empty.server.port))
        await directory.put_broker(row("B", ip="::1", port=other.port))
        rows = (await directory.list_brokers()).brokers
        assert [(one.name, one.ip, one.port) for one in rows] == [
            ("A", "127.0.0.1", empty.server.port),
            ("B", "::1", other.port),
        ]
        for one in rows:
            host = f"[{one.ip}]" if ":" in one.ip else one.ip
            async with fairlead.connect(f"fairlead://{host}:{one.port}") as connection:
                assert connection.connected


@pytest.mark.requirement("DIR-10")
async def test_a_broker_of_two_clusters_has_one_row_and_is_reached_by_either(empty: Keeper) -> None:
    async with open_directory(empty.url()) as directory:
        for name in "ABCD":
            await directory.put_broker(row(name, port=empty.server.port))
        for name in "ABC":
            await directory.join_cluster("cluster-A", name)
        for name in "AD":
            await directory.join_cluster("cluster-B", name)
        clusters = {cluster.name: list(cluster.brokers) for cluster in (await directory.list_clusters()).clusters}
        assert clusters == {"cluster-A": ["A", "B", "C"], "cluster-B": ["A", "D"]}
        assert [broker.name for broker in (await directory.list_brokers()).brokers] == ["A", "B", "C", "D"]
        for cluster in clusters:
            picked = (await directory.pick_broker(app="AX", cluster=cluster)).broker
            assert picked.name == "A"
            async with fairlead.connect(f"fairlead://{picked.ip}:{picked.port}") as connection:
                assert connection.connected
        rows = {broker.name: broker for broker in (await directory.list_brokers()).brokers}
        assert rows["A"].clusters == ("cluster-A", "cluster-B")
        assert rows["A"].reserved == 2, "counted over both"


@pytest.mark.requirement("DIR-11", state="half", note="one server, two clients; two servers are in the process tests")
async def test_the_order_is_that_of_joining_or_as_told_and_everybody_sees_it(empty: Keeper) -> None:
    async with open_directory(empty.url()) as one, open_directory(empty.url()) as two:
        await cluster_of(one, "cluster-A", "C", "A", "B")
        assert await names_of(one, "cluster-A") == await names_of(two, "cluster-A") == ["C", "A", "B"]
        await one.put_broker(row("D"))
        await two.join_cluster("cluster-A", "D", position=1)
        assert await names_of(one, "cluster-A") == await names_of(two, "cluster-A") == ["C", "D", "A", "B"]
        await one.put_broker(row("A", port=9999))
        assert await names_of(two, "cluster-A") == ["C", "D", "A", "B"], "a changed row keeps its place"


@pytest.mark.requirement("DIR-12", state="half", note="the reports of opened connections; brokers make them elsewhere")
async def test_three_connections_are_three_rows_of_one_type(empty: Keeper) -> None:
    async with open_directory(empty.url()) as directory:
        await cluster_of(directory, "cluster-A", "A", "B", "C")
        for number, name in enumerate("ABC", 1):
            answer = await directory.connection_opened(app="AX", link=link(name))
            assert answer.label == f"AX-{number}"
        ax = await app_of(directory, "AX")
        assert ax is not None
        assert (ax.kind, [(one.label, one.broker) for one in ax.links]) == (
            "dynamic",
            [("AX-1", "A"), ("AX-2", "B"), ("AX-3", "C")],
        )


@pytest.mark.requirement("DIR-13", state="half", note="the labels the directory gives; no brokers between")
async def test_labels_of_two_clients_at_the_same_moment_are_all_different(empty: Keeper) -> None:
    async with open_directory(empty.url()) as one, open_directory(empty.url()) as two:
        await cluster_of(one, "cluster-A", "A")
        opening = [(one, two)[number % 2].connection_opened(app="AX", link=link("A")) for number in range(40)]
        labels = [answer.label for answer in await asyncio.gather(*opening)]
        assert sorted(labels) == sorted(f"AX-{number}" for number in range(1, 41))


@pytest.mark.requirement("DIR-14", state="half", note="4/3/2 as reported; the case itself is an acceptance test")
async def test_totals_and_their_split(empty: Keeper) -> None:
    async with open_directory(empty.url()) as directory:
        await cluster_of(directory, "cluster-A", "A", "B", "C")
        for name, count in {"A": 4, "B": 3, "C": 2}.items():
            for _ in range(count):
                await directory.connection_opened(app="AX", link=link(name, cluster="cluster-A"))
        for cluster in ("cluster-A", ""):
            totals = await directory.totals("AX", cluster)
            assert (totals.total, totals.brokers) == (9, {"A": 4, "B": 3, "C": 2})
        assert (await directory.totals("AY")).total == 0


@pytest.mark.requirement("DIR-16", "DIR-17", state="half", note="the reports themselves, said by one client")
async def test_reports_may_come_twice_and_in_the_wrong_order(empty: Keeper) -> None:
    async with open_directory(empty.url()) as directory:
        await cluster_of(directory, "cluster-A", "A")
        one, two = link("A"), link("A")
        for _ in range(3):
            assert (await directory.connection_opened(app="AX", link=one)).label == "AX-1"
        await directory.connection_closed(app="AX", identity=two.identity, broker="A")
        await directory.connection_opened(app="AX", link=two)
        ax = await app_of(directory, "AX")
        assert ax is not None
        assert [one.label for one in ax.links] == ["AX-1"], "the second is no ghost"


@pytest.mark.requirement("DIR-18")
async def test_no_table_names_a_broker_that_is_not_there(empty: Keeper) -> None:
    async with open_directory(empty.url()) as directory:
        with pytest.raises(UnknownBroker, match="Q"):
            await directory.join_cluster("cluster-A", "Q")
        await cluster_of(directory, "cluster-A", "A", "B")
        await directory.join_cluster("cluster-B", "B")
        await directory.connection_opened(app="AX", link=link("A"))
        await directory.connection_opened(app="AX", link=link("B"))
        await directory.connection_opened(app="AY", link=link("B"))
        await directory.register_app(app="AZ", kind="static", broker="B")
        await directory.remove_broker("B")
        named = [broker.name for broker in (await directory.list_brokers()).brokers if not broker.missing]
        assert named == ["A"]
        assert all("B" not in cluster.brokers for cluster in (await directory.list_clusters()).clusters)
        apps = {app.name: app for app in (await directory.list_apps()).apps}
        assert apps["AZ"].broker_missing
        assert [one.broker for one in apps["AX"].links] == ["A"]
        assert "AY" not in apps
        assert apps["AZ"].broker == "B", "a static registration stays"
        found = await directory.lookup_app("AZ")
        assert [(broker.name, broker.missing) for broker in found.brokers] == [("B", True)]
        await directory.deregister_app("AZ")


@pytest.mark.requirement("DIR-20")
async def test_what_did_not_change_is_not_told_again(empty: Keeper) -> None:
    async with open_directory(empty.url()) as directory:
        before = (await directory.status()).revision
        await cluster_of(directory, "cluster-A", "A", "B")
        first = await directory.get_cluster("cluster-A")
        assert first.revision > before
        second = await directory.get_cluster("cluster-A", newer_than=first.revision)
        assert (second.unchanged, second.brokers, second.revision) == (True, (), first.revision)
        await directory.put_broker(row("B", port=9999))
        third = await directory.get_cluster("cluster-A", newer_than=first.revision)
        assert not third.unchanged
        assert third.revision > first.revision
        assert [broker.port for broker in third.brokers] == [7400, 9999]


@pytest.mark.requirement(
    "DIR-6", state="half", note="3/3/3 picked and reported; brokers and their links come elsewhere"
)
@pytest.mark.parametrize(
    "scheme", ["fairlead+directory", "fairleads+directory", "http+directory", "https+directory", "fairleads", "http"]
)
async def test_the_tables_are_the_same_over_every_transport(empty: Keeper, scheme: str) -> None:
    tls = empty.tls() if scheme.startswith(("fairleads", "https")) else None
    async with open_directory(empty.url(scheme), tls=tls) as directory:
        await cluster_of(directory, "cluster-A", "A", "B", "C")
        for _ in range(9):
            picked = await directory.pick_broker(app="AX", cluster="cluster-A")
            opened = link(picked.broker.name, cluster="cluster-A")
            await directory.connection_opened(app="AX", link=opened, reservation=picked.reservation)
        totals = await directory.totals("AX", "cluster-A")
        assert (totals.total, totals.brokers) == (9, {"A": 3, "B": 3, "C": 3})
        ax = await app_of(directory, "AX")
        assert ax is not None
        assert [one.label for one in ax.links] == [f"AX-{number}" for number in range(1, 10)]
        assert directory.latency_s is not None


async def test_a_server_without_a_directory_says_so_and_another_one_answers(empty: Keeper, other: Server) -> None:
    async with open_directory(other.url) as directory:
        with pytest.raises(NoDirectory, match=r"directory unreachable: .*keeps no directory"):
            await directory.list_brokers(timeout=0)
    async with open_directory([other.url, empty.server.url]) as directory:
        await directory.put_broker(row("A"))
        assert directory.server == empty.server.url


def test_without_an_event_loop(empty: Keeper) -> None:
    with fairlead.sync.open_directory(empty.url()) as directory:
        directory.put_broker(row("A"), clusters=["cluster-A"])
        assert directory.pick_broker(app="AX", cluster="cluster-A").broker.name == "A"
        assert directory.server.startswith("fairlead://localhost:")
        assert directory.facts()["revision"] > 0
        with pytest.raises(UnknownBroker):
            directory.join_cluster("cluster-A", "Q")
        with pytest.raises(AttributeError):
            directory.drop_tables  # noqa: B018
    directory.close()
