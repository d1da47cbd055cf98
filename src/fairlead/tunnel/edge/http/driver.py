"""The client driver: packets to send become bodies of pushes, packets to fetch come as answers to pulls.

Pulls have a task and a connection of their own, so that a blocked push delays none of them (TUN-28). What is to be sent
while all pushes are under way is left with the end, which packs it the fuller the longer it waits. After a failure
there is a pause, in which the driver takes nothing. A WebSocket takes over from both when there is one (streaming.py).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

from fairlead.tunnel.edge.http.answer import Answer, BadHttp, NoConnection, Poster
from fairlead.tunnel.edge.http.streaming import Stream, Streaming
from fairlead.tunnel.packets import PAYLOAD_MAX, Abort, AbortCode, Body, Kind, split
from fairlead.tunnel.place import Place
from fairlead.tunnel.policy import (
    Backoff,
    BodyLimit,
    Hold,
    Patience,
    Verdict,
    judge,
    pull_pause_s,
    retry_after_s,
)
from fairlead.tunnel.port import Sink
from fairlead.tunnel.rules import BODY_MAX, HOLD_S

__all__ = ["HttpDriver"]

logger = logging.getLogger("fairlead.tunnel")

PUSHES_MAX = 2
LOGINS_MAX = 3
ECHOES = (Kind.PING, Kind.PONG)  # the carrier's own
MARGIN_S = 5.0
FAREWELL_S = 5.0
TRIAL_PAUSE_S = 1.0
BAD_LOGIN = "proxy authentication: the proxy does not take this login any more (407)"
FAILURES = (OSError, BadHttp)  # a TimeoutError is an OSError


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
        pull_period_s: float = 0.0,
        hold_s: float = HOLD_S,
        payload_max: int = PAYLOAD_MAX,
        body_max: int = BODY_MAX,
        pushes_max: int = PUSHES_MAX,
    ) -> None:
        self._place = place
        self._id = connection_id
        self._make_poster = make_poster
        self._streaming = streaming
        self._stream: Stream | None = None
        self._period_s = pull_period_s
        self._hold = Hold(hold_s)
        self._limit = BodyLimit(body_max, payload_max)
        self._pushes_max = pushes_max
        self._pushes = 0
        self._idle = [first]
        self._sink: Sink
        self._tasks: set[asyncio.Task[None]] = set()
        self._pushing: set[asyncio.Task[None]] = set()
        self._push_pauses = Backoff(random.random)
        self._push_patience = Patience()
        self._paused = False
        self._logins = 0
        self._changed = asyncio.Event()
        self._heard = asyncio.Event()
        self._trial_s = 0.0
        """Since when a WebSocket is being tried."""
        self._trial_over = asyncio.Event()
        self._over = False
        """The gateway said so: there is nothing more to ask it."""
        self._closed = False
        self._is_hung_up = False
        """There are no connections any more."""

    # What the connection layer asks.

    @property
    def carrier(self) -> str:
        return "push/pull" if self._stream is None else "websocket"

    def start(self, sink: Sink) -> None:
        """Begin to fetch packets."""
        self._sink = sink
        self._spawn(self._pull())
        if self._streaming is not None:
            self._spawn(self._stream_when_open(self._streaming))

    def room(self) -> int:
        if self._closed or self._over:
            return 0
        if self._stream is not None:
            return self._stream.room()
        return 0 if self._paused or self._pushes >= self._pushes_max else self._limit.bytes

    def send(self, packets: list[bytes]) -> None:
        if self._closed or self._over:
            return
        if self._stream is not None:
            self._stream.send(packets)
        else:
            self._pushes += 1
            task = self._spawn(self._push(packets))
            self._pushing.add(task)
            task.add_done_callback(self._pushing.discard)

    def set_period(self, pull_period_s: float, hold_s: float) -> None:
        self._hold.want(hold_s)
        if pull_period_s != self._period_s:
            self._period_s = pull_period_s
            self._changed.set()

    def close(self) -> None:
        """Pushes under way may still arrive: an end's last word is often among them."""
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().create_task(self._farewell())

    async def _farewell(self) -> None:
        try:
            if self._pushing:
                await asyncio.wait(self._pushing, timeout=FAREWELL_S)
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for poster in self._idle:  # it may never have been started
                await poster.aclose()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Pushing.

    async def _push(self, packets: list[bytes]) -> None:
        poster = self._idle.pop() if self._idle else self._make_poster()
        try:
            waiting = [packets]
            while waiting:
                packets = waiting.pop(0)
                match await self._push_one(poster, packets):
                    case Verdict.SMALLER if len(packets) > 1:
                        half = len(packets) // 2
                        waiting[:0] = [packets[:half], packets[half:]]
                    case Verdict.SMALLER | Verdict.LATER if not self._closed and not self._over:
                        waiting.insert(0, packets)  # these never left
                    case _:
                        pass
        except BaseException:
            await poster.aclose()
            raise
        finally:
            self._pushes -= 1
        if self._is_hung_up:
            await poster.aclose()
        else:
            self._idle.append(poster)
        self._tell_room()

    async def _push_one(self, poster: Poster, packets: list[bytes]) -> Verdict:
        size = sum(map(len, packets))
        pause_s: float | None = None
        try:
            answer = await poster.post(self._place.query("push", self._id), packets, self._push_patience.s)
        except NoConnection as error:
            verdict = self._on_no_way(error)
        except FAILURES as error:
            logger.debug("A push to %s was lost: %s", self._place, error)
            if isinstance(error, TimeoutError):
                self._push_patience.on_timeout()
            verdict = Verdict.LOSS
        else:
            verdict = judge(answer.status, answer.content_type, len(answer.body))
            pause_s = retry_after_s(answer.headers.get("retry-after", "")) if verdict is Verdict.LATER else None
            self._note(verdict, answer)
        if verdict is Verdict.TAKE:
            self._limit.on_taken()
            self._push_pauses.well()
            self._push_patience.well()
        elif verdict is Verdict.SMALLER:
            self._limit.on_too_large(size)
            logger.info(
                "Pushes to %s are too large for something on the way: now %d bytes.", self._place, self._limit.bytes
            )
            if self._limit.is_hopeless:
                self._gone(
                    AbortCode.PROTOCOL,
                    f"something on the way to {self._place.origin} lets no body of {size} bytes through",
                )
        if verdict is not Verdict.TAKE and (verdict is not Verdict.SMALLER or len(packets) == 1):
            self._paused = True
            try:
                await asyncio.sleep(self._push_pauses.next_s(pause_s))
            finally:
                self._paused = False
        return verdict

    # Pulling.

    async def _pull(self) -> None:
        poster = self._make_poster()
        pauses = Backoff(random.random)
        loop = asyncio.get_running_loop()
        try:
            while not self._closed and not self._over:
                await self._until_wanted()
                self._changed.clear()
                hold_s = 0.0 if self._period_s > 0 else self._hold.s
                began_s = loop.time()
                verdict, answer, body = await self._pull_one(poster, hold_s)
                if verdict is Verdict.TAKE:
                    pauses.well()
                    if not body.packets and hold_s and loop.time() - began_s >= 0.9 * hold_s:
                        self._hold.on_whole()
                    pause_s = pull_pause_s(self._period_s, was_empty=not body.packets)
                    if pause_s:
                        await self._sleep(pause_s)
                    elif not body.packets and loop.time() - began_s < min(0.1, hold_s):
                        await self._sleep(pauses.FIRST_S)  # another pull took our place, or nobody holds them
                    continue
                if verdict is Verdict.LOSS and hold_s:
                    self._hold.on_failure(loop.time() - began_s)
                asked_s = retry_after_s(answer.headers.get("retry-after", "")) if answer else None
                await self._sleep(pauses.next_s(asked_s if verdict is Verdict.LATER else None))
        finally:
            # Nobody else is sure to be told when the loop ends.
            self._is_hung_up = True
            for each in (poster, *self._idle):
                await each.aclose()

    async def _pull_one(self, poster: Poster, hold_s: float) -> tuple[Verdict, Answer | None, Body]:
        nothing = Body([])
        try:
            answer = await poster.post(self._place.query("pull", self._id, hold_s), [], hold_s + MARGIN_S)
        except NoConnection as error:
            return self._on_no_way(error), None, nothing
        except FAILURES as error:
            logger.debug("A pull from %s was lost: %s", self._place, error)
            return Verdict.LOSS, None, nothing
        verdict = judge(answer.status, answer.content_type, len(answer.body))
        self._note(verdict, answer)
        if verdict is not Verdict.TAKE:
            return verdict, answer, nothing
        return verdict, answer, self._take(answer.body)

    async def _until_wanted(self) -> None:
        """A gateway takes a pull for a sign that there is no WebSocket any more."""
        if self._trial_s and self._stream is None:
            try:
                async with asyncio.timeout_at(self._trial_s + TRIAL_PAUSE_S):
                    await self._trial_over.wait()
            except TimeoutError:
                pass
        if self._stream is not None:
            await self._stream.ended.wait()

    async def _sleep(self, pause_s: float) -> None:
        """Until it is time, or the period is another one."""
        try:
            async with asyncio.timeout(pause_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    # Both.

    def _take(self, data: bytes) -> Body:
        """Packets of an answer or a frame, for the connection layer."""
        if not data:
            return Body([])
        body = split(data, with_raw=False)
        if self._closed:
            return body
        if body.damaged or body.fault:
            self._sink.on_damaged(body.damaged + bool(body.fault))
        own = [packet for packet in body.packets if packet.connection_id == self._id and packet.kind not in ECHOES]
        if own:
            self._heard.set()
            self._sink.on_packets(own)
        return body

    def _note(self, verdict: Verdict, answer: Answer) -> None:
        """What an answer means for the whole tunnel."""
        self._logins = self._logins + 1 if verdict is Verdict.PROXY_LOGIN else 0
        if verdict is Verdict.GONE:
            self._gone(*_reason(answer))
        elif verdict is Verdict.DENIED:
            self._gone(AbortCode.REFUSED, f"the gateway takes this client for somebody else ({answer.status})")
        elif self._logins >= LOGINS_MAX:
            self._gone(AbortCode.REFUSED, BAD_LOGIN)

    def _on_no_way(self, error: NoConnection) -> Verdict:
        logger.debug("There is no way to %s: %s", self._place, error)
        if error.proxy_status == 407:
            self._logins += 1
            if self._logins >= LOGINS_MAX:
                self._gone(AbortCode.REFUSED, BAD_LOGIN)
        return Verdict.LATER

    def _tell_room(self) -> None:
        if not self._closed:
            self._sink.on_room()

    def _gone(self, code: int, text: str) -> None:
        if not self._closed and not self._over:
            self._over = True
            self._sink.on_gone(code, text)

    async def _stream_when_open(self, streaming: Streaming) -> None:
        await self._heard.wait()

        def use(stream: Stream | None) -> None:
            self._stream = stream
            if stream is not None:
                stream.on_room = self._tell_room
            self._tell_room()

        def trying(is_trying: bool) -> None:
            self._trial_s = asyncio.get_running_loop().time() if is_trying else 0.0
            if is_trying:
                self._trial_over.clear()
            else:
                self._trial_over.set()

        await streaming.keep(self._take, use, trying)


def _reason(answer: Answer) -> Abort:
    """What the CONN_ABORT says that a 410 has as its body."""
    for packet in split(answer.body).packets:
        if packet.kind == Kind.CONN_ABORT:
            return Abort.of(packet.payload)
    return Abort(AbortCode.NOT_KNOWN, "the gateway does not know this tunnel any more")
