"""A program's conversation with the stream administration about one stream: subscribed, renewed, and made anew.

Lines do not depend on it: while there is no administration they go on with the tokens they have. Only a refusal of the
right itself ends a stream.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from fairlead.client.aio.talks import Conversation
from fairlead.client.pauses import Pauses
from fairlead.errors import (
    BadCredentials,
    FairleadError,
    NoReceiver,
    NotAllowed,
    RemoteProtocolError,
    RequestTimeout,
    StreamRevoked,
    from_wire,
)
from fairlead.feeds import words
from fairlead.feeds.speech import FROM_ADMINISTRATION_TO_CLIENT, FROM_ADMINISTRATION_TO_OPERATOR, encode

if TYPE_CHECKING:
    from fairlead.client.aio.connection import Connection

__all__ = ["STREAMS", "FeedTalk", "TalkOwner", "order"]

logger = logging.getLogger("fairlead.client")

STREAMS: Final = "_STREAMS"
ANSWER_S: Final = 5.0
REPORT_S: Final = 3.0
SOON_S: Final = 0.05
"""Changes that come together are reported together."""
RENEWALS: Final = 3
"""A token is renewed so often in its life that one lost renewal does no harm."""
NOBODY: Final = (
    "There is no stream administration at this server: run `fairlead streams serve`, or set `streams.serve = true`, "
    "and connect to that server."
)


class TalkOwner(Protocol):
    """Whose stream it is."""

    def subscription(self) -> words.Subscribe:
        """What to ask for now: the start that was wanted, later the position reached."""

    def report(self) -> words.ClientReport: ...

    def on_brokered(self, word: words.Brokered) -> None: ...

    def on_notice(self, word: words.Notice) -> None: ...

    def on_refused(self, error: FairleadError) -> None:
        """The stream is over."""

    def on_connection_ended(self, error: Exception) -> None:
        """There will be no conversation any more; lines may go on."""


class FeedTalk:
    """`begin` raises why there is no stream; from then on trouble is only waited out."""

    def __init__(self, connection: Connection, owner: TalkOwner) -> None:
        self._carrier = connection._carrier
        self._owner = owner
        self._talk: Conversation | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._life_s = 3600.0
        self._renew_at = 0.0
        self._report_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # Its life.

    async def begin(self, timeout: float | None) -> None:
        """Subscribe; what is only unavailable is tried again until the time is up."""
        loop, pauses = self._carrier.loop, Pauses(random.random)
        until_s = None if timeout is None else loop.time() + timeout
        error: FairleadError = RequestTimeout("The stream administration did not answer in time.")
        try:
            async with asyncio.timeout_at(until_s):
                while True:
                    try:
                        await self._subscribe()
                        break
                    except FairleadError as failure:
                        error = NoReceiver(NOBODY) if type(failure) is NoReceiver else failure
                        if not failure.retryable or self._carrier.ended is not None:
                            raise error from None
                    await asyncio.sleep(pauses.next_s())
        except RequestTimeout:
            raise
        except TimeoutError:
            raise error from None
        self._keeping = loop.create_task(self._keep())

    async def close(self) -> None:
        """End the subscription; the tokens go with it."""
        self._rest()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        talk, self._talk = self._talk, None
        if talk is not None:
            if self._carrier.brake:
                self._carrier.session.talks.pop(talk._correlation, None)
                talk.end()
            else:
                await talk.close()

    async def _subscribe(self) -> None:
        carrier = self._carrier
        await carrier.room()
        talk = Conversation(carrier, topic=STREAMS, address=(0, 0, STREAMS.encode()))
        try:
            await talk.send(encode(self._owner.subscription()))
            answer = FROM_ADMINISTRATION_TO_CLIENT.decode((await talk.receive(ANSWER_S)).body)
            match answer:
                case words.Refusal(code=code, why=why):
                    raise from_wire(code, why)
                case words.Revoked(why=why):
                    raise StreamRevoked(why)
                case words.Brokered():
                    pass
                case _:
                    raise RemoteProtocolError("The stream administration did not answer the subscription.")
        except BaseException:
            await _abandon(talk)
            raise
        self._talk = talk
        self._life_s = max(answer.token_life_s, 1.0)
        self._renew_at = carrier.loop.time() + self._life_s / RENEWALS
        self._owner.on_brokered(answer)
        self.report_soon()

    async def _keep(self) -> None:
        carrier, pauses = self._carrier, Pauses(random.random)
        while True:
            try:
                if self._talk is None:
                    await self._subscribe()
                    pauses = Pauses(random.random)
                await self._listen()
            except (NotAllowed, BadCredentials, StreamRevoked) as error:
                self._owner.on_refused(error)
                return
            except FairleadError as error:
                logger.debug("No conversation with the stream administration: %s", error)
            finally:
                self._rest()
            if self._talk is not None:
                await _abandon(self._talk)
                self._talk = None
            if carrier.ended is not None:
                self._owner.on_connection_ended(carrier.ended)
                return
            await asyncio.sleep(pauses.next_s())

    async def _listen(self) -> None:
        assert self._talk is not None
        while True:
            word = FROM_ADMINISTRATION_TO_CLIENT.decode((await self._talk.receive()).body)
            match word:
                case words.Brokered():
                    self._owner.on_brokered(word)
                case words.Notice():
                    self._owner.on_notice(word)
                case words.Revoked(why=why):
                    raise StreamRevoked(why)
                case words.Refusal(code=code, why=why):
                    raise from_wire(code, why)
                case words.Closing():
                    return

    # What is said now and then.

    def report_soon(self) -> None:
        """Something changed that the administration should know."""
        self._wake_at(self._carrier.loop.time() + SOON_S)

    def renew_now(self) -> None:
        """A token was not taken: ask what is offered now."""
        self._renew_at = 0.0
        self._wake_at(self._carrier.loop.time() + SOON_S)

    def _wake_at(self, at_s: float) -> None:
        if self._talk is not None and (self._timer is None or self._timer.when() > at_s):
            self._rest()
            self._timer = self._carrier.loop.call_at(at_s, self._speak)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _speak(self) -> None:
        self._timer = None
        now_s = self._carrier.loop.time()
        if self._talk is None:
            return
        if not self._carrier.brake:
            self._say(self._owner.report())
            if now_s >= self._renew_at:
                self._renew_at = now_s + self._life_s / RENEWALS
                self._say(words.Renew())
        self._wake_at(min(now_s + REPORT_S, max(self._renew_at, now_s + SOON_S)))

    def _say(self, word: Struct) -> None:
        """Without waiting: there is room, since there is no brake."""
        assert self._talk is not None
        saying = self._talk.send(encode(word))
        try:
            saying.send(None)
        except StopIteration:
            return
        except FairleadError:
            return  # it has ended; whoever listens hears of it
        saying.close()


async def _abandon(talk: Conversation) -> None:
    """End it if there is a line to say so on."""
    carrier = talk._carrier
    if carrier.brake:
        carrier.session.talks.pop(talk._correlation, None)
        talk.end()
    else:
        await talk.close()


async def order(connection: Connection, word: words.Order, *, timeout: float = ANSWER_S) -> words.StreamFacts:
    """What the administration answers an operator; or raise its refusal."""
    talk = connection.converse(STREAMS)
    try:
        async with asyncio.timeout(timeout):
            await talk.send(encode(word))
            answer = FROM_ADMINISTRATION_TO_OPERATOR.decode((await talk.receive()).body)
    except NoReceiver:
        raise NoReceiver(NOBODY) from None
    except RequestTimeout:
        raise
    except TimeoutError:
        raise RequestTimeout("The stream administration did not answer in time.") from None
    finally:
        await _abandon(talk)
    if isinstance(answer, words.Refusal):
        raise from_wire(answer.code, answer.why)
    return answer
