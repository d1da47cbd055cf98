"""Somebody in the simulation who tries what he may not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.tunnel.packets import Kind, encode, split

if TYPE_CHECKING:
    from tests.tunnel.gateway.simulation import Simulation


class Attacker:
    """Guesses ids, which is easy here, and mixes foreign packets among its own."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._own: tuple[int, str] | None = None
        simulation.at(simulation.random.uniform(0.5, 2), self._turn)

    def _turn(self) -> None:
        simulation = self.simulation
        if all(client.is_done for client in simulation.clients):
            return
        simulation.at(simulation.random.uniform(0.05, 0.3), self._turn)
        gateway, now_s = simulation.gateway, simulation.now_s
        victim = simulation.random.choice(simulation.clients)
        if gateway is None or victim.end is None:
            return
        watch, server, number = simulation.watch, victim.server, victim.end.connection_id
        token = simulation.random.choice((b"x" * 32).hex() if self._own is None else (self._own[1], "00", "")) or ""
        forged = encode(Kind.DATA, number, simulation.random.randint(1, 60), payload=b"forged")
        watch.refused(gateway.pull(server, number, token, 5.0, next(simulation.keys), now_s))
        watch.refused(gateway.push(server, number, token, forged, now_s))
        watch.refused(gateway.push(server, None, token, forged, now_s))
        if self._own is None:
            reply = gateway.connect(server, encode(Kind.CONN_INIT, window=5), "10.9.9.9", now_s)
            watch.opened(server, reply)
            if reply.status == 200:
                (answer,) = split(reply.body).packets
                self._own = answer.connection_id, answer.payload.hex()
        else:
            own, token = self._own
            ack = encode(Kind.ACK, own, 0, 5)
            watch.sends((server, own), ack)
            mixed = ack + forged
            watch.refused(gateway.push(server, own, token, mixed, now_s))
        simulation.settle()
