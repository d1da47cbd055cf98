"""A source over TCP: numbered packets, lines, or FIX messages; dialled again for ever, one address after the other."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Final

from fairlead.feeds.edge.sources.udp import limits_of
from fairlead.feeds.sources import mold
from fairlead.feeds.sources.actions import Action, Ask
from fairlead.feeds.sources.events import SourceEvent
from fairlead.feeds.sources.lines import FixSplitter, LineSplitter, PacketSplitter
from fairlead.feeds.sources.recovery import NEVER, Recovery
from fairlead.feeds.sources.runs import Run, run_of
from fairlead.feeds.sources.settings import TcpSource, split_address
from fairlead.feeds.sources.telling import Telling

__all__ = ["TcpLine"]

READ_BYTES: Final = 1 << 18
CONNECT_S: Final = 5.0
SEQUENCE_DIGITS_MAX: Final = 19


class TcpLine:
    """`events` ends only by being closed."""

    def __init__(self, settings: TcpSource) -> None:
        self._settings = settings
        self._telling = Telling(settings)
        limits = limits_of(settings)
        if settings.framing != "mold":
            limits = limits._replace(silent_s=NEVER)  # no heartbeats: silence says nothing
        self._recovery = Recovery(
            has_rewind=settings.framing == "mold",
            start=settings.first or (1 if settings.sequence == "count" and settings.framing != "mold" else 0),
            session=settings.session,
            limits=limits,
        )
        self._tag = (
            re.compile(rb"\x01%d=(\d{1,19})\x01" % int(settings.sequence)) if settings.sequence != "count" else None
        )

    @property
    def counters(self) -> dict[str, int]:
        return self._recovery.counters

    async def events(self) -> AsyncIterator[SourceEvent]:
        loop = asyncio.get_running_loop()
        recovery, telling = self._recovery, self._telling
        recovery.on_start(loop.time())
        turn = 0
        while True:
            host, port = split_address(self._settings.connect[turn % len(self._settings.connect)])
            turn += 1
            try:
                async with asyncio.timeout(CONNECT_S):
                    reader, writer = await asyncio.open_connection(host, port, limit=READ_BYTES)
            except OSError as error:  # a timeout is one too
                for event in telling.events(recovery.on_down(f"{host}:{port} cannot be reached: {error}")):
                    yield event
                await asyncio.sleep(self._settings.retry_s)
                continue
            try:
                async for actions in self._read(reader, writer):
                    for event in telling.events(actions):
                        yield event
                    for event in telling.troubles(recovery, loop.time()):
                        yield event
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            for event in telling.events(recovery.on_down(f"{host}:{port} ended the connection")):
                yield event
            await asyncio.sleep(self._settings.retry_s)

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[list[Action]]:
        """What comes, until the connection ends."""
        loop = asyncio.get_running_loop()
        recovery = self._recovery
        is_mold = self._settings.framing == "mold"
        packets, messages = PacketSplitter(), LineSplitter() if self._settings.framing == "lines" else FixSplitter()
        if is_mold:
            writer.write(self._wish())
        while True:
            data: bytes | None = None
            try:
                async with asyncio.timeout_at(recovery.deadline_s if recovery.deadline_s < NEVER else None):
                    data = await reader.read(READ_BYTES)
            except TimeoutError:
                pass
            except OSError:
                return
            if data == b"":
                return
            actions: list[Action] = []
            now_s = loop.time()
            if data and is_mold:
                try:
                    found = packets.feed(data)
                except ValueError as error:
                    recovery.note(str(error))
                    return
                for packet in found:
                    actions += recovery.on_packet(0, packet, now_s)
            elif data:
                for run in self._numbered(messages.feed(data)):
                    actions += recovery.on_run(0, b"", run, now_s)
                for what in messages.troubles:
                    recovery.note(what)
                messages.troubles.clear()
            if now_s >= recovery.deadline_s:
                actions += recovery.on_tick(now_s)
            for action in actions:
                if isinstance(action, Ask):
                    writer.write(action.question)
            yield actions

    def _wish(self) -> bytes:
        """Everything from here on: the next sequence of the session, or of whatever session there is."""
        position = self._recovery.position
        first = position + 1 if position else self._settings.first
        session = (self._recovery.session or self._settings.session).encode("ascii", "replace")
        return mold.HEADER.pack(session.ljust(mold.SESSION_BYTES), first, mold.END_OF_SESSION)

    def _numbered(self, run: Run) -> list[Run]:
        """By count as they are, or by the sequence that each message has in itself."""
        if self._tag is None:
            return [run]
        runs = []
        for body in run.bodies():
            found = self._tag.search(body)
            sequence = int(found[1]) if found else 0
            if 1 <= sequence <= mold.SEQUENCE_MAX:
                runs.append(run_of(sequence, [body]))
            else:
                self._recovery.note("a message without a sequence")
        return runs
