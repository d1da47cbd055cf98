"""Keeps lines supplied from the retained buffer: each gets the next blocks when its socket has room.

No line waits for another one. Lines at the same place share what was looked up for the first of them, and one that has
far to go gets it in turns, so that the loop can do other things in between.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from fairlead.feeds import words
from fairlead.feeds.block_codec import HEAD_BYTES
from fairlead.feeds.edge.answering import Piece, Question, answer
from fairlead.feeds.frames import block_header

if TYPE_CHECKING:
    from fairlead.feeds.adapter import Adapter
    from fairlead.feeds.edge.faults import Faults
    from fairlead.feeds.edge.line import Line

__all__ = ["Supply"]

NEWEST: Final = words.Start(at="new")


class Found(NamedTuple):
    """What a line at some place is to be sent."""

    buffers: Piece  # head, block, head, block, …
    cursor: int  # behind them
    missed: tuple[int, int] | None  # numbers that are no longer there
    is_all: bool  # there is nothing behind the cursor yet


class Supply:
    """The lines that were started, and what they have not been sent yet."""

    def __init__(self, machine: Adapter, send_bytes: int, faults: Faults | None = None) -> None:
        self._machine = machine
        self._send_bytes = send_bytes
        self._faults = faults
        self._loop = asyncio.get_running_loop()
        self._started: dict[Line, None] = {}
        self._behind: dict[Line, None] = {}
        self._is_going_on = False
        self._is_held_back = False
        self.counters = {"blocks_sent": 0, "missed": 0}

    def start(self, line: Line, word: words.Start) -> None:
        """Send from there on."""
        line.cursor, line.stop_after = self._machine.cursor(word), None
        self._started[line] = None
        self.later(line)

    def stop(self, line: Line) -> None:
        """Heartbeats only."""
        line.cursor = line.stop_after = None
        self._started.pop(line, None)

    def ask(self, line: Line, question: Question) -> None:
        line.answers.append(answer(self._machine, question))
        self.later(line)

    def forget(self, line: Line) -> None:
        self.stop(line)
        self._behind.pop(line, None)

    def wake(self) -> None:
        """There are new records."""
        shared: dict[int, Found] = {}
        for line in list(self._started):
            if line.has_room and line not in self._behind and self._turn(line, shared):
                self.later(line)

    def later(self, line: Line) -> None:
        """When the loop comes to it."""
        self._behind[line] = None
        if not self._is_going_on:
            self._is_going_on = True
            self._loop.call_soon(self._go_on)

    def stop_after(self, last: int) -> None:
        """Programs get no more than up to this number, until they say start again (STR-78)."""
        for line in self._started:
            line.stop_after = last

    def hold_back(self, seconds: float) -> None:
        """For tests: blocks go out only after this time."""
        self._is_held_back = True
        self._loop.call_later(seconds, self._release)

    def _release(self) -> None:
        self._is_held_back = False
        self.wake()

    def _go_on(self) -> None:
        """One turn for each line that is behind."""
        self._is_going_on = False
        behind, self._behind = self._behind, {}
        shared: dict[int, Found] = {}
        for line in behind:
            if line.has_room and self._turn(line, shared):
                self.later(line)

    def _turn(self, line: Line, shared: dict[int, Found]) -> bool:
        """Send one piece of an answer, and some blocks; is there more?"""
        if line.answers:
            piece = next(line.answers[0], None)
            if piece is None:
                line.answers.popleft()
            else:
                line.write_all(piece)
        more = line.cursor is not None and line.has_room and not self._is_held_back and self._send(line, shared)
        return (more or bool(line.answers)) and line.has_room

    def _send(self, line: Line, shared: dict[int, Found]) -> bool:
        """The next blocks; are there more behind them?"""
        assert line.cursor is not None
        found = shared.get(line.cursor)
        if found is None:
            found = shared[line.cursor] = self._look_up(line.cursor)
        buffers, line.cursor, missed, is_all = found
        if missed is not None:
            self.counters["missed"] += missed[1] - missed[0] + 1
            line.say(words.Missed(first=missed[0], last=missed[1]))
        if line.stop_after is not None:
            buffers = self._up_to_stop(line, line.stop_after, buffers)
        if self._faults is not None and self._faults.spoils_blocks:
            buffers = self._faults.spoil(list(buffers))
        if buffers:
            line.write_all(buffers)
            self.counters["blocks_sent"] += len(buffers) // 2
        return not is_all

    def _up_to_stop(self, line: Line, last: int, buffers: Piece) -> Piece:
        """Of head, block, head, block, …: those up to the number at which the line stops."""
        for at in range(1, len(buffers), 2):
            if first_number(buffers[at]) > last:
                self.stop(line)
                return buffers[: at - 1]
        return buffers

    def _look_up(self, cursor: int) -> Found:
        found = self._machine.read(cursor, self._send_bytes)
        epoch = self._machine.epoch
        buffers: list[bytes | memoryview] = []
        for block in found.blocks:
            buffers.append(block_header(len(block), epoch))
            buffers.append(block)
        return Found(buffers, found.cursor, found.missed, found.cursor >= self._machine.cursor(NEWEST))


def first_number(block: bytes | memoryview) -> int:
    """The message number of a block's first record (docs/feeds.md, section 2)."""
    return int.from_bytes(block[HEAD_BYTES - 8 : HEAD_BYTES], "little")
