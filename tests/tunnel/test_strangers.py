"""What somebody without a token can try: memory, log and terminal stay as they are, and everybody else is served."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.cli.tunnel import show, tunnel_group
from fairlead.tunnel import TunnelOptions, TunnelServer
from fairlead.tunnel.edge.gateway import GatewaySettings
from fairlead.tunnel.edge.gateway.serve import GatewayServer
from fairlead.tunnel.edge.http.opening import open_tunnel
from fairlead.tunnel.edge.links import LinkTimes
from fairlead.tunnel.gateway import CloseLink, Gateway, Limits
from fairlead.tunnel.gateway.limits import Places, neighbourhood
from fairlead.tunnel.link_init import LINK_PAYLOAD_MAX, LinkInit, LinkTunnel
from fairlead.tunnel.packets import Abort, Kind, encode, split
from fairlead.tunnel.refusals import NoAnswer
from tests.tunnel.gateway_parts import SOON_S, Broker, ByHand, Client, Running, opened, running, until

PUSH = "/tunnel?ServerName=b1&Type=push&ConnId=7"
CHUNKED = f"POST {PUSH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
EVIL = "b[/]\x1b[2J\n[red]1"


async def sent_before_the_end(port: int, beginning: bytes, piece: bytes, limit: int) -> int:
    """How much the gateway took before it closed the connection; it has to within `limit`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = 0
    with contextlib.suppress(OSError):
        writer.write(beginning)
        async with asyncio.timeout(SOON_S):
            while sent < limit and not reader.at_eof():
                writer.write(piece)
                sent += len(piece)
                await writer.drain()
                await asyncio.sleep(0)
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    return sent


@pytest.mark.requirement("TUN-101", half="what a stranger may cost")
@pytest.mark.parametrize(
    ("beginning", "piece"),
    [
        (CHUNKED + b"0\r\n", b"name: value\r\n" * 1000),
        (CHUNKED + b"0\r\nname: ", b"x" * 16384),
        (CHUNKED + b"1;", b"x" * 16384),
        (b"GET /tunnel/health HTTP/1.1\r\nname: ", b"x" * 16384),
        (b"GET /", b"x" * 16384),
    ],
    ids=["trailers", "one trailer", "a chunk's extension", "one header", "a path"],
)
def test_what_has_no_end_is_not_read_to_the_end(beginning: bytes, piece: bytes) -> None:
    async def test() -> None:
        async with running() as gateway:
            assert await sent_before_the_end(gateway.port, beginning, piece, 32 << 20) < 32 << 20

    asyncio.run(test())


@pytest.mark.requirement("TUN-101", half="what a stranger may cost")
def test_requests_that_do_not_wait_for_answers_are_few() -> None:
    async def test() -> None:
        async with running() as gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(b"GET /tunnel/health HTTP/1.1\r\nHost: x\r\n\r\n" * 4000)
            async with asyncio.timeout(SOON_S):
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()
            writer.close()
            assert sum(gateway.station.counters.replies.values()) <= 20
            by_hand = await ByHand.dial(gateway.port)
            assert await by_hand.post("ServerName=b1&Type=push&ConnId=7", b"") == 503
            await by_hand.close()

    asyncio.run(test())


def test_a_few_requests_at_once_are_all_answered() -> None:
    async def test() -> None:
        async with running() as gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(b"GET /tunnel/health HTTP/1.1\r\nHost: x\r\n\r\n" * 10)
            for _ in range(10):
                async with asyncio.timeout(SOON_S):
                    assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(test())


@pytest.mark.requirement("TUN-101", half="what a stranger may cost")
def test_empty_lines_do_not_keep_a_connection_open() -> None:
    async def test() -> None:
        async with running(patience_s=0.3) as gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(b"GET /tunnel/health HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"ok\n")
            writer.write(b"\r\n")
            async with asyncio.timeout(SOON_S):  # idle connections are kept for 75 s
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()

    asyncio.run(test())


@pytest.mark.requirement("TUN-101", half="what a stranger may cost")
def test_bodies_that_stop_half_way_give_way_to_others() -> None:
    async def test() -> None:
        async with running(arriving_bytes_max=1 << 20) as gateway:
            broker = await Broker.linked(gateway)
            client = await opened(gateway, broker)
            head = f"POST {PUSH} HTTP/1.1\r\nHost: x\r\nContent-Length: 400000\r\n\r\n".encode()
            halves = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(20)]
            for _, writer in halves:
                writer.write(head + bytes(300_000))
            arrivals = gateway.app._arrivals
            async with asyncio.timeout(SOON_S):
                answers = await asyncio.gather(*(reader.readline() for reader, _ in halves[:15]))
            assert set(answers) == {b"HTTP/1.1 503 Service Unavailable\r\n"}, "the oldest are given up"
            assert arrivals.bytes <= 1 << 20
            large = [client.data(number, bytes(30_000)) for number in range(1, 31)]
            assert (await client.push(*large)).status_code == 200
            for _, writer in halves:
                writer.close()
            await until(lambda: arrivals.bytes == 0)
            await client.http.aclose()
            await broker.close()

    asyncio.run(test())


