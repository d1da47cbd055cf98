"""The body of a request, read within bounds of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

from fairlead.tunnel.edge.gateway.requests import BadRequest, single

__all__ = ["PACKETS", "Arrivals", "ClientGone", "Message", "Receive", "RequestBody", "Scope", "Send"]

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


class Arrivals:
    """The bodies that are on their way, and the room they have together.

    Where it is used up the oldest is given up: honest ones are here in a moment, and do not suffer for the others.
    """

    def __init__(self, limit: int) -> None:
        self.bytes = 0
        self._limit = limit
        self._sizes: dict[RequestBody, int] = {}

    def grow(self, body: RequestBody, size: int) -> None:
        self._sizes[body] = self._sizes.get(body, 0) + size
        self.bytes += size
        while self.bytes > self._limit and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            self.release(oldest)
            oldest.give_up()

    def release(self, body: RequestBody) -> None:
        self.bytes -= self._sizes.pop(body, 0)


class RequestBody:
    """Read once, or thrown away."""

    def __init__(
        self,
        headers: Iterable[tuple[bytes, bytes]],
        receive: Receive,
        limit: int,
        patience_s: float,
        arrivals: Arrivals,
    ) -> None:
        self._arrivals = arrivals
        self._patience: asyncio.Timeout | None = None
        self._is_given_up = False
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

        def take(part: bytes) -> None:
            parts.append(part)
            if not self._is_over and not self._is_given_up:
                self._arrivals.grow(self, len(part))

        try:
            if not await self._parts(self._limit, take):
                raise self._too_large()
        finally:
            self._arrivals.release(self)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def give_up(self) -> None:
        """There is no room for what has come of it so far."""
        self._is_given_up = True
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())

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
                self._patience = patience
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
                    if not self._is_given_up:
                        patience.reschedule(begun_s + self._patience_s + size / BYTES_PER_S)
        except TimeoutError:
            self._is_late = True
            if self._is_given_up:
                raise BadRequest(503, "Too much is arriving at the moment.", ("Retry-After", "1")) from None
            raise BadRequest(408, "The request takes too long to arrive.") from None
        finally:
            self._patience = None
        return True

    def _announced(self) -> int:
        length = single(self._headers, b"content-length")
        return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0

    def _too_large(self) -> BadRequest:
        return BadRequest(413, f"Bodies have at most {self._limit} bytes.")
