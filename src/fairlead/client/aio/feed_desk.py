"""The edge around the arbiter of one stream: lines and the administration's words in, the arbiter's wishes out.

What the arbiter releases goes to the tray. When the application leaves too much there, lines are read no further, and
the stream's clock stands still until it has taken some.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fairlead.client.aio.feed_clock import FeedClock
from fairlead.client.aio.feed_dialling import Dialling
from fairlead.client.aio.feed_line import FeedLine
from fairlead.client.aio.feed_options import StreamOptions
from fairlead.client.aio.feed_talk import FeedTalk
from fairlead.client.aio.feed_tray import Tray
from fairlead.errors import FairleadError, RemoteProtocolError, StreamRefused, StreamRevoked, from_wire
from fairlead.feeds import words
from fairlead.feeds.arbitration import Arbiter, Dial, Drop, RenewNow, ReportNow, Say
from fairlead.feeds.frames import BLOCK, FILL, WORD, Frame
from fairlead.feeds.schema import Schema
from fairlead.feeds.speech import TO_CLIENT, ClientHears

if TYPE_CHECKING:
    from fairlead.client.aio.connection import Connection

__all__ = ["FeedDesk"]

logger = logging.getLogger("fairlead.client")

LINE_S: Final = 5.0
"""How long an adapter may take to answer."""
TICKS: Final = 4
TICK_MIN_S: Final = 0.005
TICK_MAX_S: Final = 0.1
"""The arbiter looks at the time so often in a heartbeat interval, within these bounds."""
WAITING_BYTES_MAX: Final = 64 << 20


class FeedDesk:
    """`wake` is called when something came into the tray, `end` when nothing more will come."""

    def __init__(
        self,
        connection: Connection,
        options: StreamOptions,
        *,
        client: str,
        tls: ssl.SSLContext | None,
        wake: Callable[[], None],
        end: Callable[[Exception | None], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._options = options
        self._client = client
        self._wake = wake
        self._end = end
        self.tray = Tray(options.positions)
        self.schema: Schema | None = None
        self.arbiter = Arbiter(
            stream=options.stream,
            start=options.start,
            positions=options.positions,
            mode=options.mode,
            gaps=options.gaps,
            hold_messages=options.hold_messages,
            hold_s=options.hold_s,
        )
        self._lines = Dialling(self, self._hello, tls=tls, timeout_s=LINE_S)
        self._talk = FeedTalk(connection, self)
        self._clock = FeedClock(self._loop.time, TICK_MAX_S)
        self._tick_s = TICK_MAX_S
        self._timer: asyncio.TimerHandle | None = None
        self._is_brokered = False
        self._is_local = False
        self._is_full = False
        self._is_over = False
        self._closing: asyncio.Task[None] | None = None
        self._orphaned: Exception | None = None  # the connection has ended
        self._refused: tuple[str, float] | None = None  # by an adapter before any took us: why, since when

    # Its life.

    async def begin(self, timeout: float | None) -> None:
        try:
            await self._talk.begin(timeout)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """No line and no conversation any more; said again, it waits for the same."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closing is None:
            self._closing = self._loop.create_task(self._leave())
        await asyncio.shield(self._closing)

    async def _leave(self) -> None:
        await self._lines.close()
        await self._talk.close()

    def _finish(self, error: Exception | None) -> None:
        """Nothing more will come; what waits is still handed out."""
        if not self._is_over:
            self._is_over = True
            self._closing = self._loop.create_task(self._leave())
            self._end(error)

    # The administration.

    def subscription(self) -> words.Subscribe:
        options = self._options
        if not self._is_brokered:
            return words.Subscribe(
                stream=options.stream,
                client=self._client,
                start=options.start,
                positions=dict(options.positions),
                mode=options.mode,
            )
        return words.Subscribe(
            stream=options.stream,
            client=self._client,
            start="positions",
            positions=dict(self.arbiter.positions),
            mode=options.mode,
        )

    def report(self) -> words.ClientReport:
        return words.ClientReport(line=self.arbiter.line, local=self._is_local, counters=self.arbiter.counters)

    def on_brokered(self, word: words.Brokered) -> None:
        if not self._is_brokered:
            self._is_brokered = True
            self.schema = self.arbiter.schema = _schema(word.schema)
            is_new = self._options.start == "new"
        else:
            is_new = False
        self._tick_s = min(max(word.heartbeat_s / TICKS, TICK_MIN_S), TICK_MAX_S)
        self._clock.longest_s = 2 * self._tick_s
        self._lines.renew(word.lines)
        self.arbiter.on_brokered(word, self._clock.now_s())
        if is_new:
            self.tray.start_from(self.arbiter.positions)
        self._release(0)
        if self._timer is None and not self._is_over:
            self._timer = self._loop.call_later(self._tick_s, self._on_tick)

    def on_notice(self, word: words.Notice) -> None:
        self._lines.renew(word.lines)
        self.arbiter.on_notice(word, self._clock.now_s())
        self._release(0)

    def on_refused(self, error: FairleadError) -> None:
        self.arbiter.on_revoked(str(error), self._clock.now_s())
        self._release(0)
        self._finish(error)

    def on_connection_ended(self, error: Exception) -> None:
        self._orphaned = error

    # Lines.

    def _hello(self, offer: words.LineOffer) -> words.Hello:
        return words.Hello(
            stream=self._options.stream, token=offer.token, client=self._client, epoch=self.arbiter.epoch
        )

    def on_frames(self, line: FeedLine, frames: list[Frame]) -> None:
        """RemoteProtocolError if one of them cannot be: the line is dropped then."""
        now_s, arbiter, adapter = self._clock.now_s(), self.arbiter, line.adapter
        size = 0
        try:
            for kind, number, payload, is_last in frames:
                if kind == BLOCK and line.is_up:
                    size += len(payload)
                    arbiter.on_block(adapter, number, payload, now_s)
                elif kind == FILL and line.is_up:
                    size += len(payload)
                    arbiter.on_fill(adapter, number, is_last, payload, now_s)
                elif kind != WORD:
                    raise RemoteProtocolError("An adapter says `welcome` or `refused` first.")
                else:
                    self._on_word(line, TO_CLIENT.decode(payload), now_s)
                    if not self._lines.is_current(line):
                        return  # it was dropped for that
        finally:
            self._release(size)
        if size and self._is_full:
            line.pause()

    def _on_word(self, line: FeedLine, word: ClientHears, now_s: float) -> None:
        match word:
            case words.Refusal(code=code, why=why):
                self._on_line_refused(line, code, why)
            case words.Welcome():
                if line.is_up:
                    raise RemoteProtocolError(f"{word.adapter} says welcome a second time.")
                if word.stream != self._options.stream or word.adapter != line.adapter:
                    raise RemoteProtocolError(f"{word.adapter} answers for {word.stream}, which nobody asked for.")
                line.accepted()
                if self._is_full:
                    line.pause()
                self._refused = None
                self.arbiter.on_line_up(line.adapter, word, now_s)
            case _ if not line.is_up:
                raise RemoteProtocolError("An adapter says `welcome` or `refused` first.")
            case _:
                self.arbiter.on_word(line.adapter, word, now_s)

    def on_line_lost(self, line: FeedLine, why: str) -> None:
        if not self._lines.is_current(line):
            return
        logger.debug("%s: %s", self._options.stream, why)
        self._lines.on_lost(line, why)
        if not self._is_over:
            self.arbiter.on_line_down(line.adapter, why, self._clock.now_s())
            self._release(0)

    def _on_line_refused(self, line: FeedLine, code: str, why: str) -> None:
        error = from_wire(code, why)
        if isinstance(error, StreamRevoked):
            self.on_refused(error)
            return
        if not any(other.is_up for other in self._lines.lines()):
            since_s = self._refused[1] if self._refused else self._loop.time()
            self._refused = (f"{line.adapter} does not let us in: {why}", since_s)
        line.drop(f"{line.adapter} does not let us in: {why}")
        self._talk.renew_now()  # the token may have run out, or the adapter has not heard of it

    # The arbiter's wishes.

    def _release(self, size: int) -> None:
        entries, asks = self.arbiter.take()
        if entries:
            self.tray.put(entries, size)
            if self.tray.messages > self._options.buffer or self.tray.bytes > WAITING_BYTES_MAX:
                self._fill_up()
            self._wake()
        for ask in asks:
            match ask:
                case Say(adapter=adapter, word=word):
                    if (line := self._lines.line(adapter)) is not None:
                        line.say(word)
                case Dial(offer=offer):
                    self._lines.want(offer)
                case Drop(adapter=adapter, why=why):
                    self._lines.drop(adapter, why)
                case ReportNow(local=local):
                    self._is_local = local
                    self._talk.report_soon()
                case RenewNow():
                    self._talk.renew_now()

    def _fill_up(self) -> None:
        if not self._is_full:
            self._is_full = True
            self._clock.stop()

    def taken(self) -> None:
        """The application took something from the tray."""
        tray = self.tray
        if self._is_full and tray.messages <= self._options.buffer // 2 and tray.bytes <= WAITING_BYTES_MAX // 2:
            self._is_full = False
            self._clock.go_on()
            for line in self._lines.lines():
                line.resume()

    def _on_tick(self) -> None:
        if self._is_over:
            return
        self._timer = self._loop.call_later(self._tick_s, self._on_tick)
        self.arbiter.on_tick(self._clock.now_s())
        self._release(0)
        if self._refused is not None and self._options.timeout is not None:
            why, since_s = self._refused
            if self._loop.time() - since_s > self._options.timeout:
                self._finish(StreamRefused(why))
        elif self._orphaned is not None and self.arbiter.state == "down":
            self._finish(self._orphaned)


def _schema(text: str) -> Schema | None:
    try:
        return Schema.from_json(text) if text else None
    except FairleadError as error:
        logger.warning("The schema of the stream cannot be read, its messages come without records: %s", error)
        return None
