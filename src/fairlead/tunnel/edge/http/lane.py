"""One kept-alive connection of HTTP/1.1 to a gateway, made again whenever it is gone.

One that turns out to have been closed since its last use is replaced unnoticed: everything a tunnel sends may arrive
twice.
"""

from __future__ import annotations

from fairlead.tunnel.edge.http.answer import Answer, Cut
from fairlead.tunnel.edge.http.dialling import Way, dial
from fairlead.tunnel.edge.http.wire import Wire
from fairlead.tunnel.policy import PACKETS

__all__ = ["Lane"]


class Lane:
    """A Poster (answer.py). One request at a time."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._wire: Wire | None = None

    async def post(self, query: str, body: list[bytes], patience_s: float) -> Answer:
        while True:
            wire = self._wire
            if wire is None or not wire.is_open:
                wire = self._wire = await dial(self._way, Wire)
            try:
                answer = await wire.exchange([self._head(query, body), *body], patience_s)
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