@pytest.mark.requirement("TUN-101", half="what a stranger may cost")
def test_the_bodies_of_held_pulls_are_not_kept() -> None:
    async def test() -> None:
        async with running() as gateway:
            broker = await Broker.linked(gateway)
            clients = [await opened(gateway, broker) for _ in range(8)]
            tracemalloc.start()
            try:
                before = tracemalloc.get_traced_memory()[0]
                rubbish = bytes(1 << 20)
                pulls = [
                    asyncio.create_task(one.ask("pull", rubbish, ConnId=one.connection_id, Hold=20)) for one in clients
                ]
                await until(lambda: len(gateway.station._held) == len(clients))
                assert tracemalloc.get_traced_memory()[0] - before < 5 << 20
            finally:
                tracemalloc.stop()
            for number, one in enumerate(clients, 1):
                broker.data(one.connection_id, 1, b"%d" % number)
            answers = await asyncio.gather(*pulls)
            assert [split(answer.content).packets[0].payload for answer in answers] == [b"%d" % n for n in range(1, 9)]
            for one in clients:
                await one.http.aclose()
            await broker.close()

    asyncio.run(test())


async def websocket(gateway: Running, client: Client) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """One without a library, which would be too polite."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1 << 16)
    writer.write(
        f"GET /tunnel?ServerName=b1&Type=stream&ConnId={client.connection_id} HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {client.token}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    async with asyncio.timeout(SOON_S):
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


@pytest.mark.requirement("TUN-101", half="what a stranger may cost")
def test_pings_whose_answers_nobody_reads() -> None:
    async def test() -> None:
        async with running() as gateway:
            broker = await Broker.linked(gateway)
            client = await opened(gateway, broker)
            reader, writer = await websocket(gateway, client)
            (stream,) = gateway.connections()[-1:]
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            pings = (b"\x89\xfd" + bytes(4) + bytes(125)) * 1000
            most = 0
            with contextlib.suppress(OSError):
                for _ in range(160):  # 20 MB, more than the kernel keeps for us
                    writer.write(pings)
                    await writer.drain()
                    await asyncio.sleep(0)
                    most = max(most, *(one.transport.get_write_buffer_size() for one in gateway.connections()))
            assert stream is not None
            assert most < 2 << 20
            writer.transport.abort()
            assert (await client.push(encode(Kind.ACK, client.connection_id, window=99))).status_code == 200
            await client.http.aclose()
            await broker.close()

    asyncio.run(test())


@pytest.mark.requirement("TUN-101", half="what a stranger may cost")
@pytest.mark.parametrize(
    "frames",
    [
        (b"\x02\x80" + bytes(4)) + (b"\x00\x80" + bytes(4)) * 5000,
        b"\x82\xff" + struct.pack(">Q", 1 << 30) + bytes(4) + bytes(1000),
        b"\x82\xff" + struct.pack(">Q", 1 << 63) + bytes(4),
        b"\xf2\x80" + bytes(4),
    ],
    ids=["fragments without end", "a frame of 1 GiB", "an impossible size", "reserved bits"],
)
def test_frames_nobody_honest_sends(frames: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with running() as gateway:
            broker = await Broker.linked(gateway)
            client = await opened(gateway, broker)
            reader, writer = await websocket(gateway, client)
            writer.write(frames)
            async with asyncio.timeout(SOON_S):
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()
            writer.close()
            assert (await client.push(encode(Kind.ACK, client.connection_id, window=99))).status_code == 200
            await client.http.aclose()
            await broker.close()

    asyncio.run(test())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


RUBBISH = {
    "a native hello": b"FLD1" + bytes(64),
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(64),
    "http/2 at once": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64),
    "a post that upgrades": b"POST /tunnel?Type=stream HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
    "an upgrade without a key": b"GET /tunnel HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "an upgrade with a long header": b"GET /tunnel HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    b"X: " + b"x" * 20_000 + b"\r\n\r\n",
    "an upgrade with many headers": b"GET /tunnel HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    + b"X: x\r\n" * 1000
    + b"\r\n",
    "another upgrade": b"GET /tunnel HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n" + b"x" * 100,
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "a length and chunks": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a negative length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -3\r\n\r\nabcd",
    "connect": b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n",
    "a star": b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    "no path": b"GET  HTTP/1.1\r\nHost: x\r\n\r\n",
    "a path in another code": b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    "a percent too many": b"GET /tunnel/%ff%0d%0aX:y?Type=%0d%0a HTTP/1.1\r\nHost: x\r\n\r\n",
    "a host that is a header": b"GET /tunnel HTTP/1.1\r\nHost: x\x0by\r\n\r\n",
}


@pytest.mark.requirement("TUN-22", half="what the log keeps")
def test_rubbish_leaves_no_trace_in_the_log() -> None:
    command = [sys.executable, "-m", "fairlead", "tunnel", "serve", "--listen", "127.0.0.1:0", "--link", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            port = int(process.stderr.readline().partition(b"http://127.0.0.1:")[2].partition(b"/")[0])
            answers = asyncio.run(asyncio.wait_for(strange(port), 3 * SOON_S))
        finally:
            process.terminate()
            rest = process.stderr.read()
    assert rest == b""
    for name, answer in answers.items():
        assert not answer or answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4")), (name, answer[:200])
        assert b"\r\nX:y" not in answer
    assert answers["afterwards"].endswith(b"ok\n")


async def strange(port: int) -> dict[str, bytes]:
    answers = {}
    for name, said in {**RUBBISH, "afterwards": b"GET /tunnel/health HTTP/1.1\r\nHost: x\r\n\r\n"}.items():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        writer.write_eof()
        with contextlib.suppress(ConnectionResetError):
            answers[name] = await reader.read()
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    return answers


@pytest.mark.requirement("TUN-101", half="what a stranger may cost")
def test_whoever_says_nothing_sensible_on_the_link_port_keeps_no_place_there() -> None:
    damaged = bytearray(encode(Kind.LINK_INIT, payload=bytes(40)))
    damaged[-1] ^= 1

    async def test() -> None:
        async with running(link_init_s=600.0) as gateway:
            strangers = [await Broker.dial(gateway.link_port, greet=False) for _ in range(20)]
            for one in strangers:
                one.send(bytes(damaged))
            await until(lambda: all(one.is_cut for one in strangers))
            assert gateway.station.links() == []
            broker = await Broker.linked(gateway)
            for one in (*strangers, broker):
                await one.close()

    asyncio.run(test())


@pytest.mark.requirement("TUN-102", half="names in the status")
def test_names_are_shown_as_words(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """A broker may call itself what it likes: no terminal, table, log or answer is changed by it."""

    async def test() -> None:
        async with running() as gateway:
            broker = await Broker.linked(gateway, EVIL)
            client = Client(gateway, EVIL)
            assert (await client.connect()).status_code == 200
            answer = await client.http.get(f"{gateway.url}/status")
            report = answer.json()
            assert report["tunnels"][0]["server"] == EVIL
            show(report)
            metrics = (await client.http.get(f"{gateway.url}/metrics")).text
            assert 'server="b[/]\x1b[2J\\n[red]1"' in metrics
            run = asyncio.to_thread(CliRunner().invoke, tunnel_group, ["status", "--url", gateway.url])
            assert (await run).exit_code == 0
            await client.http.aclose()
            await broker.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(test())
    shown = capsys.readouterr().out
    assert "\x1b[2J" not in shown
    assert shown.count("b[/]") == 2
    assert not any("\x1b" in record.getMessage() or "\n" in record.getMessage() for record in caplog.records)


def test_reasons_are_shown_as_words() -> None:
    assert Abort.of(Abort(1, "gone\x1b[2J\r\nINFO all is well").payload()) == (1, "gone?[2J??INFO all is well")


def test_a_closed_tunnel_is_not_counted_as_one_of_its_link() -> None:
    async def test() -> None:
        async with running() as gateway:
            broker = await Broker.linked(gateway)
            client = await opened(gateway, broker)
            number = client.connection_id
            await client.push(encode(Kind.CONN_CLOSE, number, 1))
            broker.send(encode(Kind.ACK, number, 1, 100), encode(Kind.CONN_CLOSE, number, 1))
            await until(lambda: gateway.station.status().counters.packets_down >= 3)
            await client.pull(5)
            await client.push(encode(Kind.ACK, number, 1, 100))
            status = gateway.station.status()
            assert (status.done, status.tunnels, status.links[0].tunnels) == (1, [], 0)
            await client.http.aclose()
            await broker.close()

    asyncio.run(test())


@pytest.mark.requirement("TUN-101", half="what a stranger may cost")
def test_the_largest_bodies_of_the_smallest_packets_cost_little() -> None:
    """CPU: 43,000 packets in one body, from somebody without a token and from somebody with one."""
    gateway = Gateway(
        Limits(), 0.0, instance="one", secret=None, allow_v1=False, random_bytes=lambda size: b"\x07" * size
    )
    body = encode(Kind.ACK, 7) * 43_000
    begun_s = time.process_time()
    assert gateway.push("b1", 7, "ab" * 32, body, 0.0).status == 503
    assert time.process_time() - begun_s < 0.05, "nothing is looked at before the token is right"


def test_a_strangers_list_of_tunnels_is_not_read() -> None:
    """CPU: a LINK_INIT without the secret is refused before its 21,000 tunnels are looked at."""
    gateway = Gateway(Limits(), 0.0, instance="one", secret=b"s" * 32, allow_v1=False, random_bytes=bytes)
    listed = [LinkTunnel(number, 0, 60, b"v" * 32) for number in range(1, 21_000)]
    payload = LinkInit("b1", b"guessed", bytes(16), listed).encode()
    first = split(encode(Kind.LINK_INIT, payload=payload), LINK_PAYLOAD_MAX).packets
    tracemalloc.start()
    try:
        gateway.link(1, 0.0)
        gateway.on_link(1, first, 0.0)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20, "they would be 10 MB"
    finally:
        tracemalloc.stop()
    assert [effect.reason for effect in gateway.effects() if isinstance(effect, CloseLink)] == [
        "the link secret is not the one of this gateway"
    ]


def own_address() -> str:
    """One of this host that is not its loopback's; empty without a network. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return ""


