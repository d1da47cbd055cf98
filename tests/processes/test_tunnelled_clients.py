"""Clients that come through HTTP to a real server: whatever process dies, and whoever they say they are."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import fairlead
from fairlead import errors
from fairlead.testing import Cluster, Server
from fairlead.tunnel.packets import Kind, encode
from tests.processes.soak import kill_supervisor, reexec
from tests.processes.test_access import add_user, certificate
from tests.processes.test_tunnelling import BROKER, GATEWAY, active, get
from tests.processes.tools import NEVER_FROZEN, at_rest, reported, until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(**NEVER_FROZEN) as one:
        yield one
        one.wait_until(at_rest, timeout_s=60)
        assert one.stop() == 0


def through(server: Server, **options: Any) -> fairlead.Connection:
    return fairlead.connect(f"http://127.0.0.1:{server.port}", **options)


class Stream:
    """Numbers, one after the other, from one connection to another, until told to stop; all of them, once, in order."""

    def __init__(self, sender: fairlead.Connection, receiver: fairlead.Connection, topic: str) -> None:
        self._sender, self._receiver, self._topic = sender, receiver, topic
        self.sent = self.received = 0
        self._over = False

    async def __aenter__(self) -> Stream:
        self._inbox = await self._receiver.subscribe(self._topic).__aenter__()
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._receive())]
        await self.some()
        return self

    async def _send(self) -> None:
        while not self._over:
            await self._sender.publish(self._topic, b"%d" % self.sent + b"." * (self.sent % 3000))
            self.sent += 1
            await asyncio.sleep(0.001)
        await self._sender.publish(self._topic, b"over")
        await self._sender.flush()

    async def _receive(self) -> None:
        while (message := await self._inbox.next(timeout=60)).body != b"over":
            assert int(message.body.rstrip(b".")) == self.received
            self.received += 1

    async def some(self, count: int = 50) -> None:
        """Until so many more have come."""
        wanted = self.received + count
        await until(lambda: self.received >= wanted or any(task.done() for task in self._tasks), 60)
        for task in self._tasks:
            if task.done():
                task.result()

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        await asyncio.wait_for(asyncio.gather(*self._tasks), 60)
        assert self.received == self.sent
        await self._inbox.close()


@pytest.mark.requirement("TUN-49", state="scaled", note="two streams of messages of up to 3 KB instead of 100 MB")
async def test_streams_go_on_when_the_gateway_is_killed_or_updated(server: Server) -> None:
    async with through(server, name="a") as inside, fairlead.connect(server.url, name="b") as outside:
        uid = inside.uid
        async with Stream(inside, outside, "up") as up, Stream(outside, inside, "down") as down:
            for injury in ("kill", "update", "kill"):
                pid = await asyncio.to_thread(active, server, GATEWAY)
                if injury == "kill":
                    os.kill(pid, signal.SIGKILL)
                else:
                    assert (await asyncio.to_thread(server.update, GATEWAY))["ok"]
                await asyncio.gather(up.some(), down.some())
                assert await asyncio.to_thread(active, server, GATEWAY, pid) != pid
            assert (await asyncio.to_thread(server.update, "managers"))["ok"]
            await asyncio.gather(up.some(), down.some())
        assert inside.uid == uid, "it is the same connection through the same tunnel"
        assert inside.connected


@pytest.mark.requirement("TUN-51", state="half", note="the broker's restart; the gateway's is above")
async def test_clients_come_back_by_themselves_when_the_broker_is_killed(server: Server) -> None:
    async with (
        through(server, name="a") as inside,
        fairlead.connect(server.url, name="b") as outside,
        inside.subscribe("news") as inbox,
    ):
        uid, pid = inside.uid, await asyncio.to_thread(active, server, BROKER)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: inside.connected and inside.uid != uid, 60)
        assert await asyncio.to_thread(active, server, BROKER, pid) != pid
        await outside.publish("news", b"here again")
        assert (await inbox.next(timeout=30)).body == b"here again"


async def test_tunnels_outlive_the_supervisor_and_are_adopted_by_the_next(server: Server) -> None:
    async with through(server, name="a") as inside, fairlead.connect(server.url, name="b") as outside:
        uid = inside.uid
        pids = [await asyncio.to_thread(active, server, role) for role in (GATEWAY, BROKER)]
        async with Stream(inside, outside, "over"):
            await kill_supervisor(server)
            assert [server.pids(role)[0] for role in (GATEWAY, BROKER)] == pids
            await reexec(server)
            assert [await asyncio.to_thread(active, server, role) for role in (GATEWAY, BROKER)] == pids
            os.kill(pids[0], signal.SIGKILL)  # the new one has all it needs to start another
            assert await asyncio.to_thread(active, server, GATEWAY, pids[0]) != pids[0]
        assert inside.uid == uid
        assert (await asyncio.to_thread(get, server.port, "/tunnel/health"))[0] == 200


async def test_the_report_counts_tunnels(server: Server) -> None:
    async with through(server, name="a"), through(server, name="b"):
        report = await reported(server, lambda report: report["tunnel"]["broker"].get("tunnels") == 2)
        assert report["tunnel"]["gateway"]["connections"] >= 2
        said = await asyncio.to_thread(run_fairlead, "status", "--data", str(server.data))
        assert "2 to 'fairlead' over 1 of 1 links; gateway active" in said
        url = f"http://127.0.0.1:{server.port}/tunnel"
        said = await asyncio.to_thread(run_fairlead, "tunnel", "status", "--url", url, "--json")
        assert len(json.loads(said)["tunnels"]) >= 2
    await reported(server, lambda report: report["tunnel"]["broker"].get("tunnels") == 0)


def run_fairlead(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "fairlead", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_who_comes_through_a_tunnel_has_its_own_rights_and_no_others(tmp_path: Path) -> None:
    add_user(tmp_path, "bob", "--publish", "public.>", "--subscribe", "public.*")
    with Server(data=tmp_path, managers=1) as server:
        for user, password in (("", ""), ("bob", "wrong")):
            with pytest.raises(errors.BadCredentials):
                await through(server, user=user, password=password)
        async with through(server, user="bob", password="bob-secret") as bob:
            async with bob.subscribe("public.x") as inbox:
                await bob.publish("public.x", b"mine")
                assert (await inbox.next(timeout=20)).user == "bob"
            with pytest.raises(errors.NotAllowed):
                async with bob.subscribe("secret.x"):
                    pass
        assert server.stop() == 0


async def test_a_page_in_a_browser_on_this_host_opens_no_tunnel(server: Server) -> None:
    """Its server may have given it a name that means this host, and then it may read all answers."""
    body = encode(Kind.CONN_INIT, window=16)
    found = {}
    async with httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{server.port}/tunnel?ServerName=fairlead&Type=connect"
        for name, headers in (("page", {"Origin": "http://elsewhere.example"}), ("program", {})):
            answer = await client.post(url, content=body, headers=headers)
            found[name] = answer.status_code
    assert found == {"page": 403, "program": 200}


@pytest.mark.requirement("TUN-43", state="half", note="both on one host, without a firewall between them")
async def test_a_server_is_reached_through_the_gateway_of_another(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("outer", "inner")]
    for folder in folders:
        folder.mkdir()
    pem, _ = certificate(tmp_path)
    secret = tmp_path / "secret"
    run_fairlead("node", "secret", str(secret))
    port = free_port()
    outer: dict[str, Any] = {
        "security.tls_certificate": pem,
        "security.tls_key": pem,
        "tunnel.link_listen": f"127.0.0.1:{port}",
        "tunnel.link_secret_file": secret,
    }
    inner: dict[str, Any] = {
        "tunnel.name": "inner",
        "tunnel.gateways": f"localhost:{port}",
        "tunnel.gateway_ca": pem,
        "tunnel.link_secret_file": secret,
    }
    add_user(folders[1], "bob")
    with Server(data=folders[0], managers=1, **outer) as first, Server(data=folders[1], managers=1, **inner) as second:
        await reported(second, lambda report: report["tunnel"]["broker"].get("linked") == 2, 60)
        url = f"http://127.0.0.1:{first.port}/tunnel/inner"
        async with fairlead.connect(url, user="bob", password="bob-secret") as bob:
            await reported(second, lambda report: [one["user"] for one in report["connections"]] == ["bob"])
            assert bob.connected
        assert not first.status()["connections"]
        assert (first.stop(), second.stop()) == (0, 0)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


@pytest.mark.nodes
async def test_a_client_manager_of_a_cluster_is_reached_the_same_way() -> None:
    with Cluster(cms=1, groups=1, backups=0) as cluster:
        async with fairlead.connect(cluster.url.replace("fairlead://", "http://")) as inside:
            queue = inside.queue("a.tunnelled")
            await queue.send(b"kept by a group")
            async with queue.consume() as consumer:
                message = await consumer.receive(timeout=30)
                assert message is not None
                assert message.body == b"kept by a group"
                await message.ack(confirm=True)
