"""The gateway: calls say what came, `effects` says what to do, `next_at` when to look at the clock."""

from __future__ import annotations

from collections.abc import Callable, Collection

from fairlead.tunnel.gateway.effects import Effect, Reply
from fairlead.tunnel.gateway.hub import MEMORY, Hub
from fairlead.tunnel.gateway.limits import Limits
from fairlead.tunnel.gateway.links import Link, Links
from fairlead.tunnel.gateway.requests import Requests
from fairlead.tunnel.gateway.status import GatewayStatus, tunnel_status
from fairlead.tunnel.gateway.table import Server
from fairlead.tunnel.gateway.tunnel import Tunnel
from fairlead.tunnel.packets import AbortCode, Packet

__all__ = ["Gateway"]


class Gateway:
    """`secret`: what brokers must show; None: whoever reaches the link port may be a broker.

    `servers` are expected, so that a connect to one gets 503 before it is linked. `instance` should be the same after a
    restart. Keys are the edge's: each held pull, stream and link has one of its own, never used twice.
    """

    def __init__(
        self,
        limits: Limits,
        now_s: float,
        *,
        instance: str,
        secret: bytes | None,
        allow_v1: bool,
        random_bytes: Callable[[int], bytes],
        servers: Collection[str] = (),
    ) -> None:
        self._instance = instance
        self._hub = Hub(limits, allow_v1=allow_v1)
        self._requests = Requests(self._hub, now_s, instance=instance, random_bytes=random_bytes, servers=servers)
        self._links = Links(self._hub, secret=secret)

    # -- requests: an answer, or None for one that is held ------------------------------------------------------------

    def connect(self, server: str, body: bytes, address: str, now_s: float) -> Reply:
        return self._requests.connect(server, body, address, now_s)

    def push(
        self, server: str, connection_id: int | None, token: str, body: bytes, now_s: float, *, instance: str = ""
    ) -> Reply:
        """`instance`: what the request repeats; a tunnel that is not known may be another gateway's (TUN-42)."""
        return self._requests.push(server, connection_id, token, body, now_s, instance)

    def pull(
        self,
        server: str,
        connection_id: int,
        token: str,
        hold_s: float,
        key: int,
        now_s: float,
        *,
        instance: str = "",
    ) -> Reply | None:
        """None: held; the effect Answer(key, reply) follows."""
        return self._requests.pull(server, connection_id, token, hold_s, key, now_s, instance)

    def stream(
        self, server: str, connection_id: int, token: str, key: int, now_s: float, *, instance: str = ""
    ) -> Reply | None:
        """None: the WebSocket may open; ToStream(key, …) and `on_stream` carry its frames."""
        return self._requests.stream(server, connection_id, token, key, now_s, instance)

    def on_stream(self, key: int, frame: bytes, now_s: float) -> None:
        self._requests.on_stream(key, frame, now_s)

    def forget(self, key: int, now_s: float) -> None:
        """The client of a held pull, or of a stream, went away."""
        self._requests.forget(key, now_s)

    # -- links --------------------------------------------------------------------------------------------------------

    def link(self, key: int, now_s: float, names: frozenset[str] | None = None) -> None:
        """Somebody dialled; `names` are those its certificate vouches for, where one is asked for."""
        self._links.link(key, now_s, names)

    def on_link(self, key: int, packets: list[Packet], now_s: float) -> None:
        self._links.on_link(key, packets, now_s)

    def link_lost(self, key: int, now_s: float) -> None:
        self._links.link_lost(key, now_s)

    # -- time ---------------------------------------------------------------------------------------------------------

    def on_time(self, now_s: float) -> None:
        for due in self._hub.deadlines.due(now_s):
            if isinstance(due, Tunnel):
                self._on_tunnel_time(due, now_s)
            elif isinstance(due, Link):
                self._links.on_time(due, now_s)
            elif isinstance(due, Server):
                self._links.on_grace_over(due, now_s)
            else:
                assert due == MEMORY
                self._hub.table.forget(now_s)
                self._hub.arm_memory()

    def _on_tunnel_time(self, tunnel: Tunnel, now_s: float) -> None:
        hub = self._hub
        if tunnel.held is not None:
            tunnel.seen_s = now_s
            hub.answer(tunnel, Reply(200))
            hub.rearm(tunnel)
        elif tunnel.done_s is not None:
            hub.forget_done(tunnel)
        elif tunnel.is_complete:
            hub.close_unfetched(tunnel)
        else:
            hub.abort(tunnel, AbortCode.CLIENT_LOST, "the client is gone", now_s, tell_broker=True)

    def next_at(self) -> float:
        return self._hub.deadlines.next_at()

    # -- what to do ---------------------------------------------------------------------------------------------------

    def effects(self) -> list[Effect]:
        """Since the last time; first to last."""
        effects, self._hub.effects = self._hub.effects, []
        return effects

    def status(self, now_s: float) -> GatewayStatus:
        hub = self._hub
        return GatewayStatus(
            instance=self._instance,
            tunnels=[
                tunnel_status(tunnel, server.link is not None, now_s)
                for server in hub.table.servers.values()
                for tunnel in server.tunnels.values()
                if tunnel.done_s is None
            ],
            links=self._links.status(now_s),
            buffered_bytes=hub.buffered,
            done=len(hub.table.done),
            ended=len(hub.table.ended),
            counters=hub.counters,
        )
