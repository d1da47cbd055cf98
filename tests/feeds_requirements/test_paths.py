"""The relays that these tests hurt streams with do what they say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fairlead.feeds import words
from fairlead.feeds.frames import word_frame
from fairlead.testing.feed_paths import Paths, Seen
from tests.feeds_requirements.tools import Line


def hello(client: str) -> words.Hello:
    return words.Hello(stream="s", token="t", client=client)


@asynccontextmanager
async def echo() -> AsyncIterator[str]:
    """Answers whatever comes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_one_client_is_cut_off_and_the_other_is_not() -> None:
    async with echo() as target:
        with Paths() as paths:
            path = await asyncio.to_thread(paths.open, target)
            async with Line(path.address) as one, Line(path.address) as two:
                for line, name in ((one, "one"), (two, "two")):
                    line.say(hello(name))
                    assert (await line.frame()) is not None
                assert path.who() == ["one", "two"]
                path.cut("one")
                assert await one.frame() is None
                two.say(words.Stop())
                assert await two.frame() is not None
                async with Line(path.address) as again:
                    again.say(hello("one"))
                    assert await again.frame() is None
                path.heal()
                async with Line(path.address) as again:
                    again.say(hello("one"))
                    assert await again.frame() is not None


async def test_frames_are_held_slowed_lost_and_changed() -> None:
    async with echo() as target:
        with Paths() as paths:
            path = await asyncio.to_thread(paths.open, target)
            async with Line(path.address) as line:
                line.say(hello("one"))
                await line.frame()
                path.hold("one")
                line.say(words.Stop())
                with pytest.raises(TimeoutError):
                    await line.frame(0.2)
                path.heal()
                assert await line.frame() is not None
                path.slow(0.2)
                began = time.monotonic()
                line.say(words.Stop())
                await line.frame()
                assert time.monotonic() - began >= 0.39
                path.heal()
                path.seen = []

                def rewrite(seen: Seen) -> bytes | None:
                    return None if seen.word.get("say") == "stop" else seen.content

                path.rewrite = rewrite
                line.say(words.Stop())
                line.writer.write(word_frame(hello("two")))
                frame = await line.frame()
                assert frame is not None
                assert b"two" in bytes(frame.payload)
                assert [(seen.to_adapter, seen.word["say"]) for seen in path.seen] == [
                    (True, "stop"),
                    (True, "hello"),
                    (False, "hello"),
                ]
