"""One connection of HTTP/1.1, as an asyncio protocol: a request goes out in one write, its answer is gathered.

The general HTTP clients of Python cost a millisecond of processor time per request; a tunnel makes two per message.
"""

from __future__ import annotations

import asyncio
from typing import cast

import httptools

from fairlead.tunnel.edge.http.answer import ANSWER_MAX, Answer, BadHttp, Cut

__all__ = ["Wire"]

HEADERS_MAX = 64 << 10


class Wire(asyncio.Protocol):
    """`requests` counts what was sent; only one is under way at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.is_open = False
        self.requests = 0
        self.is_proxy_hello = False
        """The answer to CONNECT has no body, whatever its headers say."""
        self._waiter: asyncio.Future[Answer] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self.answered = 0
        """Bytes of the answer so far."""
        self._timer: asyncio.TimerHandle
        self._begin()

    async def exchange(self, request: list[bytes], patience_s: float) -> Answer:
        """Cut, BadHttp; TimeoutError when nothing moved for `patience_s`. After any of them the wire is closed."""
        if not self.is_open:
            raise Cut("the connection was closed")
        waiter: asyncio.Future[Answer] = self._loop.create_future()
        self._waiter = waiter
        self.requests += 1
        self.answered = 0
        self.transport.writelines(request)
        self._timer = self._loop.call_later(patience_s, self._check, waiter, patience_s, self._moved())
        try:
            return await waiter
        except BaseException:
            self.abort()
            raise
        finally:
            self._timer.cancel()
            self._waiter = None

    def abort(self) -> None:
        self.is_open = False
        self.transport.abort()

    def _moved(self) -> tuple[int, int]:
        return self.answered, self.transport.get_write_buffer_size()

    def _check(self, waiter: asyncio.Future[Answer], patience_s: float, before: tuple[int, int]) -> None:
        now = self._moved()
        if now != before:
            self._timer = self._loop.call_later(patience_s, self._check, waiter, patience_s, now)
        elif not waiter.done():
            waiter.set_exception(TimeoutError(f"nothing moved for {patience_s:g} s"))

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self.answered += len(data)
        if self._waiter is None or self._waiter.done():
            self.abort()  # nobody asked: there is no telling what it belongs to
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(BadHttp("The answer changes the protocol, which nobody asked for."))
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._fail(cause if isinstance(cause, BadHttp) else BadHttp(f"The answer is no HTTP: {error}."))

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._is_headed and "content-length" not in self._headers and "transfer-encoding" not in self._headers:
            self._done()  # the end of the connection is the end of such an answer
        self._fail(Cut(str(exc) if exc else "the connection was closed"))

    # The parser's side.

    def on_message_begin(self) -> None:
        if self._waiter is None or self._waiter.done():
            raise BadHttp("There are two answers to one request.")
        self._begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > HEADERS_MAX:
            raise BadHttp("The headers of the answer are too long.")
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        if key == "set-cookie":
            self._cookies.append(text)
        elif key == "proxy-authenticate" and key in self._headers:
            self._headers[key] += ", " + text
        else:
            self._headers[key] = text

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._is_headed = status >= 200
        if self.is_proxy_hello and self._is_headed:
            self._done()

    def on_body(self, data: bytes) -> None:
        self._body.append(data)
        self._body_bytes += len(data)
        if self._body_bytes > ANSWER_MAX:
            raise BadHttp("The answer is longer than any answer of a gateway.")

    def on_message_complete(self) -> None:
        if not self._is_headed:
            return  # 100 Continue and the like come before the answer
        if not self._parser.should_keep_alive():
            self.is_open = False
            self.transport.close()
        self._done()

    def _done(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            waiter.set_result(Answer(self._parser.get_status_code(), self._headers, self._cookies, body))
        self._is_headed = False

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self.abort()

    def _begin(self) -> None:
        self._headers: dict[str, str] = {}
        self._header_bytes = 0
        self._cookies: list[str] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._is_headed = False
