"""The gateway as a process of a server: connections are handed in, and it is stopped, killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from fairlead.tunnel.edge.gateway.links import bind_private
from fairlead.tunnel.gateway.tokens import verifier_of
from fairlead.tunnel.link_init import LinkInit, LinkTunnel
from fairlead.tunnel.packets import Kind, encode, split
from tests.tunnel.gateway_parts import SOON_S, Broker, Running, certificate, opened, until


class Process:
    """`python -m fairlead.tunnel.edge.gateway` with a socket for links and one connections are handed in by."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.settings = {"instance": "one", "opens_per_s": 1000.0} | settings
        self.links = bind_private(str(folder / "links"))
        self.links.listen()
        self.giving, self.taking = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.front = socket.create_server(("127.0.0.1", 0))
        self.front.setblocking(False)
        self.port = self.front.getsockname()[1]
        self.folder = folder
        self.started: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        fds = self.taking.fileno(), self.links.fileno()
        command = [sys.executable, "-m", "fairlead.tunnel.edge.gateway", json.dumps(self.settings)]
        command += ["--intake", str(fds[0]), "--link", str(fds[1])]
        with open(self.folder / "errors", "ab") as errors:
            self.started = subprocess.Popen(command, pass_fds=fds, stderr=errors)

    async def hand_over(self, what: bytes = b"P") -> None:
        """Accept one connection after the other, as a server would, and pass them on."""
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self.front)
            with connection:
                socket.send_fds(self.giving, [what], [connection.fileno()])

    async def broker(self, **more: object) -> Broker:
        broker = Broker(*await asyncio.open_unix_connection(self.folder / "links"))
        given: dict[str, object] = {"start_id": bytes(16)} | more
        broker.send(encode(Kind.LINK_INIT, payload=LinkInit("b1", **given).encode()))  # type: ignore[arg-type]
        await broker.expect(Kind.LINK_INIT_ACK)
        return broker

    def gateway(self) -> Running:
        return Running(None, self.port)  # type: ignore[arg-type]

    def close(self) -> None:
        if self.started.poll() is None:
            self.started.kill()
        self.started.wait()
        for one in (self.links, self.giving, self.taking, self.front):
            one.close()


@contextmanager
def process(folder: Path, **settings: object) -> Iterator[Process]:
    made = Process(folder, **settings)
    try:
        yield made
    finally:
        made.close()
    said = (folder / "errors").read_text()
    assert "Traceback" not in said
    assert "never retrieved" not in said


async def exit_code(started: subprocess.Popen[bytes]) -> int:
    return await asyncio.to_thread(started.wait, SOON_S)


@pytest.mark.processes
@pytest.mark.requirement("TUN-29", state="half", note="its sockets are looked at, not a trace of all the time")
@pytest.mark.requirement("TUN-49", "TUN-50", "TUN-63", state="half", note="with a scripted broker and client")
def test_a_gateway_that_is_stopped_and_killed_and_comes_back(tmp_path: Path) -> None:
    async def test(gate: Process) -> None:
        giving = asyncio.create_task(gate.hand_over())
        broker = await gate.broker()
        client = await opened(gate.gateway(), broker)
        has = psutil.Process(gate.started.pid).net_connections("tcp")
        assert has
        assert {one.laddr[1] for one in has} == {gate.port}, "it answers, and never calls anybody"
        pull = asyncio.create_task(client.pull(25))
        async with asyncio.timeout(SOON_S):
            while (await client.http.get(client.url + "/status")).json()["tunnels"][0]["last_pull_s"]:
                await asyncio.sleep(0.01)  # until the pull is held
        gate.started.send_signal(signal.SIGTERM)
        answer = await pull
        assert (answer.status_code, answer.content) == (200, b""), "a held pull is answered before it leaves"
        assert await exit_code(gate.started) == 0
        await until(lambda: broker.is_cut)
        await broker.close()
        await client.http.aclose()
        client.http = client.fresh()
        waiting = asyncio.create_task(client.pull(25))  # while nobody is there, it waits in the socket
        gate.start()
        assert (await waiting).status_code == 503
        kept = [LinkTunnel(client.connection_id, 0, 60, verifier_of(bytes.fromhex(client.token)))]
        broker = await gate.broker(tunnels=kept)
        broker.data(client.connection_id, 1, b"the same tunnel")
        assert split((await client.pull(10)).content).packets[0].payload == b"the same tunnel"
        assert (await client.pull(0, token="00" * 32)).status_code == 403
        gate.started.kill()
        assert await exit_code(gate.started) == -signal.SIGKILL
        gate.start()
        await broker.close()
        await client.http.aclose()
        client.http = client.fresh()
        broker = await gate.broker(tunnels=kept)
        assert (await client.push(client.data(1, b"and again"))).status_code == 200
        assert (await broker.expect(Kind.DATA)).payload == b"and again"
        await broker.close()
        await client.http.aclose()
        giving.cancel()
        await asyncio.gather(giving, return_exceptions=True)

    with process(tmp_path) as gate:
        asyncio.run(test(gate))


