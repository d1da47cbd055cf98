"""The program around the machine: conversations in, words out, and nothing said before it is kept.

All that happens while the file is written waits for the next writing, so that many events cost one (`_perform`).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from fairlead.client.aio import Connection
from fairlead.client.aio.attendants import Attendants
from fairlead.client.aio.talks import Conversation
from fairlead.client.effects import Event
from fairlead.errors import FairleadError, RemoteProtocolError
from fairlead.feeds.administration import Administration, Effect, Keep, Options, Say, Tell
from fairlead.feeds.administration.office import Allows
from fairlead.feeds.edge.administration.store import Store
from fairlead.feeds.speech import TO_ADMINISTRATION, encode
from fairlead.security.rules import STREAMS, Rules

__all__ = ["Settings", "StreamAdministration"]

FIRST_WORD_S: Final = 10.0  # for whoever begins a conversation to say what it wants
FOR_EVER_S: Final = 1e9
WORD_BYTES_MAX: Final = 8 << 20  # of the longest: an adapter that serves 100,000 clients registers anew


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the program has to know."""

    own: str  # URL of its own server
    user: str  # its login there
    password: str
    file: Path
    options: Options = field(default_factory=Options)
    rules: Rules = field(default_factory=Rules.open)


def _asks(rules: Rules) -> Allows:
    """Orders are for those who were given that right: a user without any list of `admin` may not give them."""

    def allows(user: str, action: Literal["subscribe", "publish", "admin"], name: str) -> bool:
        if action == "admin" and not rules.is_open and rules.unrestricted(user, "admin"):
            return False
        return rules.allows(user, action, name)

    return allows


class StreamAdministration:
    """`run` until it is cancelled, then `close`; `facts` is what status shows."""

    def __init__(self, settings: Settings, *, say: Callable[[str, str], None]) -> None:
        self._settings, self._say = settings, say
        self._store = Store(settings.file)
        kept = self._store.read()
        if self._store.damaged:
            say(
                "error",
                f"{settings.file} cannot be used ({self._store.damaged}) and was put aside: epochs and adapters are "
                "learned from the adapters that register; rights that an operator revoked have to be revoked again",
            )
        self._machine = Administration(
            _asks(settings.rules),
            kept=kept,
            damaged=bool(self._store.damaged),
            now_s=time.monotonic(),
            wall_s=time.time(),
            random=os.urandom,
            options=settings.options,
        )
        self._own = Connection(
            settings.own,
            name="streams",
            user=settings.user,
            password=settings.password,
            reconnect_limit_s=FOR_EVER_S,
            connect_timeout_s=FOR_EVER_S,
        )
        self._own.on_event(self._on_event)
        self._talks: dict[int, Conversation] = {}
        self._count = 0
        self._pending: list[Effect] = []
        self._woken = asyncio.Event()
        self._attendants = Attendants(say)
        self._error = ""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._accept())
            group.create_task(self._perform())
            group.create_task(self._tick())

    async def close(self) -> None:
        await self._attendants.close()
        await self._own.close()

    def reload(self, rules: Rules) -> None:
        self._do(self._machine.on_rules(_asks(rules), time.monotonic()))

    def facts(self) -> dict[str, Any]:
        return {**self._machine.summary(), "error": self._error}

    # --- In -------------------------------------------------------------------------------------------------------
    async def _accept(self) -> None:
        await self._own
        async with self._own.accept(STREAMS) as acceptor:
            while True:
                conversation = await acceptor.next()
                self._count += 1
                self._attendants.spawn(self._attend(conversation, self._count))

    async def _attend(self, conversation: Conversation, talk: int) -> None:
        """One conversation, from its first word to its end."""
        async with conversation:
            self._talks[talk] = conversation
            patience_s: float | None = FIRST_WORD_S
            try:
                while True:
                    message = await conversation.receive(patience_s)
                    patience_s = None
                    self._hear(talk, conversation.user or "", message.body)
            finally:
                self._talks.pop(talk, None)
                self._do(self._machine.on_lost(talk, time.monotonic()))

    def _hear(self, talk: int, user: str, body: bytes) -> None:
        now_s = time.monotonic()
        if len(body) > WORD_BYTES_MAX:
            self._do(self._machine.on_nonsense(talk, f"it has {len(body)} bytes", now_s))
            return
        try:
            word = TO_ADMINISTRATION.decode(body)
        except RemoteProtocolError as error:
            self._do(self._machine.on_nonsense(talk, error.text, now_s))
            return
        self._do(self._machine.on_word(talk, user, word, now_s))

    def _on_event(self, event: Event) -> None:
        if event.name == "lost":
            self._do(self._machine.on_cut(time.monotonic()))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._settings.options.tick_s)
            self._do(self._machine.on_tick(time.monotonic()))

    # --- Out ------------------------------------------------------------------------------------------------------
    def _do(self, effects: list[Effect]) -> None:
        if effects:
            self._pending += effects
            self._woken.set()

    async def _perform(self) -> None:
        """First to last. What is to be kept is kept before anything of the same batch is said."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            batch, self._pending = self._pending, []
            if any(isinstance(effect, Keep) for effect in batch):
                await self._keep()
            for effect in batch:
                match effect:
                    case Tell():
                        await self._tell(effect)
                    case Say():
                        self._say(effect.level, effect.text)
                    case Keep():
                        pass

    async def _keep(self) -> None:
        """Until it is on disk: an epoch that might be forgotten is told to nobody."""
        while True:
            kept = self._machine.kept(time.monotonic())
            try:
                await asyncio.to_thread(self._store.write, kept)
            except OSError as error:
                if not self._error:
                    self._say("error", f"{self._settings.file} cannot be written, nothing is told meanwhile: {error}")
                self._error = f"{self._settings.file} cannot be written: {error}"
                await asyncio.sleep(0.2)
                continue
            if self._error:
                self._say("info", f"{self._settings.file} is written again")
            self._error = ""
            return

    async def _tell(self, effect: Tell) -> None:
        conversation = self._talks.get(effect.talk)
        if conversation is None:
            return
        try:
            await conversation.send(encode(effect.word), last=effect.last)
        except FairleadError:
            pass  # it has ended; its own task finds out
