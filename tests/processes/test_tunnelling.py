"""Tunnels in `fairlead serve`: one port for everything, and processes that come when they are needed."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import fairlead
from fairlead.runtime.counters import ManagerCounter
from fairlead.testing import Server
from tests.processes.raw import Raw
from tests.processes.test_access import certificate
from tests.processes.tools import NEVER_FROZEN, at_rest, suspended
from tests.wire.test_hello import client_hello

pytestmark = pytest.mark.processes

PAGE = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
GATEWAY, BROKER = "tunnel-gateway", "tunnel-broker"
SWITCHED_OFF: dict[str, Any] = {"tunnel.enabled": "false"}
SOON_FROZEN: dict[str, Any] = {"limits.frozen_s": 1}


class Door(NamedTuple):
    """A server with a certificate."""

    server: Server
    pem: Path

    def url(self, scheme: str) -> str:
        return f"{scheme}://localhost:{self.server.port}"

    def trusting(self, *protocols: str) -> ssl.SSLContext:
        """Of a client that knows the certificate."""
        context = ssl.create_default_context(cafile=self.pem)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    data = tmp_path_factory.mktemp("door")
    pem, _ = certificate(data)
    settings: dict[str, Any] = {"security.tls_certificate": pem, "security.tls_key": pem, **NEVER_FROZEN}
    with Server(data=data, **settings) as server:
        yield Door(server, pem)
        server.wait_until(at_rest, timeout_s=30)
        assert server.stop() == 0


def get(port: int, path: str = "/", *, tls: ssl.SSLContext | None = None) -> tuple[int, str]:
    """What a browser would see."""
    make: Any = http.client.HTTPSConnection if tls is not None else http.client.HTTPConnection
    options = {"context": tls} if tls is not None else {}
    connection = make("localhost", port, timeout=30, **options)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def answer_to(port: int, first: bytes, timeout_s: float = 30) -> bytes:
    """Everything that comes until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as client:
        client.sendall(first)
        found = b""
        with contextlib.suppress(ConnectionError):
            while more := client.recv(65536):
                found += more
        return found


def roles(report: dict[str, Any]) -> list[str]:
    return [one["role"] for one in report["components"]]


def active(server: Server, role: str, other_than: int = 0) -> int:
    """The process that serves; one that begins to do so is waited for."""
    found: list[int] = []

    def is_there(report: dict[str, Any]) -> bool:
        found[:] = [one["pid"] for one in report["components"] if (one["role"], one["state"]) == (role, "active")]
        return bool(found) and other_than not in found

    server.wait_until(is_there, timeout_s=30)
    return found[0]


def counted(server: Server, counter: ManagerCounter) -> int:
    return sum(one["counters"][counter.name.lower()] for one in server.status(brief=True)["managers"])


def cpu_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


# -- one port


def test_nothing_is_started_before_the_first_request_and_all_of_it_by_that(tmp_path: Path) -> None:
    with Server(data=tmp_path, managers=1) as server:
        with Raw(server.port):
            report = server.status()
        assert not {GATEWAY, BROKER} & set(roles(report))
        assert report["tunnel"]["gateway"]["state"] == "not needed yet"
        status, text = get(server.port)
        assert status == 200
        assert "fairlead.connect(" in text
        assert get(server.port, "/tunnel/health") == (200, "ok\n")
        report = server.wait_until(lambda report: report["tunnel"]["broker"].get("linked") == 1)
        assert {GATEWAY, BROKER} <= set(roles(report))
        assert (report["tunnel"]["passed_on"], report["tunnel"]["turned_away"]) == (2, 0)
        assert counted(server, ManagerCounter.PROTOCOL_ERRORS) == 0, "it is no error to speak HTTP"
        server.wait_until(lambda report: not report["connections"])
        pids = [one["pid"] for one in report["components"]]
        assert server.stop() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids), "they end with the server"
    assert not list((tmp_path / "run").glob("tunnel*"))


def test_https_on_the_same_port_ends_with_the_same_certificate(door: Door) -> None:
    assert get(door.server.port, "/tunnel/health", tls=door.trusting("http/1.1")) == (200, "ok\n")
    status, text = get(door.server.port, tls=door.trusting())
    assert status == 404, "who does not say that it wants HTTP is taken for one of ours"
    assert "ALPN" in text
    stranger = ssl.create_default_context()
    stranger.set_alpn_protocols(["http/1.1"])
    with pytest.raises(ssl.SSLCertVerificationError):
        get(door.server.port, tls=stranger)


@pytest.mark.requirement("TUN-6")
async def test_one_program_and_four_urls(door: Door) -> None:
    printed = []
    for scheme in ("fairlead", "fairleads", "http", "https"):
        tls = door.trusting() if scheme.endswith("s") else None
        async with fairlead.connect(door.url(scheme), name="one", tls=tls) as connection:
            printed.append(await program(connection))
    assert printed[1:] == printed[:1] * 3
    assert "hello" in printed[0]


async def program(connection: fairlead.Connection) -> list[str]:
    """Broadcast, request and queue, as any program has them."""
    said = []
    async with connection.subscribe("news.>") as inbox:
        await connection.publish("news.one", b"hello")
        said.append((await inbox.next(timeout=20)).body.decode())

    async def shout(message: Any) -> bytes:
        return bytes(message.body).upper()

    registration = await connection.respond("shout", shout)
    said.append((await connection.request("shout", b"loud", timeout=20)).body.decode())
    await registration.close()
    queue = connection.queue("queue-of-four")
    await queue.send(b"kept")
    async with queue.consume() as consumer:
        message = await consumer.receive(timeout=20)
        assert message is not None
        said.append(message.body.decode())
        await message.ack()
    return said


