"""Adapters and an administration that do as they are told: to drop, refuse, freeze and lose at the right moment.

What the real ones promise is shown with the real ones, in tests/processes/feeds.
"""

from __future__ import annotations

import asyncio
from typing import Any

import fairlead
from fairlead.client.aio import Connection
from fairlead.errors import FairleadError
from fairlead.feeds import words
from fairlead.feeds.block_codec import pack
from fairlead.feeds.frames import FrameParser, block_header, fill_frame, word_frame
from fairlead.feeds.records import ADMIN, MESSAGE, Record
from fairlead.feeds.schema import Schema
from fairlead.feeds.speech import TO_ADAPTER, TO_ADMINISTRATION, encode

SOURCE = "S"
BEAT_S = 0.05
SCHEMA = Schema.of({"symbol": "string", "price": "int64"})
BLOCK = 500


def body(sequence: int) -> bytes:
    return SCHEMA.encode({"symbol": "ABC", "price": sequence})


class ScriptedAdapter:
    """All messages of the source so far, sent to whoever says `start`."""

    def __init__(self, name: str, role: str = "active") -> None:
        self.name = name
        self.role: Any = role
        self.epoch = 1
        self.incarnation = 1
        self.records: list[Record] = []
        self.oldest = 1  # number of the oldest that is kept
        self.lines: set[ScriptedLine] = set()
        self.tokens = {"token"}
        self.frozen = False
        self.hellos: list[words.Hello] = []
        self.heard: list[Any] = []
        self.accepted = 0
        self.source_alive = True
        self.port = 0
        self.has_snapshots = False
        self._server: asyncio.Server | None = None
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: ScriptedLine(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self._beating = asyncio.create_task(self._beat())

    async def stop(self) -> None:
        """As kill -9: the port is closed, all lines break."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
        for line in list(self.lines):
            line.transport.abort()
        await asyncio.sleep(0)

    @property
    def last(self) -> int:
        return self.records[-1].number if self.records else 0

    @property
    def through(self) -> int:
        return max((r.sequence for r in self.records), default=0)

    @property
    def offer(self) -> words.LineOffer:
        return words.LineOffer(
            adapter=self.name, address=f"127.0.0.1:{self.port}", token="token", incarnation=self.incarnation,
            role=self.role,
        )  # fmt: skip

    def make(self, count: int) -> list[Record]:
        """The next messages of the source, numbered."""
        begin = self.through + 1
        return [
            Record(self.last + 1 + i, MESSAGE, SOURCE, begin + i, 1, 1, begin + i - 1, body(begin + i))
            for i in range(count)
        ]

    def publish(self, count: int) -> None:
        self.add(self.make(count))

    def announce(self, admin: words.Admin) -> None:
        self.add([Record(self.last + 1, ADMIN, SOURCE, self.through, 1, 1, self.through, encode(admin))])

    def add(self, records: list[Record]) -> None:
        self.records += records
        for line in self.lines:
            line.catch_up()

    def beat(self) -> words.Beat:
        return words.Beat(
            epoch=self.epoch, incarnation=self.incarnation, role=self.role, last=self.last,
            positions={SOURCE: (self.through, 1, 1)}, source_alive=self.source_alive,
        )  # fmt: skip

    def tell(self, word: Any) -> None:
        for line in self.lines:
            line.say(word)

    async def _beat(self) -> None:
        while True:
            if not self.frozen:
                self.tell(self.beat())
            await asyncio.sleep(BEAT_S)


class ScriptedLine(asyncio.Protocol):
    def __init__(self, adapter: ScriptedAdapter) -> None:
        self.adapter = adapter
        self.parser = FrameParser()
        self.cursor: int | None = None  # index of the next record; None: not started
        self.transport: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.adapter.accepted += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.adapter.lines.discard(self)

    def say(self, word: Any) -> None:
        if not self.transport.is_closing():
            self.transport.write(word_frame(word))

    def data_received(self, data: bytes) -> None:
        for frame in self.parser.feed(data):
            self.hear(TO_ADAPTER.decode(frame.payload))

    def hear(self, word: Any) -> None:
        adapter = self.adapter
        adapter.heard.append(word)
        match word:
            case words.Hello():
                adapter.hellos.append(word)
                if adapter.frozen:
                    return
                if word.token not in adapter.tokens:
                    self.say(words.Refusal(code="stream-refused", why="The token is not known here."))
                    self.transport.close()
                    return
                self.parser.set_limit()
                self.say(
                    words.Welcome(
                        adapter=adapter.name, stream=word.stream, incarnation=adapter.incarnation,
                        epoch=adapter.epoch, role=adapter.role, first=adapter.oldest, last=adapter.last,
                        heartbeat_s=BEAT_S, has_snapshots=adapter.has_snapshots,
                    )
                )  # fmt: skip
                adapter.lines.add(self)
            case words.Start():
                self.cursor = self.find(word)
                self.catch_up()
            case words.Stop():
                self.cursor = None
            case words.Fill():
                self.fill(word)
            case words.SnapshotAsk(id=number):
                self.say(
                    words.SnapshotPart(
                        id=number, positions={SOURCE: (adapter.through, 1, 1)}, bodies=(body(adapter.through),),
                        is_last=True,
                    )
                )  # fmt: skip
            case words.FetchAdmin(id=number):
                self.say(words.Unavailable(id=number, why="Not kept."))

    def find(self, start: words.Start) -> int:
        records = self.adapter.records
        kept = max(self.adapter.oldest - 1, 0)
        if start.at == "new":
            return len(records)
        if start.at == "oldest":
            return kept
        after = start.positions.get(SOURCE, (0, 1, 1))[0]
        return max(next((i for i, r in enumerate(records) if r.sequence >= after), len(records)), kept)

    def catch_up(self) -> None:
        adapter = self.adapter
        while self.cursor is not None and self.cursor < len(adapter.records) and not adapter.frozen:
            run = adapter.records[self.cursor : self.cursor + BLOCK]
            block = pack(SOURCE, run[0].number, run)
            self.transport.write(block_header(len(block), adapter.epoch) + block)
            self.cursor += len(run)

    def fill(self, ask: words.Fill) -> None:
        kept = [r for r in self.adapter.records if r.number >= self.adapter.oldest]
        wanted = [r for r in kept if ask.after[0] < r.sequence <= ask.to] if ask.source else []
        if not ask.source:
            wanted = [r for r in kept if ask.first <= r.number <= ask.last]
        for i in range(0, len(wanted), BLOCK):
            run = wanted[i : i + BLOCK]
            self.transport.write(fill_frame(pack(SOURCE, run[0].number, run), ask.id, False))
        is_whole = bool(wanted) and (wanted[0].sequence <= ask.after[0] + 1 if ask.source else True)
        if is_whole:
            self.transport.write(fill_frame(b"", ask.id, True))
        else:
            self.say(words.Unavailable(id=ask.id, why="Not kept any more.", first=self.adapter.oldest))


class ScriptedAdministration:
    """Accepts conversations on `_STREAMS`, and offers the adapters it was given."""

    def __init__(self, url: str, adapters: list[ScriptedAdapter], *, token_life_s: float = 3600.0) -> None:
        self._connection = fairlead.connect(url, name="administration")
        self.adapters = adapters
        self.token_life_s = token_life_s
        self.refusal: words.Refusal | None = None
        self.subscribed: list[words.Subscribe] = []
        self.reports: list[words.ClientReport] = []
        self.renewals = 0
        self.talks: list[Any] = []
        self.epoch = 1
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self._connection
        self.acceptor = self._connection.accept("_STREAMS")
        await self.acceptor.start()
        self._tasks.append(asyncio.create_task(self._accept()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connection.close()

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def offers(self) -> tuple[words.LineOffer, ...]:
        return tuple(adapter.offer for adapter in self.adapters)

    @property
    def sources(self) -> tuple[words.Source, ...]:
        return (words.Source(id=SOURCE),)

    async def notice(self) -> None:
        await self.tell(words.Notice(epoch=self.epoch, lines=self.offers, sources=self.sources))

    async def tell(self, word: Any) -> None:
        for talk in self.talks:
            await talk.send(encode(word))

    async def _accept(self) -> None:
        async for talk in self.acceptor:
            self._tasks.append(asyncio.create_task(self._serve(talk)))

    async def _serve(self, talk: Any) -> None:
        try:
            while True:
                word = TO_ADMINISTRATION.decode((await talk.receive()).body)
                await self._answer(talk, word)
        except FairleadError:
            pass
        finally:
            if talk in self.talks:
                self.talks.remove(talk)

    async def _answer(self, talk: Any, word: Any) -> None:
        match word:
            case words.Subscribe():
                self.subscribed.append(word)
                if self.refusal is not None:
                    await talk.send(encode(self.refusal), last=True)
                    return
                self.talks.append(talk)
                await talk.send(encode(self.brokered(word.stream)))
            case words.ClientReport():
                self.reports.append(word)
            case words.Renew():
                self.renewals += 1
                await talk.send(encode(words.Notice(epoch=self.epoch, lines=self.offers, sources=self.sources)))
            case words.Order():
                await talk.send(encode(words.StreamFacts(streams=({"name": "prices.emea"},))), last=True)

    def brokered(self, stream: str) -> words.Brokered:
        active = self.adapters[0] if self.adapters else None
        positions = {SOURCE: (active.through, 1, 1)} if active is not None and active.records else {}
        return words.Brokered(
            stream=stream, epoch=self.epoch, lines=self.offers, sources=self.sources, positions=positions,
            threshold=8, heartbeat_s=BEAT_S, token_life_s=self.token_life_s, schema=SCHEMA.to_json(),
        )  # fmt: skip