@pytest.mark.requirement("TUN-101", state="half", note="what strangers may fill")
def test_one_address_cannot_take_all_connections() -> None:
    address = own_address()
    if not address or address.startswith("127."):
        pytest.skip("this host has no address beside its loopback's")

    async def test() -> None:
        settings = GatewaySettings(listen=f"{address}:0", connections_per_address=5)
        server = GatewayServer(settings, intake=None, link=None)
        serving = asyncio.create_task(server.serve())
        await until(lambda: bool(server.started))
        port = server.servers[0].sockets[0].getsockname()[1]
        for _ in range(2):  # what is closed has room again
            taken = [await asyncio.open_connection(address, port) for _ in range(5)]
            reader, writer = await asyncio.open_connection(address, port)
            async with asyncio.timeout(SOON_S):
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            for one, other in taken:
                other.write(b"GET /tunnel/health HTTP/1.1\r\nHost: x\r\n\r\n")
                await one.readuntil(b"ok\n")
            for other in (writer, *(other for _, other in taken)):
                other.close()
            await until(lambda: not server.server_state.connections)
        assert not server.config.http_protocol_class.addresses  # type: ignore[union-attr]
        server.should_exit = True
        await serving

    asyncio.run(test())


def test_neighbours_count_as_one_address() -> None:
    assert neighbourhood("2001:db8::1") == neighbourhood("2001:db8::ffff:1") != neighbourhood("2001:db8:0:1::1")
    assert neighbourhood("::ffff:192.0.2.1") == neighbourhood("192.0.2.1") != neighbourhood("192.0.2.2")
    places = Places(Limits(tunnels_per_address=2))
    for last in (1, 2):
        places.take("b1", f"2001:db8::{last}")
    assert places.why_not("b1", "2001:db8::3") == "this address has as many tunnels as it may"
    assert not places.why_not("b1", "2001:db8:0:1::3")
    places.give_back("b1", "2001:db8::1")
    assert not places.why_not("b1", "2001:db8::3")


