"""Cookies of load balancers, given back so that every request finds the gateway it belongs to (TUN-38, TUN-42)."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie

from fairlead.tunnel.place import Place

__all__ = ["Cookies"]

COOKIES_MAX = 32
BYTES_MAX = 4096


class Cookies:
    """Those of one place; all requests of a tunnel share them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._known: dict[str, str] = {}
        self.header = ""
        """For the Cookie header; empty: none."""

    def on_set(self, lines: list[str]) -> None:
        for line in lines:
            try:
                found = SimpleCookie(line)
            except CookieError:
                continue
            for name, morsel in found.items():
                if morsel["secure"] and self._place.scheme != "https":
                    continue
                if morsel["path"] and not self._place.path.startswith(morsel["path"]):
                    continue
                self._known.pop(name, None)
                value = morsel.coded_value
                if morsel["max-age"] != "0" and len(name) + len(value) <= BYTES_MAX and value.isascii():
                    self._known[name] = value
        while len(self._known) > COOKIES_MAX:
            del self._known[next(iter(self._known))]
        self.header = "; ".join(f"{name}={value}" for name, value in self._known.items())
