"""What an onlooker sees in an arena is what its owner knows."""

from __future__ import annotations

import struct

import pytest

from fairlead.store import layout
from fairlead.store.arena import Arena
from fairlead.store.census import census, describe, handles

BLOCKS = 16


@pytest.fixture
def buffer() -> bytearray:
    made = bytearray(layout.arena_plan(BLOCKS).size)
    struct.pack_into("<QQ", made, layout.ARENA_BLOCKS, BLOCKS, BLOCKS)
    struct.pack_into("<I", made, layout.HEADER_INDEX, 3)
    return made


def test_an_empty_arena_holds_nothing(buffer: bytearray) -> None:
    assert census(memoryview(buffer)) == (0, 0)


def put(buffer: bytearray, block: int, size_class: int, slot: int, *, word: int, size: int) -> int:
    """Write a slot as its owner would; the handle of it."""
    plan = layout.arena_plan(BLOCKS)
    struct.pack_into("<I", buffer, plan.directory + 4 * block, size_class)
    step = 0 if size_class & layout.DIRECTORY_RUN else layout.SIZE_CLASSES[size_class]
    offset = plan.first_block + block * layout.BLOCK_BYTES + layout.SLAB_FIRST + slot * step
    struct.pack_into(layout.SLOT_FORMAT, buffer, offset, word, layout.NO_POSITION, size, 7, 99)
    generation = word >> layout.WORD_GENERATION_SHIFT
    return 3 << layout.HANDLE_ARENA_SHIFT | offset // 64 << layout.HANDLE_SLOT_SHIFT | generation


@pytest.mark.requirement("SRV-127", state="half")
def test_slots_of_slabs_and_runs_are_counted_and_described(buffer: bytearray) -> None:
    live = layout.WORD_LIVE | 5 << layout.WORD_GENERATION_SHIFT
    small = put(buffer, 0, 1, 2, word=live | 0b101 | 3 << layout.WORD_LIMIT_SHIFT, size=40)
    large = put(buffer, 4, layout.DIRECTORY_RUN | 2, 0, word=live, size=100_000)
    freed = put(buffer, 0, 1, 3, word=5 << layout.WORD_GENERATION_SHIFT, size=1)
    view = memoryview(buffer).toreadonly()
    assert census(view) == (2, 100_040)
    assert handles(view, 3, 10) == [small, large]
    assert handles(view, 3, 1) == [small]
    found = describe(view, small)
    assert found is not None
    assert (found.uid, found.body_bytes, found.relinquish_count, found.relinquish_limit) == (99, 40, 2, 3)
    found = describe(view, large)
    assert found is not None
    assert (found.relinquish_count, found.relinquish_limit) == (0, -1)
    assert describe(view, freed) is None
    assert describe(view, small + 1) is None  # another generation
    assert describe(view, layout.HANDLE_SLOT_MASK << layout.HANDLE_SLOT_SHIFT) is None


def test_it_agrees_with_the_arena_itself(buffer: bytearray) -> None:
    live = layout.WORD_LIVE | 1 << layout.WORD_GENERATION_SHIFT
    for slot in range(0, 40, 3):
        put(buffer, 2, 5, slot, word=live, size=slot)
    assert census(memoryview(buffer)) == tuple(Arena(buffer).census()[:2])
