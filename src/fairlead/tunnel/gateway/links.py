"""Brokers' links: who may have one, what LINK_INIT changes, what is relayed to clients, and when a link counts as lost.

A refused link gets a CONN_ABORT with connection id 0, which says why, and is closed.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.errors import RemoteProtocolError
from fairlead.tunnel.gateway.aborts import abort_packet, short
from fairlead.tunnel.gateway.effects import CloseLink, Log, Reply, ToLink
from fairlead.tunnel.gateway.hub import SMALL, SMALL_BYTES, Hub
from fairlead.tunnel.gateway.status import LinkStatus
from fairlead.tunnel.gateway.table import Server
from fairlead.tunnel.gateway.tokens import is_same_secret
from fairlead.tunnel.gateway.tunnel import OPTION_MAX_S, Tunnel
from fairlead.tunnel.link_init import LinkInit, LinkInitAck, LinkTunnel, shown_secret
from fairlead.tunnel.packets import HEADER_BYTES, SEQUENCED, AbortCode, Kind, Packet, encode

__all__ = ["Link", "Links"]

KINDS = frozenset(Kind)
TELL_AGAIN_S = 5.0
"""A broker that goes on sending for an ended tunnel is told so often."""
ROUNDING_S = 1e-3
OTHER_NAME = "the certificate of this broker is not that of the server it speaks for"
WRONG_SECRET = "the link secret is not the one of this gateway"


@dataclass(slots=True, eq=False)
class Link:
    key: int
    since_s: float
    heard_s: float
    version: int = 2
    server: Server | None = None
    """None: it has not said who it is."""
    names: frozenset[str] | None = None
    """Which it may say, by its certificate; None: any."""


class Links:
    def __init__(self, hub: Hub, *, secret: bytes | None) -> None:
        self._hub = hub
        self._limits = hub.limits
        self._secret = secret
        self._links: dict[int, Link] = {}

    # -- coming and going ---------------------------------------------------------------------------------------------

    def link(self, key: int, now_s: float, names: frozenset[str] | None = None) -> None:
        link = self._links[key] = Link(key, now_s, now_s, names=names)
        if len(self._links) > self._limits.links_max:
            self._refuse(link, "this gateway has as many links as it may")
            return
        self._hub.deadlines.set(link, now_s + self._limits.link_init_s)

    def on_link(self, key: int, packets: list[Packet], now_s: float) -> None:
        link = self._links.get(key)
        if link is None or not packets:
            return
        link.heard_s = now_s
        if link.server is None:
            first, *packets = packets
            if not self._begin(link, first, now_s):
                return
        if not self._relay(link, packets, now_s):
            self._lose(link, now_s)

    def link_lost(self, key: int, now_s: float) -> None:
        if (link := self._links.get(key)) is not None:
            self._lose(link, now_s)

    def on_time(self, link: Link, now_s: float) -> None:
        if link.server is None:
            self._refuse(link, "it did not say who it is")
            return
        silent_s = now_s - link.heard_s
        if silent_s >= self._limits.link_lost_s - ROUNDING_S:
            self._hub.effects.append(CloseLink(link.key, f"nothing was heard for {silent_s:.0f} s"))
            self._lose(link, now_s)
            return
        if silent_s >= self._limits.ping_s - ROUNDING_S:
            self._hub.effects.append(ToLink(link.key, [encode(Kind.PING, version=link.version)]))
        self._watch(link, now_s)

    def _watch(self, link: Link, now_s: float) -> None:
        """Is asked after when it was silent; a PING is repeated until it counts as lost (TUN-55)."""
        silent_s = now_s - link.heard_s
        next_s = self._limits.ping_s - (silent_s if silent_s < self._limits.ping_s - ROUNDING_S else 0)
        self._hub.deadlines.set(link, now_s + min(next_s, self._limits.link_lost_s - silent_s))

    def _lose(self, link: Link, now_s: float) -> None:
        """Its tunnels wait for another (TUN-95)."""
        self._forget(link)
        server = link.server
        if server is None or server.link != link.key:
            return
        server.link = None
        self._hub.effects.append(Log(f"The link of {server.name!r} is lost; {server.alive()} tunnels wait for it."))
        for tunnel in server.tunnels.values():
            if tunnel.held is not None and not tunnel.is_complete:
                tunnel.seen_s = now_s
                self._hub.answer(tunnel, Reply(503, b"", (("Retry-After", "1"),)))
                self._hub.rearm(tunnel)
        if self._limits.grace_s > 0:
            self._hub.deadlines.set(server, now_s + self._limits.grace_s)
        else:
            self.on_grace_over(server, now_s)

    def on_grace_over(self, server: Server, now_s: float) -> None:
        if server.link is None:
            for tunnel in self._unfinished(server):
                self._hub.abort(tunnel, AbortCode.BROKER_LOST, "the broker is gone", now_s)

    def _refuse(self, link: Link, text: str, code: AbortCode = AbortCode.REFUSED) -> None:
        self._hub.counters.links_refused += 1
        self._hub.effects.append(ToLink(link.key, [abort_packet(0, code, text, link.version)]))
        self._hub.effects.append(CloseLink(link.key, text))
        self._forget(link)

    def _forget(self, link: Link) -> None:
        del self._links[link.key]
        self._hub.deadlines.clear(link)

    # -- LINK_INIT ----------------------------------------------------------------------------------------------------

    def _begin(self, link: Link, first: Packet, now_s: float) -> bool:
        link.version = first.version
        if first.kind != Kind.LINK_INIT:
            self._refuse(link, "a link begins with LINK_INIT", AbortCode.PROTOCOL)
            return False
        try:
            secret = self._secret if first.version > 1 else None
            if secret is not None and not is_same_secret(shown_secret(first.payload), secret):
                self._refuse(link, WRONG_SECRET)
                return False
            said = LinkInit.decode(first.payload, first.version)
        except RemoteProtocolError as error:
            self._refuse(link, error.text, AbortCode.PROTOCOL)
            return False
        if link.names is not None and said.server not in link.names:
            self._refuse(link, OTHER_NAME)
            return False
        if why := self._why_not(said, first.version, now_s):
            self._refuse(link, why)
            return False
        server = self._hub.table.server(said.server)
        if server.link is not None:
            self._hub.effects.append(CloseLink(server.link, "another link of the same broker takes its place"))
            self._forget(self._links[server.link])
        server.link = link.key
        server.link_version = first.version
        server.start_id = said.start_id
        link.server = server
        self._hub.deadlines.clear(server)
        self._match(link, server, said, now_s)
        self._watch(link, now_s)
        return True

    def _why_not(self, said: LinkInit, version: int, now_s: float) -> str:
        """Empty: it may have the link."""
        if version == 1 and not self._hub.allow_v1:
            return "version 1 of the packet format is not allowed here, version 2 is"
        if self._secret is not None and (version == 1 or not is_same_secret(said.authentication, self._secret)):
            return WRONG_SECRET
        server = self._hub.table.servers.get(said.server)
        if server is not None and server.link is not None:
            is_same = bool(said.start_id) and said.start_id == server.start_id
            silent_s = now_s - self._links[server.link].heard_s
            if not is_same and silent_s < self._limits.link_silent_s:
                return "another broker of this name is linked (TUN-53)"
        return ""

    def _match(self, link: Link, server: Server, said: LinkInit, now_s: float) -> None:
        """Listed and known go on, listed and unknown are adopted, listed and ended are refused; the rest is aborted."""
        listed = {one.connection_id for one in said.tunnels}
        refused = [one.connection_id for one in said.tunnels if not self._go_on(server, one, link.version, now_s)]
        ack = encode(Kind.LINK_INIT_ACK, payload=LinkInitAck(refused).encode(), version=link.version)
        self._hub.effects.append(ToLink(link.key, [ack]))
        gone = [
            one for one in self._unfinished(server) if one.connection_id not in listed or one.connection_id in refused
        ]
        for tunnel in gone:
            self._hub.abort(tunnel, AbortCode.NOT_KNOWN, "the broker does not know the tunnel any more", now_s)
        counts = f"{server.alive()} tunnels, {len(refused)} refused, {len(gone)} aborted"
        self._hub.effects.append(Log(f"{server.name!r} is linked: {counts}."))

    def _go_on(self, server: Server, one: LinkTunnel, link_version: int, now_s: float) -> bool:
        hub = self._hub
        tunnel = server.tunnels.get(one.connection_id)
        if tunnel is None:
            if (server.name, one.connection_id) in hub.table.ended or hub.places.why_not(server.name, ""):
                return False
            if not one.verifier and not hub.allow_v1:
                return False  # anybody could speak for its client
            version = 2 if one.verifier and link_version > 1 else 1
            tunnel = hub.make(server, one.connection_id, version, one.verifier, "", 0, now_s)
            tunnel.is_set_up = True
            hub.counters.adopted += 1
        elif tunnel.verifier != one.verifier and link_version > 1:
            return False  # not the tunnel we know
        if one.inactivity_s:
            tunnel.inactivity_s = float(min(one.inactivity_s, OPTION_MAX_S))
        tunnel.pull_period_s = float(min(max(one.pull_period_s, 0), OPTION_MAX_S))
        hub.rearm(tunnel)
        return True

    def _unfinished(self, server: Server) -> list[Tunnel]:
        """What the loss of its broker ends. Where the close is complete only the client has to hear of it."""
        return [tunnel for tunnel in server.tunnels.values() if not tunnel.is_complete]

    # -- packets ------------------------------------------------------------------------------------------------------

    def _relay(self, link: Link, packets: list[Packet], now_s: float) -> bool:
        """False: the link cannot be used any more."""
        hub, server = self._hub, link.server
        assert server is not None
        tunnels, counters = server.tunnels, hub.counters
        touched: dict[Tunnel, None] = {}
        size_max = self._limits.payload_max + HEADER_BYTES[2]
        for packet in packets:
            kind, raw = packet.kind, packet.raw
            if len(raw) > size_max:
                hub.effects.append(CloseLink(link.key, f"a packet of a tunnel cannot have {len(raw)} bytes"))
                return False
            if not packet.connection_id:
                if kind == Kind.LINK_INIT:
                    hub.effects.append(CloseLink(link.key, "LINK_INIT came again"))
                    return False
                self._on_own(link, packet)
                continue
            tunnel = tunnels.get(packet.connection_id)
            if tunnel is None:
                self._on_unknown(link, server, packet, now_s)
                continue
            if tunnel.done_s is not None:
                if kind in SEQUENCED:  # the client's last ACK was lost (TUN-92)
                    hub.to_link(server, [tunnel.down.last_ack])
                continue
            if packet.version != tunnel.version:
                counters.wrong_version += 1
                continue
            if kind in SMALL and len(raw) > SMALL_BYTES:
                counters.misplaced += 1
                continue
            if kind == Kind.DATA:
                tunnel.down.sent(packet.sequence, len(raw))
            elif kind == Kind.ACK:
                tunnel.up.acknowledged(packet)
            elif kind == Kind.CONN_ABORT:
                hub.end(tunnel, short(packet), now_s)
                touched.pop(tunnel, None)
                continue
            elif kind == Kind.CONN_INIT_ACK:
                tunnel.is_set_up = True
                tunnel.up.capacity = packet.window
            elif kind == Kind.CONN_OPTION:
                tunnel.down.sent(packet.sequence, len(raw))
                if tunnel.on_option(packet, from_client=False):
                    hub.rearm(tunnel)
            elif kind == Kind.CONN_CLOSE:
                tunnel.down.sent(packet.sequence, len(raw))
                tunnel.down.close = packet.sequence
            else:
                if kind in KINDS:
                    counters.misplaced += 1
                else:
                    counters.unknown_kind += 1
                continue
            counters.packets_down += 1
            counters.bytes_down += len(raw)
            hub.put(tunnel, packet)
            touched[tunnel] = None
        for tunnel in touched:
            hub.hand_over(tunnel, now_s)
        return True

    def _on_own(self, link: Link, packet: Packet) -> None:
        if packet.kind == Kind.PING:
            pong = encode(Kind.PONG, payload=packet.payload, version=link.version)
            self._hub.effects.append(ToLink(link.key, [pong]))
        elif packet.kind not in KINDS:
            self._hub.counters.unknown_kind += 1
        elif packet.kind != Kind.PONG:
            self._hub.counters.misplaced += 1

    def _on_unknown(self, link: Link, server: Server, packet: Packet, now_s: float) -> None:
        """For a tunnel that has ended, or never was: the broker is told, now and then (TUN-99)."""
        if packet.kind == Kind.CONN_ABORT:
            return
        key = server.name, packet.connection_id
        ended = self._hub.table.ended.get(key)
        if ended is not None:
            if now_s - ended.told_s < TELL_AGAIN_S:
                return
            self._hub.table.ended[key] = ended._replace(told_s=now_s)
            abort = ended.abort
        else:
            text = "the gateway does not know the tunnel any more"
            abort = abort_packet(packet.connection_id, AbortCode.NOT_KNOWN, text, packet.version)
            self._hub.table.remember(*key, abort, now_s)
            self._hub.arm_memory()
        self._hub.to_link(server, [abort])

    def status(self, now_s: float) -> list[LinkStatus]:
        return [
            LinkStatus(
                link.key,
                link.server.name if link.server else "",
                link.version,
                link.server.alive() if link.server else 0,
                now_s - link.since_s,
                now_s - link.heard_s,
            )
            for link in self._links.values()
        ]
