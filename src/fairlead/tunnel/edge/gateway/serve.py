"""Runs the gateway on uvicorn: its own listening address, connections handed in, or both; in one process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import uvicorn

from fairlead.broker.edge.tls import make_context, renew_contexts
from fairlead.errors import ConfigError
from fairlead.runtime.addresses import TcpAddress, UnixAddress, parse_listen
from fairlead.tunnel.edge.gateway.app import GatewayApp, gateway_app
from fairlead.tunnel.edge.gateway.intake import Intake
from fairlead.tunnel.edge.gateway.links import bind_private
from fairlead.tunnel.edge.gateway.patience import PatientHttp, PatientWebSocket
from fairlead.tunnel.edge.gateway.settings import GatewaySettings
from fairlead.tunnel.edge.heap import keep_freed_memory

__all__ = ["GatewayServer", "serve"]

log = logging.getLogger("fairlead.tunnel.gateway")

FILES_BESIDES = 1024
"""Descriptors for links and the rest."""
KEEP_ALIVE_MARGIN_S = 50
"""Connections without a request stay open so much longer than a pull is held (TUN-38)."""


class GatewayServer(uvicorn.Server):
    """Answers what is held before it leaves, and returns after SIGTERM instead of dying of it."""

    def __init__(self, settings: GatewaySettings, *, intake: socket.socket | None, link: socket.socket | None) -> None:
        self.settings = settings
        self.gateway: GatewayApp = gateway_app(settings, link=link)
        self.ready: Callable[[GatewayServer], None] = lambda _: None
        self.urls: list[str] = []
        self._handed_in = intake
        self._loop: asyncio.AbstractEventLoop | None = None
        self._intake: Intake | None = None
        self._context = client_context(settings)
        super().__init__(config_for(settings, self.gateway, self._context))

    def renew(self) -> None:
        """Present what the files of the certificate hold by now; may be told from another thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._renew)

    def _renew(self) -> None:
        try:
            renew_contexts()
        except ConfigError as error:
            log.error("certificates were not read again: %s", error)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await self.gateway.start()  # before the lifespan does, so that what cannot work is said by a ConfigError
        try:
            listeners = sockets if sockets is not None else self._listen()
        except ConfigError:
            await self.gateway.stop()
            raise
        await super().startup(listeners)
        if self._handed_in is not None and self.started:
            self._intake = Intake(
                self._handed_in, self._protocol, context=self._context, patience_s=self.settings.patience_s
            )
        if self.started:
            self.ready(self)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._intake is not None:
            self._intake.close()
            await self._intake.wait_closed()
        if self.gateway.station is not None:
            self.gateway.station.drain()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def link_addresses(self) -> list[str]:
        return self.gateway.station.link_addresses() if self.gateway.station else []

    def _listen(self) -> list[socket.socket]:
        if not self.settings.listen:
            return []
        address = parse_listen(self.settings.listen)
        listener = bind(address)
        if isinstance(address, TcpAddress):
            bound = TcpAddress(address.host or socket.gethostname(), listener.getsockname()[1])
            self.urls = [f"{'https' if self._context else 'http'}://{bound}/tunnel"]
        return [listener]

    def _protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


def serve(
    settings: GatewaySettings,
    *,
    intake: socket.socket | None = None,
    link: socket.socket | None = None,
    ready: Callable[[GatewayServer], None] | None = None,
) -> int:
    """Until SIGTERM or SIGINT; the exit code. ConfigError before anything starts when the settings cannot be used."""
    keep_freed_memory()
    server = GatewayServer(settings, intake=intake, link=link)
    allow_files(settings.connections_max + FILES_BESIDES)
    if ready is not None:
        server.ready = ready
    server.run()
    return 0


def allow_files(wanted: int) -> None:
    """As many descriptors as connections may need, if the host lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def config_for(settings: GatewaySettings, app: GatewayApp, context: ssl.SSLContext | None) -> uvicorn.Config:
    patience = {
        "patience_s": settings.patience_s,
        "connections_max": settings.connections_max,
        "connections_per_address": settings.connections_per_address,
        "addresses": Counter[str](),
    }
    config = uvicorn.Config(
        app,
        http=type("Http", (PatientHttp,), patience),
        ws=type("WebSocket", (PatientWebSocket,), {"patience_s": settings.patience_s}),
        loop="auto",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        workers=1,
        timeout_keep_alive=int(settings.hold_s) + KEEP_ALIVE_MARGIN_S,
        timeout_graceful_shutdown=max(1, int(settings.leave_s)),
        ws_max_size=settings.body_max,
        ws_per_message_deflate=False,
    )
    config.load()
    config.ssl = context
    return config


def client_context(settings: GatewaySettings) -> ssl.SSLContext | None:
    if not settings.certificate:
        return None
    context = make_context(settings.certificate, settings.key)
    context.set_alpn_protocols(["http/1.1"])
    return context


def bind(address: TcpAddress | UnixAddress) -> socket.socket:
    """Listening; ConfigError when it cannot be."""
    try:
        if isinstance(address, UnixAddress):
            return bind_private(address.path)
        dual = not address.host and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual or ":" in address.host else socket.AF_INET
        # The protocol is named, since asyncio sets TCP_NODELAY only where it is: else every answer waits for 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
            listener.bind((address.host, address.port))
        except BaseException:
            listener.close()
            raise
        return listener
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror or error}") from None
