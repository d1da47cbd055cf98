"""How much a gateway takes, in all and from each (TUN-101): the newcomer is refused, those who are there stay."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network
from typing import NamedTuple

from fairlead.tunnel.packets import PAYLOAD_MAX
from fairlead.tunnel.rules import BODY_MAX, HOLD_S, INACTIVITY_S

__all__ = ["Limits", "Places", "TokenBucket", "neighbourhood"]


class Limits(NamedTuple):
    tunnels_max: int = 10_000
    tunnels_per_address: int = 1_000
    tunnels_per_server: int = 10_000
    opens_per_s: float = 200.0
    """On average; as many at once as come in two seconds."""
    buffered_bytes_max: int = 512 << 20
    """Of all tunnels together."""
    tunnel_bytes_max: int = 16 << 20
    """What waits for one client."""
    tunnel_packets_max: int = 4096
    ended_max: int = 20_000
    """Ended tunnels that are remembered."""
    links_max: int = 1_000
    servers_max: int = 10_000
    """Server ids that are remembered after their link is gone."""
    body_max: int = BODY_MAX
    payload_max: int = PAYLOAD_MAX
    hold_s: float = HOLD_S
    """The longest a pull is held."""
    inactivity_s: float = INACTIVITY_S
    """How long a client may be silent unless it is told otherwise."""
    remember_s: float = 180.0
    """How long an ended tunnel is known: longer than the ends know it (TUN-92), so that its id is free by then."""
    grace_s: float = 15.0
    """How long tunnels wait for a lost link; 0: not at all."""
    link_init_s: float = 10.0
    """How long whoever dialled may take to say who it is."""
    ping_s: float = 10.0
    link_lost_s: float = 30.0
    link_silent_s: float = 15.0
    """A link that has said nothing for so long may be replaced by another broker of the same name."""


class TokenBucket:
    """Lets `rate_s` things a second pass, on average, and up to two seconds' worth at once."""

    def __init__(self, rate_s: float, now_s: float) -> None:
        self._rate_s = rate_s
        self._full = max(2 * rate_s, 1.0)
        self._left = self._full
        self._at_s = now_s

    def take(self, now_s: float) -> bool:
        self._left = min(self._full, self._left + max(now_s - self._at_s, 0.0) * self._rate_s)
        self._at_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


@lru_cache(4096)
def neighbourhood(address: str) -> str:
    """What counts as one address: whoever has one of IPv6 has the 2^64 beside it too."""
    try:
        found = IPv6Address(address)
    except ValueError:
        return address
    return str(found.ipv4_mapped or IPv6Network((int(found) >> 64 << 64, 64)))


class Places:
    """The tunnels there are, counted in all, by client address and by server id. Adopted ones have no address."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.total = 0
        self.addresses: Counter[str] = Counter()
        self.servers: Counter[str] = Counter()

    def why_not(self, server: str, address: str) -> str:
        """Empty: there is room."""
        if self.total >= self._limits.tunnels_max:
            return "this gateway has no room for another tunnel"
        if self.servers[server] >= self._limits.tunnels_per_server:
            return "this broker has as many tunnels as it may"
        if address and self.addresses[neighbourhood(address)] >= self._limits.tunnels_per_address:
            return "this address has as many tunnels as it may"
        return ""

    def take(self, server: str, address: str) -> None:
        self.total += 1
        self.servers[server] += 1
        if address:
            self.addresses[neighbourhood(address)] += 1

    def give_back(self, server: str, address: str) -> None:
        self.total -= 1
        for counted, name in ((self.servers, server), (self.addresses, neighbourhood(address))):
            if name:
                counted[name] -= 1
                if not counted[name]:
                    del counted[name]
