"""One connection of HTTP/2, as an asyncio protocol: many requests at a time, each as far as its window lets it.

General clients wait for room with their eyes closed while another request reads, and a held pull always reads.
"""

from __future__ import annotations

import asyncio
from typing import cast

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from fairlead.tunnel.edge.http.answer import ANSWER_MAX, Answer, BadHttp, Cut

__all__ = ["H2Wire"]

WINDOW = ANSWER_MAX
CONNECTION_WINDOW = 8 * ANSWER_MAX
HEADERS_MAX = 64 << 10


class Exchange:
    """One request and its answer."""

    def __init__(self, waiter: asyncio.Future[Answer], body: bytes) -> None:
        self.waiter = waiter
        self.left = memoryview(body)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.cookies: list[str] = []
        self.body: list[bytes] = []
        self.moved = 0

    def fail(self, error: Exception) -> None:
        if not self.waiter.done():
            self.waiter.set_exception(error)


class H2Wire(asyncio.Protocol):
    """`is_h2` is false where the other side chose another protocol by ALPN; then nothing is said on it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self._h2 = h2.connection.H2Connection(config)
        self._open: dict[int, Exchange] = {}
        self.transport: asyncio.Transport
        self.is_open = False
        self.is_h2 = True
        self.is_stale = False
        """It was lost before anything came since the last answer: closed while nobody looked."""
        self._answers = 0

    async def exchange(self, headers: list[tuple[str, str]], body: bytes, patience_s: float) -> Answer:
        """Cut, BadHttp; TimeoutError when nothing of it moved for `patience_s`: the others go on."""
        if not self.is_open:
            raise Cut("the connection was closed")
        exchange = Exchange(self._loop.create_future(), body)
        try:
            number = self._h2.get_next_available_stream_id()
            self._h2.send_headers(number, headers, end_stream=not body)
        except h2.exceptions.ProtocolError as error:
            self.abort()
            raise Cut(f"the connection takes no more requests: {error}") from error
        self._open[number] = exchange
        self._send()
        try:
            while True:
                moved = exchange.moved
                done, _ = await asyncio.wait([exchange.waiter], timeout=patience_s)
                if done:
                    return exchange.waiter.result()
                if exchange.moved == moved:
                    raise TimeoutError(f"nothing moved for {patience_s:g} s")
        finally:
            if self._open.pop(number, None) is not None and self.is_open:
                self._give_up(number)

    def abort(self) -> None:
        self.is_open = False
        self.transport.abort()

    def _give_up(self, number: int) -> None:
        try:
            self._h2.reset_stream(number)
        except h2.exceptions.ProtocolError:
            return  # it is over anyway
        self._send()

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        tls = transport.get_extra_info("ssl_object")
        self.is_open = True
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self.is_h2 = False
            return
        self._h2.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                h2.settings.SettingCodes.ENABLE_PUSH: 0,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: WINDOW,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: HEADERS_MAX,
            },
        )
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW)
        self._send()

    def data_received(self, data: bytes) -> None:
        if not self.is_h2:
            self.abort()
            return
        try:
            events = self._h2.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            self._fail(BadHttp(f"The answer is no HTTP/2: {error}."))
            return
        for event in events:
            self._take(event)
        if self.is_open:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self.is_stale = self._answers > 0 and not any(exchange.status for exchange in self._open.values())
        self._fail(Cut(str(exc) if exc else "the connection was closed"))

    # Events.

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ConnectionTerminated):
            self._fail(Cut("the gateway ended the connection"))
            return
        number = getattr(event, "stream_id", None)
        if isinstance(event, h2.events.DataReceived):
            self._h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
        exchange = self._open.get(number) if number else None
        if exchange is None:
            return
        exchange.moved += 1
        if isinstance(event, h2.events.ResponseReceived):
            for name, value in cast("list[tuple[str, str]]", event.headers):
                if name == ":status":
                    exchange.status = int(value) if value.isdecimal() else 0
                elif name == "set-cookie":
                    exchange.cookies.append(value)
                else:
                    exchange.headers[name] = value
        elif isinstance(event, h2.events.DataReceived):
            exchange.body.append(bytes(event.data or b""))
            if sum(map(len, exchange.body)) > ANSWER_MAX:
                exchange.fail(BadHttp("The answer is longer than any answer of a gateway."))
        elif isinstance(event, h2.events.StreamReset):
            self._open.pop(event.stream_id)
            exchange.fail(Cut("the gateway gave the request up"))
        elif isinstance(event, h2.events.StreamEnded) and not exchange.waiter.done():
            self._answers += 1
            body = b"".join(exchange.body)
            exchange.waiter.set_result(Answer(exchange.status, exchange.headers, exchange.cookies, body))

    def _send(self) -> None:
        """As much of every body as the windows let through, and everything else there is to say."""
        for number, exchange in list(self._open.items()):
            try:
                while exchange.left:
                    size = min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size)
                    if size <= 0:
                        break
                    part, exchange.left = exchange.left[:size], exchange.left[size:]
                    exchange.moved += 1
                    self._h2.send_data(number, bytes(part), end_stream=not exchange.left)
            except h2.exceptions.ProtocolError:
                exchange.left = memoryview(b"")  # it was answered before all of it was sent
        data = self._h2.data_to_send()
        if data:
            self.transport.write(data)

    def _fail(self, error: Exception) -> None:
        failed, self._open = list(self._open.values()), {}
        for exchange in failed:
            exchange.fail(error)
        self.abort()
