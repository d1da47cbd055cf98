"""The one Gateway of a process, with its clock and everybody who waits for it: held pulls, streams, links.

Every call into the machine is followed by `settle`, which does what the machine asks for.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
from collections.abc import Callable
from itertools import count

from fairlead.tunnel.edge.gateway.links import Link, address_text, listen_for_links
from fairlead.tunnel.edge.gateway.settings import GatewaySettings, instance_of, read_secret
from fairlead.tunnel.edge.gateway.streams import Shared, Stream
from fairlead.tunnel.gateway import (
    Answer,
    CloseLink,
    CloseStream,
    Gateway,
    GatewayStatus,
    Log,
    Reply,
    ToLink,
    ToStream,
)
from fairlead.tunnel.packets import Body

__all__ = ["Counters", "Station"]

log = logging.getLogger("fairlead.tunnel.gateway")

STRANGERS_MAX = 64
"""Connections to the link port that have not said who they are, at a time."""
LEVELS = logging.getLevelNamesMapping()


class Counters:
    """What only the edge sees."""

    __slots__ = ("damaged_links", "dropped_links", "dropped_streams", "links_broken", "replies", "requests")

    def __init__(self) -> None:
        self.requests = dict.fromkeys(("connect", "push", "pull", "stream"), 0)
        self.replies: dict[int, int] = {}
        self.damaged_links = 0
        self.dropped_links = 0
        self.dropped_streams = 0
        self.links_broken = 0


class Station:
    """Belongs to one event loop."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.instance = instance_of(settings)
        self.counters = Counters()
        self.leaving = False
        self._loop = asyncio.get_running_loop()
        self._now_s: Callable[[], float] = self._loop.time
        self._keys = count(1)
        self._held: dict[int, asyncio.Future[Reply]] = {}
        self._streams: dict[int, Stream] = {}
        self._shared = Shared(settings.buffered_bytes_max)
        self._links: dict[int, Link] = {}
        self._servers: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None
        self.gateway = Gateway(
            settings.limits(),
            self._now_s(),
            instance=self.instance,
            secret=read_secret(settings),
            allow_v1=settings.allow_v1,
            random_bytes=os.urandom,
            servers=settings.servers,
        )

    async def start(self, link: socket.socket | None = None) -> None:
        self._servers = await listen_for_links(self.settings, self, link)
        self.settle()

    def link_addresses(self) -> list[str]:
        """Where brokers can dial."""
        return [address_text(one.getsockname()) for server in self._servers for one in server.sockets]

    def links(self) -> list[Link]:
        return list(self._links.values())

    def streams(self) -> list[Stream]:
        return list(self._streams.values())

    def drain(self) -> None:
        """Held pulls are answered empty and streams closed; clients come back, to us or to our successor."""
        self.leaving = True
        for key, future in list(self._held.items()):
            self.gateway.forget(key, self._now_s())
            if not future.done():
                future.set_result(Reply(200))
        for stream in list(self._streams.values()):
            stream.close(1012, "the gateway is being restarted")
        self.settle()

    async def stop(self) -> None:
        self.drain()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for server in self._servers:
            server.close()
        for link in list(self._links.values()):
            link.close()
        for _ in range(50):  # what was said last leaves; whoever does not read it is not waited for
            if not self._links:
                break
            await asyncio.sleep(0.01)
        for link in list(self._links.values()):
            link.abort()
        while self._links:
            await asyncio.sleep(0)
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    # -- what clients ask ---------------------------------------------------------------------------------------------

    def connect(self, server: str, body: bytes, address: str) -> Reply:
        reply = self.gateway.connect(server, body, address, self._now_s())
        self.settle()
        return reply

    def push(self, server: str, connection_id: int | None, token: str, body: bytes, instance: str) -> Reply:
        reply = self.gateway.push(server, connection_id, token, body, self._now_s(), instance=instance)
        self.settle()
        return reply

    def pull(
        self, server: str, connection_id: int, token: str, hold_s: float, instance: str
    ) -> tuple[int, Reply | asyncio.Future[Reply]]:
        """The answer, or what it will be; the number is for `forget`."""
        key = next(self._keys)
        if self.leaving:
            hold_s = 0.0
        reply = self.gateway.pull(server, connection_id, token, hold_s, key, self._now_s(), instance=instance)
        if reply is not None:
            self.settle()
            return key, reply
        future = self._held[key] = self._loop.create_future()
        self.settle()
        return key, future

    def forget(self, key: int) -> None:
        """Whoever asked for this pull is gone."""
        if self._held.pop(key, None) is not None:
            self.gateway.forget(key, self._now_s())
            self.settle()

    def stream(self, server: str, connection_id: int, token: str, instance: str) -> Stream | Reply:
        key = next(self._keys)
        reply = self.gateway.stream(server, connection_id, token, key, self._now_s(), instance=instance)
        if reply is not None:
            self.settle()
            return reply
        stream = self._streams[key] = Stream(key, self._shared, self.settings.tunnel_bytes_max)
        self.settle()
        return stream

    def stream_frame(self, stream: Stream, frame: bytes) -> None:
        self.gateway.on_stream(stream.key, frame, self._now_s())
        self.settle()

    def stream_lost(self, stream: Stream) -> None:
        self.counters.dropped_streams += stream.dropped
        stream.discard()
        if self._streams.pop(stream.key, None) is not None:
            self.gateway.forget(stream.key, self._now_s())
            self.settle()

    def status(self) -> GatewayStatus:
        return self.gateway.status(self._now_s())

    # -- what brokers say ---------------------------------------------------------------------------------------------

    def link_made(self, link: Link) -> bool:
        if self.leaving:
            return False
        strangers = [one for one in self._links.values() if not one.is_known]
        if len(strangers) >= STRANGERS_MAX:
            strangers[0].abort()  # the one that has said nothing for longest
        link.key = next(self._keys)
        self._links[link.key] = link
        self.gateway.link(link.key, self._now_s(), link.names)
        self.settle()
        return True

    def link_packets(self, link: Link, body: Body) -> None:
        self.counters.damaged_links += body.damaged
        if link.key in self._links:
            self.gateway.on_link(link.key, body.packets, self._now_s())
            self.settle()

    def link_broken(self, link: Link, why: str) -> None:
        """A size that no packet has ends the whole link (TUN-13)."""
        self.counters.links_broken += 1
        log.warning("link from %s: %s", link.peer, why)
        link.abort()

    def link_lost(self, link: Link) -> None:
        self.counters.dropped_links += link.dropped
        if self._links.pop(link.key, None) is not None:
            self.gateway.link_lost(link.key, self._now_s())
            self.settle()

    # -- what the machine asks for ------------------------------------------------------------------------------------

    def settle(self) -> None:
        for effect in self.gateway.effects():
            match effect:
                case ToLink(key, packets):
                    if (link := self._links.get(key)) is not None:
                        link.send(packets)
                case Answer(key, reply):
                    if (future := self._held.pop(key, None)) is not None and not future.done():
                        future.set_result(reply)
                case ToStream(key, packets):
                    if (stream := self._streams.get(key)) is not None:
                        stream.send(packets)
                case CloseStream(key, reason):
                    if (stream := self._streams.get(key)) is not None:
                        stream.close(1000, reason)
                case CloseLink(key, reason):
                    if (link := self._links.get(key)) is not None:
                        log.warning("link from %s is closed: %s", link.peer, reason)
                        link.close()
                case Log(text, level):
                    log.log(LEVELS.get(level.upper(), logging.INFO), "%s", text)
        self._arm()

    def _arm(self) -> None:
        at_s = self.gateway.next_at()
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return  # it comes early, and is set anew then
            self._timer.cancel()
            self._timer = None
        if math.isfinite(at_s) and not self.leaving:
            self._timer = self._loop.call_at(at_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self.gateway.on_time(self._now_s())
        self.settle()
