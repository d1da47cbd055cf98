"""The part of a connection that has streams: see `feeding`. What streams need is loaded with the first one."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, overload

if TYPE_CHECKING:
    from fairlead.client.aio.connection import Connection
    from fairlead.client.aio.feed_options import Gaps, Mode, Start
    from fairlead.client.aio.feeding import Stream
    from fairlead.feeds.blocks import StreamMessage
    from fairlead.feeds.events import Event

__all__ = ["FeedConnection"]

ANSWER_S = 5.0


class FeedConnection:
    """What `Connection` adds for redundant streams (docs/feeds.md)."""

    _streams: set[Stream[Any]]

    @overload
    def stream(
        self,
        name: str,
        *,
        start: Start = "new",
        mode: Mode = "single",
        gaps: Gaps = "hold",
        hold_messages: int = ...,
        hold_s: float = ...,
        events: Literal[False] = False,
        on_event: Callable[[Event], object] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float | None = ...,
        buffer: int = ...,
    ) -> Stream[StreamMessage]: ...

    @overload
    def stream(
        self,
        name: str,
        *,
        start: Start = "new",
        mode: Mode = "single",
        gaps: Gaps = "hold",
        hold_messages: int = ...,
        hold_s: float = ...,
        events: bool,
        on_event: Callable[[Event], object] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float | None = ...,
        buffer: int = ...,
    ) -> Stream[StreamMessage | Event]: ...

    def stream(
        self,
        name: str,
        *,
        start: Start = "new",
        mode: Mode = "single",
        gaps: Gaps = "hold",
        hold_messages: int = 10_000,
        hold_s: float = 2.0,
        events: bool = False,
        on_event: Callable[[Event], object] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float | None = 10.0,
        buffer: int = 65_536,
    ) -> Stream[Any]:
        """A redundant stream: `async for message in connection.stream("prices.emea")`, through failovers and gaps.

        `start`: what is `new`, all from the `oldest` that adapters keep, a `snapshot` and what follows, or what follows
        a position (`stream.position`, kept from an earlier run). `mode="both"` takes the first copy of each message
        from two adapters. A gap is filled from any adapter while what follows is held, at most `hold_messages` for
        `hold_s`, and then reported as lost; `gaps="mark"` does not hold, and late ones are marked. `on_event` hears of
        failovers, gaps and losses, each in its place among the messages; with `events=True` they come as items.
        `timeout` is for the introduction by the stream administration. When more than `buffer` messages wait for the
        application, lines are read no further. `tls` is for lines to adapters; else it is the connection's own.
        """
        from fairlead.client.aio.feed_options import stream_options
        from fairlead.client.aio.feeding import Stream

        if TYPE_CHECKING:
            assert isinstance(self, Connection)
        options = stream_options(name, start, mode, gaps, hold_messages, hold_s, buffer, timeout)
        return Stream(self, options, events=events, on_event=on_event, tls=tls)

    async def list_streams(self, timeout: float = ANSWER_S) -> list[dict[str, object]]:
        """What the stream administration says of each stream that this user may see; NoReceiver if there is none."""
        from fairlead.client.aio.feed_talk import order
        from fairlead.feeds.words import Order

        if TYPE_CHECKING:
            assert isinstance(self, Connection)
        return list((await order(self, Order(do="status"), timeout=timeout)).streams)

    async def _close_streams(self) -> None:
        for stream in list(self._streams):
            await stream.aclose()
