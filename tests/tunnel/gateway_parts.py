"""What the tests of the gateway's edges share: the gateway on real servers, a scripted broker, a scripted client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fairlead.tunnel.edge.gateway import GatewaySettings, gateway_app
from fairlead.tunnel.edge.gateway.app import GatewayApp
from fairlead.tunnel.edge.gateway.serve import GatewayServer
from fairlead.tunnel.link_init import LINK_PAYLOAD_MAX, LinkInit, LinkInitAck
from fairlead.tunnel.packets import Kind, Packet, cut, encode, split

SERVERS = ("uvicorn", "hypercorn", "hypercorn-h2")
SOON_S = 20.0
OCTETS = {"Content-Type": "application/octet-stream", "Cache-Control": "no-store"}


class Running:
    """A gateway that serves."""

    def __init__(self, app: GatewayApp, port: int, *, http2: bool = False, server: GatewayServer | None = None) -> None:
        self.app = app
        self.server = server
        self.port = port
        self.http2 = http2
        self.url = f"http://127.0.0.1:{port}/tunnel"

    @property
    def station(self) -> Any:
        assert self.app.station is not None
        return self.app.station

    def connections(self) -> list[Any]:
        """What uvicorn has open."""
        assert self.server is not None
        return list(self.server.server_state.connections)

    @property
    def link_port(self) -> int:
        return int(self.station.link_addresses()[0].rpartition(":")[2])


@contextlib.asynccontextmanager
async def running(kind: str = "uvicorn", **settings: Any) -> AsyncIterator[Running]:
    settings = {"link_listen": "127.0.0.1:0", "servers": ("configured",), "opens_per_s": 1e6} | settings
    if kind == "uvicorn":
        server = GatewayServer(GatewaySettings(listen="127.0.0.1:0", **settings), intake=None, link=None)
        ready = asyncio.Event()
        server.ready = lambda _: ready.set()
        serving = asyncio.create_task(server.serve())
        await before(ready.wait(), serving)
        try:
            port = int(server.urls[0].rpartition(":")[2].partition("/")[0])
            yield Running(server.gateway, port, server=server)
        finally:
            server.should_exit = True
            await serving
        return
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    app = gateway_app(GatewaySettings(**settings))
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    config = Config()
    port = listener.getsockname()[1]
    config.bind = [f"fd://{listener.detach()}"]
    config.graceful_timeout = 1
    config.accesslog = config.errorlog = None
    leave = asyncio.Event()
    serving = asyncio.create_task(serve(app, config, shutdown_trigger=leave.wait))  # type: ignore[arg-type]
    try:
        await before(until(lambda: app.station is not None), serving)
        yield Running(app, port, http2=kind.endswith("h2"))
    finally:
        leave.set()
        await serving


async def before(wanted: Any, serving: asyncio.Task[Any]) -> None:
    """Wait for the server to be there, or for its failure."""
    wanted = asyncio.ensure_future(wanted)
    await asyncio.wait((wanted, serving), timeout=SOON_S, return_when=asyncio.FIRST_COMPLETED)
    if not wanted.done():
        wanted.cancel()
        await serving
        raise AssertionError("the server did not start")


async def until(condition: Any, limit_s: float = SOON_S) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.002)


class Broker:
    """The end of a real link; what it got is in `got`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.got: list[Packet] = []
        self.is_cut = False
        self.wants_pongs = True
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    @classmethod
    async def dial(
        cls,
        port: int,
        name: str = "b1",
        *,
        secret: bytes = b"",
        start_id: bytes = bytes(16),
        tunnels: Any = (),
        tls: Any = None,
        greet: bool = True,
    ) -> Broker:
        broker = cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls, limit=1 << 20))
        if greet:
            payload = LinkInit(name, secret, start_id, tunnels).encode()
            broker.send(encode(Kind.LINK_INIT, payload=payload))
        return broker

    @classmethod
    async def linked(cls, gateway: Running, name: str = "b1", **more: Any) -> Broker:
        broker = await cls.dial(gateway.link_port, name, **more)
        await broker.expect(Kind.LINK_INIT_ACK)
        return broker

    async def _read(self) -> None:
        waiting = bytearray()
        with contextlib.suppress(OSError):
            while data := await self.reader.read(1 << 18):
                waiting += data
                for packet in cut(waiting, LINK_PAYLOAD_MAX).packets:
                    if packet.kind == Kind.PING and self.wants_pongs:
                        self.send(encode(Kind.PONG, payload=packet.payload))
                    else:
                        self.got.append(packet)
                self._news.set()
        self.is_cut = True
        self._news.set()

    def send(self, *packets: bytes) -> None:
        self.writer.write(b"".join(packets))

    def data(self, connection_id: int, sequence: int, payload: bytes) -> None:
        self.send(encode(Kind.DATA, connection_id, sequence, payload=payload))

    async def expect(self, kind: Kind, connection_id: int | None = None) -> Packet:
        """The first such packet, which is taken out of `got`."""
        async with asyncio.timeout(SOON_S):
            while True:
                for at, packet in enumerate(self.got):
                    if packet.kind == kind and connection_id in (None, packet.connection_id):
                        return self.got.pop(at)
                assert not self.is_cut, "the gateway has closed the link"
                self._news.clear()
                await self._news.wait()

    async def refused(self) -> list[int]:
        return list(LinkInitAck.decode((await self.expect(Kind.LINK_INIT_ACK)).payload).refused)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


