"""How a client chooses brokers, with real ones and a real directory: the Observe lines of sections 3.6, 3.8 and 3.9."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import fairlead
from fairlead.client.aio.placed import PlacedKeeper
from fairlead.directory.placing.attempts import Dial
from fairlead.errors import AllBrokersFailed, BadCredentials, NoDirectory, UnknownCluster
from fairlead.testing import Server
from fairlead.testing.directory import DirectorySet
from fairlead.testing.directory_world import World
from tests.processes.directory.placing_parts import Line, Silent, cluster_of, played
from tests.tunnel.gateway_parts import certificate

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(240)]

LOGIN: dict[str, Any] = {"user": "ax", "password": "ax-secret"}
COLD = """
import asyncio, json, sys
import fairlead

async def main(url, app, user, password, cache):
    options = {"placement": "local", "cache": cache, "directory_timeout_s": 1.0}
    async with fairlead.connect(url, name=app, user=user, password=password, **options) as connection:
        print(json.dumps(connection.directory_status()))

asyncio.run(main(*sys.argv[1:]))
"""
_numbers = itertools.count(1)


class Scene(NamedTuple):
    """Brokers A (plain only), B and C (with TLS); all of them know the user `ax`."""

    world: World
    trusting: ssl.SSLContext
    users: Path

    @property
    def directories(self) -> DirectorySet:
        assert self.world.directories is not None
        return self.world.directories

    def connect(self, app: str, cluster: str = "cluster-A", **options: Any) -> fairlead.Connection:
        return fairlead.connect(self.world.url(cluster), name=app, **{**LOGIN, "client": app, **options})

    def port_of(self, broker: str) -> int:
        return int(self.world.brokers[broker].url.rpartition(":")[2])


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("placing")
    subprocess.run(
        [sys.executable, "-m", "fairlead", "user", "add", "ax", "--password-stdin", "--data", str(folder)],
        input="ax-secret\n",
        text=True,
        check=True,
        capture_output=True,
        timeout=60,
    )
    pem, trusting = certificate(folder)
    pem.chmod(0o600)
    tls = {
        "security.tls_certificate": str(pem),
        "security.tls_key": str(pem),
        "directory.advertise": "127.0.0.1:0",
    }
    users = {"security.users": str(folder / "users.toml")}
    with World("ABC", servers=1, settings=users, own={"B": tls, "C": tls}) as world:
        yield Scene(world, trusting, folder / "users.toml")


@pytest.fixture
def app() -> str:
    """The name of an application nobody has used before, and of a client."""
    return f"AP{next(_numbers)}"


@asynccontextmanager
async def opened(*connections: fairlead.Connection) -> AsyncIterator[list[fairlead.Connection]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connection) for connection in connections]


def attempts(connection: fairlead.Connection) -> list[str]:
    return [str(attempt["broker"]) for attempt in connection.directory_status()["attempts"]]


async def until(condition: Any, what: str, timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not in {timeout_s:g} s: {what}"
        await asyncio.sleep(0.02)


async def gone(scene: Scene, app: str) -> None:
    async def is_gone() -> bool:
        return not await scene.world.rows(app)

    await scene.world.until(is_gone, f"{app} has no rows")


# The copy.


@pytest.mark.requirement("DIR-40", "DIR-41", "DIR-42")
async def test_a_hundred_connections_while_the_directory_stands_still(scene: Scene, app: str) -> None:
    world = scene.world
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(scene.connect(app, placement="local"))
        await first.labelled(30)
        (cluster,) = first.directory_status()["clusters"]
        assert cluster["revision"] > 0
        assert [broker["port"] for broker in cluster["brokers"]] == [scene.port_of(name) for name in "ABC"]
        began_s = time.monotonic()
        for _ in range(10):
            await stack.enter_async_context(scene.connect(app, placement="local"))
        usual_s = (time.monotonic() - began_s) / 10
        scene.directories.pause()
        try:
            slowest_s = 0.0
            opened = []
            for _ in range(100):
                began_s = time.monotonic()
                opened.append(await stack.enter_async_context(scene.connect(app, placement="local")))
                slowest_s = max(slowest_s, time.monotonic() - began_s)
            assert slowest_s < 2 + 10 * usual_s  # the directory would have been waited for 10 s
            assert first.directory_status()["picks"] == 0
            assert {connection.label for connection in opened} == {""}
            assert len({connection.identity for connection in opened}) == 100
        finally:
            scene.directories.resume()
        labels = await asyncio.gather(*(connection.labelled(60) for connection in opened))
        assert len(set(labels)) == 100
        rows = await world.labelled(app, 111)
        assert {row.identity for row in rows} >= {connection.identity for connection in opened}
        assert {name: [row.broker for row in rows].count(name) for name in "ABC"} == {"A": 37, "B": 37, "C": 37}


@pytest.mark.requirement("DIR-43")
async def test_the_copy_is_renewed_and_keeps_its_age(scene: Scene, app: str) -> None:
    options: dict[str, Any] = {"placement": "local", "refresh_s": 0.3, "directory_timeout_s": 0.5}
    async with cluster_of(scene.world, "A", "B") as cluster, scene.world.open() as directory, AsyncExitStack() as stack:

        async def open_one() -> fairlead.Connection:
            return await stack.enter_async_context(scene.connect(app, cluster, **options))

        first = await open_one()

        def view() -> dict[str, Any]:
            (found,) = first.directory_status()["clusters"]
            return dict(found)

        assert [(await open_one()).broker for _ in range(3)] == ["B", "A", "B"]
        await directory.join_cluster(cluster=cluster, broker="C")
        await directory.leave_cluster(cluster=cluster, broker="A")
        await until(lambda: [broker["name"] for broker in view()["brokers"]] == ["B", "C"], "the new list is known")
        assert [(await open_one()).broker for _ in range(2)] == ["C", "B"]
        scene.directories.pause()
        try:
            await until(lambda: view()["age_s"] > 1.5 and view()["failed"], "the copy grows old")
            assert (await open_one()).broker == "C"
        finally:
            scene.directories.resume()
        await until(lambda: view()["age_s"] < 1.0 and not view()["failed"], "the copy is new again")
        await directory.leave_cluster(cluster=cluster, broker="C")


@pytest.mark.requirement("DIR-44")
async def test_a_refresh_between_requests_keeps_the_place(scene: Scene, app: str) -> None:
    count = dict.fromkeys("ABC", 0)
    async with scene.connect(app, placement="local", refresh_s=0.02) as first:
        count[first.broker] += 1
        for _ in range(29):
            fetches = first.directory_status()["fetches"]
            await until(lambda seen=fetches: first.directory_status()["fetches"] > seen, "a refresh")
            async with scene.connect(app, placement="local") as connection:
                count[connection.broker] += 1
    assert count == {"A": 10, "B": 10, "C": 10}


@pytest.mark.requirement("DIR-45")
async def test_one_that_is_not_available_is_skipped(scene: Scene, app: str) -> None:
    disabled = played(1, state="disabled")
    async with (
        cluster_of(scene.world, "A", disabled, "C") as cluster,
        opened(*(scene.connect(app, cluster, placement="local") for _ in range(6))) as connections,
    ):
        assert [connection.broker for connection in connections] == ["A", "C"] * 3
        assert disabled.name not in attempts(connections[0])


@pytest.mark.requirement("DIR-4")
@pytest.mark.parametrize("placement", ["central", "local"])
async def test_an_unknown_cluster_fails_at_once_and_is_found_when_it_is_there(
    scene: Scene, app: str, placement: Any
) -> None:
    options: dict[str, Any] = {"placement": placement, "refresh_s": 600.0}
    cluster = f"later-{app}"
    async with scene.connect(app, "only-B", **options) as other, scene.world.open() as directory:
        with pytest.raises(UnknownCluster, match=cluster):
            await scene.connect(app, cluster, **options)
        assert attempts(other) == ["B"]
        await directory.join_cluster(cluster=cluster, broker="A")
        try:
            async with scene.connect(app, cluster, **options) as found:
                assert found.broker == "A"
        finally:
            await directory.leave_cluster(cluster=cluster, broker="A")


@pytest.mark.requirement("DIR-47", "DIR-56")
async def test_without_any_directory_server(scene: Scene, app: str, tmp_path: Path) -> None:
    cache = tmp_path / "directory.json"
    quick: dict[str, Any] = {"directory_timeout_s": 1.0}
    async with scene.connect(app, placement="auto", cache=str(cache), client=f"{app}-1") as warm:
        assert warm.broker
        await asyncio.to_thread(scene.directories.stop)
        try:
            with pytest.raises(NoDirectory, match="directory unreachable"):
                await scene.connect(app, placement="central", client=f"{app}-1", **quick)
            async with scene.connect(app, placement="auto", client=f"{app}-1") as again:
                assert again.directory_status()["mode"] == "decentralised"
            # A program that is started now knows what is in the file, and nothing else.
            words = [scene.world.url("cluster-A"), app, LOGIN["user"], LOGIN["password"], str(cache)]
            done = await asyncio.to_thread(
                subprocess.run, [sys.executable, "-c", COLD, *words], capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, done.stderr
            cold = json.loads(done.stdout)
            assert cold["broker"] == "A"
            assert cold["clusters"][0]["from_disk"]
            assert cold["clusters"][0]["age_s"] > 0
            without: list[dict[str, Any]] = [{"cache": str(cache), "cache_age_s": 0}, {}]
            for number, options in enumerate(without):
                with pytest.raises(NoDirectory, match="directory unreachable"):
                    await scene.connect(app, placement="local", client=f"{app}-3{number}", **quick, **options)
        finally:
            await asyncio.to_thread(scene.directories.start)
        async with scene.connect(app, placement="central") as back:
            assert await back.labelled(60)


@pytest.mark.requirement("DIR-55")
async def test_auto_leaves_a_slow_directory_and_comes_back(scene: Scene, app: str) -> None:
    port = int(scene.world.authorities[0].rpartition(":")[2])
    options: dict[str, Any] = {"placement": "auto", "latency_max_s": 1.0, "stable_s": 2.0, "refresh_s": 600.0}
    async with Line.open(port) as line, AsyncExitStack() as stack:
        url = f"fairlead+directory://127.0.0.1:{line.port}/cluster-A"

        async def open_one() -> dict[str, Any]:
            made = fairlead.connect(url, name=app, client=app, **LOGIN, **options)
            return (await stack.enter_async_context(made)).directory_status()

        first = await stack.enter_async_context(fairlead.connect(url, name=app, client=app, **LOGIN, **options))
        await until(lambda: first.directory_status()["auto"]["mode"] == "centralised", "it begins with the directory")
        picks = (await open_one())["picks"]
        assert (await open_one())["picks"] == picks + 1
        line.late_s = 3.0
        for _ in range(4):
            assert (await open_one())["mode"] == "decentralised"
        slow = first.directory_status()
        assert slow["picks"] == picks + 2  # the first one noticed
        line.late_s, restored_s = 0.0, time.monotonic()
        await until(lambda: first.directory_status()["auto"]["mode"] == "centralised", "it goes back")
        assert time.monotonic() - restored_s >= 2.0  # not before the stable period
        assert first.directory_status()["auto"]["switches"] == slow["auto"]["switches"] + 1
        assert (await open_one())["mode"] == "centralised"


@pytest.mark.requirement("DIR-57")
async def test_a_change_of_mind_is_for_the_next_request(scene: Scene, app: str) -> None:
    lost: list[str] = []
    async with AsyncExitStack() as stack:
        carrying = [await stack.enter_async_context(scene.connect(app)) for _ in range(20)]
        heard = await stack.enter_async_context(scene.connect(f"{app}b", "only-A"))
        received = await stack.enter_async_context(heard.subscribe(f"{app}.>"))
        for connection in carrying:
            connection.on_event(lambda event: lost.append(event.name) if event.name == "lost" else None)

        async def traffic() -> None:
            while True:
                for number, connection in enumerate(carrying):
                    await connection.publish(f"{app}.{number}", b"tick")
                await asyncio.sleep(0.01)

        talking = asyncio.create_task(traffic())
        places = carrying[0].places
        assert places is not None
        for placement, asks in (("local", 0), ("central", 1), ("local", 0)):
            picks = places.facts()["picks"]
            places.placement = placement  # type: ignore[assignment]
            async with scene.connect(app) as connection:
                assert connection.broker
            assert places.facts()["picks"] == picks + asks
        assert (await received.next(30)).body == b"tick"
        assert not talking.done()
        talking.cancel()
        assert not lost
        assert all(connection.connected for connection in carrying)


@pytest.mark.requirement("DIR-54", state="half", note="one cluster, whose setting is changed")
async def test_the_directory_s_setting_is_followed_soon(scene: Scene, app: str) -> None:
    async with cluster_of(scene.world, "A") as cluster, scene.world.open() as directory:
        await directory.set_cluster(cluster=cluster, heuristic="centralised")
        async with scene.connect(app, cluster, refresh_s=600.0) as first:
            assert first.directory_status()["mode"] == "centralised"
            await directory.set_cluster(cluster=cluster, heuristic="decentralised")

            async def turned() -> bool:
                async with scene.connect(app, cluster) as connection:
                    return bool(connection.directory_status()["mode"] == "decentralised")

            await scene.world.until(turned, "the next requests are decided here")


# Establishing the connection.


@pytest.mark.requirement("DIR-59")
@pytest.mark.parametrize("placement", ["central", "local"])
async def test_a_broker_that_says_nothing_is_none(scene: Scene, app: str, placement: Any) -> None:
    async with Silent.open() as silent:
        row = played(silent.port)
        async with (
            cluster_of(scene.world, row, "A") as cluster,
            scene.connect(app, cluster, placement=placement, attempt_timeout_s=1.0, reconnect=False) as connection,
        ):
            assert connection.broker == "A"
            assert attempts(connection)[:2] == [row.name, "A"]
            assert "did not answer within 1 s" in connection.directory_status()["attempts"][0]["result"]
            assert silent.accepted == 1


@pytest.mark.requirement("DIR-59", state="half", note="a server that accepts, and registers nobody")
async def test_a_server_without_a_registrar_is_no_broker(scene: Scene, app: str) -> None:
    no_broker = Server(managers=1, **{"security.users": str(scene.users)})  # type: ignore[arg-type]
    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, no_broker.__exit__, None, None, None)
        await asyncio.to_thread(no_broker.start)
        row = played(int(no_broker.url.rpartition(":")[2]))
        events: list[str] = []
        cluster = await stack.enter_async_context(cluster_of(scene.world, row, "A"))
        connection = scene.connect(app, cluster, placement="local", attempt_timeout_s=20.0)
        connection.on_event(lambda event: events.append(event.name))
        await stack.enter_async_context(connection)
        assert attempts(connection) == [row.name, "A"]
        assert "registrar" in connection.directory_status()["attempts"][0]["result"]
        await connection.labelled(30)
        assert events == ["labelled"]  # that it was connected before is nobody's business
        async with connection.subscribe("here") as here:
            await connection.publish("here", b"it works")
            assert (await here.next(30)).body == b"it works"


async def test_a_request_that_is_given_up_leaves_nothing_behind(scene: Scene, app: str) -> None:
    before = asyncio.all_tasks()
    async with Silent.open() as silent:
        async with cluster_of(scene.world, played(silent.port)) as cluster:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await scene.connect(app, cluster, placement="central")
        await until(lambda: silent.accepted and not silent.open_lines, "the line is closed")
    await until(lambda: asyncio.all_tasks() <= before, "nothing goes on")


@pytest.mark.requirement("DIR-61")
@pytest.mark.parametrize("placement", ["central", "local"])
async def test_a_broker_that_dies_before_it_is_dialled(
    scene: Scene, app: str, placement: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Silent.open() as mortal:
        row = played(mortal.port)

        async def dial(self: PlacedKeeper, step: Dial) -> None:
            if step.broker.name == row.name:
                await mortal.close()
            await usual(self, step)

        usual = PlacedKeeper._try
        monkeypatch.setattr(PlacedKeeper, "_try", dial)
        async with (
            cluster_of(scene.world, row, "B") as cluster,
            scene.connect(app, cluster, placement=placement) as connection,
        ):
            assert connection.broker == "B"
            assert attempts(connection) == [row.name, "B"]


@pytest.mark.requirement("DIR-62")
@pytest.mark.parametrize("placement", ["central", "local"])
async def test_nobody_is_there_until_the_deadline(scene: Scene, app: str, placement: Any) -> None:
    rows = [played(1, name=f"gone-{app}-{number}") for number in range(3)]
    async with cluster_of(scene.world, *rows) as cluster, scene.world.open() as directory:
        began_s = time.monotonic()
        with pytest.raises(AllBrokersFailed) as failed:
            await scene.connect(app, cluster, placement=placement, connect_timeout_s=3)
        assert 2.5 <= time.monotonic() - began_s <= 3.5
        for row in rows:
            assert f"{row.name}: Cannot connect to 127.0.0.1:1" in str(failed.value)
        waiting = asyncio.ensure_future(_open(scene.connect(app, cluster, placement=placement, connect_timeout_s=60)))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await directory.join_cluster(cluster=cluster, broker="C")
        connection = await waiting
        assert connection.broker == "C"
        await connection.close()
        await directory.leave_cluster(cluster=cluster, broker="C")


async def _open(connection: fairlead.Connection) -> fairlead.Connection:
    return await connection


@pytest.mark.requirement("DIR-63")
@pytest.mark.parametrize("placement", ["central", "local"])
async def test_wrong_credentials_are_tried_once(scene: Scene, app: str, placement: Any) -> None:
    async with scene.connect(app, "only-A", placement=placement) as other:
        before = len(attempts(other))
        with pytest.raises(BadCredentials, match=r"(?i)authentication failed"):
            await scene.connect(app, placement=placement, password="wrong")
        assert len(attempts(other)) == before + 1


@pytest.mark.requirement("DIR-67")
async def test_secure_is_never_plain(scene: Scene, app: str) -> None:
    secret = b"nobody on the way may read this"
    async with Line.open(scene.port_of("B")) as line:
        listened = played(line.port, secure_port=line.port)
        plain = played(line.port)
        options: dict[str, Any] = {"placement": "local", "tls": scene.trusting}
        async with cluster_of(scene.world, "A", plain, listened) as cluster:
            async with scene.connect(app, cluster, secure=True, **options) as connection:
                assert connection.broker == "B"  # as the broker says itself
                await connection.publish("secret", secret)
                await connection.flush()
                assert attempts(connection) == [listened.name]
            assert secret not in line.seen
            assert LOGIN["password"].encode() not in line.seen
            async with opened(*(scene.connect(app, cluster, secure=False, **options) for _ in range(2))) as both:
                assert [connection.broker for connection in both] == ["A", "B"]
                await both[1].publish("secret", secret)
                await both[1].flush()
            assert secret in line.seen
        async with cluster_of(scene.world, "A") as cluster:
            with pytest.raises(AllBrokersFailed, match="A: has no TLS port"):
                await scene.connect(app, cluster, secure=True, connect_timeout_s=1, **options)
        # A broker that offers TLS in the directory and speaks none fails, and the next one is tried.
        pretender = played(scene.port_of("A"), secure_port=scene.port_of("A"))
        async with (
            cluster_of(scene.world, pretender, "C") as cluster,
            scene.connect(app, cluster, secure=True, **options) as connection,
        ):
            assert connection.broker == "C"
            assert attempts(connection)[-2:] == [pretender.name, "C"]
        await gone(scene, app)


# What becomes of a connection later.


@pytest.mark.requirement("DIR-66")
async def test_a_broken_connection_is_replaced_under_another_label(scene: Scene, app: str) -> None:
    async with Line.open(scene.port_of("B")) as line:
        through = played(line.port)
        async with cluster_of(scene.world, through, "C") as cluster, scene.world.open() as directory:
            events: list[str] = []
            connection = scene.connect(app, cluster, placement="local")
            connection.on_event(lambda event: events.append(event.name))
            async with connection, scene.connect(app, "only-A") as other:
                label, identity = await connection.labelled(30), connection.identity
                assert (label, connection.broker) == (f"{app}-1", "B")
                assert await other.labelled(30) == f"{app}-2"
                await directory.leave_cluster(cluster=cluster, broker=through.name)
                line.cut()
                await until(lambda: connection.broker == "C" and connection.label, "it is at another broker")
                assert connection.identity != identity
                assert connection.label == f"{app}-3"
                rows = await scene.world.labelled(app, 2)
                assert [(row.label, row.broker) for row in rows] == [(f"{app}-2", "A"), (f"{app}-3", "C")]
                assert [name for name in events if name != "labelled"] == ["lost", "reconnected"]


async def test_without_reconnect_the_loss_is_final(scene: Scene, app: str) -> None:
    async with Line.open(scene.port_of("B")) as line:
        through = played(line.port)
        async with cluster_of(scene.world, through, "C") as cluster:
            async with scene.connect(app, cluster, placement="local", reconnect=False) as connection:
                line.cut()
                await until(lambda: connection.closed, "it is closed")
            await gone(scene, app)


async def test_a_registrar_that_was_lost_finds_the_connection_again(scene: Scene, app: str) -> None:
    async with scene.connect(app, "only-A") as connection:
        label, identity = await connection.labelled(30), connection.identity
        server = scene.world.brokers["A"]

        def registrar() -> int:
            return next(int(one["pid"]) for one in server.status()["components"] if one["role"] == "registrar")

        before = registrar()
        os.kill(before, signal.SIGKILL)
        await until(lambda: registrar() != before, "the registrar runs again")
        assert connection._registrar is not None
        assert await connection._registrar.ask(app, timeout=30) is not None
        assert (await connection.labelled(30), connection.identity, connection.broker) == (label, identity, "A")
        rows = await scene.world.labelled(app, 1)
        assert [(row.label, row.identity) for row in rows] == [(label, identity)]


async def test_an_update_of_the_broker_keeps_the_registration(scene: Scene, app: str) -> None:
    events: list[str] = []
    settings = {"directory.name": app, "directory.servers": scene.world.url(), "directory.clusters": f"only-{app}"}
    server = Server(managers=2, **settings)  # type: ignore[arg-type]
    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, server.__exit__, None, None, None)
        await asyncio.to_thread(server.start)
        connection = fairlead.connect(scene.world.url(f"only-{app}"), name=app, placement="central")
        await stack.enter_async_context(connection)
        label, identity = await connection.labelled(30), connection.identity
        connection.on_event(lambda event: events.append(event.name))
        await asyncio.to_thread(server.update, "managers")
        await until(lambda: "moved" in events, "the connection has moved")
        assert "lost" not in events
        assert connection._registrar is not None
        assert await connection._registrar.ask(app, timeout=30) is not None
        assert (await connection.labelled(30), connection.identity) == (label, identity)
        rows = await scene.world.labelled(app, 1)
        assert [(row.label, row.identity) for row in rows] == [(label, identity)]


async def test_rebalancing_moves_connections_gently(scene: Scene, app: str) -> None:
    async with (
        cluster_of(scene.world, "A") as cluster,
        scene.world.open() as directory,
        opened(*(scene.connect(app, cluster, placement="central") for _ in range(4))) as connections,
    ):
        assert {connection.broker for connection in connections} == {"A"}
        await asyncio.gather(*(connection.labelled(30) for connection in connections))
        await directory.join_cluster(cluster=cluster, broker="B")
        try:
            answer = await directory.rebalance(cluster=cluster)
            assert answer.moves == {"A": 2}
            await until(
                lambda: sorted(connection.broker for connection in connections) == ["A", "A", "B", "B"], "two move"
            )
            await scene.world.labelled(app, 4)
        finally:
            await directory.leave_cluster(cluster=cluster, broker="B")


@pytest.mark.requirement("DIR-16")
async def test_both_sides_report_and_there_is_one_row_each(scene: Scene, app: str) -> None:
    async with opened(*(scene.connect(app, report=True) for _ in range(9))) as connections:
        labels = {await connection.labelled(30) for connection in connections}
        await until(lambda: not connections[0].places.is_reporting, "all is reported")  # type: ignore[union-attr]
        rows = await scene.world.labelled(app, 9)
        assert {row.identity for row in rows} == {connection.identity for connection in connections}
        assert {row.label for row in rows} == labels == {f"{app}-{number}" for number in range(1, 10)}
        async with scene.world.open() as directory:
            again = await directory.connection_opened(app=app, link=rows[3])
        assert again.label == rows[3].label
        assert await scene.world.rows(app) == rows
    await gone(scene, app)


@pytest.mark.requirement("DIR-30", state="half", note="one process, two applications")
async def test_a_client_of_its_own_within_the_process(scene: Scene, app: str) -> None:
    url = scene.world.url("cluster-A")
    async with (
        fairlead.open_places(url, **LOGIN) as one,
        fairlead.open_places(url, **LOGIN) as two,
        opened(
            *(places.connect(name, placement="local") for places in (one, two) for name in (app, app, f"{app}b"))
        ) as connections,
    ):
        assert [connection.broker for connection in connections] == ["A", "B", "A"] * 2
        assert one.status()["requests"] == 3


async def test_a_connection_may_register_at_a_broker_without_being_placed(scene: Scene, app: str) -> None:
    url = scene.world.brokers["C"].url
    async with fairlead.connect(url, application=app, kind="static", **LOGIN) as connection:
        assert (connection.app, connection.broker, await connection.labelled(30)) == (app, "C", f"{app}-1")
        assert (await scene.world.application(app)).kind == "static"  # type: ignore[union-attr]
        await connection.register_as("dynamic")
        await scene.world.until(lambda: _kind(scene, app, "dynamic"), "it is dynamic")
    await gone(scene, app)
    with pytest.raises(BadCredentials):
        await fairlead.connect(url, application=app, user="ax", password="wrong")


async def _kind(scene: Scene, app: str, kind: str) -> bool:
    found = await scene.world.application(app)
    return found is not None and found.kind == kind


def test_the_synchronous_face_rotates_too(scene: Scene, app: str) -> None:
    url, options = scene.world.url("cluster-A"), {**LOGIN, "client": app, "placement": "local"}
    with fairlead.sync.connect(url, name=app, **options) as one, fairlead.sync.connect(url, name=app, **options) as two:
        assert [one.broker, two.broker] == ["A", "B"]
        assert {one.labelled(30), two.labelled(30)} == {f"{app}-1", f"{app}-2"}
        assert one.directory_status()["requests"] == 2
