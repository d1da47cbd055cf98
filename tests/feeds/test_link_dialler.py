"""The backup's side of the link: what it says first, whom it dials, and what it does about those who are not fair."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fairlead.feeds import words
from fairlead.feeds.edge.faults import Faults
from fairlead.feeds.edge.link import LinkDialler, Target
from fairlead.feeds.edge.running import loop_factory
from fairlead.feeds.frames import Frame, FrameParser, word_frame
from fairlead.feeds.speech import TO_ADAPTER, LinkHears

WELCOME = words.Welcome(
    adapter="a", stream="prices", incarnation=1, epoch=1, role="active", first=1, last=1, heartbeat_s=0.2
)


class Backup:
    """Remembers what a dialler tells."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.link = LinkDialler(
            lambda token: words.LinkHello(stream="prices", token=token, adapter="b", incarnation=2, epoch=1),
            up=lambda peer: self.told.append(("up", peer)),
            heard=self.heard,
            down=lambda peer: self.told.append(("down", peer)),
        )

    def heard(self, peer: str, word: LinkHears) -> None:
        self.told.append(type(word).__name__)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.005)


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def active(*behaviours: Serve) -> AsyncIterator[tuple[str, list[words.LinkHello]]]:
    """An active that behaves so for one link after the other; its address, and the hellos it heard."""
    hellos: list[words.LinkHello] = []
    left = list(behaviours)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            frames: list[Frame] = []
            parser = FrameParser()
            while not frames:
                frames = parser.feed(await reader.read(65536))
            hello = TO_ADAPTER.decode(frames[0].payload)
            assert isinstance(hello, words.LinkHello)
            hellos.append(hello)
            await (left.pop(0) if len(left) > 1 else left[0])(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", hellos
    finally:
        server.close()
        await server.wait_closed()


async def fair(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(word_frame(WELCOME) + word_frame(words.Final(admin="x", n=3)))
    while await reader.read(65536):
        pass


async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(word_frame(words.Refusal(code="stream-refused", why="not here")))


async def babbling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\xff" * 4096)


async def hurried(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(word_frame(WELCOME))
    await writer.drain()


def test_whatever_the_active_does_it_is_dialled_again_until_there_is_a_link() -> None:
    async def work() -> None:
        backup = Backup()
        running = asyncio.create_task(backup.link.run())
        async with active(refusing, babbling, hurried, fair) as (address, hellos):
            backup.link.aim(Target("a", address, "t"))
            await backup.until(lambda: "Final" in backup.told)
            assert [one for one in backup.told if isinstance(one, tuple)] == [("up", "a"), ("down", "a"), ("up", "a")]
            assert {hello.token for hello in hellos} == {"t"}
            assert len(hellos) == 4
            backup.link.say(words.Decided(admin="x", revision=0, n=3, b=2, t=8, result="kept"))
            backup.link.cut(True)
            await backup.until(lambda: not backup.link.is_up)
            assert backup.told[-1] == ("down", "a")
            backup.link.cut(False)
            await backup.until(lambda: backup.link.is_up)
            backup.link.aim(None)
            await backup.until(lambda: not backup.link.is_up)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(work())


def test_another_active_is_dialled_instead() -> None:
    async def work() -> None:
        backup = Backup()
        running = asyncio.create_task(backup.link.run())
        async with active(fair) as (first, _), active(fair) as (second, hellos):
            backup.link.aim(Target("a", first, "t"))
            await backup.until(lambda: ("up", "a") in backup.told)
            backup.link.aim(Target("c", second, "u"))
            await backup.until(lambda: ("up", "c") in backup.told)
            assert ("down", "a") in backup.told
            assert hellos[0].token == "u"
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(work())


def test_what_is_said_on_a_link_that_is_just_closing_is_dropped() -> None:
    """With uvloop such a write raises, and would end the whole adapter."""

    async def work() -> None:
        backup = Backup()
        running = asyncio.create_task(backup.link.run())
        async with active(fair) as (address, _):
            backup.link.aim(Target("a", address, "t"))
            await backup.until(lambda: backup.link.is_up)
            backup.link.cut(True)
            for _ in range(20):  # its end has not been read yet
                backup.link.say(words.Final(admin="x", n=3))
                await asyncio.sleep(0)
            await backup.until(lambda: not backup.link.is_up)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(work())


def test_it_ends_when_it_is_cancelled_whatever_has_just_changed() -> None:
    async def work() -> None:
        for turns in range(6):
            backup = Backup()
            backup.link.aim(Target("a", "nowhere", "t"))
            running = asyncio.create_task(backup.link.run())
            await backup.until(lambda: backup.link._told)  # noqa: B023
            backup.link.aim(None)
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
            _, pending = await asyncio.wait([running], timeout=10)
            assert not pending, f"it did not end when it was cancelled {turns} turns of the loop after a change"

    asyncio.run(work())


def test_an_address_that_is_none_is_only_told_of() -> None:
    async def work() -> None:
        backup = Backup()
        running = asyncio.create_task(backup.link.run())
        backup.link.aim(Target("a", "nowhere", "t"))
        await backup.until(lambda: backup.link._told)
        assert "nowhere" in backup.link._told
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(work())


def test_orders_for_faults_are_known_or_refused() -> None:
    faults = Faults()
    assert faults.order({"do": "lines", "drop": 2, "corrupt": 1, "delay_s": 0.5})
    assert (faults.drop_blocks, faults.corrupt_blocks, faults.delay_lines_s) == (2, 1, 0.5)
    assert faults.order({"do": "mangle", "on": True})
    assert faults.order({"do": "source", "delay_s": 3})
    assert faults.is_mangling
    assert faults.delay_source_s == 3
    assert faults.order({"do": "clear"})
    assert vars(faults) == vars(Faults())
    assert not faults.order({"do": "sing"})
