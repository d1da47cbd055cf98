"""Requests by HTTP/2, pushes and pulls on one connection; by HTTP/1.1 where the gateway prefers that.

With `https://` it chooses by ALPN. With `http://` HTTP/2 is spoken from the start, which the gateway must know.
"""

from __future__ import annotations

import asyncio

from fairlead.tunnel.edge.http.answer import Answer, Cut
from fairlead.tunnel.edge.http.dialling import Way, dial
from fairlead.tunnel.edge.http.h2wire import H2Wire
from fairlead.tunnel.edge.http.lane import Lane
from fairlead.tunnel.policy import PACKETS

__all__ = ["H2"]


class H2:
    """A Poster (answer.py), for any number of requests at a time."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._wire: H2Wire | None = None
        self._dialling = asyncio.Lock()
        self._lanes: list[Lane] = []
        # A forward proxy that is told whole URLs is told them by HTTP/1.1.
        self._is_h2 = way.tls is not None or way.proxy is None

    async def post(self, query: str, body: list[bytes], patience_s: float) -> Answer:
        for is_last in (False, True):
            wire = await self._ready() if self._is_h2 else None
            if wire is None:
                return await self._post_by_lane(query, body, patience_s)
            try:
                answer = await wire.exchange(self._headers(query, body), b"".join(body), patience_s)
            except Cut:
                if is_last or not wire.is_stale:
                    raise
                continue  # kept alive in vain
            if answer.cookies:
                self._way.cookies.on_set(answer.cookies)
            return answer
        raise AssertionError("the second try ends one way or the other")

    async def aclose(self) -> None:
        if self._wire is not None:
            self._wire.abort()
        for lane in self._lanes:
            await lane.aclose()

    async def _ready(self) -> H2Wire | None:
        """The connection; None where the gateway speaks HTTP/1.1."""
        async with self._dialling:
            if self._wire is None or not self._wire.is_open:
                self._wire = await dial(self._way, H2Wire)
                if not self._wire.is_h2:
                    self._wire.abort()
                    self._wire, self._is_h2 = None, False
            return self._wire

    async def _post_by_lane(self, query: str, body: list[bytes], patience_s: float) -> Answer:
        lane = self._lanes.pop() if self._lanes else Lane(self._way)
        try:
            answer = await lane.post(query, body, patience_s)
        except BaseException:
            lane.abort()
            raise
        self._lanes.append(lane)
        return answer

    def _headers(self, query: str, body: list[bytes]) -> list[tuple[str, str]]:
        place, _, _, _, cookies, headers = self._way
        said = [
            (":method", "POST"),
            (":scheme", place.scheme),
            (":authority", place.authority),
            (":path", f"{place.path}?{query}"),
            ("content-type", PACKETS),
            ("cache-control", "no-store"),
            ("content-length", str(sum(map(len, body)))),
        ]
        said += [(name.lower(), value) for name, value in headers.items()]
        return [*said, ("cookie", cookies.header)] if cookies.header else said
