"""The gateway's own server: clients that are slow, many or hostile."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import time
import tracemalloc
from collections import Counter
from contextlib import suppress

import psutil
import pytest
from websockets.asyncio.client import connect

from fairlead.tunnel.packets import Kind, encode, split
from tests.tunnel.gateway_parts import SOON_S, Broker, ByHand, Client, opened, running, until

PUSH = "/tunnel?ServerName=b1&Type=push&ConnId=7"


async def raw(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def ends(reader: asyncio.StreamReader) -> bytes:
    """What came before the connection was closed, which it has to be."""
    async with asyncio.timeout(SOON_S):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


def test_requests_that_do_not_arrive_are_given_up() -> None:
    async def dribble(port: int, beginning: bytes) -> bytes:
        reader, writer = await raw(port)
        writer.write(beginning)
        answer = asyncio.create_task(ends(reader))
        while not answer.done():
            if beginning and not writer.is_closing():
                writer.write(b"x")
            await asyncio.sleep(0.05)
        await closed(writer)
        return answer.result()

    async def test() -> None:
        async with running(patience_s=1.0) as gateway:
            broker = await Broker.linked(gateway)
            client = await opened(gateway, broker)
            begun_s = time.perf_counter()
            body = f"POST {PUSH} HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n".encode()
            await asyncio.gather(
                *(dribble(gateway.port, b"") for _ in range(10)),
                *(dribble(gateway.port, b"POST /tunnel HTTP/1.1\r\nX: ") for _ in range(10)),
                *(dribble(gateway.port, body) for _ in range(10)),
            )
            assert time.perf_counter() - begun_s >= 0.9
            assert gateway.station.counters.replies[408] == 10
            assert (await client.push(client.data(1, b"meanwhile"))).status_code == 200
            reader, writer = await raw(gateway.port)
            writer.write(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000)
            await ends(reader)
            await closed(writer)
            await client.http.aclose()
            await broker.close()

    asyncio.run(test())


@pytest.mark.requirement("TUN-23", state="half", note="the gateway's side")
def test_a_body_without_an_end_is_not_read_on() -> None:
    async def test() -> None:
        async with running(body_max=100_000) as gateway:
            reader, writer = await raw(gateway.port)
            writer.write(f"POST {PUSH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            answer, sent = asyncio.create_task(ends(reader)), 0
            while not answer.done():
                assert sent < 100 << 20, "it goes on reading"
                with suppress(OSError):
                    writer.write(b"10000\r\n" + bytes(65536) + b"\r\n")
                    await writer.drain()
                sent += 65536
                await asyncio.sleep(0)
            assert gateway.station.counters.replies == {413: 1}
            await closed(writer)

    asyncio.run(test())


def test_answers_leave_at_once() -> None:
    async def test() -> None:
        async with running() as gateway:
            hands = await ByHand.dial(gateway.port)
            assert await hands.post("ServerName=nobody&Type=connect", encode(Kind.CONN_INIT, window=1)) == 404
            (protocol,) = gateway.connections()
            accepted = protocol.transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), "else each waits for 40 ms"
            await hands.close()

    asyncio.run(test())


def test_a_body_may_be_slow_as_long_as_it_comes() -> None:
    async def test() -> None:
        async with running(patience_s=0.5) as gateway:
            reader, writer = await raw(gateway.port)
            writer.write(f"POST {PUSH} HTTP/1.1\r\nHost: x\r\nContent-Length: 80000\r\n\r\n".encode())
            for _ in range(10):
                writer.write(bytes(8000))
                await asyncio.sleep(0.1)  # twice our patience in all, and well above the slowest speed
            answer = await asyncio.wait_for(reader.readline(), SOON_S)
            assert b" 503 " in answer, "it was read, and its broker is not there"
            await closed(writer)

    asyncio.run(test())


def test_newcomers_beyond_the_limit_are_closed_and_others_stay() -> None:
    async def test() -> None:
        async with running(connections_max=20) as gateway:
            broker = await Broker.linked(gateway)
            client = await opened(gateway, broker)
            crowd = [await raw(gateway.port) for _ in range(40)]
            await until(lambda: sum(one.at_eof() or one.exception() is not None for one, _ in crowd) >= 20)
            assert (await client.push(client.data(1, b"here"))).status_code == 200
            assert (await broker.expect(Kind.DATA)).payload == b"here"
            for _, writer in crowd:
                await closed(writer)
            await client.http.aclose()
            await broker.close()

    asyncio.run(test())


def test_an_answer_nobody_reads_is_given_up() -> None:
    async def test() -> None:
        async with running(patience_s=1.0) as gateway:
            broker = await Broker.linked(gateway)
            client, other = await opened(gateway, broker), await opened(gateway, broker)
            lazy = socket.socket()
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.setblocking(False)
            await asyncio.get_running_loop().sock_connect(lazy, ("127.0.0.1", gateway.port))
            query = f"ServerName=b1&Type=pull&ConnId={client.connection_id}&Hold=0"
            head = f"POST /tunnel?{query} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.token}\r\n"
            request = f"{head}Content-Length: 0\r\n\r\n".encode()
            address, pulls = lazy.getsockname(), gateway.station.counters.requests

            def is_connected() -> bool:
                return any(tuple(one.raddr) == address for one in psutil.Process().net_connections("tcp4"))

            for number in range(1, 9):  # more than the kernel keeps for it
                for one in range(100):
                    broker.data(client.connection_id, 100 * number + one, bytes(31_000))
                await until(lambda: gateway.station.status().buffered_bytes >= 3_000_000 or not is_connected())
                before = pulls["pull"]
                with suppress(OSError):
                    await asyncio.get_running_loop().sock_sendall(lazy, request * 3)
                await until(lambda: pulls["pull"] > before or not is_connected())  # noqa: B023
            broker.data(other.connection_id, 1, b"not held up")
            assert [packet.payload for packet in split((await other.pull(10)).content).packets] == [b"not held up"]
            await until(lambda: not is_connected())
            lazy.close()
            for one in (client, other):
                await one.http.aclose()
            await broker.close()

    asyncio.run(test())


def test_a_websocket_nobody_reads_is_given_up_and_its_tunnel_goes_on() -> None:
    async def test() -> None:
        async with running(patience_s=1.0, tunnel_bytes_max=4 << 20) as gateway:
            broker = await Broker.linked(gateway)
            client = await opened(gateway, broker)
            url = f"ws://127.0.0.1:{gateway.port}/tunnel?ServerName=b1&Type=stream&ConnId={client.connection_id}"
            headers = {"Authorization": f"Bearer {client.token}"}
            async with connect(url, additional_headers=headers, proxy=None, max_queue=1, close_timeout=0.1) as lazy:
                (stream,) = gateway.station.streams()
                number = 0
                async with asyncio.timeout(SOON_S):
                    while gateway.station.streams():
                        for _ in range(20):
                            number += 1
                            broker.data(client.connection_id, number, bytes(31_000))
                        await broker.writer.drain()
                        await asyncio.sleep(0.005)
                assert stream.dropped, "more came than is kept"
                assert gateway.station.counters.dropped_streams == stream.dropped
                broker.data(client.connection_id, number + 1, b"by pull again")
                found: list[bytes] = []
                async with asyncio.timeout(SOON_S):
                    while b"by pull again" not in found:
                        found = [packet.payload for packet in split((await client.pull(10)).content).packets]
                lazy.transport.abort()
            await client.http.aclose()
            await broker.close()

    asyncio.run(test())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [500, pytest.param(33_400, marks=pytest.mark.long)])
@pytest.mark.requirement("TUN-22", state="scaled", note="1,500 bodies; 100,000 among the long tests")
def test_rubbish_pushed_over_http_disturbs_nobody(rounds: int) -> None:
    rubbish = random.Random(20011)

    def body(client: Client) -> bytes:
        kind = rubbish.randrange(4)
        packet = encode(rubbish.randrange(13), rubbish.choice([0, 7, client.connection_id]), rubbish.getrandbits(32))
        if kind == 0:
            return rubbish.randbytes(rubbish.randrange(200))
        if kind == 1:
            return packet[: rubbish.randrange(len(packet))] + rubbish.randbytes(rubbish.randrange(60))
        spoiled = bytearray(packet + rubbish.randbytes(rubbish.randrange(40)))
        spoiled[rubbish.randrange(len(spoiled))] ^= 1 << rubbish.randrange(8)
        return bytes(spoiled)

    async def test() -> None:
        async with running(inactivity_s=3600.0) as gateway:
            broker = await Broker.linked(gateway)
            client, victim = await opened(gateway, broker), await opened(gateway, broker)
            hands = await ByHand.dial(gateway.port)
            push = f"ServerName=b1&Type=push&ConnId={victim.connection_id}"
            seen: Counter[int] = Counter()
            for number in range(1, rounds + 1):
                seen[await hands.post(push, body(victim), "00" * 32)] += 1
                seen[await hands.post(push, body(victim), victim.token)] += 1
                seen[await hands.post("ServerName=b1&Type=connect", body(victim))] += 1
                if number % 100 == 0:
                    payload = str(number).encode()
                    assert (await client.push(client.data(number // 50, payload))).status_code == 200
                    assert (await broker.expect(Kind.DATA, client.connection_id)).payload == payload
            await hands.close()
            assert set(seen) <= {200, 400, 401, 403, 410}, seen
            assert not any(packet.connection_id == 7 for packet in broker.got)
            for one in (client, victim):
                await one.http.aclose()
            await broker.close()

    asyncio.run(test())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("opens", [1000, pytest.param(10_000, marks=pytest.mark.long)])
@pytest.mark.requirement("TUN-57", "TUN-101", state="scaled", note="1,000 refused opens; 10,000 among the long tests")
def test_refused_opens_leave_nothing_behind(opens: int) -> None:
    async def test() -> None:
        async with running(tunnels_max=1, inactivity_s=3600.0) as gateway:
            broker = await Broker.linked(gateway)
            client = await opened(gateway, broker)
            hands = await ByHand.dial(gateway.port)
            hello = encode(Kind.CONN_INIT, window=100)

            async def some(number: int) -> None:
                for _ in range(number):
                    assert await hands.post("ServerName=b1&Type=connect", hello) == 429
                gc.collect()

            await some(200)
            tracemalloc.start(1)
            try:
                ours = tracemalloc.Filter(True, "*/fairlead/tunnel/*")
                before = tracemalloc.take_snapshot().filter_traces([ours])
                await some(opens)
                grown = tracemalloc.take_snapshot().filter_traces([ours]).compare_to(before, "filename")
            finally:
                tracemalloc.stop()
            assert sum(one.size_diff for one in grown) < 20_000
            assert len(gateway.station.status().tunnels) == 1
            assert not any(packet.kind == Kind.CONN_INIT for packet in broker.got)
            await hands.close()
            await client.http.aclose()
            await broker.close()

    asyncio.run(test())


@pytest.mark.requirement("TUN-101")
def test_each_limit_refuses_the_newcomer_only() -> None:
    async def refused(status: int, **limits: float) -> None:
        async with running(**limits) as gateway:
            broker, other = await Broker.linked(gateway), await Broker.linked(gateway, "b2")
            clients = [await opened(gateway, broker), await opened(gateway, broker)]
            if "buffered_bytes_max" in limits:
                broker.data(clients[0].connection_id, 1, bytes(20_000 - 24))
                await until(lambda: gateway.station.status().buffered_bytes)
            newcomer = Client(gateway)
            answer = await newcomer.connect()
            assert answer.status_code == status, (limits, answer.headers)
            assert answer.headers["fairlead-reason"]
            if "tunnels_per_server" in limits:
                clients.append(await opened(gateway, other, "b2"))
            for client in clients[:2]:
                assert (await client.push(client.data(1, b"unharmed"))).status_code == 200
                await broker.expect(Kind.DATA, client.connection_id)
            for client in (*clients, newcomer):
                await client.http.aclose()
            await broker.close()
            await other.close()

    async def test() -> None:
        await refused(429, tunnels_max=2)
        await refused(429, tunnels_per_address=2)
        await refused(429, tunnels_per_server=2)
        await refused(503, opens_per_s=1.0)
        await refused(503, buffered_bytes_max=20_000)

    asyncio.run(test())


def test_clients_behind_a_proxy_on_this_host_have_addresses_of_their_own() -> None:
    async def test() -> None:
        async with running(tunnels_per_address=1) as gateway:
            broker = await Broker.linked(gateway)
            for address, status in (("192.0.2.1", 200), ("192.0.2.2", 200), ("192.0.2.1", 429)):
                async with Client(gateway) as client:
                    client.http.headers["X-Forwarded-For"] = address
                    assert (await client.connect()).status_code == status
            await broker.close()

    asyncio.run(test())
