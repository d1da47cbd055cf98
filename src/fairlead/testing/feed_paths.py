"""The ways between programs, adapters and the stream administration, as relays that a test can hurt.

A `Path` stands at an address of its own in front of a target. It knows who dials by the first word of a line (`hello`
of a program, `link` of an adapter), so that one client's way can be cut and all the others left alone. Ways that do not
carry frames (`framed=False`: to the administration) are hurt as a whole.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import msgspec

WORD: Final = 1
BLOCK: Final = 2
FILL: Final = 3
EVERYBODY: Final = ""
CHUNK: Final = 1 << 16
WAITING_CHUNKS: Final = 1024  # on the way, when it is slow or held


class Seen(NamedTuple):
    """One frame that went over a framed path."""

    at_s: float  # time.monotonic()
    who: str  # who dialled
    to_adapter: bool  # or from it
    kind: int
    content: bytes  # behind the byte of the kind

    @property
    def word(self) -> dict[str, Any]:
        """Of a WORD; empty for all others."""
        return dict(msgspec.msgpack.decode(self.content)) if self.kind == WORD else {}

    @property
    def numbers(self) -> range:
        """Of a BLOCK: the message numbers in it."""
        if self.kind != BLOCK:
            return range(0)
        count, first = int.from_bytes(self.content[12:16], "little"), int.from_bytes(self.content[24:32], "little")
        return range(first, first + count)


Rewrite = Callable[[Seen], bytes | None]
"""A frame's content as it is to go on, or None: it is lost. Called by the relay's thread."""


class Paths:
    """The thread in which relays run; closes all of them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="feed-paths", daemon=True)
        self._paths: list[Path] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path in self._paths:
            self.run(path._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def open(self, target: str, *, framed: bool = True) -> Path:
        """A new way to HOST:PORT, which need not be there yet."""
        path = Path(self, target, framed)
        self.run(path._open())
        self._paths.append(path)
        return path

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """In that thread, from any other one; returns when it is done."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result()


class Path:
    """One relayed address. `who` is a client's or adapter's name in all methods; none: everybody who dials here."""

    def __init__(self, paths: Paths, target: str, framed: bool) -> None:
        self._paths = paths
        self.target = target
        self.address = ""
        self.seen: list[Seen] | None = None  # set to a list to have frames kept there
        self.rewrite: Rewrite | None = None
        self._framed = framed
        self._server: asyncio.Server | None = None
        self._port = 0
        self._crossings: set[_Crossing] = set()
        self._cut: set[str] = set()
        self._held: set[str] = set()
        self._slow_s: dict[str, float] = {}

    # -- hurting it

    def cut(self, *who: str) -> None:
        """Close these connections, and every new one, until `heal`."""
        self._paths.run(self._do_cut(set(who or {EVERYBODY})))

    def hold(self, *who: str) -> None:
        """Nothing arrives any more, in either direction, and nobody is told; until `heal`."""
        self._held |= set(who or {EVERYBODY})

    def slow(self, seconds: float, *who: str) -> None:
        """Everything takes so long."""
        self._slow_s |= dict.fromkeys(who or (EVERYBODY,), seconds)

    def break_off(self, *who: str) -> None:
        """Close these connections; new ones are let through."""
        self._paths.run(self._do_break(set(who or {EVERYBODY})))

    def heal(self) -> None:
        """As it was."""
        self._cut, self._held, self._slow_s = set(), set(), {}
        self.rewrite = None

    # -- looking at it

    def who(self) -> list[str]:
        """Those who are connected now."""
        return sorted(crossing.who for crossing in self._crossings)

    # -- inside the thread

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = [crossing.task for crossing in self._crossings]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _do_cut(self, who: set[str]) -> None:
        self._cut |= who
        await self._do_break(who)

    async def _do_break(self, who: set[str]) -> None:
        for crossing in list(self._crossings):
            if crossing.who in who or EVERYBODY in who:
                crossing.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        crossing = _Crossing(self, reader, writer, task)
        self._crossings.add(crossing)
        try:
            if EVERYBODY not in self._cut:
                await crossing.carry()
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # one of the ends has gone, or the path is closed: the other end is told below
        finally:
            crossing.abort()
            self._crossings.discard(crossing)

    def _is_cut(self, who: str) -> bool:
        return bool(self._cut & {who, EVERYBODY})

    def _is_held(self, who: str) -> bool:
        return bool(self._held & {who, EVERYBODY})

    def _delay_s(self, who: str) -> float:
        return self._slow_s.get(who, self._slow_s.get(EVERYBODY, 0.0))


class _Crossing:
    """One connection, and the one that was made to the target for it."""

    def __init__(
        self, path: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[Any]
    ) -> None:
        self.who = ""
        self.task = task
        self._path = path
        self._reader = reader
        self._writers = [writer]

    async def carry(self) -> None:
        first = b""
        if self._path._framed:
            first = await _frame(self._reader)
            if first[4] == WORD:
                with suppress(msgspec.DecodeError, AttributeError):  # whoever sends garbage goes on as nobody
                    word = msgspec.msgpack.decode(first[5:])
                    self.who = str(word.get("client") or word.get("adapter") or "")
        if self._path._is_cut(self.who):
            return
        host, _, port = self._path.target.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        self._writers.append(writer)
        way_there = asyncio.create_task(self._pump(self._reader, writer, True, first))
        way_back = asyncio.create_task(self._pump(reader, self._writers[0], False, b""))
        try:
            await asyncio.wait((way_there, way_back), return_when=asyncio.FIRST_COMPLETED)
        finally:
            way_there.cancel()
            way_back.cancel()
            await asyncio.gather(way_there, way_back, return_exceptions=True)

    def abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_adapter: bool, first: bytes
    ) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WAITING_CHUNKS)
        arriving = asyncio.create_task(self._arrive(waiting, writer))
        try:
            data = first or await self._read(reader)
            while data and not arriving.done():
                if self._path._framed:
                    data = self._pass_frame(data, to_adapter)
                if data:
                    await waiting.put((time.monotonic() + self._path._delay_s(self.who), data))
                data = await self._read(reader)
            await waiting.put((time.monotonic() + self._path._delay_s(self.who), b""))
            await arriving
        finally:
            arriving.cancel()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await _frame(reader) if self._path._framed else await reader.read(CHUNK)
        except asyncio.IncompleteReadError:
            return b""  # half a frame is of no use to anybody

    def _pass_frame(self, frame: bytes, to_adapter: bool) -> bytes:
        path = self._path
        if path.seen is None and path.rewrite is None:
            return frame
        seen = Seen(time.monotonic(), self.who, to_adapter, frame[4], frame[5:])
        if path.seen is not None:
            path.seen.append(seen)
        if path.rewrite is None:
            return frame
        content = path.rewrite(seen)
        return b"" if content is None else (len(content) + 1).to_bytes(4, "little") + frame[4:5] + content

    async def _arrive(self, waiting: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while True:
            due_s, data = await waiting.get()
            while (left_s := due_s - time.monotonic()) > 0 or self._path._is_held(self.who):
                await asyncio.sleep(max(left_s, 0.005))
            if not data:
                return  # the end arrives in its turn too
            writer.write(data)
            await writer.drain()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(max(1, int.from_bytes(head, "little")))
