"""The gateway for people (TUN-102). Round trips and resend intervals are known to the ends only."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.tunnel.gateway.flow import FlowStatus
from fairlead.tunnel.gateway.tunnel import Tunnel

__all__ = ["Counters", "GatewayStatus", "LinkStatus", "TunnelStatus", "tunnel_status"]


@dataclass(slots=True)
class Counters:
    """Since the gateway was started."""

    opened: int = 0
    adopted: int = 0
    closed: int = 0
    """In the orderly way."""
    aborted: int = 0
    packets_up: int = 0
    packets_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    damaged: int = 0
    """Packets with a wrong checksum, or of a version nobody knows."""
    unknown_kind: int = 0
    wrong_version: int = 0
    misplaced: int = 0
    """Packets that mean nothing where they came."""
    dropped: int = 0
    """Packets that found no room, or no link."""
    links_refused: int = 0
    refused: dict[int, int] = field(default_factory=dict)
    """Requests by the status that refused them."""


@dataclass(frozen=True, slots=True)
class TunnelStatus:
    connection_id: int
    server: str
    version: int
    carrier: str
    address: str
    state: str
    """`opening`, `open`, `suspended` (the broker is not linked), `closing` (the client has to fetch its last ACK)."""
    age_s: float
    pull_period_s: float
    last_pull_s: float
    """How long ago the client last showed life; 0 while a pull is held."""
    silence_limit_s: float
    waiting_packets: int
    waiting_bytes: int
    crc_failures: int
    dropped: int
    up: FlowStatus
    down: FlowStatus


@dataclass(frozen=True, slots=True)
class LinkStatus:
    key: int
    server: str
    """Empty: it has not said who it is."""
    version: int
    tunnels: int
    age_s: float
    silent_s: float


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    instance: str
    tunnels: list[TunnelStatus]
    links: list[LinkStatus]
    buffered_bytes: int
    done: int
    """Tunnels closed in the orderly way that are remembered, in case a last ACK has to be repeated."""
    ended: int
    """Ended tunnels that are remembered."""
    counters: Counters


def tunnel_status(tunnel: Tunnel, is_linked: bool, now_s: float) -> TunnelStatus:
    if tunnel.is_complete:
        state = "closing"
    elif not is_linked:
        state = "suspended"
    else:
        state = "open" if tunnel.is_set_up else "opening"
    return TunnelStatus(
        connection_id=tunnel.connection_id,
        server=tunnel.server,
        version=tunnel.version,
        carrier=tunnel.carrier,
        address=tunnel.address,
        state=state,
        age_s=now_s - tunnel.opened_s,
        pull_period_s=tunnel.pull_period_s,
        last_pull_s=0.0 if tunnel.held is not None else now_s - tunnel.seen_s,
        silence_limit_s=tunnel.silence_limit_s(),
        waiting_packets=len(tunnel.buffer),
        waiting_bytes=tunnel.buffer.bytes,
        crc_failures=tunnel.damaged,
        dropped=tunnel.dropped,
        up=tunnel.up.status(),
        down=tunnel.down.status(),
    )
