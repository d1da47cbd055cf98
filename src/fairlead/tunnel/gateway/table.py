"""Tunnels by server id and connection id (TUN-52), and those that have ended, for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from fairlead.tunnel.gateway.limits import Limits
from fairlead.tunnel.gateway.tunnel import Tunnel
from fairlead.tunnel.serial import MASK

__all__ = ["Ended", "Server", "Table"]


class Ended(NamedTuple):
    """Why a tunnel is no more, as a CONN_ABORT that says so."""

    abort: bytes
    forget_s: float
    told_s: float
    """When the broker was told last."""


@dataclass(slots=True, eq=False)
class Server:
    """A broker that is linked, or was."""

    name: str
    link: int | None = None
    link_version: int = 2
    start_id: bytes = b""
    tunnels: dict[int, Tunnel] = field(default_factory=dict)

    def alive(self) -> int:
        """How many have not been closed; the others are only remembered."""
        return sum(tunnel.done_s is None for tunnel in self.tunnels.values())


class Table:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.servers: dict[str, Server] = {}
        self.ended: OrderedDict[tuple[str, int], Ended] = OrderedDict()
        self.done: OrderedDict[tuple[str, int], Tunnel] = OrderedDict()
        """Closed in the orderly way; they are among the tunnels of their server too."""

    def tunnels(self) -> Iterator[Tunnel]:
        for server in self.servers.values():
            yield from server.tunnels.values()

    def find(self, server: str, connection_id: int) -> Tunnel | None:
        found = self.servers.get(server)
        return found.tunnels.get(connection_id) if found else None

    def server(self, name: str) -> Server:
        """Made when it is new; the longest known that has neither link nor tunnels makes room for it."""
        found = self.servers.get(name)
        if found is None:
            if len(self.servers) >= self._limits.servers_max:
                idle = next((one for one in self.servers.values() if one.link is None and not one.tunnels), None)
                if idle is not None:
                    del self.servers[idle.name]
            found = self.servers[name] = Server(name)
        return found

    def draw_id(self, server: Server, random_bytes: Callable[[int], bytes]) -> int:
        """Neither in use nor used lately."""
        drawn = int.from_bytes(random_bytes(4), "big")
        while drawn == 0 or drawn in server.tunnels or (server.name, drawn) in self.ended:
            drawn = (drawn + 1) & MASK
        return drawn

    def add(self, tunnel: Tunnel) -> None:
        self.server(tunnel.server).tunnels[tunnel.connection_id] = tunnel

    def remove(self, tunnel: Tunnel) -> None:
        del self.servers[tunnel.server].tunnels[tunnel.connection_id]
        self.done.pop((tunnel.server, tunnel.connection_id), None)

    def remember(self, server: str, connection_id: int, abort: bytes, now_s: float) -> None:
        key = server, connection_id
        self.ended.pop(key, None)
        self.ended[key] = Ended(abort, now_s + self._limits.remember_s, now_s)
        while len(self.ended) > self._limits.ended_max:
            self.ended.popitem(last=False)

    def forget(self, now_s: float) -> None:
        while self.ended:
            key, oldest = next(iter(self.ended.items()))
            if oldest.forget_s > now_s:
                break
            del self.ended[key]

    def next_forget_s(self) -> float | None:
        return next(iter(self.ended.values())).forget_s if self.ended else None
