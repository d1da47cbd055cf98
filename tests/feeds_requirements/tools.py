"""What the tests of whole streams share: a program that counts, and a bare line to one adapter."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import fairlead
from fairlead.client.aio.talks import Conversation
from fairlead.feeds import words
from fairlead.feeds.block_codec import Block
from fairlead.feeds.frames import ACCEPTED_BYTES_MAX, Frame, FrameParser, word_frame
from fairlead.feeds.records import ADMIN, ADMIN_VOID, MESSAGE, Record
from fairlead.feeds.speech import (
    FROM_ADMINISTRATION_TO_CLIENT,
    FROM_ADMINISTRATION_TO_OPERATOR,
    TO_CLIENT,
    decode_admin,
    encode,
)
from fairlead.testing.feed_paths import FILL, WORD
from fairlead.testing.feeds import PATIENCE_S, FeedWorld

_numbers = itertools.count(1)


class Reader:
    """A program that takes the stream as it comes and keeps all of it, each message with the adapter it came from."""

    def __init__(self, world: FeedWorld, *, url: str = "", login: Any = None, **options: Any) -> None:
        self.world = world
        self.name = f"reader{next(_numbers)}"
        self.everything: list[Any] = []  # messages and events, as the application sees them
        self.messages: list[Any] = []
        self.events: list[Any] = []
        self.lines: list[str] = []  # of each message: from which adapter
        self.ended: BaseException | None = None
        self.reading = asyncio.Event()  # cleared: the application does not take anything
        self.reading.set()
        self._url = url or world.url
        self._login: dict[str, Any] = dict(zip(("user", "password"), login or (), strict=False))
        self._options = options
        self._news = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self.connection = await fairlead.connect(self._url, name=self.name, **self._login).__aenter__()
        try:
            stream = self.connection.stream(self.world.stream, events=True, **self._options)
            self.stream = await stream.__aenter__()
        except BaseException:
            await self.connection.__aexit__(None, None, None)
            raise
        self._first = self.world.source.sent + 1
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self.stream.__aexit__(None, None, None)
        finally:
            await self.connection.__aexit__(None, None, None)

    async def _read(self) -> None:
        try:
            while True:
                await self.reading.wait()
                for one in await self.stream.batch(4096):
                    self.everything.append(one)
                    if hasattr(one, "body"):
                        self.messages.append(one)
                        self.lines.append(self.stream.line)
                    else:
                        self.events.append(one)
                async with self._news:
                    self._news.notify_all()
        except Exception as error:
            self.ended = error
            async with self._news:
                self._news.notify_all()

    # -- waiting

    async def until(self, condition: Any, what: str, timeout_s: float = PATIENCE_S) -> None:
        try:
            async with asyncio.timeout(timeout_s), self._news:
                await self._news.wait_for(lambda: condition() or self.ended)
        except TimeoutError:
            raise AssertionError(f"not in {timeout_s:g} s: {what}; {self.story()}\n{self.world.outputs()}") from None
        assert condition(), f"ended before {what}: {self.ended!r}"

    async def reached(self, sequence: int, source: str = "") -> None:
        """Until the application has this message of the source (of any, if not said)."""

        def there() -> bool:
            for one in reversed(self.messages):
                if one.kind == MESSAGE and (not source or one.source == source):
                    return bool(one.sequence >= sequence and one.part == one.parts)
            return False

        await self.until(there, f"{self.name} has {sequence}")

    async def told(self, *kinds: str, count: int = 1) -> Any:
        """Until there were so many events of these kinds; the last one."""
        await self.until(lambda: len(self.of(*kinds)) >= count, f"{' or '.join(kinds)} was told")
        return self.of(*kinds)[-1]

    async def is_(self, state: str) -> None:
        """Until the stream is in this state."""
        await self.world.until(lambda: self.stream.state == state, f"{self.name} is {state}, not {self.stream.state}")

    # -- looking

    def of(self, *kinds: str) -> list[Any]:
        return [event for event in self.events if type(event).__name__ in kinds]

    def admins(self) -> list[Any]:
        return [one for one in self.messages if one.kind == ADMIN]

    def from_source(self, source: str = "") -> list[Any]:
        return [one for one in self.messages if one.kind == MESSAGE and (not source or one.source == source)]

    @property
    def counters(self) -> dict[str, Any]:
        return dict(self.stream.counters)

    def story(self) -> str:
        last = self.messages[-1] if self.messages else None
        return f"{self.name}: {self.stream.state}, {len(self.messages)} messages, last {last}, {self.events[-20:]}"

    def check(self, last: int, first: int | None = None, *, without: Iterable[int] = (), parts: int = 1) -> None:
        """Every source message from `first` (the next one when it subscribed) to `last` once, in order, unharmed.

        `without`: those that are reported as lost. The counters must say the same.
        """
        first = self._first if first is None else first
        left_out = set(without)
        got = [(one.sequence, one.part) for one in self.from_source()]
        wanted = [
            (sequence, part)
            for sequence in range(first, last + 1)
            if sequence not in left_out
            for part in range(1, parts + 1)
        ]
        assert got == wanted, f"{difference(got, wanted)}; {self.story()}"
        assert all(one.record()["number"] == one.sequence for one in self.from_source())
        counters = self.counters
        assert (counters["delivered"], counters["admins"]) == (len(got), len(self.admins())), counters
        assert counters["lost"] == len(left_out), counters
        assert counters["delivered"] + counters["lost"] * parts == (last - first + 1) * parts


def difference(got: list[Any], wanted: list[Any]) -> str:
    """What is lost, doubled, reordered: the first few of each."""
    missing = sorted(set(wanted) - set(got))
    foreign = sorted(set(got) - set(wanted))
    doubled = sorted({one for one in got if got.count(one) > 1}) if len(got) != len(set(got)) else []
    turned = [pair for pair in itertools.pairwise(got) if pair[0] > pair[1]]
    return f"lost {missing[:5]}… ({len(missing)}), foreign {foreign[:5]}, doubled {doubled[:5]}, turned {turned[:5]}"


class Line:
    """A bare line to one adapter: what goes over it, word by word and block by block."""

    def __init__(self, address: str) -> None:
        self._host, _, self._port = address.rpartition(":")
        self._parser = FrameParser(ACCEPTED_BYTES_MAX)
        self._frames: list[Frame] = []
        self.welcome: Any = None

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(self._host, int(self._port))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass  # the other end may have gone first

    def say(self, word: words.Word) -> None:
        self.writer.write(word_frame(word))

    async def frame(self, timeout_s: float = PATIENCE_S) -> Frame | None:
        """The next one; None: the other end has closed it."""
        async with asyncio.timeout(timeout_s):
            while not self._frames:
                try:
                    data = await self.reader.read(1 << 16)
                except ConnectionError:
                    data = b""
                if not data:
                    return None
                self._frames += self._parser.feed(data)
        return self._frames.pop(0)

    async def word(self, *kinds: type, timeout_s: float = PATIENCE_S) -> Any:
        """The next word of these kinds; None: closed."""
        async with asyncio.timeout(timeout_s):
            while (frame := await self.frame(timeout_s)) is not None:
                if frame.kind == WORD and isinstance(word := TO_CLIENT.decode(frame.payload), kinds):
                    return word
        return None

    async def answer(self) -> words.Word | Frame | None:
        """To a question: the end of a fill, or a word that is no heartbeat; None: the line was closed."""
        async with asyncio.timeout(PATIENCE_S):
            while (frame := await self.frame()) is not None:
                if frame.kind == FILL and frame.is_last:
                    return frame
                if frame.kind == WORD and not isinstance(word := TO_CLIENT.decode(frame.payload), words.Beat):
                    return word
        return None


@asynccontextmanager
async def subscribed(
    world: FeedWorld, client: str = "", login: tuple[str, str] | None = None, **facts: Any
) -> AsyncIterator[tuple[Conversation, Any]]:
    """The conversation of a client with the administration, and the answer to its Subscribe."""
    credentials: dict[str, Any] = dict(zip(("user", "password"), login or (), strict=False))
    client = client or f"bare{next(_numbers)}"
    async with (
        fairlead.connect(world.server.url, name=client, **credentials) as connection,
        connection.converse("_STREAMS") as talk,
    ):
        await talk.send(encode(words.Subscribe(stream=facts.pop("stream", world.stream), client=client, **facts)))
        answer = FROM_ADMINISTRATION_TO_CLIENT.decode((await talk.receive(PATIENCE_S)).body)
        yield talk, answer


@asynccontextmanager
async def line_to(world: FeedWorld, adapter: str, client: str = "") -> AsyncIterator[Line]:
    """An accepted line to this adapter, on which nothing was started yet."""
    client = client or f"bare{next(_numbers)}"
    async with subscribed(world, client) as (_, answer):
        offer = next(one for one in answer.lines if one.adapter == adapter)
        async with Line(world.adapters[adapter].address) as line:
            line.say(words.Hello(stream=world.stream, token=offer.token, client=client))
            line.welcome = await line.word(words.Welcome, words.Refusal)
            assert isinstance(line.welcome, words.Welcome), line.welcome
            yield line


async def records_of(line: Line, first: int, last: int) -> list[Record]:
    """All records with these numbers, asked for as a range."""
    line.say(words.Fill(id=1, first=first, last=last))
    found: list[Record] = []
    while (frame := await line.frame()) is not None:
        if frame.kind == FILL:
            if frame.payload:
                block = Block.parse(bytes(frame.payload))
                found += [block.record(index) for index in range(block.count)]
            if frame.is_last:
                return [one for one in found if first <= one.number <= last]
        elif frame.kind == WORD:
            word = TO_CLIENT.decode(frame.payload)
            assert not isinstance(word, words.Unavailable), word
    raise AssertionError("the line was closed")


async def order(world: FeedWorld, do: Any, login: tuple[str, str] | None = None, **facts: Any) -> Any:
    """What an operator says, and what the administration answers."""
    credentials: dict[str, Any] = dict(zip(("user", "password"), login or (), strict=False))
    async with (
        fairlead.connect(world.server.url, name=f"operator{next(_numbers)}", **credentials) as connection,
        connection.converse("_STREAMS") as talk,
    ):
        await talk.send(encode(words.Order(do=do, stream=world.stream, **facts)))
        return FROM_ADMINISTRATION_TO_OPERATOR.decode((await talk.receive(PATIENCE_S)).body)


async def send_admin(world: FeedWorld, kind: Any = "text", text: str = "") -> str:
    """Order an administrative message; its id."""
    id_ = f"admin{next(_numbers)}"
    answer = await order(world, "send", admin=words.Admin(id=id_, kind=kind, body=text.encode()))
    assert isinstance(answer, words.StreamFacts), answer
    return id_


async def aligned(world: FeedWorld) -> tuple[int, int]:
    """Both adapters have made the same, as far as both still have it; the range of numbers compared.

    Numbers may differ only between an administrative record that was displaced (or became a void) and its intended
    place: never by more than there are such records, and not at all behind the last of them.
    """

    async def both() -> tuple[list[Record], list[Record]] | None:
        async with line_to(world, world.names[0]) as one, line_to(world, world.names[1]) as two:
            first, last = max(one.welcome.first, two.welcome.first, 1), min(one.welcome.last, two.welcome.last)
            if one.welcome.last != two.welcome.last or last < first:
                return None
            return await records_of(one, first, last), await records_of(two, first, last)

    ours, theirs = await world.until(both, "both adapters have come equally far")
    for records in (ours, theirs):
        assert [record.number for record in records] == list(range(records[0].number, records[-1].number + 1))
    ways = [[one for one in records if one.kind not in (ADMIN, ADMIN_VOID)] for records in (ours, theirs)]
    admins = [[decode_admin(one.body).id for one in records if one.kind == ADMIN] for records in (ours, theirs)]
    told = max(len(one) for one in admins) + sum(one.kind == ADMIN_VOID for one in (*ours, *theirs))
    if told:  # a displaced one may be at the very edge
        places = [{(one.source, one.place): one for one in way} for way in ways]
        common = [place for place in places[0] if place in places[1]]
        assert len(common) >= len(ways[0]) - told
        ways = [[way[place] for place in common] for way in places]
    for mine, yours in zip(*ways, strict=True):
        assert mine._replace(number=0) == yours._replace(number=0)
        assert abs(mine.number - yours.number) <= told, (mine, yours)
    quiet = max((one.number for one in (*ours, *theirs) if one.kind in (ADMIN, ADMIN_VOID)), default=0)
    assert [one for one in ours if one.number > quiet] == [one for one in theirs if one.number > quiet]
    both_have = [id_ for id_ in admins[0] if id_ in admins[1]]
    assert both_have == [id_ for id_ in admins[1] if id_ in admins[0]]
    return ours[0].number, ours[-1].number


def other(world: FeedWorld, name: str) -> str:
    """The other one of two adapters."""
    (found,) = set(world.names) - {name}
    return found