@pytest.mark.processes
@pytest.mark.requirement("TUN-64", state="half", note="the gateway's side")
def test_connections_handed_in_speak_plain_or_tls_and_rubbish_is_closed(tmp_path: Path) -> None:
    pem, trusting = certificate(tmp_path)

    async def ask(gate: Process, what: bytes, url: str) -> str:
        giving = asyncio.create_task(gate.hand_over(what))
        try:
            async with httpx.AsyncClient(verify=trusting, trust_env=False, timeout=SOON_S) as http:
                return (await http.get(f"{url}://127.0.0.1:{gate.port}/tunnel/health")).text
        finally:
            giving.cancel()
            await asyncio.gather(giving, return_exceptions=True)

    async def test(gate: Process) -> None:
        assert await ask(gate, b"P", "http") == "ok\n"
        assert await ask(gate, b"T", "https") == "ok\n"
        for what in (b"X", b"", b"PP"):
            with pytest.raises(httpx.TransportError):
                await ask(gate, what, "http")
        with pytest.raises(httpx.TransportError):
            await ask(gate, b"T", "http")
        gate.giving.send(b"P")  # without a connection
        nothing = os.open(os.devnull, os.O_RDONLY)
        socket.send_fds(gate.giving, [b"P"], [nothing])
        socket.send_fds(gate.giving, [b"P"], [nothing] * 9)
        os.close(nothing)
        one, two = socket.socketpair()
        with one, two, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            socket.send_fds(gate.giving, [b"P"], [datagrams.fileno()])
            socket.send_fds(gate.giving, [b"P"], [two.fileno()])
            two.close()
            one.settimeout(SOON_S)
            one.sendall(b"GET /tunnel/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert b"200 OK" in one.recv(1000)
        assert await ask(gate, b"T", "https") == "ok\n"
        gone = [socket.create_connection(("127.0.0.1", gate.port)) for _ in range(20)]
        for connection in gone:
            accepted, _ = gate.front.accept()
            connection.close()
            with accepted:
                socket.send_fds(gate.giving, [b"T"], [accepted.fileno()])
        assert await ask(gate, b"P", "http") == "ok\n"
        files = psutil.Process(gate.started.pid).num_fds
        await until(lambda: files() < 30)

    with process(tmp_path, certificate=str(pem), key=str(pem)) as gate:
        asyncio.run(test(gate))
        assert gate.started.poll() is None


@pytest.mark.processes
def test_settings_that_cannot_be_used_end_the_process_with_2() -> None:
    for settings, words in (('{"listen": 7}', "cannot be read"), ('{"listen": "nowhere"}', "HOST:PORT")):
        command = [sys.executable, "-m", "fairlead.tunnel.edge.gateway", settings]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (ended.returncode, words in ended.stderr) == (2, True), ended.stderr
        assert "Traceback" not in ended.stderr
