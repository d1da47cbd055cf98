"""The ordinary client through HTTP: a real server, a real gateway, and every kind of message."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from random import Random

import pytest

import fairlead
from fairlead import errors, sync
from fairlead.client.bulk import BulkConnection
from fairlead.testing.server import Server
from fairlead.tunnel.edge.pump import TunnelStatus
from fairlead.tunnel.options import TunnelOptions
from fairlead.tunnel.packets import Kind, encode
from tests.tunnel.http.scripted import ID, Gateway, Reply, Request

NEVER = TunnelOptions(websocket="never")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(managers=1) as server:
        yield server


@pytest.fixture(scope="module")
def url(server: Server) -> str:
    return server.url.replace("fairlead://", "http://")


def tunnel_of(connection: fairlead.Connection) -> TunnelStatus:
    line = connection._carrier._line
    assert line is not None
    status = line.transport.get_extra_info("tunnel")
    assert isinstance(status, TunnelStatus)
    return status


@pytest.mark.requirement("TUN-27")
@pytest.mark.requirement("TUN-6", half="one URL of four")
@pytest.mark.requirement("TUN-28", half="nothing blocks the pushes")
@pytest.mark.parametrize("options", [NEVER, TunnelOptions(), TunnelOptions(websocket="never", pull_period_s=1)])
async def test_broadcast_request_and_conversation(url: str, options: TunnelOptions) -> None:
    async with asyncio.timeout(60), fairlead.connect(url, name="t", tunnel=options) as connection:
        async with connection.subscribe("prices.>") as prices:
            await connection.publish_many("prices.eur", [b"%d" % number for number in range(2000)])
            got = [int((await prices.next(timeout=30)).body) for _ in range(2000)]
            assert got == list(range(2000))

        async def double(request: fairlead.Message) -> bytes:
            return 2 * request.body

        registration = await connection.respond("double", double)
        assert (await connection.request("double", b"ab", timeout=30)).body == b"abab"
        await registration.close()
        assert connection.connected
        assert tunnel_of(connection).end.pull_period_s == options.pull_period_s
        assert str(connection.server)


@pytest.mark.requirement("TUN-39", state="half", note="it is taken by itself where it is possible")
async def test_a_websocket_is_taken_by_itself(url: str) -> None:
    async with asyncio.timeout(30), fairlead.connect(url, name="t") as connection:
        while tunnel_of(connection).carrier != "websocket":
            await connection.flush()
        await connection.flush()
    async with asyncio.timeout(30), fairlead.connect(f"{url}?websocket=never", name="t") as connection:
        await connection.flush()
        assert tunnel_of(connection).carrier == "push/pull"


async def test_queue_and_transaction(url: str) -> None:
    async with asyncio.timeout(60), fairlead.connect(url, name="t", tunnel=NEVER) as connection:
        queue = connection.queue("tunnel.orders")
        for number in range(100):
            await queue.send(b"%d" % number)
        async with queue.consume() as consumer:
            for number in range(100):
                message = await consumer.receive(timeout=30)
                assert message is not None
                assert message.body == b"%d" % number
                message.ack()
        async with connection.transaction() as transaction:
            await transaction.send("tunnel.a", b"one")
            await transaction.send("tunnel.b", b"two")
        for name, body in (("tunnel.a", b"one"), ("tunnel.b", b"two")):
            async with connection.queue(name).consume() as consumer:
                message = await consumer.receive(timeout=30)
                assert message is not None
                assert message.body == body
                await message.ack()


@pytest.mark.requirement("TUN-24", state="scaled", note="6 MB in one message; 2000 small ones in another test")
@pytest.mark.parametrize("options", [NEVER, TunnelOptions()])
async def test_a_very_large_message(url: str, options: TunnelOptions) -> None:
    data = Random(1).randbytes(6_000_000)
    async with asyncio.timeout(90), fairlead.connect(url, name="t", tunnel=options) as connection:
        queue = connection.queue("tunnel.large")
        await queue.send(io.BytesIO(data))  # type: ignore[arg-type]
        async with queue.consume() as consumer:
            message = await consumer.receive(timeout=60)
            assert message is not None
            assert message.is_large
            assert hashlib.sha256(await message.read()).digest() == hashlib.sha256(data).digest()
            await message.ack()


def test_programs_without_a_loop(url: str) -> None:
    with sync.connect(url, name="t", tunnel=NEVER) as connection, connection.subscribe("sync.>") as messages:
        connection.publish("sync.x", b"hello")
        assert messages.next(timeout=30).body == b"hello"


def test_the_bulk_client(url: str) -> None:
    with sync.connect(url, name="t") as connection:
        for number in range(50):
            connection.queue("tunnel.bulk").send(b"%d" % number)
    with BulkConnection(f"{url}?websocket=never", name="bulk") as bulk:
        (position,) = bulk.positions("tunnel.bulk").destinations
        batches = bulk.scan("tunnel.bulk", position.first, position.next, columns=9)
        bodies = b"".join(bytes(batch.buffers[3, 2]) for batch in batches)
        assert bodies == b"".join(b"%d" % number for number in range(50))
    with BulkConnection("http://127.0.0.1:1", patience_s=0.1) as bulk, pytest.raises(errors.ConnectionLost):
        bulk.positions("tunnel.bulk")


async def test_what_is_wrong_is_said(server: Server, url: str) -> None:
    async with asyncio.timeout(60):
        with pytest.raises(errors.BadCredentials):
            await fairlead.connect(url.replace("//", "//ann:wrong@"), name="t")
        with pytest.raises(errors.ConnectionLost, match="knows no broker 'nobody'"):
            await fairlead.connect(f"{url}/tunnel/nobody", name="t")
        with pytest.raises(errors.ConnectionLost, match="no way to the gateway"):
            await fairlead.connect("http://127.0.0.1:1", name="t")
        async with fairlead.connect(["http://127.0.0.1:1", url], name="t") as connection:
            await connection.flush()


async def test_why_a_tunnel_ended_is_what_the_program_hears() -> None:
    async def script(request: Request) -> Reply | None:
        if request.kind != "pull":
            return None
        if len(gateway.of("pull")) == 1:
            return Reply(200, encode(Kind.CONN_INIT_ACK, ID, 0, 10))
        return Reply(410, encode(Kind.CONN_ABORT, ID, payload=b"\x00\x04the broker is gone"))

    async with asyncio.timeout(60), Gateway(script) as gateway:
        with pytest.raises(errors.ConnectionLost, match="the broker is gone") as error:
            await fairlead.connect(gateway.url, name="t", tunnel=NEVER)
        assert ".." not in str(error.value)
        while len(asyncio.all_tasks()) > 1:  # the driver says its last word
            await asyncio.sleep(0.01)


async def test_a_lost_tunnel_is_made_again(url: str) -> None:
    async with (
        asyncio.timeout(60),
        fairlead.connect(url, name="t", tunnel=NEVER) as connection,
        connection.subscribe("again.>") as messages,
    ):
        back = asyncio.Event()
        connection.on_event(lambda event: back.set() if event.name == "reconnected" else None)
        line = connection._carrier._line
        assert line is not None
        first = tunnel_of(connection).end.connection_id
        line.transport.abort()
        await back.wait()
        assert tunnel_of(connection).end.connection_id != first
        await connection.publish("again.x", b"there")
        assert (await messages.next(timeout=30)).body == b"there"


@pytest.mark.requirement("TUN-7", state="scaled", note="a few seconds of silence instead of 10 minutes")
async def test_a_silent_client_is_reached(server: Server, url: str) -> None:
    async with (
        asyncio.timeout(60),
        fairlead.connect(url, name="quiet", tunnel=NEVER._replace(hold_s=1)) as quiet,
        fairlead.connect(server.url, name="loud") as loud,
        quiet.subscribe("wake.>") as messages,
    ):
        await asyncio.sleep(2.5)  # over more than one hold time
        await loud.publish("wake.up", b"now")
        assert (await messages.next(timeout=30)).body == b"now"
        assert tunnel_of(quiet).end.resends == 0


def run(*arguments: str, said: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "fairlead", *arguments], input=said, capture_output=True, timeout=90, check=False
    )


def test_the_command_line_takes_such_urls(server: Server, url: str) -> None:
    responder = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "respond", "cli.echo", "answer", "--server", url],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        while responder.poll() is None:
            done = run("request", "cli.echo", "question", "--server", url, "--timeout", "10")
            if done.returncode == 0:
                break
        assert done.stdout.strip() == b"answer", (done, responder.poll())
    finally:
        responder.terminate()
        responder.communicate(timeout=30)
    assert run("pub", "cli.topic", "hello", "--server", url).returncode == 0
    status = run("status", "--json", "--server", url)
    assert status.returncode == 0, status
    assert json.loads(status.stdout)
    refused = run("pub", "cli.topic", "hello", "--server", "http://gateway.example")
    assert refused.returncode == 2
    assert b"allow_plain" in refused.stderr
