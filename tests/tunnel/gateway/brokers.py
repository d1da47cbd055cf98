"""A broker of the simulation: real ends, and a link that is in order and whole, or gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.tunnel.end import End, Role, State
from fairlead.tunnel.link_init import LinkInit, LinkInitAck, LinkTunnel
from fairlead.tunnel.packets import Abort, AbortCode, Kind, Packet, encode, split
from tests.tunnel.gateway.watch import Violation

if TYPE_CHECKING:
    from tests.tunnel.gateway.simulation import Simulation

from tests.tunnel.gateway.program import BODY_BYTES, HEAD, RULES, Program, stream_of


class Broker:
    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.start_id = simulation.random.randbytes(16)
        self.ends: dict[int, tuple[End, bytes]] = {}
        self.programs: dict[End, Program] = {}
        self.link: int | None = None
        self._is_linked = False
        self._out_s = self._in_s = 0.0
        simulation.at(0.0, self._dial)
        simulation.at(0.05, self._turn)

    # -- the link: in order, and whole or not at all ------------------------------------------------------------------

    def _dial(self) -> None:
        gateway = self.simulation.gateway
        if self.link is not None:
            return
        if gateway is None:
            self._dial_later()
            return
        key = self.link = next(self.simulation.keys)
        self.simulation.links[key] = self
        tunnels = [
            LinkTunnel(number, 0, int(self.simulation.limits.inactivity_s), verifier)
            for number, (end, verifier) in self.ends.items()
            if end.state is not State.ABORTED and not end.is_done()
        ]
        said = LinkInit(self.name, b"s" * 20, self.start_id, tunnels)
        self.simulation.watch.on_dial(key, said)
        gateway.link(key, self.simulation.now_s)
        self._send([encode(Kind.LINK_INIT, payload=said.encode())])

    def _dial_later(self) -> None:
        self.simulation.at(self.simulation.random.uniform(0.2, 2), self._dial)

    def _send(self, packets: list[bytes]) -> None:
        key, simulation = self.link, self.simulation
        self._out_s = max(self._out_s, simulation.now_s + simulation.random.choice((0.001, 0.01, 0.05)))

        def arrive() -> None:
            if self.link == key and key is not None and simulation.gateway is not None:
                found = split(b"".join(packets), 1 << 20).packets
                simulation.watch.on_link(self.name, found)
                simulation.gateway.on_link(key, found, simulation.now_s)
                simulation.settle()

        simulation.at(self._out_s - simulation.now_s, arrive)

    def later_from_link(self, key: int, packets: list[Packet]) -> None:
        self._in_s = max(self._in_s, self.simulation.now_s + self.simulation.random.choice((0.001, 0.01, 0.05)))
        self.simulation.at(self._in_s - self.simulation.now_s, lambda: self._from_link(key, packets))

    def later_closed(self, key: int) -> None:
        self.simulation.at(0.1, lambda: self.link_closed() if self.link == key else None)

    def cut(self) -> None:
        """The line breaks, for a while; both sides notice."""
        if self.link is None:
            return
        key = self.link
        self.link_closed()
        if self.simulation.gateway is not None:
            self.simulation.gateway.link_lost(key, self.simulation.now_s)
            self.simulation.settle()

    def link_closed(self) -> None:
        assert self.link is not None
        del self.simulation.links[self.link]
        self.simulation.watch.link_gone(self.link)
        self.link = None
        self._is_linked = False
        self.simulation.at(self.simulation.random.uniform(0.2, 8), self._dial)

    # -- packets ------------------------------------------------------------------------------------------------------

    def _from_link(self, key: int, packets: list[Packet]) -> None:
        if self.link != key:
            return
        now_s = self.simulation.now_s
        for packet in packets:
            number = packet.connection_id
            if packet.kind == Kind.LINK_INIT_ACK:
                self._is_linked = True
                for refused in LinkInitAck.decode(packet.payload).refused:
                    self.ends[refused][0].on_gone(AbortCode.NOT_KNOWN, "refused", now_s)
            elif packet.kind == Kind.PING:
                self._send([encode(Kind.PONG)])
            elif not number:
                raise Violation(f"{self.name}: {packet}")
            elif number in self.ends:
                self.ends[number][0].on_packets([packet], now_s)
            elif packet.kind == Kind.CONN_INIT:
                end = End(RULES, Role.BROKER, number, now_s, peer_window=packet.window)
                self.ends[number] = end, packet.payload
                self.programs[end] = Program(self.simulation, end, None, None)
            elif packet.kind != Kind.CONN_ABORT:
                payload = Abort(AbortCode.NOT_KNOWN, "not known").payload()
                self._send([encode(Kind.CONN_ABORT, number, payload=payload)])

    def _turn(self) -> None:
        now_s = self.simulation.now_s
        for number, (end, _) in list(self.ends.items()):
            program = self.programs[end]
            program.turn()
            if program.expected is None and len(program.head) >= HEAD:
                self._recognise(end, program)
            end.on_time(now_s)
            if self._is_linked and end.has_packets(now_s):
                self._send(end.take_packets(BODY_BYTES, now_s))
            if end.is_done():
                del self.ends[number]
        self.simulation.every(0.03, self._turn)

    def _recognise(self, end: End, program: Program) -> None:
        number = int.from_bytes(program.head[:HEAD], "big")
        clients = self.simulation.clients
        if number >= len(clients) or clients[number].server != self.name:
            raise Violation(f"{self.name} reads what was not written to it")
        if any(one is not program and one.head[:HEAD] == program.head[:HEAD] for one in self.programs.values()):
            raise Violation(f"client {number} was accepted twice")
        program.expected = stream_of(number, "up", self.simulation.size)
        if not program.expected.startswith(program.head):
            raise Violation(f"client {number}: wrong bytes at the beginning")
        program.out = stream_of(number, "down", self.simulation.size)
