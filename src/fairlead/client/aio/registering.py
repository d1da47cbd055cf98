"""A connection that belongs to an application: what it says to the registrar of its broker, on each line anew.

The conversation stays open as long as the connection; its end is the end of the row in the directory. When only the
registrar was lost, the same connection registers again under the same identity.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fairlead.client.aio.keeper import Keeper
from fairlead.client.aio.talks import Conversation
from fairlead.client.effects import Event
from fairlead.client.pauses import Pauses
from fairlead.directory.placing.attempts import WRONG
from fairlead.directory.placing.registrar_talk import REGISTRAR, Said, Terms, Way, error_of, first, hear, say
from fairlead.directory.rows import AppKind
from fairlead.errors import (
    BadCredentials,
    ConnectionLost,
    ConversationLost,
    FairleadError,
    NoReceiver,
    Refused,
    RemoteProtocolError,
    RequestTimeout,
)

if TYPE_CHECKING:
    from fairlead.client.aio.carrier import Carrier
    from fairlead.client.target import Address

__all__ = ["RegisteringKeeper", "Registrar"]

logger = logging.getLogger("fairlead.client")

STARTING_S = 1.0
"""How long a broker whose registrar is just (re)starting is waited for."""
LOST_S = 1.0
AGAIN_S = 30.0
"""How long a line without a registrar is kept when it had one."""


class Registrar:
    """The broker's registrar, as this connection sees it: `broker`, `label` and `identity` are those of the line."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.broker = ""
        self.label = ""
        self.identity = ""
        self.secure = False
        self.on_move: Callable[[], None] | None = None
        self._carrier: Carrier
        self.reservation = ""
        self._talk: Conversation | None = None
        self._changed: list[asyncio.Future[None]] = []  # whoever waits for a label or for a conversation
        self._routes: dict[int, asyncio.Future[Said]] = {}
        self._numbers = 0
        self._answer: asyncio.Future[Said] | None = None  # to what has no number
        self._one_at_a_time = asyncio.Lock()

    # Registering.

    async def register(self, carrier: Carrier, *, secure: bool, reservation: str = "") -> None:
        """On a line that is live: become one of the application's connections, or raise why not."""
        self._carrier = carrier
        self.identity = secrets.token_hex(16)
        self.broker = self.label = ""
        self.secure, self.reservation = secure, reservation
        until_s = carrier.loop.time() + STARTING_S
        await self._converse(until_s)

    async def _converse(self, until_s: float) -> None:
        """Try while nobody listens, until then."""
        carrier, pauses = self._carrier, Pauses(random.random)
        epoch = carrier.epoch
        while True:
            try:
                await self._begin()
                return
            except (NoReceiver, ConversationLost) as error:
                if carrier.epoch != epoch or carrier.loop.time() >= until_s:
                    raise ConnectionLost(f"The registrar of the broker does not answer: {error}") from error
            await asyncio.sleep(min(pauses.next_s(), max(until_s - carrier.loop.time(), 0.0)))

    async def _begin(self) -> None:
        carrier = self._carrier
        talk = Conversation(carrier, topic=REGISTRAR, address=(0, 0, REGISTRAR.encode()))
        hello = carrier.session.hello
        try:
            await talk.send(
                first(
                    self.terms,
                    identity=self.identity,
                    client=f"{hello.type}/{hello.instance}",
                    secure=self.secure,
                    reservation=self.reservation,
                )
            )
            said = hear((await talk.receive()).body)
            if said.error is not None:
                raise error_of(said.error)
            if not said.ok:
                raise RemoteProtocolError("The broker's registrar did not answer the registration.")
        except BaseException:
            await talk.close()
            raise
        self.broker = said.broker
        self._talk = talk
        self._take_label(said.label)
        self._wake()
        carrier.spawn(self._listen(talk))

    async def _listen(self, talk: Conversation) -> None:
        carrier, epoch = self._carrier, self._carrier.epoch
        try:
            while True:
                self._on_said(hear((await talk.receive()).body))
        except RemoteProtocolError as error:
            carrier.drop(ConnectionLost(str(error)))
        except FairleadError as error:
            if self._talk is talk:
                self._talk = None
            self._fail_questions(error)
            if carrier.epoch == epoch and not carrier.closing and carrier.ended is None:
                await self._register_again()
        finally:
            await talk.close()

    async def _register_again(self) -> None:
        """The line is whole, the conversation is not: the registrar was started anew."""
        carrier, epoch = self._carrier, self._carrier.epoch
        try:
            await self._converse(carrier.loop.time() + AGAIN_S)
        except Refused as error:
            carrier.finish(error)
        except FairleadError as error:
            if carrier.epoch == epoch:
                carrier.drop(ConnectionLost(str(error)))

    # What the registrar says.

    def _on_said(self, said: Said) -> None:
        if said.route is not None:
            question = self._routes.pop(said.number, None)
            if question is not None and not question.done():
                question.set_result(said)
        elif said.closed is not None:
            self._carrier.finish(Refused(f"The application was deregistered: {said.closed}"))
        elif said.move:
            if self.on_move is not None:
                self.on_move()
        elif said.ok or said.error is not None:
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(said)
        elif said.label:
            self._take_label(said.label)
            self._wake()

    def _take_label(self, label: str) -> None:
        if label and label != self.label:
            self.label = label
            self._carrier.tell(Event("labelled"))

    def _wake(self) -> None:
        waiters, self._changed = self._changed, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _fail_questions(self, error: Exception) -> None:
        questions = [*self._routes.values(), *([self._answer] if self._answer is not None else [])]
        self._routes.clear()
        for question in questions:
            if not question.done():
                question.set_exception(error)
                question.exception()

    # What is asked.

    async def labelled(self, timeout: float | None = None) -> str:
        """The label, when it is known: while the directory is away a connection has none."""
        async with _within(timeout, "a label"):
            while not self.label:
                await self._change()
        return self.label

    async def ask(self, name: str, timeout: float = 2.0) -> Way | None:
        """Where messages to an application go from here; None: nobody is registered under that name."""
        async with _within(timeout, f"the way to {name}"):
            while True:
                talk = await self._conversation()
                self._numbers += 1
                number = self._numbers
                question: asyncio.Future[Said] = self._carrier.loop.create_future()
                self._routes[number] = question
                try:
                    await talk.send(say(route=name, number=number))
                    said = await question
                    break
                except (ConversationLost, ConnectionLost):
                    if self._carrier.ended is not None:
                        raise
                    await asyncio.sleep(0)  # it is made anew, here or at another broker
                finally:
                    self._routes.pop(number, None)
        if said.error is not None:
            raise error_of(said.error)
        return None if said.unknown else Way(said.queue, said.to)

    async def change(self, kind: AppKind, timeout: float = 5.0) -> None:
        """Register as static, or dynamic, from now on (DIR-29); the directory hears of it from the broker."""
        await self._tell(say(kind=kind), timeout)
        self.terms = self.terms._replace(kind=kind)

    async def deregister(self, links: str = "refuse", timeout: float = 5.0) -> None:
        """End the registration of the application; `close`: and all its connections, else not while there are any."""
        await self._tell(say(deregister=links), timeout)

    async def _tell(self, words: bytes, timeout: float) -> None:
        async with self._one_at_a_time, _within(timeout, "the registrar"):
            talk = await self._conversation()
            self._answer = self._carrier.loop.create_future()
            try:
                await talk.send(words)
                said = await self._answer
            finally:
                self._answer = None
        if said.error is not None:
            raise error_of(said.error)

    async def _conversation(self) -> Conversation:
        while self._talk is None:
            await self._change()
        return self._talk

    async def _change(self) -> None:
        if self._carrier.ended is not None:
            raise self._carrier.ended
        waiter: asyncio.Future[None] = self._carrier.loop.create_future()
        self._changed.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._changed:
                self._changed.remove(waiter)

    def end(self) -> None:
        """The connection has ended: nobody need wait any longer."""
        self._talk = None
        self._wake()


