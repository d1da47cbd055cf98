"""Packets from the gateway: one question after the other, for as long as the tunnel lives (TUN-28).

The gateway holds a question until there is an answer; with a pull period it answers at once, and the client sleeps
after an empty answer (TUN-30, TUN-31).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from fairlead.tunnel.edge.http.answer import FAILURES, Answer, NoConnection, Poster
from fairlead.tunnel.edge.http.outcomes import Outcomes
from fairlead.tunnel.policy import Backoff, Hold, Verdict, pull_pause_s, retry_after_s

__all__ = ["Pulls"]

logger = logging.getLogger("fairlead.tunnel")

MARGIN_S = 5.0
AT_ONCE_S = 0.1


class Pulls:
    """`turn` is awaited before every question: it may not be wanted now."""

    def __init__(self, outcomes: Outcomes, turn: Callable[[], Awaitable[None]]) -> None:
        self._outcomes = outcomes
        self._turn = turn
        self._period_s = 0.0
        self._hold = Hold()
        self._changed = asyncio.Event()
        self._pauses = Backoff(random.random)

    def set_period(self, pull_period_s: float, hold_s: float) -> None:
        self._hold.want(hold_s)
        if pull_period_s != self._period_s:
            self._period_s = pull_period_s
            self._changed.set()

    async def run(self, poster: Poster) -> None:
        while not self._outcomes.is_over:
            await self._turn()
            self._changed.clear()
            pause_s = await self._one(poster)
            if pause_s:
                await self._sleep(pause_s)

    async def _one(self, poster: Poster) -> float:
        """One question; how long to sleep after it."""
        loop = asyncio.get_running_loop()
        hold_s = 0.0 if self._period_s > 0 else self._hold.s
        began_s = loop.time()
        verdict, answer = await self._ask(poster, hold_s)
        took_s = loop.time() - began_s
        if verdict is Verdict.TAKE and answer is not None:
            self._pauses.well()
            self._outcomes.well()
            is_empty = not self._outcomes.take(answer.body).packets if answer.body else True
            if is_empty and hold_s:
                if took_s >= 0.9 * hold_s:
                    self._hold.on_whole()
                elif took_s < AT_ONCE_S:
                    return AT_ONCE_S  # another question took its place, or something on the way does not wait
            return pull_pause_s(self._period_s, was_empty=is_empty)
        if verdict is Verdict.LOSS and hold_s:
            self._hold.on_failure(took_s)
        if verdict is not Verdict.LOSS or took_s < Hold.LEAST_S:  # else it was perhaps only held for too long
            self._outcomes.failed()
        asked = answer.headers.get("retry-after", "") if answer is not None and verdict is Verdict.LATER else ""
        await self._outcomes.pause(self._pauses.next_s(retry_after_s(asked)))
        return 0.0

    async def _ask(self, poster: Poster, hold_s: float) -> tuple[Verdict, Answer | None]:
        outcomes = self._outcomes
        query = outcomes.place.query("pull", outcomes.connection_id, hold_s)
        try:
            answer = await poster.post(query, [], hold_s + MARGIN_S)
        except NoConnection as error:
            return outcomes.no_way(error), None
        except FAILURES as error:
            logger.debug("A pull from %s was lost: %s", outcomes.place, error)
            return Verdict.LOSS, None
        return outcomes.judge(answer), answer

    async def _sleep(self, pause_s: float) -> None:
        """Until it is time, or the period is another one."""
        try:
            async with asyncio.timeout(pause_s):
                await self._changed.wait()
        except TimeoutError:
            pass
