"""A connection to a gateway: directly, or through a forward proxy, for whichever protocol is to be spoken on it.

`https://` goes through a proxy by CONNECT; `http://` goes to the proxy itself, which is told the whole URL.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from fairlead.tunnel.edge.http.answer import NoConnection
from fairlead.tunnel.edge.http.cookies import Cookies
from fairlead.tunnel.edge.http.logins import Login
from fairlead.tunnel.edge.http.proxies import Proxy
from fairlead.tunnel.edge.http.wire import Wire
from fairlead.tunnel.place import Place

__all__ = ["Way", "dial"]

DIAL_S = 10.0
P = TypeVar("P", bound=asyncio.Protocol)


class Way(NamedTuple):
    """How a place is reached; all connections of a tunnel share it."""

    place: Place
    proxy: Proxy | None
    login: Login | None
    tls: ssl.SSLContext | None
    cookies: Cookies
    headers: dict[str, str]
    """Sent with every request: the token, the gateway's instance."""


async def dial(way: Way, make: Callable[[], P]) -> P:
    """NoConnection with the reason; a certificate that is not to be trusted stays the error it is."""
    loop = asyncio.get_running_loop()
    place, proxy, login, tls, _, _ = way
    try:
        async with asyncio.timeout(DIAL_S):
            if proxy is None or login is None:
                return (await loop.create_connection(make, place.host, place.port, ssl=tls))[1]
            if tls is None:
                return (await loop.create_connection(make, proxy.host, proxy.port))[1]
            return await _through(way, proxy, login, tls, make)
    except (ssl.SSLCertVerificationError, NoConnection):
        raise
    except TimeoutError:
        raise NoConnection(f"{proxy or place.origin} did not answer within {DIAL_S:g} s") from None
    except OSError as error:
        where = f"the proxy {proxy}" if proxy else place.origin
        why = str(error) or "it hung up at once" + (", and may speak no TLS" if tls else "")
        raise NoConnection(f"cannot connect to {where}: {why}") from error


async def _through(way: Way, proxy: Proxy, login: Login, tls: ssl.SSLContext, make: Callable[[], P]) -> P:
    place = way.place
    loop = asyncio.get_running_loop()
    target = f"[{place.host}]:{place.port}" if ":" in place.host else f"{place.host}:{place.port}"
    while True:
        _, wire = await loop.create_connection(Wire, proxy.host, proxy.port)
        wire.is_proxy_hello = True
        said = login.header("CONNECT", target)
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        lines += [f"Proxy-Authorization: {said}"] if said else []
        try:
            answer = await wire.exchange([("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")], DIAL_S)
            if 200 <= answer.status < 300:
                inner = make()
                transport = await loop.start_tls(wire.transport, inner, tls, server_hostname=place.host)
                if transport is None:
                    raise NoConnection(f"{proxy} closed the connection")
                inner.connection_made(transport)
                return inner
        except BaseException:
            wire.abort()
            raise
        wire.abort()
        if answer.status != 407 or not login.on_asked(answer.headers.get("proxy-authenticate", "")):
            raise NoConnection(f"{proxy} answers {answer.status} to CONNECT", proxy_status=answer.status)
