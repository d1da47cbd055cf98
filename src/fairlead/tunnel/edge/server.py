"""The broker's server socket: links to gateways, and tunnels as clients open them.

Listening means dialling: a broker that is linked is ready (TUN-43). A tunnel is accepted when its client has confirmed
it, so that one whose connect answer was lost never reaches the program (TUN-60).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from types import TracebackType
from typing import Self

from fairlead.errors import ConfigError, ConnectionLost, RequestTimeout
from fairlead.tunnel.edge.links import GatewayAddress, Greeting, Link, LinkStatus, LinkTimes
from fairlead.tunnel.edge.pump import Pump
from fairlead.tunnel.edge.stream import TunnelStream
from fairlead.tunnel.edge.udp import UdpListener, UdpTimes
from fairlead.tunnel.end import State
from fairlead.tunnel.link_init import LINK_TUNNELS_MAX
from fairlead.tunnel.packets import AbortCode
from fairlead.tunnel.rules import Rules

__all__ = ["TunnelServer"]

ENDED = (State.CLOSED, State.ABORTED)
FAREWELL_S = 1.0
NAME_BYTES_MAX = 255
SECRET_BYTES_MAX = 1024
TUNNELS_MAX = 10_000


class TunnelServer:
    """`on_accept` gets each accepted tunnel's pump at once; without it, `accept` gives them as streams, in order."""

    def __init__(
        self,
        name: str,
        *,
        rules: Rules | None = None,
        secret: bytes = b"",
        tunnels_max: int = TUNNELS_MAX,
        on_accept: Callable[[Pump], None] | None = None,
        times: LinkTimes | None = None,
    ) -> None:
        if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
            raise ConfigError(f"The name of a broker has 1 to {NAME_BYTES_MAX} bytes: {name!r} has not.")
        if len(secret) > SECRET_BYTES_MAX:
            raise ConfigError(f"A link secret has at most {SECRET_BYTES_MAX} bytes; this one has {len(secret)}.")
        self.name = name
        self._greeting = Greeting(name, secret, secrets.token_bytes(16))
        self._rules = rules or Rules()
        self._tunnels_max = min(tunnels_max, LINK_TUNNELS_MAX)  # what LINK_INIT cannot list is lost with the link
        self._on_accept = on_accept
        self._times = times
        self._links: dict[GatewayAddress, tuple[Link, asyncio.Task[None]]] = {}
        self._listeners: list[UdpListener] = []
        self._accepted: asyncio.Queue[TunnelStream | None] = asyncio.Queue()
        self._closing = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def listen(self, *gateways: GatewayAddress | str, timeout_s: float | None = None) -> None:
        """Dials each of them, for as long as the server lives. With a time limit: waits for the first to answer."""
        loop = asyncio.get_running_loop()
        for gateway in gateways:
            address = GatewayAddress.parse(gateway) if isinstance(gateway, str) else gateway
            if address not in self._links:
                link = Link(address, self._greeting, self._rules, self._on_tunnel, self._times)
                self._links[address] = (link, loop.create_task(link.run(), name=f"link to {address}"))
        if timeout_s is not None:
            await self._wait_linked(timeout_s)

    async def listen_udp(self, host: str, port: int, times: UdpTimes | None = None) -> tuple[str, int]:
        """Takes tunnels over UDP too, without a gateway; at which address and port. Off unless called (TUN-8)."""
        listener = await UdpListener.listen(host, port, self._rules, self._on_tunnel, times)
        self._listeners.append(listener)
        found = listener.address
        return str(found[0]), int(found[1])

    async def _wait_linked(self, timeout_s: float) -> None:
        waits = [asyncio.ensure_future(link.linked.wait()) for link, _ in self._links.values()]
        try:
            done, _ = await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not done:
            why = "; ".join(f"{link.address}: {link.failure or 'no answer'}" for link, _ in self._links.values())
            raise RequestTimeout(f"No gateway took the link within {timeout_s:g} s ({why}).")

    async def accept(self, timeout_s: float | None = None) -> TunnelStream:
        """The next tunnel; ConnectionLost when the server is closed meanwhile."""
        try:
            async with asyncio.timeout(timeout_s):
                stream = await self._accepted.get()
        except TimeoutError:
            raise RequestTimeout(f"Nobody opened a tunnel within {timeout_s:g} s.") from None
        if stream is None:
            self._accepted.put_nowait(None)  # for whoever else waits
            raise ConnectionLost("The tunnel server is closed.")
        return stream

    async def close(self) -> None:
        """Tunnels that are still there are aborted, and told so while the links last."""
        if self._closing:
            return
        self._closing = True
        pumps = self.pumps()
        for pump in pumps:
            if pump.end.state not in ENDED:
                pump.abort(AbortCode.SHUTDOWN, "the broker is shutting down")
        if pumps:
            await asyncio.sleep(0)  # one round of each pump takes the abort, the next turn writes it
            await asyncio.sleep(0)
        await asyncio.gather(*(link.outlet.drained(FAREWELL_S) for link, _ in self._links.values()))
        for _, task in self._links.values():
            task.cancel()
        await asyncio.gather(*(task for _, task in self._links.values()), return_exceptions=True)
        for pump in pumps:
            pump.stop()
        for listener in self._listeners:
            listener.close()
        self._links.clear()
        self._listeners.clear()
        self._accepted.put_nowait(None)

    def pumps(self) -> list[Pump]:
        """Of all tunnels, confirmed or not, ended and still remembered or not."""
        return [pump for carrier in self._carriers() for pump in carrier.pumps()]

    def _carriers(self) -> list[Link | UdpListener]:
        return [*(link for link, _ in self._links.values()), *self._listeners]

    def linked(self) -> tuple[int, int]:
        """How many links are up, and how many there are."""
        return sum(link.linked.is_set() for link, _ in self._links.values()), len(self._links)

    def status(self) -> list[LinkStatus]:
        """Links, and the addresses tunnels over UDP come to."""
        found = [link.status() for link, _ in self._links.values()]
        for one in self._listeners:
            tunnels = [pump.status() for pump in one.pumps()]
            host, port, *_ = one.address
            found.append(LinkStatus(f"udp://{host}:{port}", True, 0, one.dropped, 0, 0, tunnels))
        return found

    def _on_tunnel(self, pump: Pump) -> bool:
        if self._closing or self._is_full():
            return False
        pump.set_owner(lambda: self._on_unconfirmed(pump))
        return True

    def _is_full(self) -> bool:
        """Ended tunnels stay a while to repeat their last ACK; they take no place."""
        if sum(map(len, self._carriers())) <= self._tunnels_max:
            return False
        return sum(pump.end.state not in ENDED for pump in self.pumps()) > self._tunnels_max

    def _on_unconfirmed(self, pump: Pump) -> None:
        if pump.end.state in (State.OPENING, State.ABORTED):
            return
        pump.set_owner(lambda: None)  # accepted once, however many rounds pass before it has its owner
        if self._on_accept:
            self._on_accept(pump)
        else:
            self._accepted.put_nowait(TunnelStream(pump))
