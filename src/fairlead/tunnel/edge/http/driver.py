"""The client driver: packets to send become bodies of pushes, packets to fetch come as answers to pulls.

Pulls have a task and a connection of their own, so that a blocked push delays none of them. A WebSocket takes over from
both while there is one; each packet goes one way or the other, never both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fairlead.tunnel.edge.http.answer import Poster
from fairlead.tunnel.edge.http.outcomes import Outcomes
from fairlead.tunnel.edge.http.pulls import Pulls
from fairlead.tunnel.edge.http.pushes import Pushes
from fairlead.tunnel.edge.http.streaming import Stream, Streaming
from fairlead.tunnel.packets import PAYLOAD_MAX
from fairlead.tunnel.place import Place
from fairlead.tunnel.policy import BodyLimit
from fairlead.tunnel.port import Sink
from fairlead.tunnel.rules import BODY_MAX

__all__ = ["HttpDriver"]

TRIAL_PAUSE_S = 1.0
FAREWELL_S = 5.0

leaving: set[asyncio.Task[None]] = set()
"""Closed drivers that still have something to say: their owners have forgotten them."""


class HttpDriver:
    """Made by `open_tunnel`; moves packets from `start` to `close`. A `Driver` (port.py)."""

    def __init__(
        self,
        place: Place,
        connection_id: int,
        first: Poster,
        make_poster: Callable[[], Poster],
        streaming: Streaming | None,
        *,
        payload_max: int = PAYLOAD_MAX,
    ) -> None:
        self._outcomes = Outcomes(place, connection_id)
        self._make_poster = make_poster
        self._pushes = Pushes(self._outcomes, first, make_poster, BodyLimit(BODY_MAX, payload_max))
        self._pulls = Pulls(self._outcomes, self._pull_turn)
        self._streaming = streaming
        self._stream: Stream | None = None
        self._streamer: asyncio.Task[None] | None = None
        self._trial_s = 0.0
        """Since when a WebSocket is being tried."""
        self._trial_over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def carrier(self) -> str:
        return "push/pull" if self._stream is None else "websocket"

    def start(self, sink: Sink) -> None:
        """Begin to fetch packets."""
        self._outcomes.sink = sink
        self._spawn(self._pull())
        if self._streaming is not None:
            self._streamer = self._spawn(self._stream_when_open(self._streaming))

    def room(self) -> int:
        if self._outcomes.is_over:
            return 0
        return self._pushes.room() if self._stream is None else self._stream.room()

    def send(self, packets: list[bytes]) -> None:
        if self._outcomes.is_over:
            return
        if self._stream is None:
            self._pushes.send(packets)
        else:
            self._stream.send(packets)

    def set_period(self, pull_period_s: float, hold_s: float) -> None:
        self._pulls.set_period(pull_period_s, hold_s)

    def close(self) -> None:
        """Pushes under way may still arrive: an end's last word is often among them."""
        self._outcomes.is_over = True
        if not self._closed:
            self._closed = True
            task = asyncio.get_running_loop().create_task(self._farewell())
            leaving.add(task)
            task.add_done_callback(leaving.discard)

    async def _farewell(self) -> None:
        under_way = self._pushes.under_way
        try:
            if under_way:
                await asyncio.wait(under_way, timeout=FAREWELL_S)
        finally:
            tasks = [*self._tasks, *under_way]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._pushes.hang_up()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._outcomes.ended(task)

    async def _pull(self) -> None:
        poster = self._make_poster()
        try:
            await self._pulls.run(poster)
        finally:
            # There is nothing more to ask; or the loop ends, and idle connections have nobody else who is told of it.
            if self._streamer is not None:
                self._streamer.cancel()
            await poster.aclose()
            await self._pushes.hang_up()

    async def _pull_turn(self) -> None:
        """Not beside a WebSocket: a gateway takes a pull for the sign that there is none any more."""
        if self._trial_s and self._stream is None:
            try:
                async with asyncio.timeout_at(self._trial_s + TRIAL_PAUSE_S):
                    await self._trial_over.wait()
            except TimeoutError:
                pass
        if self._stream is not None:
            await self._stream.ended.wait()

    async def _stream_when_open(self, streaming: Streaming) -> None:
        await self._outcomes.heard.wait()
        await streaming.keep(self._outcomes.take, self._use, self._trying)

    def _use(self, stream: Stream | None) -> None:
        self._stream = stream
        if stream is not None:
            stream.on_room = self._outcomes.room
            self._outcomes.well()
        else:
            self._outcomes.failed()
        self._outcomes.room()

    def _trying(self, is_trying: bool) -> None:
        if is_trying:
            self._trial_s = asyncio.get_running_loop().time()
            self._trial_over.clear()
        else:
            self._trial_s = 0.0
            self._trial_over.set()
