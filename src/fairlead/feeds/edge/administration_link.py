"""An adapter's conversation with the stream administration: kept up for as long as the adapter runs.

Nothing waits for it. While there is none, what would have been reported is left out, and everything else goes on
(STR-3); when it is back, the adapter registers again and says what it was.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from typing import Final

from fairlead.client.aio import Connection, connect
from fairlead.errors import BadCredentials, FairleadError, Refused, from_wire
from fairlead.feeds import words
from fairlead.feeds.speech import FROM_ADMINISTRATION_TO_ADAPTER, ToldAdapter, encode

__all__ = ["NAME", "AdministrationLink"]

log = logging.getLogger("fairlead.feeds.administration")

NAME: Final = "_STREAMS"
UNSAID_MAX: Final = 256
"""Words that wait to be said; one more and the oldest is left out: reports come again."""
KEEP_ALIVE_S: Final = 2.0
PAUSE_MIN_S: Final = 0.05
FOR_GOOD: Final = frozenset({"not-allowed", "bad-parameter"})


class AdministrationLink:
    """Registers with the administration and hears what it says, again and again.

    `register` says who we are at that moment; `hear` is called with each word; `lost` when the conversation is over.
    """

    def __init__(
        self,
        dial: Callable[[], Connection],
        *,
        register: Callable[[], words.Register],
        hear: Callable[[ToldAdapter], None],
        lost: Callable[[], None] = lambda: None,
        url: str = "",
        retry_s: float = 1.0,
    ) -> None:
        self._dial = dial
        self._register = register
        self._hear = hear
        self._lost = lost
        self._url = url
        self._retry_s = retry_s
        self._unsaid: list[words.Word] = []
        self._more = asyncio.Event()
        self._told = ""
        self._was_registered = False
        self._talking: asyncio.Task[None] | None = None
        self.is_up = False
        self.is_cut = False  # for tests: as if the network were gone
        self.attempts = 0

    async def run(self) -> None:
        """Until it is cancelled, or the administration says no for good before it ever said yes."""
        pause_s = PAUSE_MIN_S
        while True:
            if not self.is_cut:
                self.attempts += 1
                try:
                    await self._attend()
                    pause_s = PAUSE_MIN_S
                except Refused as error:
                    if not self._was_registered and (isinstance(error, BadCredentials) or error.code in FOR_GOOD):
                        raise
                    self._tell("refuses this adapter", error)
                except (FairleadError, OSError) as error:
                    if self.is_up:
                        pause_s = PAUSE_MIN_S
                    self._tell("cannot be reached" if not self.is_up else "is gone", error)
                finally:
                    if self.is_up:
                        self.is_up = False
                        self._lost()
            await asyncio.sleep(pause_s * (0.75 + random.random() / 2))
            pause_s = min(2 * pause_s, self._retry_s)

    def say(self, word: words.Word) -> None:
        """Say it if there is somebody to hear it."""
        if not self.is_up:
            return
        if len(self._unsaid) >= UNSAID_MAX:
            del self._unsaid[0]
        self._unsaid.append(word)
        self._more.set()

    def cut(self, is_cut: bool) -> None:
        """For tests: end the conversation, and begin none until told otherwise."""
        self.is_cut = is_cut
        if is_cut and self._talking is not None:
            self._talking.cancel()

    async def _attend(self) -> None:
        """One conversation, to its end."""
        async with self._dial() as connection:
            conversation = connection.converse(NAME)
            async with conversation:
                self._unsaid.clear()
                await conversation.send(encode(self._register()))
                self._talking = asyncio.create_task(self._say_all(conversation.send))
                hearing = asyncio.create_task(self._hear_all(conversation.receive))
                both = (self._talking, hearing)
                try:
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in both:
                        task.cancel()
                    ended = await asyncio.gather(*both, return_exceptions=True)
                    self._talking = None
                for end in ended:
                    if isinstance(end, Exception):
                        raise end

    async def _hear_all(self, receive: Callable[[], object]) -> None:
        while True:
            message = await receive()  # type: ignore[misc]
            word = FROM_ADMINISTRATION_TO_ADAPTER.decode(message.body)
            if isinstance(word, words.Refusal):
                raise from_wire(word.code, word.why)
            if isinstance(word, words.Registered):
                self.is_up = self._was_registered = True
                if self._told:
                    log.info("the administration at %s is there", self._url)
                self._told = ""
            self._hear(word)

    async def _say_all(self, send: Callable[[bytes], object]) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            unsaid, self._unsaid = self._unsaid, []
            for word in unsaid:
                await send(encode(word))  # type: ignore[misc]

    def _tell(self, what: str, error: Exception) -> None:
        """Once for each reason, not with every attempt."""
        text = f"the administration at {self._url} {what}: {error}"
        if text != self._told:
            self._told = text
            waiting = "this adapter waits for it" if not self._was_registered else "streams go on without it"
            log.warning("%s; %s", text, waiting)


def dialler(
    url: str,
    *,
    user: str = "",
    password: str = "",
    tls_ca: str = "",
    type: str = "feed",  # noqa: A002
) -> Callable[[], Connection]:
    """Makes connections to a server that do not come back by themselves."""
    context = ssl.create_default_context(cafile=tls_ca) if tls_ca else None

    def dial() -> Connection:
        return connect(
            url,
            type=type,
            user=user or None,
            password=password or None,
            tls=context,
            reconnect=False,
            keep_alive_s=KEEP_ALIVE_S,
        )

    return dial
