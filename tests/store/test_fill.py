"""How full a ring looks from outside."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from fairlead.store import layout
from fairlead.store.fill import fill, positions

CAPACITY = 4096


def make() -> bytearray:
    buffer = bytearray(layout.ring_bytes(CAPACITY))
    struct.pack_into("<Q", buffer, layout.RING_CAPACITY, CAPACITY)
    return buffer


def test_an_empty_ring_is_empty() -> None:
    found = fill(memoryview(make()))
    assert (found.entries, found.counted, found.waiting_bytes, found.capacity) == (0, 0, 0, CAPACITY)


def push(buffer: bytearray, position: int, size: int, kind: int, counted: int) -> int:
    place = layout.RING_DATA + (position & (CAPACITY - 1))
    struct.pack_into(layout.ENTRY_FORMAT, buffer, place, size, kind, 0, 0, counted)
    return position + size


def test_entries_and_the_clients_messages_among_them_are_counted() -> None:
    buffer = make()
    position = 0
    for kind, counted in ((1, 1), (6, 1), (1, 2), (3, 2)):
        position = push(buffer, position, 48, kind, counted)
    struct.pack_into("<Q", buffer, layout.RING_TAIL, position)
    found = fill(memoryview(buffer))
    assert (found.entries, found.counted, found.waiting_bytes) == (4, 2, 192)


def test_padding_and_the_skip_at_the_end_are_not_entries() -> None:
    buffer = make()
    start = CAPACITY - 64
    position = push(buffer, start, 64, layout.ENTRY_PAD, 5)
    position = push(buffer, position, 48, 1, 6)
    struct.pack_into("<Q", buffer, layout.RING_TAIL, position)
    struct.pack_into("<QQ", buffer, layout.RING_HEAD, start, 5)
    found = fill(memoryview(buffer))
    assert (found.entries, found.counted) == (1, 1)
    struct.pack_into("<QQ", buffer, layout.RING_HEAD, CAPACITY - 8, 5)
    assert fill(memoryview(buffer)).entries == 1


@given(st.binary(min_size=1, max_size=64), st.integers(0, 1 << 40), st.integers(0, 2 * CAPACITY))
def test_a_ring_torn_while_it_is_read_does_no_harm(data: bytes, head: int, ahead: int) -> None:
    buffer = make()
    buffer[layout.RING_DATA :] = (data * CAPACITY)[:CAPACITY]
    struct.pack_into("<Q", buffer, layout.RING_HEAD, head)
    struct.pack_into("<Q", buffer, layout.RING_TAIL, head + ahead)
    found = fill(memoryview(buffer))
    assert found.entries >= 0
    assert positions(memoryview(buffer)) == (head, head + ahead)
