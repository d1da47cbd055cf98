"""Looks at everything the gateway is told and answers, and knows what it may not do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.tunnel.gateway import Answer, Reply, ToLink
from fairlead.tunnel.gateway.effects import Effect
from fairlead.tunnel.link_init import LinkInit, LinkInitAck
from fairlead.tunnel.packets import SEQUENCED, AbortCode, Kind, Packet, split

if TYPE_CHECKING:
    from tests.tunnel.gateway.simulation import Simulation

__all__ = ["Violation", "Watch"]

Key = tuple[str, int]
RELAYED = SEQUENCED | {Kind.ACK}
OWN_WORDS = {AbortCode.CLIENT_LOST, AbortCode.BROKER_LOST}


class Violation(AssertionError):
    """Something that must never happen."""


class Watch:
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._sent: dict[Key, set[bytes]] = {}
        self.restarted()

    def restarted(self) -> None:
        """Another gateway, which may know nothing of before."""
        self._linked: dict[int, str] = {}
        self._were_linked: set[str] = set()
        self._listed: dict[int, LinkInit] = {}
        self._waiting: dict[Key, dict[int, bytes]] = {}
        self._newest: dict[Key, int] = {}
        self._pulls: dict[int, Key] = {}
        self._told_s: dict[Key, float] = {}
        self._ended_s: dict[Key, float] = {}
        self._ids: dict[Key, float] = {}
        self._there: set[Key] = set()
        self._aborted = 0

    # -- what the gateway is told -------------------------------------------------------------------------------------

    def sends(self, place: Key, body: bytes) -> None:
        """A client, to its own tunnel."""
        self._sent.setdefault(place, set()).update(packet.raw for packet in split(body).packets)

    def on_dial(self, key: int, said: LinkInit) -> None:
        self._listed[key] = said

    def on_link(self, server: str, packets: list[Packet]) -> None:
        known = self._known()
        for packet in packets:
            place = server, packet.connection_id
            if packet.kind == Kind.CONN_ABORT:
                known.discard(place)
            elif packet.kind in SEQUENCED and place in known:
                self._waiting.setdefault(place, {})[packet.sequence] = packet.raw

    def link_gone(self, key: int) -> None:
        self._linked.pop(key, None)

    def _known(self) -> set[Key]:
        gateway = self._simulation.gateway
        assert gateway is not None
        return {(one.server, one.connection_id) for one in gateway.status(self._simulation.now_s).tunnels}

    # -- what it answers ----------------------------------------------------------------------------------------------

    def opened(self, server: str, reply: Reply) -> None:
        if reply.status != 200:
            return
        place = server, split(reply.body).packets[0].connection_id
        used_s = self._ids.get(place, -1e9)
        if self._simulation.now_s - used_s < self._simulation.limits.remember_s:
            raise Violation(f"id {place} was used {self._simulation.now_s - used_s:.0f} s ago")
        self._ids[place] = self._simulation.now_s

    def answered(self, server: str, connection_id: int, reply: Reply | None, key: int, *, is_pull: bool) -> None:
        """To a push or a pull with the right token."""
        place = server, connection_id
        if server not in self._were_linked and (reply is None or reply.status != 503):
            raise Violation(f"{place}: {reply} before the broker was linked; 503 it must be (TUN-50)")
        if is_pull:
            self._pulls[key] = place
            self._newest[place] = key
        if reply is not None:
            self._handed_out(place, reply)

    def refused(self, reply: Reply | None) -> None:
        """To somebody without the right to it."""
        if reply is None or reply.status not in (401, 403, 410, 503) or (reply.status != 410 and reply.body):
            raise Violation(f"an attacker got {reply}")

    def on_effect(self, effect: Effect) -> None:
        if isinstance(effect, Answer):
            place = self._pulls.pop(effect.key, None)
            if place is None:
                return
            if effect.reply.body and effect.reply.status == 200 and self._newest[place] != effect.key:
                raise Violation(f"{place}: packets were spent on an old pull (TUN-32)")
            self._handed_out(place, effect.reply)
        elif isinstance(effect, ToLink):
            for packet in split(b"".join(effect.packets), 1 << 20).packets:
                self._to_link(effect.key, packet)

    def on_stream(self, place: Key, body: bytes) -> None:
        self._handed_out(place, Reply(200, body))

    def _to_link(self, key: int, packet: Packet) -> None:
        now_s = self._simulation.now_s
        if packet.kind == Kind.LINK_INIT_ACK:
            said = self._listed[key]
            self._linked[key] = said.server
            self._were_linked.add(said.server)
            refused = set(LinkInitAck.decode(packet.payload).refused)
            for one in said.tunnels:
                ended_s = self._ended_s.get((said.server, one.connection_id), -1e9)
                if now_s - ended_s < self._simulation.limits.remember_s and one.connection_id not in refused:
                    raise Violation(f"{said.server} {one.connection_id} was ended and goes on (TUN-51)")
        elif packet.kind == Kind.CONN_ABORT and packet.connection_id:
            place = self._linked[key], packet.connection_id
            if now_s - self._told_s.get(place, -1e9) < 4.9:
                raise Violation(f"{place}: the broker is told twice (TUN-94)")
            self._told_s[place] = now_s
            self._ended(place, packet)
        elif packet.kind in RELAYED:
            place = self._linked[key], packet.connection_id
            if packet.raw not in self._sent.get(place, ()):
                raise Violation(f"{place}: the broker gets {packet}, which no client sent there")

    def _handed_out(self, place: Key, reply: Reply) -> None:
        waiting = self._waiting.get(place, {})
        for packet in split(reply.body, 1 << 20).packets:
            if packet.connection_id != place[1]:
                raise Violation(f"{place}: a packet of {packet.connection_id} was handed out")
            if packet.kind in SEQUENCED and waiting.pop(packet.sequence, None) != packet.raw:
                raise Violation(f"{place}: number {packet.sequence} was handed out and does not wait")
            if packet.kind == Kind.CONN_ABORT:
                self._ended(place, packet)

    def _ended(self, place: Key, packet: Packet) -> None:
        if int.from_bytes(packet.payload[:2], "big") in OWN_WORDS:
            self._ended_s.setdefault(place, self._simulation.now_s)

    def check(self) -> None:
        """After every call: what waits is what came and was not fetched; nothing of it was lost, or somebody else's."""
        gateway = self._simulation.gateway
        assert gateway is not None
        status = gateway.status(self._simulation.now_s)
        known = set()
        for one in status.tunnels:
            place = one.server, one.connection_id
            known.add(place)
            waiting = len(self._waiting.get(place, ()))
            if one.dropped or not 0 <= one.waiting_packets - waiting <= 2:
                raise Violation(f"{place}: {one.waiting_packets} wait and not {waiting}, {one.dropped} were dropped")
        for place in [place for place in self._waiting if place not in known]:
            del self._waiting[place]
        left, aborted = self._there - known, status.counters.aborted - self._aborted
        self._there, self._aborted = known, status.counters.aborted
        if aborted == len(left):  # else some were closed
            self._ended_s.update(dict.fromkeys(left, self._simulation.now_s))
        if sum(one.waiting_bytes for one in status.tunnels) > status.buffered_bytes:
            raise Violation("the sum of what waits is wrong")
