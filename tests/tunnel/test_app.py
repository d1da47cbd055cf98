"""The gateway's application on real servers, with a scripted broker on a real link and requests by hand."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest

from fairlead.tunnel.edge.gateway import GatewaySettings, gateway_app
from fairlead.tunnel.edge.gateway.requests import is_near_caller, parse_query, place_of
from fairlead.tunnel.edge.gateway.streams import Shared, Stream
from fairlead.tunnel.packets import Abort, AbortCode, Kind, encode, split
from tests.tunnel.gateway_parts import SERVERS, Broker, Client, opened, running, until

on_every_server = pytest.mark.parametrize("kind", SERVERS)
NO_STORE = "no-store"


def run(test: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
    asyncio.run(test(*arguments))


def kinds(answer: httpx.Response) -> list[int]:
    return [packet.kind for packet in split(answer.content).packets]


def payloads(answer: httpx.Response) -> list[bytes]:
    return [packet.payload for packet in split(answer.content).packets]


@on_every_server
@pytest.mark.requirement("TUN-56", "TUN-58", "TUN-63", "TUN-26", state="half", note="with ends by script, no proxy")
def test_the_four_steps_of_opening_in_their_order(kind: str) -> None:
    async def test() -> None:
        async with running(kind) as gateway, Client(gateway) as client:
            broker = await Broker.linked(gateway)
            answer = await client.connect(window=77)
            assert answer.status_code == 200
            assert answer.headers["cache-control"] == NO_STORE
            assert answer.headers["content-type"] == "application/octet-stream"
            assert answer.headers["fairlead-instance"] == gateway.station.instance
            (packet,) = split(answer.content).packets
            assert (packet.kind, len(packet.payload)) == (Kind.CONN_INIT, 32)
            assert packet.connection_id != 0
            seen = await broker.expect(Kind.CONN_INIT)
            assert (seen.connection_id, seen.window) == (client.connection_id, 77)
            assert packet.payload not in seen.raw, "the broker gets only what checks the token"
            assert (await client.pull(0)).content == b""
            broker.send(encode(Kind.CONN_INIT_ACK, client.connection_id, window=55))
            answer = await client.pull(10)
            assert [(one.kind, one.window) for one in split(answer.content).packets] == [(Kind.CONN_INIT_ACK, 55)]
            assert answer.headers["cache-control"] == NO_STORE
            confirmation = encode(Kind.ACK, client.connection_id, window=77)
            assert (await client.push(confirmation)).status_code == 200
            assert (await broker.expect(Kind.ACK)).raw == confirmation
            broker.data(client.connection_id, 1, b"greeting")
            assert payloads(await client.pull(10)) == [b"greeting"]
            await broker.close()

    run(test)


@on_every_server
@pytest.mark.requirement("TUN-36", "TUN-23", "TUN-25", "TUN-63", state="half", note="the gateway's side")
def test_every_status_code(kind: str) -> None:
    async def test() -> None:
        async with running(kind, body_max=100_000, tunnels_per_server=2) as gateway:
            broker = await Broker.linked(gateway)
            client = await opened(gateway, broker)
            other = await opened(gateway, broker)
            hello = encode(Kind.CONN_INIT, window=9)
            assert (await client.pull(token="")).status_code == 401
            assert (await client.push(client.data(1, b"x"), token="")).status_code == 401
            assert (await client.pull(token=other.token)).status_code in (401, 403)
            assert (await client.push(client.data(1, b"x"), other.data(1, b"y"))).status_code == 403
            assert (await client.push(client.data(1, b"x"), ConnId=other.connection_id)).status_code in (401, 403)
            unknown, expected = Client(gateway, "nobody"), Client(gateway, "configured")
            assert (await unknown.ask("connect", hello)).status_code == 404
            answer = await expected.ask("connect", hello)
            assert answer.status_code == 503
            assert float(answer.headers["retry-after"]) > 0
            answer = await unknown.ask("pull", token=client.token, ConnId=7)
            assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
            answer = await client.pull(ConnId=client.connection_id ^ 1)
            assert answer.status_code == 410
            (packet,) = split(answer.content).packets
            assert (packet.kind, Abort.of(packet.payload).code) == (Kind.CONN_ABORT, AbortCode.NOT_KNOWN)
            answer = await client.push(bytes(100_001))
            assert (answer.status_code, answer.headers["cache-control"]) == (413, NO_STORE)
            third = Client(gateway)
            assert (await third.connect()).status_code == 429
            assert not any(packet.kind == Kind.DATA for packet in broker.got), "nothing of all that has passed"
            assert (await client.push(client.data(1, b"well"))).status_code == 200
            assert (await broker.expect(Kind.DATA)).payload == b"well"
            await broker.close()
            await until(lambda: not gateway.station.links())
            assert (await client.pull(5)).status_code == 503
            for one in (client, other, third, unknown, expected):
                await one.http.aclose()

    run(test)


@pytest.mark.requirement("TUN-42", state="half", note="the gateway's side")
def test_a_tunnel_of_another_instance_is_not_said_to_be_gone() -> None:
    async def test() -> None:
        async with running() as gateway:
            broker = await Broker.linked(gateway)
            client = await opened(gateway, broker)
            client.http.headers["Fairlead-Instance"] = "another"
            assert (await client.pull(0)).status_code == 200, "it lives here all the same"
            answer = await client.pull(ConnId=client.connection_id ^ 1)
            assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
            elsewhere = encode(Kind.DATA, client.connection_id ^ 1, 1, payload=b"x")
            answer = await client.push(elsewhere, ConnId=client.connection_id ^ 1)
            assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
            client.http.headers["Fairlead-Instance"] = gateway.station.instance
            assert (await client.pull(ConnId=client.connection_id ^ 1)).status_code == 410
            assert (await client.push(elsewhere, ConnId=client.connection_id ^ 1)).status_code == 410
            await client.http.aclose()
            await broker.close()

    run(test)


@on_every_server
@pytest.mark.requirement("TUN-31", state="half", note="the gateway's side")
def test_a_held_pull_is_answered_as_soon_as_the_broker_writes(kind: str) -> None:
    async def test() -> None:
        async with running(kind) as gateway:
            broker = await Broker.linked(gateway)
            client = await opened(gateway, broker)
            took = []
            for number in range(1, 8):
                pull = asyncio.create_task(client.pull(25))
                await until(lambda: gateway.station._held)
                begun_s = time.perf_counter()
                broker.data(client.connection_id, number, b"news")
                assert payloads(await pull) == [b"news"]
                took.append(time.perf_counter() - begun_s)
            assert min(took) < 0.1
            begun_s = time.perf_counter()
            answer = await client.pull(0.3)
            assert (answer.status_code, answer.content) == (200, b"")
            assert time.perf_counter() - begun_s >= 0.28
            await client.http.aclose()
            await broker.close()

    run(test)


@on_every_server
@pytest.mark.requirement("TUN-32")
def test_the_newest_pull_wins(kind: str) -> None:
    async def test() -> None:
        async with running(kind) as gateway:
            broker = await Broker.linked(gateway)
            client = await opened(gateway, broker)
            older = asyncio.create_task(client.pull(25))
            await until(lambda: len(gateway.station._held) == 1)
            newer = asyncio.create_task(client.pull(25))
            answer = await older
            assert (answer.status_code, answer.content) == (200, b"")
            await until(lambda: len(gateway.station._held) == 1)
            broker.data(client.connection_id, 1, b"for the newer")
            assert payloads(await newer) == [b"for the newer"]
            await client.http.aclose()
            await broker.close()

    run(test)


@on_every_server
def test_packets_are_not_spent_on_a_client_that_went_away(kind: str) -> None:
    async def test() -> None:
        async with running(kind) as gateway:
            broker = await Broker.linked(gateway)
            client = await opened(gateway, broker)
            pull = asyncio.create_task(client.pull(25))
            await until(lambda: gateway.station._held)
            pull.cancel()
            await asyncio.gather(pull, return_exceptions=True)
            await client.http.aclose()
            await until(lambda: not gateway.station._held)
            broker.data(client.connection_id, 1, b"kept")
            client.http = client.fresh()
            assert payloads(await client.pull(10)) == [b"kept"]
            await client.http.aclose()
            await broker.close()

    run(test)


NOT_RIGHT = [
    ("ServerName=b1", 400, "Type is one of"),
    ("ServerName=b1&Type=pish", 400, "Type is one of"),
    ("Type=connect", 400, "ServerName"),
    ("ServerName=&Type=connect", 400, "ServerName"),
    ("ServerName=" + "x" * 256 + "&Type=connect", 400, "ServerName"),
    ("ServerName=b1&Type=pull", 400, "needs ConnId"),
    ("ServerName=b1&Type=pull&ConnId=0", 400, "ConnId is a number"),
    ("ServerName=b1&Type=pull&ConnId=4294967296", 400, "ConnId is a number"),
    ("ServerName=b1&Type=pull&ConnId=-1", 400, "ConnId is a number"),
    ("ServerName=b1&Type=pull&ConnId=%D9%A1", 400, "ConnId is a number"),
    ("ServerName=b1&Type=pull&ConnId=1&Hold=nan", 400, "Hold is"),
    ("ServerName=b1&Type=pull&ConnId=1&Hold=1e9", 400, "Hold is"),
    ("ServerName=b1&ServerName=b2&Type=connect", 400, "twice"),
    ("ServerName=%ff&Type=connect", 400, "UTF-8"),
    ("&".join(f"a{number}=1" for number in range(99)), 400, "cannot be read"),
    ("ServerName=b1&Type=stream&ConnId=1", 405, "WebSocket"),
]


@pytest.mark.requirement("TUN-25", state="half", note="what is not right is refused")
def test_parameters_that_are_not_right_are_refused_in_words() -> None:
    async def test() -> None:
        async with running() as gateway, Client(gateway) as client:
            for query, status, words in NOT_RIGHT:
                answer = await client.http.post(f"{gateway.url}?{query}", content=b"")
                assert (answer.status_code, words in answer.text) == (status, True), (query, answer.text)
                assert answer.headers["cache-control"] == NO_STORE

    run(test)


@pytest.mark.requirement("TUN-25", state="half", note="the gateway's side")
def test_names_of_brokers_are_percent_encoded() -> None:
    name = "büro & co/=?+ 1"

    async def test() -> None:
        async with running() as gateway:
            broker = await Broker.linked(gateway, name)
            another = await Broker.linked(gateway, "büro ")
            client = await opened(gateway, broker, name)
            assert (await client.push(client.data(1, b"x"))).status_code == 200
            await broker.expect(Kind.DATA)
            assert not another.got
            await client.http.aclose()
            await another.close()
            await broker.close()

    asked = parse_query(b"ServerName=b%C3%BCro%20%26%20co%2F%3D%3F%2B+1&Type=pull&ConnId=4294967295&Hold=2.5")
    assert asked == ("pull", name, 2**32 - 1, 2.5)
    run(test)


@on_every_server
def test_methods_encodings_and_places(kind: str) -> None:
    async def test() -> None:
        async with running(kind) as gateway, Client(gateway) as client:
            http, root = client.http, gateway.url.removesuffix("/tunnel")
            connect = "?ServerName=configured&Type=connect"
            assert (await http.put(gateway.url + connect)).status_code == 405
            answer = await http.get(gateway.url + connect)
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
            assert (await http.get(gateway.url + "?ServerName=b1&Type=stream&ConnId=1")).status_code == 426
            packet = encode(Kind.CONN_INIT, window=5)
            for place in ("", "/", "/tunnel", "/tunnel/"):
                assert (await http.post(root + place + connect, content=packet)).status_code == 503, place
            for place in ("/tunnel/b1", "/else", "/tunnel/health"):
                assert (await http.post(root + place + connect, content=packet)).status_code == 404
            for header in ({"Content-Encoding": "gzip"}, {"Content-Type": "text/html"}):
                assert (await http.post(gateway.url + connect, content=packet, headers=header)).status_code == 415
            same = {"Content-Encoding": "identity"}
            assert (await http.post(gateway.url + connect, content=packet, headers=same)).status_code == 503
            for place in ("/", "/tunnel", "/tunnel/b1", "/tunnel/%22%3Cscript%3E"):
                answer = await http.get(root + place)
                assert (answer.status_code, "Fairlead" in answer.text) == (200, True)
                assert answer.headers["content-type"].startswith("text/plain")
            assert "connect(" in (await http.get(gateway.url + "/b1")).text
            assert (await http.head(gateway.url)).status_code == 200
            assert (await http.get(root + "/tunnel/a/b")).status_code == 404
            assert (await http.get(root + "/favicon.ico")).status_code == 404
            assert (await http.get(gateway.url + "/health")).text == "ok\n"

    run(test)


def test_it_can_be_mounted_below_any_path() -> None:
    assert place_of({"path": "/gate/tunnel", "root_path": "/gate"}) == "tunnel"
    assert place_of({"path": "/tunnel", "root_path": "/gate"}) == "tunnel"
    assert place_of({"path": "/gate", "root_path": "/gate"}) == ""
    assert place_of({"path": "/gateway/x", "root_path": "/gate"}) == "gateway/x"
    assert place_of({"path": "/x/", "root_path": ""}) == "x"

    async def ask(app: Any, method: str, path: str, root: str, query: bytes = b"", body: bytes = b"") -> int:
        said: list[Any] = []
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "root_path": root,
            "query_string": query,
            "headers": [(b"host", b"127.0.0.1")],
            "client": ("127.0.0.1", 1),
            "http_version": "1.1",
        }

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            said.append(message)

        await app(scope, receive, send)
        return int(said[0]["status"])

    async def test() -> None:
        app = gateway_app(GatewaySettings(servers=("configured",)))  # no lifespan: it starts with the first request
        connect, packet = b"ServerName=configured&Type=connect", encode(Kind.CONN_INIT, window=5)
        for path, root in (("/a/b", "/a/b"), ("/a/b/", "/a/b"), ("/a/b/tunnel", "/a/b"), ("/x/tunnel", "/x/tunnel")):
            assert await ask(app, "POST", path, root, connect, packet) == 503
            assert await ask(app, "GET", path, root) == 200
            assert await ask(app, "GET", path.rstrip("/") + "/health", root) == 200
            assert await ask(app, "GET", path.rstrip("/") + "/status", root) == 200
        await app.stop()
        with pytest.raises(RuntimeError, match="one event loop"):
            await asyncio.to_thread(lambda: asyncio.run(app.start()))

    run(test)


@on_every_server
@pytest.mark.requirement("TUN-102", state="half", note="the gateway's part")
def test_status_and_counters(kind: str) -> None:
    async def test() -> None:
        async with running(kind, status_token="letters-and-digits") as gateway:
            broker = await Broker.linked(gateway)
            client = await opened(gateway, broker)
            http = client.http
            report = (await http.get(gateway.url + "/status")).json()
            (tunnel,) = report["tunnels"]
            assert (tunnel["connection_id"], tunnel["server"]) == (client.connection_id, "b1")
            assert report["edge"]["requests"]["push"] == 1
            assert client.token not in json.dumps(report)
            text = (await http.get(gateway.url + "/metrics")).text
            samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
            assert samples["fairlead_tunnel_tunnels"] == "1"
            assert samples['fairlead_tunnel_requests_total{type="push"}'] == "1"
            assert all(f"# TYPE {name.partition('{')[0]} " in text for name in samples)
            for headers in (
                {"X-Forwarded-For": "10.0.0.1"},
                {"Via": "1.1 somebody"},
                {"Host": "evil.example"},
                {"Host": "evil.example:80"},
            ):
                assert (await http.get(gateway.url + "/status", headers=headers)).status_code == 403
            let_in = {"Via": "1.1 somebody", "Authorization": "Bearer letters-and-digits"}
            assert (await http.get(gateway.url + "/status", headers=let_in)).status_code == 200
            let_in["Authorization"] += "x"
            assert (await http.get(gateway.url + "/metrics", headers=let_in)).status_code == 403
            await http.aclose()
            await broker.close()

    run(test)


def test_who_may_see_the_status() -> None:
    def may(client: Any, host: bytes) -> bool:
        return is_near_caller({"headers": [(b"host", host)], "client": client}, "")

    assert may(("127.0.0.1", 5), b"127.0.0.1:80")
    assert may(("::1", 5), b"[::1]:80")
    assert may(("::1", 5), b"[::1]")
    assert may(("127.0.0.1", 5), b"localhost")
    assert not may(("10.1.1.1", 5), b"127.0.0.1")
    assert not may(("127.0.0.1", 5), b"rebound.example:80")
    assert not may(None, b"localhost")


@pytest.mark.parametrize("kind", SERVERS[:2])  # WebSocket over HTTP/2 has no client here
@pytest.mark.requirement("TUN-39", state="half", note="the gateway's side")
def test_frames_of_a_websocket(kind: str) -> None:
    import websockets
    from websockets.asyncio.client import connect

    async def test() -> None:
        async with running(kind) as gateway:
            broker = await Broker.linked(gateway)
            client = await opened(gateway, broker)
            url = f"ws{gateway.url.removeprefix('http')}?ServerName=b1&Type=stream&ConnId={client.connection_id}"
            right = {"Authorization": f"Bearer {client.token}"}
            for headers, status in (({}, 401), ({"Authorization": "Bearer " + "0" * 64}, 403)):
                with pytest.raises(websockets.InvalidStatus) as refused:
                    await connect(url, additional_headers=headers, proxy=None)
                assert refused.value.response.status_code == status
            async with connect(url, additional_headers=right, proxy=None, compression=None) as stream:
                await stream.send(client.data(1, b"one") + client.data(2, b"two"))
                assert [(await broker.expect(Kind.DATA)).payload for _ in range(2)] == [b"one", b"two"]
                broker.data(client.connection_id, 1, b"back")
                (packet,) = split(await stream.recv()).packets  # type: ignore[arg-type]
                assert packet.payload == b"back"
                await stream.send(encode(Kind.PING, client.connection_id, payload=b"there?"))
                (packet,) = split(await stream.recv()).packets  # type: ignore[arg-type]
                assert (packet.kind, packet.payload) == (Kind.PONG, b"there?")
            await until(lambda: not gateway.station.streams())
            broker.data(client.connection_id, 2, b"by pull again")
            assert payloads(await client.pull(10)) == [b"by pull again"]
            async with connect(url, additional_headers=right, proxy=None) as stream:
                await stream.send("text")
                with pytest.raises(websockets.ConnectionClosed) as closed:
                    await stream.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1003
            async with connect(url, additional_headers=right, proxy=None) as stream:
                broker.send(encode(Kind.CONN_ABORT, client.connection_id, payload=Abort(1, "enough").payload()))
                (packet,) = split(await stream.recv()).packets  # type: ignore[arg-type]
                assert (packet.kind, Abort.of(packet.payload)) == (Kind.CONN_ABORT, (1, "enough"))
                with pytest.raises(websockets.ConnectionClosed):
                    await stream.recv()
            await client.http.aclose()
            await broker.close()

    run(test)


def test_a_stream_that_is_not_read_loses_packets_and_keeps_its_bounds() -> None:
    async def test() -> None:
        shared = Shared(3_000_000)
        one, two = Stream(1, shared, 2_000_000), Stream(2, shared, 2_000_000)
        packets = [bytes([number]) * 30_000 for number in range(100)]
        one.send(packets)
        two.send(packets)
        assert (one.dropped, two.dropped) == (34, 66), "each has its limit, and both together one"
        assert shared.bytes <= 3_000_000
        frames = []
        one.close(1000, "")
        while frame := await one.frame():
            frames.append(frame)
        assert b"".join(frames) == b"".join(packets[:66]), "whole, in order, and to the end"
        assert max(map(len, frames)) <= 256 << 10
        two.discard()
        assert shared.bytes == 0
        two.send(packets[:1])
        assert await two.frame() == packets[0]

    run(test)