class RegisteringKeeper(Keeper):
    """Keeps a connection that is of use only when the broker's registrar has taken it in."""

    registrar: Registrar
    _was_open = False
    _reservation = ""

    async def _dial(self, address: Address, resume: str | None, timeout_s: float) -> None:
        if resume is not None:  # a move of the same connection: the registrar goes on with it
            await super()._dial(address, resume, timeout_s)
            return
        carrier = self._carrier
        try:
            async with asyncio.timeout(timeout_s):
                await super()._dial(address, None, timeout_s)
                await self.registrar.register(carrier, secure=self._tls is not None, reservation=self._reservation)
        except (FairleadError, OSError, TimeoutError) as error:
            await self._abandon(error)
            if isinstance(error, BadCredentials):  # whichever of the three is wrong (DIR-24)
                raise BadCredentials(WRONG) from error
            raise

    async def _abandon(self, error: Exception) -> None:
        """The line is there and of no use: as if it had never been."""
        carrier = self._carrier
        if carrier.session.link is not None:
            carrier.drop(ConnectionLost(f"The broker did not take this connection: {error}"))
            await asyncio.wait([carrier.lost], timeout=LOST_S)
        if carrier.lost.done():
            carrier.lost = carrier.loop.create_future()

    async def _attach(self, *, patient: bool) -> None:
        carrier = self._carrier
        carrier.quiet = True
        try:
            await self._find(patient=patient)
        finally:
            carrier.quiet = False
        again, self._was_open = self._was_open, True
        if again:
            carrier.tell(Event("reconnected"))

    async def _find(self, *, patient: bool) -> None:
        await super()._attach(patient=patient)


@asynccontextmanager
async def _within(timeout: float | None, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout):
            yield
    except RequestTimeout:
        raise
    except TimeoutError:
        raise RequestTimeout(f"There was no answer about {what} in time.") from None
