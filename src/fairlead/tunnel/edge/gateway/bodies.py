"""The body of a request, read within bounds of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

from fairlead.tunnel.edge.gateway.requests import BadRequest, single

__all__ = ["PACKETS", "ClientGone", "Message", "Receive", "RequestBody", "Scope", "Send"]

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

PACKETS = "application/octet-stream"
BYTES_PER_S = 4096
"""A body may take longer than our patience as long as it comes at this speed."""
DISCARD_MAX = 4 << 20
"""So much of a body nobody wants is thrown away, so that the client hears the answer and can go on; then the connection
is closed instead. Several servers cannot answer before all has come, and a reset can swallow the answer."""


class ClientGone(Exception):
    """Nobody is there any more to be answered."""


class RequestBody:
    """Read once, or thrown away."""

    def __init__(self, headers: Iterable[tuple[bytes, bytes]], receive: Receive, limit: int, patience_s: float) -> None:
        self._headers = headers
        self._receive = receive
        self._limit = limit
        self._patience_s = patience_s
        self._is_over = False
        self._is_late = False

    async def read(self) -> bytes:
        """All of it; BadRequest when it is too large, too slow, or encoded in some way."""
        encoding = single(self._headers, b"content-encoding")
        if encoding and encoding.lower() != "identity":
            raise BadRequest(415, "Bodies are packets as they are, without Content-Encoding.")
        kind = single(self._headers, b"content-type").partition(";")[0].strip().lower()
        if kind and kind != PACKETS:
            raise BadRequest(415, f"Bodies are {PACKETS}.")
        if self._announced() > self._limit:
            raise self._too_large()
        parts: list[bytes] = []
        if not await self._parts(self._limit, parts.append):
            raise self._too_large()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def discard(self) -> bool:
        """Throw away what has not been read. False: too much, or too slow."""
        if self._is_over:
            return True
        if self._is_late or self._announced() > self._limit + DISCARD_MAX:
            return False
        try:
            return await self._parts(DISCARD_MAX, lambda _: None)
        except BadRequest:
            return False

    async def gone(self) -> None:
        """Returns when the client has gone; after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _parts(self, limit: int, take: Callable[[bytes], object]) -> bool:
        """To its end; False when there is more than `limit`."""
        size, begun_s = 0, asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._patience_s) as patience:
                while not self._is_over:
                    message = await self._receive()
                    if message["type"] != "http.request":
                        raise ClientGone
                    part = message.get("body", b"")
                    self._is_over = not message.get("more_body", False)
                    size += len(part)
                    if size > limit:
                        return False
                    if part:
                        take(part)
                    patience.reschedule(begun_s + self._patience_s + size / BYTES_PER_S)
        except TimeoutError:
            self._is_late = True
            raise BadRequest(408, "The request takes too long to arrive.") from None
        return True

    def _announced(self) -> int:
        length = single(self._headers, b"content-length")
        return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0

    def _too_large(self) -> BadRequest:
        return BadRequest(413, f"Bodies have at most {self._limit} bytes.")
