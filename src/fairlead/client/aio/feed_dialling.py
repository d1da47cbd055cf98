"""The lines a stream wants, each to another adapter: dialled, dialled again when they are lost, dropped when told."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Iterator
from math import inf
from typing import Final

from fairlead.client.aio.feed_line import FeedLine, LineOwner, dial, read_address
from fairlead.client.pauses import Pauses
from fairlead.errors import FairleadError
from fairlead.feeds import words

__all__ = ["Dialling"]

LEFT_MAX: Final = 64
LASTING_S: Final = 5.0
"""A line that lived so long was a good one: the pauses before the next begin small again."""


class Dialled:
    """One adapter that is wanted."""

    def __init__(self, offer: words.LineOffer) -> None:
        self.offer = offer
        self.line: FeedLine | None = None  # welcomed, or about to be
        self.task: asyncio.Task[None] | None = None
        self.pauses = Pauses(random.random)
        self.dialled_s = -inf
        self.not_before_s = -inf


class Dialling:
    """`hello` makes the first word; what else happens on lines is the owner's."""

    def __init__(
        self,
        owner: LineOwner,
        hello: Callable[[words.LineOffer], words.Hello],
        *,
        tls: ssl.SSLContext | None,
        timeout_s: float,
    ) -> None:
        self._owner = owner
        self._hello = hello
        self._tls = tls
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._wanted: dict[str, Dialled] = {}
        self._left: dict[str, Dialled] = {}  # dropped; when they were last dialled is remembered
        self._tasks: set[asyncio.Task[None]] = set()
        self.last_trouble = ""

    def want(self, offer: words.LineOffer) -> None:
        """Have a line to this adapter from now on; at once, unless it was dialled a moment ago."""
        found = self._wanted.get(offer.adapter) or self._left.pop(offer.adapter, None)
        if found is None or found.offer.address != offer.address or found.offer.incarnation != offer.incarnation:
            if found is not None:
                self._leave(found, "The adapter has moved.")
            found = Dialled(offer)  # another process
        if found.line is None:
            self._rest(found)
        found.offer = offer
        self._wanted[offer.adapter] = found
        self._dial(found)

    def renew(self, offers: tuple[words.LineOffer, ...]) -> None:
        """Newer offers: of those that are wanted, for the next time."""
        for offer in offers:
            if offer.adapter in self._wanted:
                self._wanted[offer.adapter].offer = offer

    def drop(self, adapter: str, why: str) -> None:
        """Have none any more."""
        found = self._wanted.pop(adapter, None)
        if found is not None:
            self._leave(found, why)
            self._left[adapter] = found
            if len(self._left) > LEFT_MAX:
                self._left.pop(next(iter(self._left)))

    def line(self, adapter: str) -> FeedLine | None:
        found = self._wanted.get(adapter)
        return found.line if found is not None else None

    def lines(self) -> Iterator[FeedLine]:
        return (one.line for one in list(self._wanted.values()) if one.line is not None)

    def is_current(self, line: FeedLine) -> bool:
        return self.line(line.adapter) is line

    def on_lost(self, line: FeedLine, why: str) -> None:
        """Dial again after a pause, if it is still wanted."""
        found = self._wanted.get(line.adapter)
        if found is None or found.line is not line:
            return
        found.line = None
        self.last_trouble = why
        self._rest(found)
        self._dial(found)

    async def close(self) -> None:
        wanted, self._wanted = self._wanted, {}
        for one in wanted.values():
            self._leave(one, "The stream is closed.")
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _leave(self, one: Dialled, why: str) -> None:
        line, one.line = one.line, None
        if one.task is not None:
            one.task.cancel()
        if line is not None:
            line.drop(why)

    def _rest(self, one: Dialled) -> None:
        """A pause, unless it was not dialled for a while."""
        now_s = self._loop.time()
        if now_s - one.dialled_s >= LASTING_S:
            one.pauses = Pauses(random.random)
        one.not_before_s = max(one.not_before_s, now_s + one.pauses.next_s() if one.dialled_s > -inf else -inf)

    def _dial(self, one: Dialled) -> None:
        if one.line is None and (one.task is None or one.task.done()):
            one.task = task = self._loop.create_task(self._attempt(one))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _attempt(self, one: Dialled) -> None:
        """Until there is a line that was welcomed, or one that was lost again: then `on_lost` goes on."""
        while one.line is None:
            await asyncio.sleep(max(one.not_before_s - self._loop.time(), 0.0))
            offer, one.dialled_s = one.offer, self._loop.time()
            one.line = line = FeedLine(self._owner, offer.adapter, offer.incarnation, self._hello(offer))
            try:
                await dial(line, read_address(offer.address), self._tls, self._timeout_s)
            except (OSError, TimeoutError, FairleadError) as error:
                self._owner.on_line_lost(
                    line, f"{offer.adapter} at {offer.address} cannot be reached: {str(error) or 'no answer'}."
                )
                continue
            try:
                async with asyncio.timeout(self._timeout_s):
                    await line.welcomed
            except TimeoutError:
                one.task = None  # so that `on_lost` may begin another
                line.drop(f"{offer.adapter} at {offer.address} did not answer in {self._timeout_s:g} s.")
                return
