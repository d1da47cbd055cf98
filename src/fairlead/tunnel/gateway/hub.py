"""What requests and links have in common: the tunnels, how packets reach their clients, and how a tunnel ends."""

from __future__ import annotations

from fairlead.tunnel.gateway.aborts import abort_packet
from fairlead.tunnel.gateway.buffers import ToClient
from fairlead.tunnel.gateway.deadlines import Deadlines
from fairlead.tunnel.gateway.effects import Answer, CloseStream, Effect, Reply, ToLink, ToStream
from fairlead.tunnel.gateway.flow import Flow
from fairlead.tunnel.gateway.limits import Limits, Places
from fairlead.tunnel.gateway.status import Counters
from fairlead.tunnel.gateway.table import Server, Table
from fairlead.tunnel.gateway.tunnel import Tunnel
from fairlead.tunnel.packets import AbortCode, Kind, Packet

__all__ = ["CONTROL_PACKETS", "MEMORY", "SMALL", "SMALL_BYTES", "Hub"]

CONTROL_PACKETS = 16
"""Room in a to-client buffer beyond the client's window."""
SMALL = frozenset({Kind.ACK, Kind.CONN_INIT_ACK})
SMALL_BYTES = 256
"""These are kept outside of the limits for data, and have no payload: a long one is not what it says."""
MEMORY = "ended tunnels"
"""The deadline at which one is forgotten."""


