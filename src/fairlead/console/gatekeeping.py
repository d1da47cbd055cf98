"""Whether a request may come in at all, by its headers: before anybody is asked who he is.

Two tricks are refused here. A site may point its own name at our address (DNS rebinding): so the Host must be one of
ours, an address, or localhost. And a page of another site may make a browser send requests with our cookie: so whatever
changes something must come from our own page, as Origin or Sec-Fetch-Site say, must be JSON, and must carry a header
that no form can set and no other site may (there is no CORS here).
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from fairlead.console.problems import Denied

CSRF_HEADER: Final = "x-fairlead-csrf"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""On every answer."""

Headers = Mapping[str, str]


class Gate:
    """`hosts` are the names under which browsers reach us, as `[console] hosts` has them."""

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)

    def check_host(self, headers: Headers) -> None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            raise Denied(
                421,
                f"This console is not called {host[:100]!r}. Open it by its address, or name it in [console] hosts.",
                code="not-allowed",
            )

    def _is_ours(self, host: str) -> bool:
        host = host.lower()
        name = host_of(host)
        if name is None:
            return False
        return name == "localhost" or is_address(name) or host in self._hosts or name in self._hosts

    def check_origin(self, method: str, headers: Headers) -> None:
        """Only our own page, or no page at all, may change something; or look, where the browser says so."""
        site = headers.get("sec-fetch-site", "")
        if site not in ("", "same-origin", "none") and not is_navigation(method, headers):
            raise Denied(403, "Requests of other sites are refused here.", code="not-allowed")
        origin = headers.get("origin", "")
        if origin and method not in SAFE_METHODS and urlsplit_netloc(origin) != headers.get("host", "").lower():
            raise Denied(403, "Requests of other sites are refused here.", code="not-allowed")


def is_navigation(method: str, headers: Headers) -> bool:
    """Somebody followed a link to our page from another site."""
    return method in SAFE_METHODS and headers.get("sec-fetch-mode") == "navigate"


def check_csrf(headers: Headers, expected: str | None) -> None:
    """`expected` None: any value will do, since only the header's presence has to be shown."""
    given = headers.get(CSRF_HEADER, "")
    if not given or (expected is not None and not hmac.compare_digest(given.encode(), expected.encode())):
        raise Denied(403, "The header X-Fairlead-CSRF is missing or not the one of GET /api/v1/me.", code="not-allowed")


def check_json(headers: Headers) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Denied(415, "The body has to be JSON: send Content-Type: application/json.")


def host_of(host: str) -> str | None:
    """The name without the port; None if that is no Host at all."""
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        return name if bracket and (not rest or (_is_port(rest[1:]) and rest[0] == ":")) else None
    name, colon, port = host.partition(":")
    return name if name and (not colon or _is_port(port)) else None


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def urlsplit_netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) <= 65535
