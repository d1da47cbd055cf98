"""The numbers of docs/store.md fit together."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from fairlead.store import layout


def test_a_commit_record_has_room_for_all_managers() -> None:
    size = struct.calcsize(layout.COMMIT_FORMAT) + 8
    size += layout.MANAGERS_MAX * struct.calcsize(layout.COMMIT_MANAGER_FORMAT)
    assert size <= layout.ROUTING_COMMIT_BYTES_MAX
    assert layout.ROUTING_COMMITS[1] - layout.ROUTING_COMMITS[0] >= layout.ROUTING_COMMIT_BYTES_MAX
    assert layout.ROUTING_COMMITS[1] + layout.ROUTING_COMMIT_BYTES_MAX <= layout.ROUTING_AREAS


def test_touches_fit_into_the_completion_word() -> None:
    assert layout.MANAGERS_MAX + 1 < 32
    assert layout.MANAGERS_MAX + 1 <= layout.WORD_LIMIT_MASK


def test_formats_have_the_documented_sizes() -> None:
    assert struct.calcsize(layout.ENTRY_FORMAT) == layout.ENTRY_HEADER_BYTES
    assert layout.ENTRY_HEADER_BYTES + struct.calcsize(layout.UP_FORMAT) == layout.UP_CONTENT
    assert layout.ENTRY_HEADER_BYTES + struct.calcsize(layout.DOWN_FORMAT) == layout.DOWN_RECIPIENTS
    assert struct.calcsize(layout.SLOT_FORMAT) == layout.SLOT_HEADER_BYTES
    assert struct.calcsize(layout.HANDOVER_FORMAT) == layout.HANDOVER_BYTES


def test_the_managers_words_end_before_the_entries() -> None:
    end = layout.CONNECTIONS_MANAGER_FIRST + layout.MANAGERS_MAX * layout.CONNECTIONS_MANAGER_BYTES
    assert end <= layout.CONNECTIONS_ENTRIES
    assert layout.CONNECTION_TEXTS[-1] + layout.CONNECTION_TEXT_BYTES <= layout.CONNECTION_BYTES


@given(st.integers(1, 1 << 17))
def test_an_arenas_parts_do_not_overlap(blocks: int) -> None:
    plan = layout.arena_plan(blocks)
    assert plan.directory + 4 * blocks <= plan.returned
    assert plan.returned + blocks / 8 <= plan.generations
    assert plan.generations + 4 * blocks <= plan.first_block
    assert plan.first_block % layout.BLOCK_BYTES == 0
    assert plan.size == plan.first_block + blocks * layout.BLOCK_BYTES


def test_names_tell_managers_apart() -> None:
    assert (layout.up_name(3), layout.down_name(3), layout.arena_name(3)) == ("up-3", "down-3", "arena-3")
    assert layout.counters_name("manager", 2) == "counters-manager-2"
    assert layout.counters_name("router") == "counters-router"
