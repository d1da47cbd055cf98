"""Packets to the gateway: few pushes under way, and a pause after each that failed.

What is to be sent while all are under way is left with the end, which packs it the fuller the longer it waits. What
may have arrived is not sent again here: the end does that. What certainly did not (503, 413, no connection) is.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from fairlead.tunnel.edge.http.answer import FAILURES, NoConnection, Poster
from fairlead.tunnel.edge.http.outcomes import Outcomes
from fairlead.tunnel.packets import AbortCode
from fairlead.tunnel.policy import Backoff, BodyLimit, Patience, Verdict, retry_after_s

__all__ = ["Pushes"]

logger = logging.getLogger("fairlead.tunnel")

UNDER_WAY_MAX = 2


class Pushes:
    """Connections that are idle are kept, the one used last on top: one is enough for whoever sends in turn."""

    def __init__(self, outcomes: Outcomes, first: Poster, make_poster: Callable[[], Poster], limit: BodyLimit) -> None:
        self._outcomes = outcomes
        self._query = outcomes.place.query("push", outcomes.connection_id)
        self._idle = [first]
        self._make_poster = make_poster
        self._limit = limit
        self._pauses = Backoff(random.random)
        self._patience = Patience()
        self._is_pausing = False
        self._is_hung_up = False
        self.under_way: set[asyncio.Task[None]] = set()

    def room(self) -> int:
        return 0 if self._is_pausing or len(self.under_way) >= UNDER_WAY_MAX else self._limit.bytes

    def send(self, packets: list[bytes]) -> None:
        task = asyncio.get_running_loop().create_task(self._push(packets))
        self.under_way.add(task)
        task.add_done_callback(self._done)

    async def hang_up(self) -> None:
        """No connection is kept any more."""
        self._is_hung_up = True
        while self._idle:
            await self._idle.pop().aclose()

    def _done(self, task: asyncio.Task[None]) -> None:
        self.under_way.discard(task)
        self._outcomes.ended(task)
        self._outcomes.room()

    async def _push(self, packets: list[bytes]) -> None:
        poster = self._idle.pop() if self._idle else self._make_poster()
        try:
            waiting = [packets]
            while waiting:
                packets = waiting.pop(0)
                verdict = await self._try(poster, packets)
                if verdict is Verdict.SMALLER and len(packets) > 1:
                    half = len(packets) // 2
                    waiting[:0] = [packets[:half], packets[half:]]
                elif verdict in (Verdict.SMALLER, Verdict.LATER) and not self._outcomes.is_over:
                    waiting.insert(0, packets)
        except BaseException:
            await poster.aclose()
            raise
        if self._is_hung_up:
            await poster.aclose()
        else:
            self._idle.append(poster)

    async def _try(self, poster: Poster, packets: list[bytes]) -> Verdict:
        """One request, and the pause after it if it failed."""
        asked_s: float | None = None
        try:
            answer = await poster.post(self._query, packets, self._patience.s)
        except NoConnection as error:
            verdict = self._outcomes.no_way(error)
        except FAILURES as error:
            logger.debug("A push to %s was lost: %s", self._outcomes.place, error)
            verdict = Verdict.LOSS
            if isinstance(error, TimeoutError):
                self._patience.on_timeout()
        else:
            verdict = self._outcomes.judge(answer)
            asked_s = retry_after_s(answer.headers.get("retry-after", "")) if verdict is Verdict.LATER else None
        if verdict is Verdict.TAKE:
            self._limit.on_taken()
            self._pauses.well()
            self._outcomes.well()
            self._patience.well()
        elif verdict is Verdict.SMALLER:
            self._on_too_large(sum(map(len, packets)))
        if verdict is not Verdict.TAKE and (verdict is not Verdict.SMALLER or len(packets) == 1):
            self._is_pausing = True
            self._outcomes.failed()
            try:
                await self._outcomes.pause(self._pauses.next_s(asked_s))
            finally:
                self._is_pausing = False
        return verdict

    def _on_too_large(self, size: int) -> None:
        place = self._outcomes.place
        self._limit.on_too_large(size)
        logger.info("Something on the way to %s takes no %d bytes: now at most %d.", place, size, self._limit.bytes)
        if self._limit.is_hopeless:
            text = f"something on the way to {place.origin} lets no body of {size} bytes through"
            self._outcomes.gone(AbortCode.PROTOCOL, text)
