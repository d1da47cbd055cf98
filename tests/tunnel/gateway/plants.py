"""Gateways with a mistake each. The simulation must notice every one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fairlead.tunnel.gateway import Gateway, Limits, Reply
from fairlead.tunnel.gateway.aborts import abort_packet
from fairlead.tunnel.gateway.hub import Hub
from fairlead.tunnel.gateway.links import Links
from fairlead.tunnel.gateway.requests import Requests
from fairlead.tunnel.gateway.table import Server
from fairlead.tunnel.gateway.tunnel import Tunnel
from fairlead.tunnel.link_init import LinkInit, LinkTunnel
from fairlead.tunnel.packets import AbortCode, Body, Packet
from tests.tunnel.gateway.simulation import Faults

__all__ = ["PLANTS", "Plant"]

LOSSY = Faults(lost_request=0.1, lost_answer=0.1, doubled=0.3)
IMPATIENT = Limits(opens_per_s=1000.0, inactivity_s=2.0, hold_s=1.0)
"""A client that vanished is found dead while a link is away."""


class Plant(NamedTuple):
    name: str
    plant: Callable[[Hub, Requests, Links], None]
    faults: Faults
    limits: Limits | None = None

    def make(self, *args: Any, **options: Any) -> Gateway:
        gateway = Gateway(*args, **options)
        self.plant(gateway._hub, gateway._requests, gateway._links)
        return gateway


def patch(target: object, name: str, wrong: Callable[..., Any]) -> None:
    """`wrong` gets what was there first."""
    right = getattr(target, name)
    setattr(target, name, lambda *args, **options: wrong(right, *args, **options))


def empty_instead_of_503(hub: Hub, requests: Requests, links: Links) -> None:
    def wrong(right: Callable[..., Tunnel | Reply], *args: Any) -> Tunnel | Reply:
        found = right(*args)
        return Reply(200) if isinstance(found, Reply) and found.status == 503 else found

    patch(requests, "_find", wrong)


def gone_instead_of_503(hub: Hub, requests: Requests, links: Links) -> None:
    def wrong(right: Callable[..., Tunnel | Reply], name: str, connection_id: int, *args: Any) -> Tunnel | Reply:
        found = right(name, connection_id, *args)
        is_503 = isinstance(found, Reply) and found.status == 503
        return Reply(410, abort_packet(connection_id, AbortCode.NOT_KNOWN, "?")) if is_503 else found

    patch(requests, "_find", wrong)


def adopts_ended_tunnels(hub: Hub, requests: Requests, links: Links) -> None:
    def wrong(right: Callable[..., bool], server: Server, one: LinkTunnel, *args: Any) -> bool:
        hub.table.ended.pop((server.name, one.connection_id), None)
        return right(server, one, *args)

    patch(links, "_go_on", wrong)


def oldest_pull_wins(hub: Hub, requests: Requests, links: Links) -> None:
    def wrong(right: Callable[..., Reply | None], name: str, connection_id: int, *args: Any) -> Reply | None:
        tunnel = hub.table.find(name, connection_id)
        return Reply(200) if tunnel and tunnel.held is not None else right(name, connection_id, *args)

    patch(requests, "pull", wrong)


def only_the_first_packet_is_checked(hub: Hub, requests: Requests, links: Links) -> None:
    def wrong(right: Callable[..., Reply], tunnel: Tunnel, body: Body, now_s: float) -> Reply:
        own = [packet for packet in body.packets if packet.connection_id == tunnel.connection_id]
        if own[:1] == body.packets[:1] and len(own) < len(body.packets):
            foreign = [packet.raw for packet in body.packets if packet not in own]
            hub.to_link(hub.table.servers[tunnel.server], foreign)
            body = body._replace(packets=own)
        return right(tunnel, body, now_s)

    patch(requests, "_from_client", wrong)


def ids_are_used_again(hub: Hub, requests: Requests, links: Links) -> None:
    patch(hub.table, "draw_id", lambda right, server, random_bytes: int.from_bytes(random_bytes(4), "big"))


def the_wrong_buffer_is_emptied(hub: Hub, requests: Requests, links: Links) -> None:
    puts = 0

    def wrong(right: Callable[..., None], tunnel: Tunnel, packet: Packet) -> None:
        nonlocal puts
        puts += 1
        if puts % 20 == 0:
            other = next((one for one in hub.table.tunnels() if one is not tunnel and one.buffer.bytes), None)
            if other is not None:
                hub._empty(other)
        right(tunnel, packet)

    patch(hub, "put", wrong)


def aborts_twice(hub: Hub, requests: Requests, links: Links) -> None:
    def wrong(right: Callable[..., None], tunnel: Tunnel, code: AbortCode, text: str, *args: Any, **said: Any) -> None:
        right(tunnel, code, text, *args, **said)
        if said.get("tell_broker"):
            again = abort_packet(tunnel.connection_id, code, text, tunnel.version)
            hub.to_link(hub.table.servers[tunnel.server], [again])

    patch(hub, "abort", wrong)


def the_list_is_ignored(hub: Hub, requests: Requests, links: Links) -> None:
    def wrong(right: Callable[..., None], link: object, server: Server, said: LinkInit, now_s: float) -> None:
        right(link, server, said._replace(tunnels=()), now_s)

    patch(links, "_match", wrong)


def tokens_are_lost_with_the_gateway(hub: Hub, requests: Requests, links: Links) -> None:
    def wrong(right: Callable[..., bool], server: Server, one: LinkTunnel, *args: Any) -> bool:
        goes_on = right(server, one, *args)
        if goes_on:
            server.tunnels[one.connection_id].verifier = b""
        return goes_on

    patch(links, "_go_on", wrong)


def the_last_ack_is_not_repeated(hub: Hub, requests: Requests, links: Links) -> None:
    def wrong(right: Callable[..., Reply], tunnel: Tunnel, packets: list[Packet], now_s: float) -> Reply:
        return requests._gone(tunnel.connection_id, "closed")

    patch(requests, "_after_close", wrong)


def no_grace(hub: Hub, requests: Requests, links: Links) -> None:
    def wrong(right: Callable[..., None], link: Any, now_s: float) -> None:
        right(link, now_s)
        if link.server is not None:
            links.on_grace_over(link.server, now_s)

    patch(links, "_lose", wrong)


def to_another_broker(hub: Hub, requests: Requests, links: Links) -> None:
    sent = 0

    def wrong(right: Callable[..., None], server: Server, packets: list[bytes]) -> None:
        nonlocal sent
        sent += 1
        right(list(hub.table.servers.values())[-1] if sent % 10 == 0 else server, packets)

    patch(hub, "to_link", wrong)


def handed_out_twice(hub: Hub, requests: Requests, links: Links) -> None:
    def wrong(right: Callable[..., list[bytes]], tunnel: Tunnel, now_s: float) -> list[bytes]:
        packets = right(tunnel, now_s)
        return packets + packets[-1:]

    patch(hub, "take", wrong)


def waiting_packets_reach_somebody_else(hub: Hub, requests: Requests, links: Links) -> None:
    def wrong(right: Callable[..., list[bytes]], tunnel: Tunnel, now_s: float) -> list[bytes]:
        other = next((one for one in hub.table.tunnels() if one is not tunnel and one.buffer.bytes), tunnel)
        return right(tunnel, now_s) + (right(other, now_s) if other is not tunnel else [])

    patch(hub, "take", wrong)


def ended_tunnels_are_kept(hub: Hub, requests: Requests, links: Links) -> None:
    patch(hub, "forget_done", lambda right, tunnel: None)


PLANTS = [
    Plant("200 instead of 503 after a restart", empty_instead_of_503, Faults(restarts=2)),
    Plant("410 instead of 503 after a restart", gone_instead_of_503, Faults(restarts=2)),
    Plant("adopts ended tunnels", adopts_ended_tunnels, Faults(cuts=6, vanishing=2), IMPATIENT),
    Plant("an old pull gets the packets", oldest_pull_wins, LOSSY),
    Plant("the token opens only the first packet of a body", only_the_first_packet_is_checked, Faults(attackers=2)),
    Plant("ids are used again", ids_are_used_again, Faults(attackers=3)),
    Plant("a full buffer drops packets of another tunnel", the_wrong_buffer_is_emptied, LOSSY),
    Plant("aborts twice", aborts_twice, Faults(vanishing=2)),
    Plant("the list of LINK_INIT is ignored", the_list_is_ignored, Faults(restarts=1)),
    Plant("tokens are lost with the gateway", tokens_are_lost_with_the_gateway, Faults(restarts=2, attackers=1)),
    Plant("the last ACK is not repeated", the_last_ack_is_not_repeated, LOSSY),
    Plant("no grace for a lost link", no_grace, Faults(cuts=3)),
    Plant("packets reach another broker", to_another_broker, Faults()),
    Plant("packets are handed out twice", handed_out_twice, Faults()),
    Plant("packets reach another client", waiting_packets_reach_somebody_else, LOSSY),
    Plant("closed tunnels are never forgotten", ended_tunnels_are_kept, Faults()),
]
