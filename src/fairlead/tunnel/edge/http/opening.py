"""Opening a tunnel: the connect request, asked again as long as that can help (TUN-56, TUN-60, TUN-62)."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from typing import NamedTuple

from fairlead.errors import ConfigError
from fairlead.tunnel.edge.http.answer import Answer, BadHttp, NoConnection, Poster
from fairlead.tunnel.edge.http.cookies import Cookies
from fairlead.tunnel.edge.http.dialling import Way
from fairlead.tunnel.edge.http.driver import HttpDriver
from fairlead.tunnel.edge.http.lane import Lane
from fairlead.tunnel.edge.http.logins import Login
from fairlead.tunnel.edge.http.proxies import proxy_for
from fairlead.tunnel.edge.http.streaming import Streaming
from fairlead.tunnel.options import TunnelOptions
from fairlead.tunnel.packets import Kind, encode, printable, split
from fairlead.tunnel.place import Place, check_plain, parse
from fairlead.tunnel.policy import PACKETS, Backoff, retry_after_s
from fairlead.tunnel.refusals import (
    BadCertificate,
    NoAnswer,
    NotAGateway,
    ProxyAuthentication,
    ProxyRefused,
    TunnelRefused,
    VersionRefused,
    refused,
)

__all__ = ["Opened", "open_tunnel"]

logger = logging.getLogger("fairlead.tunnel")

TOKEN_BYTES_MIN = 16
ATTEMPTS = 3  # so many lost answers fit into the time there is


class Opened(NamedTuple):
    """A tunnel the gateway has made. Make an End with it and hand the driver its sink: `driver.start(pump)`."""

    connection_id: int
    token: bytes
    version: int
    driver: HttpDriver

    def __repr__(self) -> str:
        return f"<tunnel {self.connection_id}>"  # the token is nobody else's business


async def open_tunnel(
    url: str | Place,
    options: TunnelOptions | None = None,
    *,
    timeout_s: float = 10.0,
    tls: ssl.SSLContext | None = None,
) -> Opened:
    """Ask the gateway for a tunnel; TunnelRefused with the reason when there is none within `timeout_s`.

    The broker's confirmation comes by the driver: the tunnel is open when the End says so (TUN-59). `tls` stands for
    the context `https://` makes by itself; it is made to offer HTTP by ALPN, so it is not to be used for others.
    """
    place = parse(url) if isinstance(url, str) else url
    options = options or TunnelOptions()
    if check_plain(place, options.allow_plain):
        logger.warning("The tunnel to %s goes over plain HTTP: whoever listens can take it over.", place.origin)
    proxy = proxy_for(place, options.proxy)
    context = _context(place, options, tls)
    way = Way(place, proxy, Login(proxy) if proxy else None, context, Cookies(place), {})
    poster = _poster(way, options)
    try:
        connection_id, token, version = await _ask(way, poster, options, timeout_s)
    except BaseException:
        await poster.aclose()
        raise
    if token:
        way.headers["Authorization"] = f"Bearer {token.hex()}"
    driver = HttpDriver(
        place,
        connection_id,
        poster,
        (lambda: poster) if options.http2 else (lambda: Lane(way)),
        Streaming(way, connection_id, version) if options.websocket == "auto" else None,
        payload_max=options.rules.payload_max,
    )
    return Opened(connection_id, token, version, driver)


def _poster(way: Way, options: TunnelOptions) -> Poster:
    if not options.http2:
        return Lane(way)
    from fairlead.tunnel.edge.http.h2 import H2

    return H2(way)


def _context(place: Place, options: TunnelOptions, given: ssl.SSLContext | None) -> ssl.SSLContext | None:
    if place.scheme != "https":
        return None
    try:
        made = given or ssl.create_default_context(cafile=options.ca or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"The certificates in {options.ca} cannot be read: {error}.") from error
    # Also where the program gave one: by what it offers a server tells HTTP from its own protocol on the same port.
    made.set_alpn_protocols(["h2", "http/1.1"] if options.http2 else ["http/1.1"])
    return made


async def _ask(way: Way, poster: Poster, options: TunnelOptions, timeout_s: float) -> tuple[int, bytes, int]:
    """Until an answer stands, or no time is left. A lost answer is asked for anew, and gets another id (TUN-60)."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    pauses = Backoff(random.random)
    place = way.place
    query = place.query("connect")
    body = [encode(Kind.CONN_INIT, window=min(options.rules.capacity, 0xFFFF))]
    while True:
        left_s = until_s - loop.time()
        asked_s: float | None = None
        try:
            async with asyncio.timeout(left_s):
                answer = await poster.post(query, body, max(timeout_s / ATTEMPTS, 0.05))
        except ssl.SSLCertVerificationError as error:
            raise BadCertificate(
                f"The certificate of {place.origin} is not to be trusted: {error.verify_message}. Where it is your "
                "own, name the file of whoever signed it: TunnelOptions(ca=…) or ?ca=… in the URL."
            ) from error
        except NoConnection as error:
            raise _no_way(way, error) from error
        except (OSError, BadHttp) as error:
            hint = " Does it want https://?" if place.scheme == "http" and not way.proxy else ""
            refusal: TunnelRefused = NoAnswer(f"{place.origin} did not answer to the end: {error}.{hint}")
        else:
            if instance := answer.headers.get("fairlead-instance"):
                way.headers["Fairlead-Instance"] = instance[:255]
            if answer.status == 200 and answer.content_type == PACKETS:
                return _granted(place, answer, options)
            if answer.status == 407:
                raise _login(way)
            where = answer.headers.get("location", "")
            refusal, again = refused(place, answer.status, answer.content_type, _text(answer), where)
            if not again:
                raise refusal
            asked_s = retry_after_s(answer.headers.get("retry-after", ""))
        pause_s = pauses.next_s(asked_s)
        if loop.time() + pause_s >= until_s:
            raise refusal
        await asyncio.sleep(pause_s)