def test_native_clients_come_in_as_ever_while_others_ask_by_http(door: Door) -> None:
    server, over, pages = door.server, threading.Event(), []

    def browse() -> None:
        while not over.is_set():
            pages.append(get(server.port)[0])

    threads = [threading.Thread(target=browse) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(200):
            Raw(server.port).close()
    finally:
        over.set()
        for thread in threads:
            thread.join(30)
    assert pages
    assert set(pages) == {200}


def test_without_tunnels_a_browser_is_told_what_this_is(tmp_path: Path) -> None:
    with Server(data=tmp_path, managers=1, **SWITCHED_OFF) as server:
        status, text = get(server.port)
        assert status == 404
        assert "fairlead://" in text
        report = server.status()
        assert not {GATEWAY, BROKER} & set(roles(report))
        assert report["tunnel"]["gateway"]["state"] == "switched off"
        assert server.stop() == 0


# -- hostile beginnings


def test_whatever_comes_first_is_closed_in_time_and_nobody_spins(door: Door) -> None:
    """Slow, in crumbs, halves of everything: after `preface_s` all of them are gone, at hardly any cost."""
    server, hello = door.server, client_hello("http/1.1")
    announced = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc"  # a record of 16 KiB that never ends
    halves = [b"", b"G", b"GE", b"PRI * HTTP", b"FLD", hello[:1], hello[:4], hello[:-1], announced + bytes(10_000)]
    managers = server.pids("manager")
    with contextlib.ExitStack() as stack:

        def dial() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))

        waiting = [dial() for _ in halves]
        drips = [(dial(), hello[:-1]), (dial(), b"OPTIONS"), (dial(), b"PRI * HTTP/2.")]
        for client, first in zip(waiting, halves, strict=True):
            client.sendall(first)
        before_s, began_s = sum(cpu_s(pid) for pid in managers), time.monotonic()
        for at in range(len(hello)):
            for client, data in drips:
                with contextlib.suppress(ConnectionError):
                    client.sendall(data[at : at + 1])
            time.sleep(0.05 if at % 20 == 0 else 0)
        for client in (*waiting, *(client for client, _ in drips)):
            with contextlib.suppress(ConnectionError):
                assert client.recv(4096) == b""
        took_s, spent_s = time.monotonic() - began_s, sum(cpu_s(pid) for pid in managers) - before_s
    assert 4 < took_s < 30
    assert spent_s < 0.1 * took_s, f"{spent_s:.2f} s of CPU time in {took_s:.1f} s"
    assert server.pids("manager") == managers, "none of them ended"


@pytest.mark.parametrize("first", [b"\x16", b"\x16\x03\x01\xff\xff", b"\x16\x03\x01\x3f\xff\x01", b"\x80", b"PUTS "])
def test_rubbish_is_closed_at_once(door: Door, first: bytes) -> None:
    managers = door.server.pids("manager")
    began_s = time.monotonic()
    answer = answer_to(door.server.port, first + random.Random(1).randbytes(32768))
    assert not answer or answer[0] == 0x15, "nothing, or an alert of TLS"
    assert time.monotonic() - began_s < 4.5
    assert door.server.pids("manager") == managers
    with Raw(door.server.port) as client:
        client.echo()


def test_when_the_gateway_stands_still_requests_wait_and_then_are_turned_away(door: Door) -> None:
    server = door.server
    get(server.port)
    waiting: list[socket.socket] = []
    try:
        with suspended(active(server, GATEWAY)):
            for _ in range(2000):
                client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
                waiting.append(client)
                client.sendall(PAGE)
                if len(waiting) % 50 == 0 and counted(server, ManagerCounter.TURNED_AWAY):
                    break
            turned_away = [client for client in waiting if is_readable(client)]
            assert turned_away, "there is an end to what waits"
            for client in turned_away:
                answer = client.recv(65536)
                assert answer.startswith(b"HTTP/1.1 503 ")
                assert b"Retry-After: 1\r\n" in answer
            with Raw(server.port) as native:
                assert native.echo() < 10, "others are served as ever"
        patient = [client for client in waiting if client not in turned_away and not is_gone(client)]
        assert len(patient) > 50
        for client in patient:
            assert client.recv(65536)[:13] in (b"HTTP/1.1 200 ", b"HTTP/1.1 503 "), "it waited in the socket"
    finally:
        for client in waiting:
            client.close()


def is_readable(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        client.recv(1, socket.MSG_PEEK)
        return True
    except BlockingIOError:
        return False
    finally:
        client.settimeout(60)


def is_gone(client: socket.socket) -> bool:
    return is_readable(client) and client.recv(13, socket.MSG_PEEK) == b"HTTP/1.1 503 "


def test_a_frozen_gateway_is_replaced_and_who_waited_is_answered(tmp_path: Path) -> None:
    with Server(data=tmp_path, managers=1, **SOON_FROZEN) as server:
        get(server.port)
        frozen = active(server, GATEWAY)
        with suspended(frozen):
            assert get(server.port)[0] == 200, "by another gateway: the connection waited for it"
            assert active(server, GATEWAY, other_than=frozen) != frozen
        assert server.stop() == 0
