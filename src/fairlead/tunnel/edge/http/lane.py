"""One kept-alive connection to a gateway, made again whenever it is gone: directly, or through a forward proxy.

`https://` goes through a proxy by CONNECT, `http://` by naming the whole URL. A connection that turns out to have been
closed since its last use is replaced unnoticed: everything a tunnel sends may arrive twice.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import NamedTuple

from fairlead.tunnel.edge.http.answer import Answer, Cut, NoConnection
from fairlead.tunnel.edge.http.cookies import Cookies
from fairlead.tunnel.edge.http.logins import Login
from fairlead.tunnel.edge.http.proxies import Proxy
from fairlead.tunnel.edge.http.wire import Wire
from fairlead.tunnel.place import Place
from fairlead.tunnel.policy import PACKETS

__all__ = ["Lane", "Way"]

DIAL_S = 10.0


class Way(NamedTuple):
    """How a place is reached; all lanes of a tunnel share it."""

    place: Place
    proxy: Proxy | None
    login: Login | None
    tls: ssl.SSLContext | None
    cookies: Cookies
    headers: dict[str, str]
    """Sent with every request: the token, the gateway's instance."""


class Lane:
    """A Poster (answer.py). One request at a time."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._wire: Wire | None = None
        self.dials = 0

    async def post(self, query: str, body: list[bytes], patience_s: float) -> Answer:
        while True:
            wire = self._wire
            if wire is None or not wire.is_open:
                wire = self._wire = await self._dial()
            try:
                answer = await wire.exchange(b"".join([self._head(query, body), *body]), patience_s)
            except Cut:
                if wire.requests == 1 or wire.answered:
                    raise
                continue  # kept alive in vain
            if answer.cookies:
                self._way.cookies.on_set(answer.cookies)
            login = self._way.login
            if answer.status == 407 and login and login.on_asked(answer.headers.get("proxy-authenticate", "")):
                continue
            return answer

    async def aclose(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self._wire is not None:
            self._wire.abort()
            self._wire = None

    def _head(self, query: str, body: list[bytes]) -> bytes:
        place, _, login, _, cookies, headers = self._way
        target = f"{place.path}?{query}"
        lines = [""]
        if login is not None and place.scheme == "http":
            target = place.origin + target
            if said := login.header("POST", target):
                lines.append(f"Proxy-Authorization: {said}")
        lines[0] = f"POST {target} HTTP/1.1\r\nHost: {place.authority}"
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if cookies.header:
            lines.append(f"Cookie: {cookies.header}")
        lines.append(f"Content-Type: {PACKETS}\r\nCache-Control: no-store\r\nContent-Length: {sum(map(len, body))}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def _dial(self) -> Wire:
        loop = asyncio.get_running_loop()
        place, proxy, login, tls, _, _ = self._way
        self.dials += 1
        wire: Wire | None = None
        try:
            async with asyncio.timeout(DIAL_S):
                if proxy is None or login is None:
                    _, wire = await loop.create_connection(lambda: Wire(loop), place.host, place.port, ssl=tls)
                    return wire
                _, wire = await loop.create_connection(lambda: Wire(loop), proxy.host, proxy.port)
                if tls is not None:
                    wire = await self._through(wire, proxy, login, tls)
                return wire
        except ssl.SSLCertVerificationError:
            raise
        except TimeoutError:
            raise NoConnection(f"{proxy or place.origin} did not answer within {DIAL_S:g} s") from None
        except (OSError, ssl.SSLError) as error:
            if isinstance(error, NoConnection):
                raise
            raise NoConnection(f"cannot connect to {proxy or place.origin}: {error}") from error

    async def _through(self, wire: Wire, proxy: Proxy, login: Login, tls: ssl.SSLContext) -> Wire:
        """The same connection, as it is behind the proxy."""
        place = self._way.place
        loop = asyncio.get_running_loop()
        target = f"[{place.host}]:{place.port}" if ":" in place.host else f"{place.host}:{place.port}"
        while True:
            wire.is_proxy_hello = True
            said = login.header("CONNECT", target)
            lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
            lines += [f"Proxy-Authorization: {said}"] if said else []
            try:
                answer = await wire.exchange(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), DIAL_S)
                if 200 <= answer.status < 300:
                    inner = Wire(loop)
                    transport = await loop.start_tls(wire.transport, inner, tls, server_hostname=place.host)
                    if transport is None:
                        raise NoConnection(f"{proxy} closed the connection")
                    inner.connection_made(transport)
                    return inner
            except BaseException:
                wire.abort()
                raise
            wire.abort()
            if answer.status == 407 and login.on_asked(answer.headers.get("proxy-authenticate", "")):
                _, wire = await loop.create_connection(lambda: Wire(loop), proxy.host, proxy.port)
                continue
            raise NoConnection(f"{proxy} answers {answer.status} to CONNECT", proxy_status=answer.status)