def test_link_secret_is_not_shown_by_the_status(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef0123456789abcdef")
    secret.chmod(0o600)

    async def test() -> None:
        async with running(secret_file=str(secret), status_token="t" * 32) as gateway:
            broker = await Broker.linked(gateway, secret=secret.read_bytes())
            client = Client(gateway)
            assert (await client.connect()).status_code == 200
            for page in ("status", "metrics", ""):
                text = (await client.http.get(f"{gateway.url}/{page}")).text
                assert client.token not in text
                assert secret.read_text() not in text
                assert "t" * 32 not in text
            await client.http.aclose()
            await broker.close()

    asyncio.run(test())


def test_a_gateway_that_is_away_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        dials = 0

        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal dials
            dials += 1
            writer.transport.abort()

        nobody = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        async with TunnelServer("b1", times=LinkTimes(pause_first_s=0.01, pause_max_s=0.02)) as server:
            await server.listen(f"127.0.0.1:{nobody.sockets[0].getsockname()[1]}")
            await until(lambda: dials >= 12)
        nobody.close()
        await nobody.wait_closed()

    with caplog.at_level(logging.INFO):
        asyncio.run(test())
    told = [record.getMessage() for record in caplog.records if "No link to the gateway" in record.getMessage()]
    assert 1 <= len(told) <= 4, "once for each reason"


def test_whoever_hangs_up_during_the_handshake_gets_a_sentence() -> None:
    async def test() -> None:
        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.close()

        nobody = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        url = f"https://localhost:{nobody.sockets[0].getsockname()[1]}"
        with pytest.raises(NoAnswer, match=r"cannot connect to https://localhost:\d+: .*\w"):
            await open_tunnel(url, TunnelOptions(proxy=""))
        nobody.close()
        await nobody.wait_closed()

    asyncio.run(test())
