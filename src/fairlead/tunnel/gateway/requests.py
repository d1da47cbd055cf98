"""What clients ask over HTTP: connect, push, pull, stream; and with which status each is answered (TUN-36)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from struct import Struct

from fairlead.tunnel.gateway.aborts import abort_packet, short
from fairlead.tunnel.gateway.effects import Reply, ToStream
from fairlead.tunnel.gateway.flow import reaches
from fairlead.tunnel.gateway.hub import SMALL, SMALL_BYTES, Hub
from fairlead.tunnel.gateway.limits import TokenBucket
from fairlead.tunnel.gateway.table import Server
from fairlead.tunnel.gateway.tokens import TOKEN_BYTES, opens, verifier_of
from fairlead.tunnel.gateway.tunnel import Tunnel
from fairlead.tunnel.packets import HEADER_BYTES, SEQUENCED, VERSIONS, AbortCode, Body, Kind, Packet, encode, split

__all__ = ["Requests"]

BEGINNING = Struct(">H6xI")
"""Version and connection id of a packet."""
NEVER_FROM_CLIENTS = frozenset({Kind.CONN_INIT_ACK, Kind.LINK_INIT, Kind.LINK_INIT_ACK})
NEVER_BEFORE_SET_UP = SEQUENCED
EMPTY = Reply(200)
UNDER_WAY_S = 10.0
"""For so long a push that is no news may simply have been on its way."""
SOON = (("Retry-After", "1"),)


class Requests:
    def __init__(
        self,
        hub: Hub,
        now_s: float,
        *,
        instance: str,
        random_bytes: Callable[[int], bytes],
        servers: Collection[str],
    ) -> None:
        self._hub = hub
        self._limits = hub.limits
        self._instance = instance
        self._random_bytes = random_bytes
        self._configured = frozenset(servers)
        self._opens = TokenBucket(hub.limits.opens_per_s, now_s)

    # -- connect ------------------------------------------------------------------------------------------------------

    def connect(self, name: str, body: bytes, address: str, now_s: float) -> Reply:
        hub = self._hub
        if len(body) > self._limits.body_max:
            return self._no_tunnel(413, "the body is too large")
        asked = self._conn_init(body)
        if isinstance(asked, Reply):
            return asked
        server = hub.table.servers.get(name)
        if server is None or server.link is None:
            if server is None and name not in self._configured:
                return self._no_tunnel(404, "no broker of this name is linked here, nor expected")
            return self._no_tunnel(503, "the broker is not linked at the moment")
        version = min(asked.version, server.link_version)
        if why := hub.places.why_not(name, address):
            return self._no_tunnel(429, why)
        if hub.buffered >= self._limits.buffered_bytes_max:
            return self._no_tunnel(503, "the buffers of this gateway are full at the moment")
        if not self._opens.take(now_s):
            return self._no_tunnel(503, "too many tunnels are being opened at the moment")
        token = self._random_bytes(TOKEN_BYTES) if version > 1 else b""
        verifier = verifier_of(token) if token else b""
        connection_id = hub.table.draw_id(server, self._random_bytes)
        hub.make(server, connection_id, version, verifier, address, asked.window, now_s)
        hub.counters.opened += 1
        hub.to_link(server, [encode(Kind.CONN_INIT, connection_id, 0, asked.window, verifier, version)])
        answer = encode(Kind.CONN_INIT, connection_id, payload=token, version=version)
        return Reply(200, answer, (("Fairlead-Instance", self._instance),))

    def _conn_init(self, body: bytes) -> Packet | Reply:
        """The one packet of a connect."""
        if len(body) < BEGINNING.size:
            return self._no_tunnel(400, "a connect brings CONN_INIT")
        version, _ = BEGINNING.unpack_from(body)
        if version not in VERSIONS:
            return self._no_tunnel(400, f"version {version} of the packet format is not spoken here, 1 and 2 are known")
        if version == 1 and not self._hub.allow_v1:
            return self._no_tunnel(400, "version 1 of the packet format is not allowed here, version 2 is")
        packets, damaged, _, fault = split(body, self._limits.payload_max)
        self._hub.counters.damaged += damaged
        if fault or len(packets) != 1 or packets[0].kind != Kind.CONN_INIT or packets[0].connection_id:
            return self._no_tunnel(400, "a connect brings one CONN_INIT with connection id 0")
        return packets[0]

    def _no_tunnel(self, status: int, text: str) -> Reply:
        code = AbortCode.PROTOCOL if status == 400 else AbortCode.REFUSED
        return self._refuse(status, text, abort_packet(0, code, text))

    # -- push ---------------------------------------------------------------------------------------------------------

    def push(self, name: str, connection_id: int | None, token: str, body: bytes, now_s: float, instance: str) -> Reply:
        if len(body) > self._limits.body_max:
            return self._refuse(413, "the body is too large")
        if connection_id is None:
            if len(body) < HEADER_BYTES[1]:
                return self._refuse(400, "a push brings packets")
            _, connection_id = BEGINNING.unpack_from(body)
        tunnel = self._find(name, connection_id, token, instance)
        if isinstance(tunnel, Reply):
            return tunnel
        found = split(body, self._limits.payload_max, with_data=False)
        if not found.packets and not found.damaged:
            return self._refuse(400, found.fault or "a push brings packets")
        return self._from_client(tunnel, found, now_s)

    def _from_client(self, tunnel: Tunnel, body: Body, now_s: float) -> Reply:
        """What a push or a frame of a stream brought: all of it is refused, or what can be used is used."""
        hub = self._hub
        packets = body.packets
        connection_id = tunnel.connection_id
        for packet in packets:
            if packet.connection_id != connection_id:
                return self._refuse(403, "a packet belongs to another tunnel")
            if packet.kind in NEVER_FROM_CLIENTS:
                hub.counters.misplaced += 1
                return self._refuse(400, "such packets do not come from clients")
        hub.counters.damaged += body.damaged
        tunnel.damaged += body.damaged
        if tunnel.done_s is not None:
            return self._after_close(tunnel, packets, now_s)
        server = hub.table.servers[tunnel.server]
        if server.link is None and not tunnel.is_complete:
            return self._refuse(503, "the broker is not linked at the moment")
        if not tunnel.is_set_up and any(packet.kind in NEVER_BEFORE_SET_UP for packet in packets):
            hub.counters.misplaced += 1
            return self._refuse(400, "the broker has not accepted the tunnel yet")
        self._relay(tunnel, server, packets, now_s)
        return EMPTY

    def _relay(self, tunnel: Tunnel, server: Server, packets: list[Packet], now_s: float) -> None:
        hub = self._hub
        version, up = tunnel.version, tunnel.up
        passed: list[bytes] = []
        abort = b""
        for packet in packets:
            kind, raw = packet.kind, packet.raw
            if packet.version != version:
                hub.counters.wrong_version += 1
            elif kind in SMALL and len(raw) > SMALL_BYTES:
                hub.counters.misplaced += 1
            elif kind == Kind.DATA:
                up.sent(packet.sequence, len(raw))
                passed.append(raw)
            elif kind == Kind.ACK:
                tunnel.down.acknowledged(packet)
                passed.append(raw)
            elif kind == Kind.CONN_OPTION:
                up.sent(packet.sequence, len(raw))
                if tunnel.on_option(packet, from_client=True):
                    hub.rearm(tunnel)
                passed.append(raw)
            elif kind == Kind.CONN_CLOSE:
                up.sent(packet.sequence, len(raw))
                up.close = packet.sequence
                passed.append(raw)
            elif kind == Kind.CONN_INIT:
                # Asked again, since CONN_INIT_ACK did not come (TUN-61): the broker may not have had the first one.
                passed.append(encode(Kind.CONN_INIT, tunnel.connection_id, 0, packet.window, tunnel.verifier, version))
            elif kind == Kind.CONN_ABORT:
                abort = short(packet)
                passed.append(raw)
                break
            elif kind == Kind.PING and tunnel.stream is not None:
                pong = encode(Kind.PONG, tunnel.connection_id, payload=packet.payload, version=version)
                hub.effects.append(ToStream(tunnel.stream, [pong]))
            elif kind in (Kind.PING, Kind.PONG):
                hub.counters.misplaced += tunnel.stream is None
            else:
                hub.counters.unknown_kind += 1
        hub.counters.packets_up += len(passed)
        hub.counters.bytes_up += sum(map(len, passed))
        hub.to_link(server, passed)
        if abort:
            hub.end(tunnel, abort, now_s)
        else:
            hub.finish_if_complete(tunnel, now_s)

    def _after_close(self, tunnel: Tunnel, packets: list[Packet], now_s: float) -> Reply:
        """The close is complete. A client that repeats what it cannot know to be acknowledged has lost its last ACK."""
        sequenced = [packet for packet in packets if packet.kind in SEQUENCED]
        assert tunnel.done_s is not None
        is_fresh = now_s - tunnel.done_s < UNDER_WAY_S
        if any(
            is_fresh or packet.sequence == tunnel.up.close or not reaches(tunnel.ack_out_before, packet.sequence)
            for packet in sequenced
        ):
            last_ack = split(tunnel.up.last_ack).packets
            for packet in last_ack:
                self._hub.put(tunnel, packet)
            self._hub.hand_over(tunnel, now_s)
        elif sequenced:
            return self._gone(tunnel.connection_id, "the tunnel was closed", tunnel.version)
        return EMPTY

    # -- pull ---------------------------------------------------------------------------------------------------------

    def pull(
        self, name: str, connection_id: int, token: str, hold_s: float, key: int, now_s: float, instance: str
    ) -> Reply | None:
        hub = self._hub
        tunnel = self._find(name, connection_id, token, instance)
        if isinstance(tunnel, Reply):
            return tunnel
        tunnel.seen_s = now_s
        if tunnel.held is not None:  # the newest wins (TUN-32)
            hub.answer(tunnel, EMPTY)
        if tunnel.stream is not None:
            hub.close_stream(tunnel, "the client pulls")
        hub.rearm(tunnel)
        if hub.table.servers[name].link is None and not tunnel.is_complete:
            return self._refuse(503, "the broker is not linked at the moment")
        if tunnel.buffer.bytes:
            return Reply(200, b"".join(hub.take(tunnel, now_s)))
        hold_s = min(hold_s, tunnel.hold_s, self._limits.hold_s)
        if tunnel.pull_period_s > 0 or not hold_s > 0:
            return EMPTY
        tunnel.held = key
        tunnel.held_until_s = now_s + hold_s
        hub.pulls[key] = tunnel
        hub.rearm(tunnel)
        return None

    def forget(self, key: int, now_s: float) -> None:
        """Whoever held a pull or a stream is gone; the tunnel is not."""
        hub = self._hub
        if (tunnel := hub.pulls.pop(key, None)) is not None:
            tunnel.held = None
        elif (tunnel := hub.streams.pop(key, None)) is not None:
            tunnel.stream = None
        else:
            return
        tunnel.seen_s = now_s
        hub.rearm(tunnel)

    # -- stream -------------------------------------------------------------------------------------------------------

    def stream(self, name: str, connection_id: int, token: str, key: int, now_s: float, instance: str) -> Reply | None:
        hub = self._hub
        tunnel = self._find(name, connection_id, token, instance)
        if isinstance(tunnel, Reply):
            return tunnel
        if hub.table.servers[name].link is None and not tunnel.is_complete:
            return self._refuse(503, "the broker is not linked at the moment")
        tunnel.seen_s = now_s
        if tunnel.held is not None:
            hub.answer(tunnel, EMPTY)
        if tunnel.stream is not None:
            hub.close_stream(tunnel, "another stream took its place")
        tunnel.stream = key
        hub.streams[key] = tunnel
        hub.rearm(tunnel)
        hub.hand_over(tunnel, now_s)
        return None

    def on_stream(self, key: int, frame: bytes, now_s: float) -> None:
        """Whatever comes shows that the client lives; a frame that cannot be used ends the stream, not the tunnel."""
        hub = self._hub
        tunnel = hub.streams.get(key)
        if tunnel is None:
            return
        tunnel.seen_s = now_s
        hub.rearm(tunnel)
        if len(frame) > self._limits.body_max:
            hub.close_stream(tunnel, "a frame was too large")
            return
        found = split(frame, self._limits.payload_max, with_data=False)
        reply = self._from_client(tunnel, found, now_s)
        if reply.status == 410:
            hub.effects.append(ToStream(key, [reply.body]))
        if reply.status not in (200, 503) and tunnel.stream == key:
            hub.close_stream(tunnel, dict(reply.headers)["Fairlead-Reason"])

    # -- who may ----------------------------------------------------------------------------------------------------

    def _find(self, name: str, connection_id: int, token: str, instance: str) -> Tunnel | Reply:
        hub = self._hub
        server = hub.table.servers.get(name)
        tunnel = server.tunnels.get(connection_id) if server else None
        if tunnel is not None:
            if tunnel.verifier and not opens(token, tunnel.verifier):
                return self._refuse(403 if token else 401, "this is not the token of the tunnel")
            return tunnel
        ended = hub.table.ended.get((name, connection_id))
        if ended is not None:
            return self._refuse(410, "the tunnel has ended", ended.abort)
        if instance and instance != self._instance:
            return self._refuse(503, "the tunnel is another gateway's")
        if server is None or server.link is None:
            # A gateway that has just started knows nobody: it may not be said that the tunnel is gone (TUN-50).
            return self._refuse(503, "the broker is not linked at the moment")
        return self._gone(connection_id, "the tunnel is not known any more")

    def _gone(self, connection_id: int, text: str, version: int = 2) -> Reply:
        return self._refuse(410, text, abort_packet(connection_id & 0xFFFF_FFFF, AbortCode.NOT_KNOWN, text, version))

    def _refuse(self, status: int, text: str, body: bytes = b"") -> Reply:
        refused = self._hub.counters.refused
        refused[status] = refused.get(status, 0) + 1
        return Reply(status, body, (*(SOON if status in (429, 503) else ()), ("Fairlead-Reason", text)))