class Client:
    """Requests by hand."""

    def __init__(self, gateway: Running, server: str = "b1") -> None:
        self.server = server
        self.url = gateway.url
        self._http2 = gateway.http2
        self.http = self.fresh()
        self.connection_id = 0
        self.token = ""

    def fresh(self) -> httpx.AsyncClient:
        """Connections of its own."""
        return httpx.AsyncClient(
            http1=not self._http2, http2=self._http2, timeout=SOON_S, verify=False, trust_env=False, headers=OCTETS
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def ask(self, kind: str, body: bytes = b"", *, token: str | None = None, **more: Any) -> httpx.Response:
        token = self.token if token is None else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        params = {"ServerName": self.server, "Type": kind} | {name: str(value) for name, value in more.items()}
        return await self.http.post(self.url, params=params, content=body, headers=headers)

    async def connect(self, window: int = 100, version: int = 2) -> httpx.Response:
        answer = await self.ask("connect", encode(Kind.CONN_INIT, window=window, version=version))
        if answer.status_code == 200:
            (packet,) = split(answer.content).packets
            self.connection_id, self.token = packet.connection_id, packet.payload.hex()
        return answer

    async def push(self, *packets: bytes, **more: Any) -> httpx.Response:
        return await self.ask("push", b"".join(packets), **({"ConnId": self.connection_id} | more))

    async def pull(self, hold_s: float = 0, **more: Any) -> httpx.Response:
        return await self.ask("pull", **({"ConnId": self.connection_id, "Hold": hold_s} | more))

    def data(self, sequence: int, payload: bytes) -> bytes:
        return encode(Kind.DATA, self.connection_id, sequence, payload=payload)


class ByHand:
    """Requests over one connection, without a library: for thousands of them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def dial(cls, port: int) -> ByHand:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(self, query: str, body: bytes, token: str = "") -> int:
        """The status of the answer."""
        head = f"POST /tunnel?{query} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        self._writer.write(f"{head}Authorization: Bearer {token}\r\n\r\n".encode() + body)
        async with asyncio.timeout(SOON_S):
            answer = await self._reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await self._reader.readexactly(length)
        return int(answer.split()[1])

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def opened(gateway: Running, broker: Broker, server: str = "b1") -> Client:
    """A client with a tunnel that is set up at both ends."""
    client = Client(gateway, server)
    assert (await client.connect()).status_code == 200
    await broker.expect(Kind.CONN_INIT, client.connection_id)
    broker.send(encode(Kind.CONN_INIT_ACK, client.connection_id, window=100))
    found = split((await client.pull(5)).content).packets
    assert [packet.kind for packet in found] == [Kind.CONN_INIT_ACK]
    assert (await client.push(encode(Kind.ACK, client.connection_id, window=100))).status_code == 200
    await broker.expect(Kind.ACK, client.connection_id)
    return client


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A file with a key and a certificate for 127.0.0.1, and what trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem = folder / "gate.pem"
    pem.write_bytes(private + made.public_bytes(Encoding.PEM))
    return pem, ssl.create_default_context(cafile=str(pem))
