"""What an arena holds, for an onlooker with a read-only mapping (`fairlead status`, a supervisor that clears up).

Owner and managers count their own in `arena`; this only looks, so that it works whoever is stopped or dead.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from fairlead.store import layout as at


class Stored(NamedTuple):
    """One stored message: how many instructions are finished, of how many (-1: not known yet)."""

    handle: int
    uid: int
    sender_index: int
    body_bytes: int
    relinquish_count: int
    relinquish_limit: int


def census(arena: memoryview) -> tuple[int, int]:
    """Stored messages and the bytes of their bodies."""
    count = size = 0
    for offset in live_offsets(arena):
        count += 1
        size += struct.unpack_from("<I", arena, offset + at.SLOT_BODY_LENGTH)[0]
    return count, size


def room(arena: memoryview) -> tuple[int, int]:
    """Bytes of the blocks in use, and of all there can be."""
    longs = arena[: at.ARENA_BACKED + 8].cast("Q")
    blocks, backed = longs[at.ARENA_BLOCKS // 8], longs[at.ARENA_BACKED // 8]
    first = at.arena_plan(blocks).directory
    directory = arena[first : first + 4 * min(blocks, backed)].cast("I").tolist()
    return (len(directory) - directory.count(at.DIRECTORY_FREE)) * at.BLOCK_BYTES, blocks * at.BLOCK_BYTES


def live_offsets(arena: memoryview) -> list[int]:
    """Where the live slots are."""
    longs = arena[: len(arena) // 8 * 8].cast("Q")
    blocks, backed = longs[at.ARENA_BLOCKS // 8], longs[at.ARENA_BACKED // 8]
    plan = at.arena_plan(blocks)
    directory = arena[plan.directory : plan.directory + 4 * min(blocks, backed)].cast("I").tolist()
    found: list[int] = []
    for block, kind in enumerate(directory):
        start = plan.first_block + block * at.BLOCK_BYTES + at.SLAB_FIRST
        if kind & at.DIRECTORY_RUN:
            if longs[start // 8] & at.WORD_LIVE:
                found.append(start)
        elif 0 < kind < len(at.SIZE_CLASSES):
            size = at.SIZE_CLASSES[kind]
            end = start + (at.BLOCK_BYTES - at.SLAB_FIRST) // size * size
            words = longs[start // 8 : end // 8 : size // 8].tolist()
            found += [start + number * size for number, word in enumerate(words) if word & at.WORD_LIVE]
    return found


def handles(arena: memoryview, manager: int, most: int) -> list[int]:
    """The handles of stored messages, at most so many."""
    words = arena[: len(arena) // 8 * 8].cast("Q")
    return [
        manager << at.HANDLE_ARENA_SHIFT
        | offset // at.HANDLE_SLOT_UNIT << at.HANDLE_SLOT_SHIFT
        | words[offset // 8] >> at.WORD_GENERATION_SHIFT
        for offset in live_offsets(arena)[:most]
    ]


def describe(arena: memoryview, handle: int) -> Stored | None:
    """Counts and limit of one handle, or None when it is not stored any more."""
    offset = (handle >> at.HANDLE_SLOT_SHIFT & at.HANDLE_SLOT_MASK) * at.HANDLE_SLOT_UNIT
    if offset + at.SLOT_HEADER_BYTES > len(arena):
        return None
    word, _, size, index, uid = struct.unpack_from(at.SLOT_FORMAT, arena, offset)
    generation = word >> at.WORD_GENERATION_SHIFT
    if generation != handle & at.WORD_GENERATION_MASK or not word & at.WORD_LIVE:
        return None
    limit = word >> at.WORD_LIMIT_SHIFT & at.WORD_LIMIT_MASK
    return Stored(handle, uid, index, size, (word & at.WORD_TOUCHES_MASK).bit_count(), limit or -1)
