"""The gateway as an ASGI application, to be mounted anywhere: alone, or below a path of some other application.

`POST …?Type=connect|push|pull` and the WebSocket `Type=stream` are answered at the place of mounting and at `/tunnel`
below it; `status`, `metrics` and `health` lie below that. Tunnels live in the memory of one event loop: run it in ONE
process, however many connections there are; servers that start several workers would each have their own tunnels.
"""

from __future__ import annotations

import asyncio
import logging
import socket

from fairlead.tunnel.edge.gateway import pages
from fairlead.tunnel.edge.gateway.bodies import PACKETS, Arrivals, ClientGone, Receive, RequestBody, Scope, Send
from fairlead.tunnel.edge.gateway.requests import (
    Asked,
    BadRequest,
    address_of,
    bearer,
    is_near_caller,
    parse_query,
    place_of,
    refuse_pages,
    single,
)
from fairlead.tunnel.edge.gateway.settings import GatewaySettings, check
from fairlead.tunnel.edge.gateway.station import Station
from fairlead.tunnel.edge.gateway.streams import Stream
from fairlead.tunnel.gateway import Reply

__all__ = ["GatewayApp", "gateway_app"]

log = logging.getLogger("fairlead.tunnel.gateway")

INSTANCE = b"fairlead-instance"
TEXT = "text/plain; charset=utf-8"


def gateway_app(settings: GatewaySettings | None = None, *, link: socket.socket | None = None) -> GatewayApp:
    """The application; `link`: a listening socket for brokers, beside `settings.link_listen`. ConfigError if unsafe."""
    settings = settings or GatewaySettings()
    check(settings)
    return GatewayApp(settings, link)


