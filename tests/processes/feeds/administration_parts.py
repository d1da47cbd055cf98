"""Adapters and clients that speak with a real administration word by word, and do nothing else."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from typing import Any, Self, TypeVar

import fairlead
from fairlead.client.aio.talks import Conversation
from fairlead.errors import FairleadError
from fairlead.feeds import words
from fairlead.feeds.speech import FROM_ADMINISTRATION_TO_ADAPTER, FROM_ADMINISTRATION_TO_CLIENT, encode

WAIT_S = 30.0
STREAM = "prices.emea"
HEARTBEAT_S = 1.0  # generous: a slow machine is not a dead adapter

W = TypeVar("W", bound=words.Word)
_incarnations = itertools.count(os.getpid() << 20)


async def until(condition: Callable[[], Any], what: str = "it") -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


class Talker:
    """A conversation on `_STREAMS` that is begun again whenever it ends, until the administration refuses it."""

    def __init__(self, connection: fairlead.Connection) -> None:
        self._connection = connection
        self._task: asyncio.Task[None] | None = None
        self._talk: Conversation | None = None
        self.heard: list[words.Word] = []
        self.begun = 0
        self.over = False

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while not self.over:
            try:
                async with self._connection.converse("_STREAMS") as talk:
                    self._talk = talk
                    await talk.send(encode(self.first_word()))
                    self.begun += 1
                    while True:
                        self.hear(self.decode((await talk.receive()).body))
            except FairleadError:
                self._talk = None
                await asyncio.sleep(0.02)

    def first_word(self) -> words.Word:
        raise AssertionError("each kind has its own")

    def decode(self, body: bytes) -> words.Word:
        raise AssertionError("each kind has its own")

    def hear(self, word: words.Word) -> None:
        self.heard.append(word)
        self.over = self.over or isinstance(word, words.Refusal | words.Revoked)

    async def say(self, word: words.Word) -> None:
        await until(lambda: self._talk is not None)
        assert self._talk is not None
        await self._talk.send(encode(word))

    def told(self, kind: type[W]) -> list[W]:
        return [word for word in self.heard if isinstance(word, kind)]

    async def hears(self, kind: type[W], which: Callable[[W], bool] = lambda word: True) -> W:
        """The first such word, also one that has come already."""
        await until(lambda: any(which(word) for word in self.told(kind)))
        return next(word for word in self.told(kind) if which(word))

    async def ends(self) -> words.Word:
        await until(lambda: self.over)
        return self.heard[-1]


class ScriptedAdapter(Talker):
    """Does what it is told, as a real one does; `switches` says with whom it carries out planned switches."""

    def __init__(self, connection: fairlead.Connection, name: str, stream: str = STREAM, **facts: Any) -> None:
        super().__init__(connection)
        self.name, self.stream, self.facts = name, stream, facts
        self.incarnation = next(_incarnations)
        self.role, self.epoch, self.last = "backup", 0, 0
        self.tokens: set[str] = set()
        self.admitted = ""
        self._news = asyncio.Event()
        self.group: dict[str, ScriptedAdapter] = {}
        self._reporting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._reporting = asyncio.create_task(self._report())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._reporting is not None
        self._reporting.cancel()
        await asyncio.gather(self._reporting, return_exceptions=True)
        await super().__aexit__()

    def first_word(self) -> words.Word:
        said = {
            "stream": self.stream,
            "adapter": self.name,
            "incarnation": self.incarnation,
            "address": f"127.0.0.1:{self.incarnation % 50_000 + 10_000}",
            "epoch": self.epoch,
            "role": self.role,
            "heartbeat_s": HEARTBEAT_S,
            "sources": (words.Source(id="line"),),
            "tokens": tuple(sorted(self.tokens)),
        }
        return words.Register(**(said | self.facts))  # type: ignore[arg-type]

    def decode(self, body: bytes) -> words.Word:
        return FROM_ADMINISTRATION_TO_ADAPTER.decode(body)

    def hear(self, word: words.Word) -> None:
        match word:
            case words.Role() if word.epoch >= self.epoch:
                self.role, self.epoch = word.role, word.epoch
            case words.Admit():
                self.tokens.add(word.token)
                if not word.link:
                    self.admitted = word.token
                    self._news.set()
            case words.Revoke():
                self.tokens.discard(word.token)
            case words.SendAdmin() if word.admin.to in self.group and self.role == "active":
                other = self.group[word.admin.to]
                self.role, self.epoch = "backup", word.admin.epoch
                other.role, other.epoch = "active", word.admin.epoch
        super().hear(word)

    async def _report(self) -> None:
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_S / 10):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            talk = self._talk
            if talk is not None and self.told(words.Registered):
                try:
                    await talk.send(encode(self.report()))
                except FairleadError:
                    pass

    def report(self) -> words.Report:
        return words.Report(
            epoch=self.epoch,
            role=self.role,  # type: ignore[arg-type]
            incarnation=self.incarnation,
            last=self.last,
            positions={"line": (self.last, 1, 1)},
            admitted=self.admitted,
        )

    async def is_now(self, role: str, epoch: int) -> None:
        await until(lambda: (self.role, self.epoch) == (role, epoch), f"{self.name} {role} {epoch}")


class ScriptedClient(Talker):
    def __init__(self, connection: fairlead.Connection, client: str, stream: str = STREAM) -> None:
        super().__init__(connection)
        self.client, self.stream = client, stream

    def first_word(self) -> words.Word:
        return words.Subscribe(stream=self.stream, client=self.client)

    def decode(self, body: bytes) -> words.Word:
        return FROM_ADMINISTRATION_TO_CLIENT.decode(body)

    @property
    def offer(self) -> words.Brokered | words.Notice | None:
        found = [word for word in self.heard if isinstance(word, words.Brokered | words.Notice)]
        return found[-1] if found else None

    async def has_lines(self, *adapters: str) -> words.Brokered | words.Notice:
        await until(lambda: self.offer is not None and [line.adapter for line in self.offer.lines] == list(adapters))
        assert self.offer is not None
        return self.offer
