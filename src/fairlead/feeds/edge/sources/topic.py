"""A topic of a Fairlead server as a source, so that a stream can be made of what programs publish.

Of a stored topic the order numbers are the source sequences: every adapter sees the same, and what was missed is read
again. Of a plain topic a header carries them; what is missing there is lost.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final, Literal

import fairlead
from fairlead.client.aio import Connection
from fairlead.errors import ConnectionLost, FairleadError
from fairlead.feeds.sources import mold
from fairlead.feeds.sources.actions import Action, Limits
from fairlead.feeds.sources.events import SourceDeclared, SourceDown, SourceEvent, SourceUp
from fairlead.feeds.sources.recovery import NEVER, Recovery
from fairlead.feeds.sources.runs import run_of
from fairlead.feeds.sources.settings import TopicSource, declared_source
from fairlead.feeds.sources.telling import Telling, batches

__all__ = ["TopicLine"]

RETRY_S: Final = 1.0
SESSION_BYTES_MAX: Final = 32
BATCH: Final = 1024
"""Messages taken together, if so many wait."""


class TopicLine:
    """`events` ends only by being closed."""

    def __init__(self, settings: TopicSource, stream: str) -> None:
        self._settings = settings
        self._stream = stream
        self._telling = Telling(settings)
        self._next = {"now": 0, "first": 1}[settings.start] if isinstance(settings.start, str) else settings.start
        self._recovery = Recovery(start=self._next, limits=Limits(silent_s=NEVER))
        self.counters: dict[str, int] = {"messages": 0} if not settings.sequence_header else self._recovery.counters

    async def events(self) -> AsyncIterator[SourceEvent]:
        settings = self._settings
        if not settings.sequence_header:
            yield SourceDeclared(declared_source(settings))
        is_up: bool | None = None
        while True:
            connection = self._connection()
            try:
                async with connection:
                    reading = self._plain(connection) if settings.sequence_header else self._stored(connection)
                    async for event in reading:
                        if is_up is not True:
                            is_up = True
                            yield SourceUp(settings.id)
                        if event is not None:
                            yield event
                why = "the connection was closed"
            except (FairleadError, OSError) as error:
                why = str(error)
            if is_up is not False:
                is_up = False
                yield SourceDown(settings.id, why)
            await asyncio.sleep(RETRY_S)

    def _connection(self) -> Connection:
        settings = self._settings
        password = Path(settings.password_file).read_text().strip() if settings.password_file else settings.password
        tls = ssl.create_default_context(cafile=settings.tls_ca) if settings.tls_ca else None
        return fairlead.connect(
            settings.server, user=settings.user or None, password=password or None, tls=tls, name=f"feed {self._stream}"
        )

    async def _stored(self, connection: Connection) -> AsyncIterator[SourceEvent | None]:
        start: Literal["new"] | int = self._next or "new"
        async with connection.topic(self._settings.topic).replay(start, follow=True) as reader:
            yield None  # it is open
            while True:
                deliveries = await reader.receive_many(BATCH)
                if not deliveries:
                    raise ConnectionLost("the topic can no longer be read")
                runs = [run_of(one.order, [one.body]) for one in deliveries if one.order >= self._next]
                if runs:
                    self._next = runs[-1].last + 1
                    self.counters["messages"] += len(runs)
                    for batch in batches(self._settings.id, runs):
                        yield batch

    async def _plain(self, connection: Connection) -> AsyncIterator[SourceEvent | None]:
        loop = asyncio.get_running_loop()
        recovery = self._recovery
        recovery.on_start(loop.time())
        async with connection.subscribe(self._settings.topic) as subscription:
            yield None
            while True:
                actions: list[Action] = []
                messages = []
                try:
                    async with asyncio.timeout_at(recovery.deadline_s if recovery.deadline_s < NEVER else None):
                        messages = [await subscription.next()]
                except TimeoutError:
                    actions += recovery.on_tick(loop.time())
                for message in messages:
                    actions += self._numbered(message.headers, bytes(message.body), loop.time())
                for event in self._telling.events(actions):
                    if not isinstance(event, SourceUp | SourceDown):
                        yield event
                for event in self._telling.troubles(recovery, loop.time()):
                    yield event

    def _numbered(self, headers: Mapping[str, bytes], body: bytes, now_s: float) -> list[Action]:
        text = headers.get(self._settings.sequence_header, b"")
        session = headers.get(self._settings.session_header, b"")
        if not text.isdigit() or len(text) > 19 or not 1 <= int(text) <= mold.SEQUENCE_MAX:
            self._recovery.note("a message without a sequence")
            return []
        return self._recovery.on_run(0, session[:SESSION_BYTES_MAX], run_of(int(text), [body]), now_s)