def _granted(place: Place, answer: Answer, options: TunnelOptions) -> tuple[int, bytes, int]:
    found = split(answer.body).packets
    if not found or found[0].kind != Kind.CONN_INIT or not found[0].connection_id:
        raise NotAGateway(f"What {place.origin} answers is no tunnel; is the URL right?")
    said = found[0]
    if said.version == 1 and not options.allow_v1:
        raise VersionRefused(
            f"The gateway {place.origin} only speaks version 1, which protects no tunnel: update it, or allow that "
            "with TunnelOptions(allow_v1=True)."
        )
    if said.version >= 2 and len(said.payload) < TOKEN_BYTES_MIN:
        raise NotAGateway(f"The gateway {place.origin} gave no token for the tunnel; it has to be updated.")
    return said.connection_id, said.payload if said.version >= 2 else b"", said.version


def _text(answer: Answer) -> str:
    """What the gateway says about it."""
    said = answer.headers.get("fairlead-reason", "")
    if not said and answer.content_type == "text/plain":
        said = " ".join(answer.body[:200].decode(errors="replace").split())
    return printable(said[:200])


def _no_way(way: Way, error: NoConnection) -> TunnelRefused:
    if error.proxy_status == 407:
        return _login(way)
    if error.proxy_status:
        return ProxyRefused(
            f"The proxy {way.proxy} does not lead to {way.place.origin} ({error.proxy_status}): it has to allow "
            f"CONNECT to port {way.place.port}."
        )
    return NoAnswer(f"There is no way to the gateway: {error}.")


def _login(way: Way) -> TunnelRefused:
    given = "another login than the one given" if way.proxy and way.proxy.user else "a login"
    return ProxyAuthentication(
        f"Proxy authentication: {way.proxy or 'a proxy on the way'} wants {given} (407). Write "
        "http://USER:PASSWORD@HOST:PORT in TunnelOptions(proxy=…), ?proxy=… or the environment's HTTPS_PROXY."
    )
