"""A client's tunnel by its URL: `http://`, `https://` through a gateway; `udp://` to a broker itself, if allowed."""

from __future__ import annotations

import asyncio
import ssl
from math import ceil
from urllib.parse import urlsplit

from fairlead.errors import ConfigError, RequestTimeout
from fairlead.tunnel.edge.heap import keep_freed_memory
from fairlead.tunnel.edge.pump import Pump, lost
from fairlead.tunnel.edge.stream import TunnelStream
from fairlead.tunnel.end import End, Role, State
from fairlead.tunnel.options import TunnelOptions
from fairlead.tunnel.packets import AbortCode
from fairlead.tunnel.place import Place
from fairlead.tunnel.rules import HOLD_S, Option

__all__ = ["open_pump", "open_stream"]


async def open_stream(
    url: str, options: TunnelOptions | None = None, *, timeout_s: float = 10.0, allow_udp: bool = False
) -> TunnelStream:
    """Returns when both ends may send (TUN-59)."""
    return TunnelStream(await open_pump(url, options, timeout_s=timeout_s, allow_udp=allow_udp))


async def open_pump(
    url: str | Place,
    options: TunnelOptions | None = None,
    *,
    timeout_s: float = 10.0,
    tls: ssl.SSLContext | None = None,
    allow_udp: bool = False,
) -> Pump:
    """The same, for whoever wants a `TunnelTransport`."""
    options = options or TunnelOptions()
    if isinstance(url, str) and url.startswith("udp://"):
        return await _open_udp(url, options, timeout_s, allow_udp)
    from fairlead.tunnel.edge.http import open_tunnel

    keep_freed_memory()
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    opened = await open_tunnel(url, options, timeout_s=timeout_s, tls=tls)
    end = End(options.rules, Role.CLIENT, opened.connection_id, loop.time(), version=opened.version)
    changed = asyncio.Event()
    pump = Pump(end, opened.driver, loop, changed.set)
    opened.driver.start(pump)
    try:
        async with asyncio.timeout_at(until_s):
            while end.state is State.OPENING:
                changed.clear()
                await changed.wait()
    except TimeoutError:
        raise RequestTimeout(f"The broker did not confirm the tunnel within {timeout_s:g} s.") from None
    finally:
        if end.state is State.OPENING:
            pump.abort(AbortCode.PROGRAM, "it took too long to open")
    if end.state is State.ABORTED:
        raise lost(end)
    _tell_options(pump, options)
    return pump


def _tell_options(pump: Pump, options: TunnelOptions) -> None:
    """The broker's end and the gateway count with them too (TUN-78, 87); until now pulls were held, to open soon."""
    for option, wanted_s, usual_s in (
        (Option.PULL_PERIOD, options.pull_period_s, 0.0),
        (Option.HOLD, options.hold_s, HOLD_S),
    ):
        if wanted_s != usual_s:
            pump.set_option(option, ceil(wanted_s))


async def _open_udp(url: str, options: TunnelOptions, timeout_s: float, allow_udp: bool) -> Pump:
    if not allow_udp:
        raise ConfigError(
            "Tunnels over UDP are neither encrypted nor fair to other traffic: allow them with allow_udp."
        )
    place = urlsplit(url)
    if not place.hostname or not place.port:
        raise ConfigError(f"{url!r} is no address for a tunnel over UDP: write udp://HOST:PORT.")
    from fairlead.tunnel.edge.udp import open_udp

    return await open_udp(place.hostname, place.port, rules=options.rules, timeout_s=timeout_s)