class GatewayApp:
    """Starts with the server's lifespan, or with the first request where the server has none."""

    def __init__(self, settings: GatewaySettings, link: socket.socket | None) -> None:
        self.settings = settings
        self.station: Station | None = None
        self._link = link
        self._arrivals = Arrivals(settings.arriving_bytes_max)
        self._starting: asyncio.Future[Station] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)

    async def start(self) -> Station:
        """Once; several may wait for it."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        elif self._starting.get_loop() is not asyncio.get_running_loop():
            raise RuntimeError("a gateway belongs to one event loop: run it in one worker")
        return await asyncio.shield(self._starting)

    async def _start(self) -> Station:
        station = Station(self.settings)
        await station.start(self._link)
        self.station = station
        return station

    async def stop(self) -> None:
        if self.station is not None:
            await self.station.stop()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except Exception as error:
                    log.error("the gateway cannot start: %s", error)
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    # -- http ---------------------------------------------------------------------------------------------------------

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        station = self.station or await self.start()
        settings = self.settings
        body = RequestBody(scope["headers"], receive, settings.body_max, settings.patience_s, self._arrivals)
        try:
            try:
                kind, reply = await self._answer(station, scope, body)
            except BadRequest as error:
                close = () if await body.discard() else (("Connection", "close"),)
                kind, reply = TEXT, Reply(error.status, f"{error}\n".encode(), error.headers + close)
        except ClientGone:
            return
        station.counters.replies[reply.status] = station.counters.replies.get(reply.status, 0) + 1
        await respond(scope, send, reply, kind)

    async def _answer(self, station: Station, scope: Scope, body: RequestBody) -> tuple[str, Reply]:
        method, place = scope["method"], place_of(scope)
        at_root = place in ("", "tunnel")
        if method in ("GET", "HEAD"):
            return self._look(station, scope, place)
        if not at_root:
            raise BadRequest(404, f"Nothing takes a {method} here; tunnels are at {tunnel_path(scope)}.")
        if method != "POST":
            raise BadRequest(405, "Tunnels use POST.", ("Allow", "GET, HEAD, POST"))
        refuse_pages(scope["headers"])
        asked = parse_query(scope["query_string"])
        if asked.kind == "stream":
            raise BadRequest(405, "Type=stream is a WebSocket: GET with an upgrade.", ("Allow", "GET"))
        station.counters.requests[asked.kind] += 1
        packets = await body.read()
        if asked.kind == "pull":
            packets = b""  # it has no use for any, and may be held for long
        if station.leaving:
            return PACKETS, Reply(503, b"", (("Retry-After", "1"), ("Connection", "close")))
        return PACKETS, await self._ask(station, scope, body, asked, packets)

    async def _ask(self, station: Station, scope: Scope, body: RequestBody, asked: Asked, packets: bytes) -> Reply:
        if asked.kind == "connect":
            return station.connect(asked.server, packets, address_of(scope))
        token, instance = bearer(scope["headers"]), single(scope["headers"], INSTANCE)
        if asked.kind == "push":
            return station.push(asked.server, asked.connection_id, token, packets, instance)
        assert asked.connection_id is not None
        longest_s = self.settings.hold_s
        hold_s = longest_s if asked.hold_s is None else min(asked.hold_s, longest_s)
        key, answer = station.pull(asked.server, asked.connection_id, token, hold_s, instance)
        if isinstance(answer, Reply):
            return answer
        return await held(station, key, answer, body)

    def _look(self, station: Station, scope: Scope, place: str) -> tuple[str, Reply]:
        """What a person or a monitor asks for."""
        below = place.removeprefix("tunnel").strip("/") if place.startswith("tunnel/") else place
        if below == "health":
            return TEXT, Reply(503, b"leaving\n") if station.leaving else Reply(200, b"ok\n")
        if below in ("status", "metrics"):
            if not is_near_caller(scope, self.settings.status_token):
                raise BadRequest(403, "The status is shown on this host only, or to whoever has the status token.")
            if below == "status":
                return "application/json", Reply(200, pages.status_json(station))
            return pages.METRICS, Reply(200, pages.metrics(station))
        if below in ("", "tunnel"):
            if b"Type=" in scope["query_string"]:
                asked = parse_query(scope["query_string"])
                if asked.kind == "stream":
                    raise BadRequest(426, "Type=stream is a WebSocket.", ("Upgrade", "websocket"))
                raise BadRequest(405, f"A {asked.kind} is a POST.", ("Allow", "POST"))
            return TEXT, Reply(200, pages.about(tunnel_url(scope)))
        if "/" not in below and (place != below or scope.get("root_path", "").endswith("/tunnel")):
            return TEXT, Reply(200, pages.about(tunnel_url(scope), below))
        raise BadRequest(404, f"There is nothing here; tunnels are at {tunnel_path(scope)}.")

    # -- websocket ----------------------------------------------------------------------------------------------------

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        station = self.station or await self.start()
        if (await receive())["type"] != "websocket.connect":
            return
        try:
            if place_of(scope) not in ("", "tunnel"):
                raise BadRequest(404, f"There is nothing here; tunnels are at {tunnel_path(scope)}.")
            refuse_pages(scope["headers"])
            asked = parse_query(scope["query_string"])
            if asked.kind != "stream" or asked.connection_id is None:
                raise BadRequest(400, "A WebSocket has Type=stream.")
            station.counters.requests["stream"] += 1
            if station.leaving:
                raise BadRequest(503, "The gateway is being stopped.", ("Retry-After", "1"))
            token, instance = bearer(scope["headers"]), single(scope["headers"], INSTANCE)
            stream = station.stream(asked.server, asked.connection_id, token, instance)
        except BadRequest as error:
            stream = Reply(error.status, f"{error}\n".encode(), error.headers)
        if isinstance(stream, Reply):
            station.counters.replies[stream.status] = station.counters.replies.get(stream.status, 0) + 1
            await refuse(scope, send, stream)
            return
        try:
            await send({"type": "websocket.accept"})
            await carry(station, stream, receive, send)
        finally:
            station.stream_lost(stream)


async def carry(station: Station, stream: Stream, receive: Receive, send: Send) -> None:
    """Frames in both directions, until either side has had enough."""
    writer = asyncio.create_task(write_frames(stream, send))
    try:
        while (message := await receive())["type"] == "websocket.receive":
            frame = message.get("bytes")
            if frame is None:
                stream.close(1003, "frames are binary")
            else:
                station.stream_frame(stream, frame)
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)


async def write_frames(stream: Stream, send: Send) -> None:
    while frame := await stream.frame():
        await send({"type": "websocket.send", "bytes": frame})
    code, reason = stream.end or (1000, "")
    await send({"type": "websocket.close", "code": code, "reason": reason})


async def held(station: Station, key: int, answer: asyncio.Future[Reply], body: RequestBody) -> Reply:
    """The answer when it comes; ClientGone, and the gateway told, when nobody waits for it any more."""
    gone = asyncio.ensure_future(body.gone())
    gone.add_done_callback(lambda _: answer.cancel())
    try:
        return await answer
    except asyncio.CancelledError:
        if gone.done():
            raise ClientGone from None
        raise
    finally:
        station.forget(key)
        gone.cancel()


async def respond(scope: Scope, send: Send, reply: Reply, kind: str) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", b"%d" % len(reply.body)),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    ]
    for name, value in reply.headers:
        if name != "Connection" or scope.get("http_version", "1.1").startswith("1"):
            headers.append((name.lower().encode(), value.encode("latin-1", "replace")))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else reply.body})


async def refuse(scope: Scope, send: Send, reply: Reply) -> None:
    """A WebSocket that is not opened: with the status where the server can say it, else all alike."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 4000 + reply.status})
        return
    headers = [(b"content-type", PACKETS.encode()), (b"cache-control", b"no-store")]
    headers += [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in reply.headers]
    await send({"type": "websocket.http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": reply.body})


def tunnel_path(scope: Scope) -> str:
    root = str(scope.get("root_path", "")).rstrip("/")
    return root if root.endswith("/tunnel") else f"{root}/tunnel"


def tunnel_url(scope: Scope) -> str:
    host = single(scope["headers"], b"host")
    return f"{scope.get('scheme', 'http')}://{host}{tunnel_path(scope)}" if host else tunnel_path(scope)
