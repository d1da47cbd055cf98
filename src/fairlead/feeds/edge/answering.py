"""What a program gets for a question on its line, piece by piece, as the socket takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from fairlead.feeds import words
from fairlead.feeds.adapter import Adapter
from fairlead.feeds.frames import fill_header, word_frame

__all__ = ["Piece", "Question", "answer"]

Piece: TypeAlias = Sequence[bytes | memoryview]
Question: TypeAlias = words.Fill | words.SnapshotAsk | words.FetchAdmin

PIECE_BYTES: Final = 256 << 10


def answer(machine: Adapter, question: Question) -> Iterator[Piece]:
    """It is looked up when the first piece is asked for."""
    match question:
        case words.Fill():
            yield from _fill(machine, question)
        case words.FetchAdmin():
            yield [word_frame(machine.fetch(question))]
        case words.SnapshotAsk():
            found = machine.snapshot(question)
            if isinstance(found, words.Unavailable):
                yield [word_frame(found)]
            else:
                for part in found:
                    yield [word_frame(part)]


def _fill(machine: Adapter, word: words.Fill) -> Iterator[Piece]:
    filled = machine.fill(word)
    buffers: list[bytes | memoryview] = []
    size = 0
    for block in filled.blocks:
        buffers += (fill_header(len(block), word.id, False), block)
        size += len(block)
        if size > PIECE_BYTES:
            yield buffers
            buffers, size = [], 0
    if filled.is_complete:
        buffers.append(fill_header(0, word.id, True))
    else:
        buffers.append(word_frame(words.Unavailable(id=word.id, why=filled.why, first=filled.oldest)))
    yield buffers
