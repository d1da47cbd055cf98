"""A plain TCP relay that can be cut, stalled and refused: for links, for sockets of any kind, and to capture them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any

CHUNK = 256 << 10


class Wire:
    """Bytes go through unread. `cut` resets what is open; `stalled` and `refusing` are plain switches."""

    def __init__(self, behind: tuple[str, int], *, capture_bytes: int = 0) -> None:
        self.behind = behind
        self.address = ("127.0.0.1", 0)
        self.stalled = False
        self.refusing = False
        self.accepted = 0
        self.passed = {"up": 0, "down": 0}
        self.capture_bytes = capture_bytes
        self.captured: list[dict[str, bytearray]] = []
        self.writers: set[asyncio.StreamWriter] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.server: asyncio.Server | None = None
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="wire", daemon=True)

    def __enter__(self) -> Wire:
        self.thread.start()
        self.call(self.listen())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.call(self.end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    @property
    def open(self) -> int:
        """Connections that are relayed now."""
        return len(self.writers) // 2

    def cut(self) -> None:
        self.call(self.reset())

    def call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    async def listen(self) -> None:
        self.server = await asyncio.start_server(self.accept, *self.address, backlog=1024)
        self.address = self.server.sockets[0].getsockname()[:2]

    async def reset(self) -> None:
        for writer in list(self.writers):
            writer.transport.abort()

    async def end(self) -> None:
        if self.server is not None:
            self.server.close()
        for _ in range(5):  # also those that were accepted and not looked at yet
            for task in list(self.tasks):
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            await self.reset()
            await asyncio.sleep(0.005)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        self.accepted += 1
        task = self.loop.create_task(self.relay(reader, writer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            behind_reader, behind_writer = await asyncio.open_connection(*self.behind)
        except OSError:
            self.writers.discard(writer)
            writer.transport.abort()
            return
        self.writers.add(behind_writer)
        kept = {"up": bytearray(), "down": bytearray()}
        self.captured.append(kept)
        ways = [
            self.loop.create_task(self.carry(reader, behind_writer, "up", kept["up"])),
            self.loop.create_task(self.carry(behind_reader, writer, "down", kept["down"])),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for one in (writer, behind_writer):
                self.writers.discard(one)
                one.close()
                with suppress(OSError):
                    await one.wait_closed()

    async def carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str, kept: bytearray
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                while self.stalled:
                    await asyncio.sleep(0.02)
                self.passed[way] += len(data)
                kept += data[: max(0, self.capture_bytes - len(kept))]
                writer.write(data)
                await writer.drain()
