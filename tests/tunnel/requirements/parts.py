"""Both ends of a tunnel in a test's own loop, with a real gateway process and whatever boxes stand in between."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Self

import httpx

from fairlead.tunnel.edge.dial import open_stream
from fairlead.tunnel.edge.links import LinkTimes
from fairlead.tunnel.edge.server import TunnelServer
from fairlead.tunnel.edge.stream import TunnelStream
from fairlead.tunnel.options import TunnelOptions
from fairlead.tunnel.packets import Kind, Packet, encode, split
from fairlead.tunnel.rules import Rules
from tests.tunnel.carriers import let_go
from tests.tunnel.hostile.harness import PATIENCE_S, World

PLAIN = TunnelOptions(websocket="never")
USUAL = Rules()
SOON = Rules(resend_min_s=0.2, resend_plus_s=0.1, resend_first_s=0.5, resend_max_s=2.0)
"""Losses are found soon, so that a test with many of them is over soon."""
NAMES = (f"r{number}" for number in itertools.count())
Address = tuple[str, int]


async def until(condition: Callable[[], Any], what: str = "it", seconds: float = PATIENCE_S) -> Any:
    async with asyncio.timeout(seconds):
        while not (found := condition()):
            await asyncio.sleep(0.01)
        return found
    raise AssertionError(f"{what} did not come about")


def url(world: World, name: str, at: Address | None = None) -> str:
    host, port = at or world.address
    return f"http://{host}:{port}/tunnel/{name}"


@asynccontextmanager
async def serving(
    world: World,
    name: str = "",
    rules: Rules = USUAL,
    link: Address | None = None,
    times: LinkTimes | None = None,
    **more: Any,
) -> AsyncIterator[TunnelServer]:
    """A broker's server socket, linked to the world's gateway (or by way of `link`)."""
    host, port = link or world.link
    secret = world.secret.read_bytes()
    async with TunnelServer(name or next(NAMES), rules=rules, secret=secret, times=times, **more) as server:
        await server.listen(f"{host}:{port}", timeout_s=PATIENCE_S)
        yield server


class Pair(NamedTuple):
    client: TunnelStream
    broker: TunnelStream
    server: TunnelServer

    @property
    def id(self) -> int:
        return self.client.status().end.connection_id


@asynccontextmanager
async def opened(
    world: World, server: TunnelServer, at: Address | None = None, options: TunnelOptions = PLAIN
) -> AsyncIterator[Pair]:
    """One tunnel more to that broker; `at`: where the client believes the gateway to be."""
    client = await open_stream(url(world, server.name, at), options, timeout_s=PATIENCE_S)
    try:
        broker = await server.accept(PATIENCE_S)
        yield Pair(client, broker, server)
        broker.release()
    finally:
        await let_go(client)


@asynccontextmanager
async def joined(
    world: World,
    at: Address | None = None,
    *,
    options: TunnelOptions = PLAIN,
    rules: Rules = USUAL,
    broker: Rules | None = None,
    link: Address | None = None,
    times: LinkTimes | None = None,
) -> AsyncIterator[Pair]:
    """A broker and one tunnel to it; `broker`: its rules, where they differ from the client's."""
    async with (
        serving(world, rules=broker or rules, link=link, times=times) as server,
        opened(world, server, at, options._replace(rules=rules)) as pair,
    ):
        yield pair


class RawClient:
    """Speaks to a gateway in single requests, written down here and nowhere else."""

    def __init__(self, world: World, name: str) -> None:
        self.http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{world.address[1]}",
            headers={"Content-Type": "application/octet-stream", "Cache-Control": "no-store"},
            trust_env=False,
            verify=False,
            timeout=60,
        )
        self.name, self.id, self.version = name, 0, 2

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def connect(self, window: int = 256, version: int = 2) -> httpx.Response:
        hello = encode(Kind.CONN_INIT, window=window, version=version)
        answer = await self.http.post(f"/tunnel?ServerName={self.name}&Type=connect", content=hello)
        if answer.status_code == 200:
            (granted,) = split(answer.content).packets
            self.id, self.version = granted.connection_id, granted.version
            if granted.payload:
                self.http.headers["Authorization"] = f"Bearer {granted.payload.hex()}"
        return answer

    async def push(self, *packets: bytes) -> httpx.Response:
        return await self.http.post(
            f"/tunnel?ServerName={self.name}&Type=push&ConnId={self.id}", content=b"".join(packets)
        )

    async def pull(self, hold_s: float = 10) -> list[Packet]:
        answer = await self.http.post(
            f"/tunnel?ServerName={self.name}&Type=pull&ConnId={self.id}&Hold={hold_s:g}", content=b""
        )
        answer.raise_for_status()
        return split(answer.content).packets

    def packet(self, kind: int, sequence: int = 0, window: int = 0, payload: bytes = b"") -> bytes:
        return encode(kind, self.id, sequence, window, payload, self.version)

    async def open(self, window: int = 256, version: int = 2) -> None:
        """All four steps (TUN-56) and the confirmation (TUN-60)."""
        (await self.connect(window, version)).raise_for_status()
        while not any(packet.kind == Kind.CONN_INIT_ACK for packet in await self.pull()):
            pass
        (await self.push(self.packet(Kind.ACK, 0, window))).raise_for_status()