class Hub:
    def __init__(self, limits: Limits, *, allow_v1: bool) -> None:
        self.limits = limits
        self.allow_v1 = allow_v1
        self.table = Table(limits)
        self.places = Places(limits)
        self.counters = Counters()
        self.deadlines: Deadlines[object] = Deadlines()
        self.effects: list[Effect] = []
        self.streams: dict[int, Tunnel] = {}
        self.pulls: dict[int, Tunnel] = {}
        self.buffered = 0

    # -- the life of a tunnel -----------------------------------------------------------------------------------------

    def make(
        self, server: Server, connection_id: int, version: int, verifier: bytes, address: str, window: int, now_s: float
    ) -> Tunnel:
        """`window`: what the client can take; 0: not known."""
        packets_max = min(window + CONTROL_PACKETS, self.limits.tunnel_packets_max)
        tunnel = Tunnel(
            server.name,
            connection_id,
            version,
            verifier,
            address,
            ToClient(packets_max if window else self.limits.tunnel_packets_max, self.limits.tunnel_bytes_max),
            up=Flow(),
            down=Flow(window),
            opened_s=now_s,
            seen_s=now_s,
            inactivity_s=self.limits.inactivity_s,
            hold_s=self.limits.hold_s,
        )
        self.table.add(tunnel)
        self.places.take(server.name, address)
        self.rearm(tunnel)
        return tunnel

    def rearm(self, tunnel: Tunnel) -> None:
        """When the gateway must look at it again."""
        if tunnel.held is not None:
            at_s = tunnel.held_until_s
        elif tunnel.done_s is not None:
            at_s = tunnel.done_s + self.limits.remember_s
        else:
            at_s = tunnel.seen_s + tunnel.silence_limit_s()
        self.deadlines.set(tunnel, at_s)

    def abort(self, tunnel: Tunnel, code: AbortCode, text: str, now_s: float, *, tell_broker: bool = False) -> None:
        packet = abort_packet(tunnel.connection_id, code, text, tunnel.version)
        if tell_broker:
            self.to_link(self.table.servers[tunnel.server], [packet])
        self.end(tunnel, packet, now_s)

    def end(self, tunnel: Tunnel, abort: bytes, now_s: float) -> None:
        """The client gets `abort` with its next request, or now if one waits. It overtakes what waits (TUN-94)."""
        self.counters.aborted += 1
        self._drop(tunnel)
        self.table.remember(tunnel.server, tunnel.connection_id, abort, now_s)
        self.arm_memory()
        if tunnel.held is not None:
            self.answer(tunnel, Reply(410, abort))
        if tunnel.stream is not None:
            self.effects.append(ToStream(tunnel.stream, [abort]))
            self.close_stream(tunnel, "the tunnel has ended")

    def finish_if_complete(self, tunnel: Tunnel, now_s: float) -> None:
        """Both ends have closed and the client has its last ACK: only the last ACKs are kept (TUN-91, TUN-92)."""
        if tunnel.done_s is not None or not (tunnel.is_complete and tunnel.client_knows):
            return
        self.counters.closed += 1
        self.places.give_back(tunnel.server, tunnel.address)
        self._empty(tunnel)
        tunnel.done_s = now_s
        done = self.table.done
        done[tunnel.server, tunnel.connection_id] = tunnel
        self.rearm(tunnel)
        while len(done) > self.limits.ended_max:
            self.forget_done(next(iter(done.values())))

    def forget_done(self, tunnel: Tunnel) -> None:
        if tunnel.held is not None:
            self.answer(tunnel, Reply(200))
        if tunnel.stream is not None:
            self.close_stream(tunnel, "the tunnel was closed")
        self._drop(tunnel)

    def close_unfetched(self, tunnel: Tunnel) -> None:
        """Complete, and the client never came for its last ACK."""
        self.counters.closed += 1
        self.forget_done(tunnel)

    def _drop(self, tunnel: Tunnel) -> None:
        self.deadlines.clear(tunnel)
        self._empty(tunnel)
        self.table.remove(tunnel)
        if tunnel.done_s is None:
            self.places.give_back(tunnel.server, tunnel.address)

    def _empty(self, tunnel: Tunnel) -> None:
        self.buffered -= tunnel.buffer.bytes
        tunnel.buffer.clear()

    def arm_memory(self) -> None:
        at_s = self.table.next_forget_s()
        if at_s is None:
            self.deadlines.clear(MEMORY)
        else:
            self.deadlines.set(MEMORY, at_s)

    # -- packets on their way -----------------------------------------------------------------------------------------

    def to_link(self, server: Server, packets: list[bytes]) -> None:
        if server.link is None or not packets:
            return
        last = self.effects[-1] if self.effects else None
        if isinstance(last, ToLink) and last.key == server.link:
            last.packets.extend(packets)
        else:
            self.effects.append(ToLink(server.link, packets))

    def put(self, tunnel: Tunnel, packet: Packet) -> None:
        """Into the buffer of the client; `hand_over` follows when the batch is through."""
        buffer = tunnel.buffer
        before = buffer.bytes
        if buffer.put(packet, self.limits.buffered_bytes_max - self.buffered):
            self.buffered += buffer.bytes - before
        else:
            tunnel.dropped += 1
            self.counters.dropped += 1

    def take(self, tunnel: Tunnel, now_s: float) -> list[bytes]:
        before, ack = tunnel.buffer.bytes, tunnel.buffer.ack
        packets = tunnel.buffer.take(self.limits.body_max)
        self.buffered -= before - tunnel.buffer.bytes
        tunnel.handed_out(ack)
        self.finish_if_complete(tunnel, now_s)
        return packets

    def hand_over(self, tunnel: Tunnel, now_s: float) -> None:
        """To whoever waits for them."""
        if not tunnel.buffer.bytes:
            return
        if tunnel.stream is not None:
            while tunnel.buffer.bytes:
                self.effects.append(ToStream(tunnel.stream, self.take(tunnel, now_s)))
        elif tunnel.held is not None:
            tunnel.seen_s = now_s
            self.answer(tunnel, Reply(200, b"".join(self.take(tunnel, now_s))))
            self.rearm(tunnel)

    def answer(self, tunnel: Tunnel, reply: Reply) -> None:
        """To the pull that is held."""
        assert tunnel.held is not None
        self.effects.append(Answer(tunnel.held, reply))
        del self.pulls[tunnel.held]
        tunnel.held = None

    def close_stream(self, tunnel: Tunnel, reason: str) -> None:
        assert tunnel.stream is not None
        self.effects.append(CloseStream(tunnel.stream, reason))
        del self.streams[tunnel.stream]
        tunnel.stream = None
