"""Numbers, previous links, and batches that are split where an administrative record has its place."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.feeds.adapter.numbering import BLOCK_BYTES, Numbering, Slot
from fairlead.feeds.adapter.retained import Retained
from fairlead.feeds.block_codec import Block
from fairlead.feeds.made import Made
from fairlead.feeds.records import ADMIN, MESSAGE, SOURCE_GAP, VOID, Record
from tests.feeds.adapter_scene import batch, body_of, records_of


def new() -> Numbering:
    return Numbering(Retained(), default_source="S")


def all_of(numbering: Numbering) -> list[Record]:
    return records_of(numbering.retained.read(0, 1 << 60).blocks)


def links(numbering: Numbering) -> list[tuple[int, int, int]]:
    return [(record.sequence, record.part, record.previous) for record in all_of(numbering)]


@pytest.mark.requirement("STR-16", half="the machine, without processes")
@pytest.mark.requirement("STR-18", half="the machine, without processes")
def test_numbers_rise_by_one_over_batches_sources_voids_and_administrative_records() -> None:
    numbering = new()
    numbering.take(batch([1, 2, 3], voids=[2]), 0.0)
    numbering.take(batch([1, 2], source="T"), 0.0)
    numbering.put(Slot("x", ADMIN, b"x"), 0.0)
    numbering.source_gap("S", 4, 6, 0.0)
    records = all_of(numbering)
    assert [record.number for record in records] == [1, 2, 3, 4, 5, 6, 7]
    assert [record.kind for record in records] == [MESSAGE, VOID, MESSAGE, MESSAGE, MESSAGE, ADMIN, SOURCE_GAP]
    assert records[5][2:6] == ("T", 2, 1, 1), "it has the place of the record before it"
    assert records[0].body == body_of(1)


@pytest.mark.requirement("STR-21", half="the machine, without processes")
def test_the_previous_link_skips_what_gave_no_output() -> None:
    numbering = new()
    numbering.take(batch([1, 2, 5, 9]), 0.0)
    numbering.take(batch([12, 14], first=10, through=15), 0.0)
    assert links(numbering) == [(1, 1, 0), (2, 1, 1), (5, 1, 2), (9, 1, 5), (12, 1, 9), (14, 1, 12)]


@pytest.mark.requirement("STR-20", half="the machine, without processes")
def test_all_parts_of_a_message_have_the_same_link() -> None:
    numbering = new()
    numbering.take(batch([1, 2, 3], parts={2: 3}), 0.0)
    numbering.take(batch([4], parts={4: 2}), 0.0)
    assert links(numbering) == [(1, 1, 0), (2, 1, 1), (2, 2, 1), (2, 3, 1), (3, 1, 2), (4, 1, 3), (4, 2, 3)]


def test_an_adapter_that_begins_in_the_middle_does_not_claim_to_know_what_was_before() -> None:
    numbering = new()
    numbering.take(batch([105, 106], first=101), 0.0)
    assert links(numbering) == [(105, 1, 100), (106, 1, 105)]


def test_what_was_already_given_is_dropped() -> None:
    numbering = new()
    numbering.take(batch([1, 2, 3]), 0.0)
    assert numbering.take(batch([2, 3, 4, 6]), 0.0) == 2
    assert numbering.take(batch([5, 6]), 0.0) == 2
    assert links(numbering) == [(1, 1, 0), (2, 1, 1), (3, 1, 2), (4, 1, 3), (6, 1, 4)]


def test_an_empty_batch_moves_only_what_was_looked_at() -> None:
    numbering = new()
    numbering.take(batch([1]), 0.0)
    none = batch([1])
    none = Made("S", none.kinds[:0], none.sequences[:0], none.part[:0], none.parts[:0], b"", none.ends[:0], 2, 7)
    numbering.take(none, 0.0)
    assert (numbering.last, numbering.processed) == (1, {"S": 7})


@pytest.mark.requirement("STR-15", half="the machine, without processes")
def test_a_source_gap_names_exactly_what_is_lost() -> None:
    numbering = new()
    numbering.take(batch([1, 2], through=4), 0.0)  # 3 and 4 gave no output
    assert numbering.source_gap("S", 5, 7, 0.0)
    numbering.take(batch([8]), 0.0)
    assert [(r.kind, r.sequence, r.previous) for r in all_of(numbering)[2:]] == [
        (VOID, 4, 2),
        (SOURCE_GAP, 7, 4),
        (MESSAGE, 8, 7),
    ]
    assert not numbering.source_gap("S", 6, 7, 0.0), "nothing new"
    assert numbering.source_gap("S", 6, 9, 0.0)
    assert all_of(numbering)[-1][1:7] == (SOURCE_GAP, "S", 9, 1, 1, 8)
    assert numbering.positions["S"] == (9, 1, 1)
    assert numbering.covered["S"] == (9, 65_535, 65_535), "beyond all parts that it may have had"
    numbering.put(Slot("x", ADMIN, b"x"), 0.0)
    numbering.take(batch([10]), 0.0)
    assert links(numbering)[-2:] == [(9, 1, 9), (10, 1, 9)]
    assert numbering.covered["S"] == (10, 1, 1)


@pytest.mark.requirement("STR-22", half="the machine, without processes")
def test_a_new_source_id_counts_from_one_again() -> None:
    numbering = new()
    numbering.take(batch([7, 8], source="S:1"), 0.0)
    numbering.take(batch([1, 2], source="S:2"), 0.0)
    assert links(numbering) == [(7, 1, 6), (8, 1, 7), (1, 1, 0), (2, 1, 1)]


def test_a_batch_is_split_where_something_is_reserved() -> None:
    numbering = new()
    numbering.reserve(3, Slot("x", ADMIN, b"x"), 0.0)
    numbering.reserve(4, Slot("y", ADMIN, b"y"), 0.0)
    numbering.reserve(6, Slot("z", ADMIN, b"z"), 0.0)
    numbering.take(batch([1, 2, 3], parts={2: 3}), 0.0)
    assert [(r.kind, r.body) for r in all_of(numbering)] == [
        (MESSAGE, body_of(1)),
        (MESSAGE, body_of(2, 1)),
        (ADMIN, b"x"),
        (ADMIN, b"y"),
        (MESSAGE, body_of(2, 2)),
        (ADMIN, b"z"),
        (MESSAGE, body_of(2, 3)),
        (MESSAGE, body_of(3)),
    ]
    assert [(landed.slot.id, landed.number, landed.place) for landed in numbering.landed()] == [
        ("x", 3, (2, 1, 3)),
        ("y", 4, (2, 1, 3)),
        ("z", 6, (2, 2, 3)),
    ]
    assert numbering.landed() == []


def test_the_next_number_is_never_a_reserved_one() -> None:
    numbering = new()
    numbering.take(batch([1]), 0.0)
    numbering.reserve(3, Slot("x", ADMIN, b"x"), 0.0)
    assert numbering.last == 1
    numbering.put(Slot("y", ADMIN, b"y"), 0.0)
    assert numbering.last == 3
    with pytest.raises(AssertionError):
        numbering.reserve(3, Slot("z", ADMIN, b"z"), 0.0)
    numbering.reserve(7, Slot("x", ADMIN, b"x"), 0.0)
    with pytest.raises(AssertionError):
        numbering.reserve(7, Slot("z", ADMIN, b"z"), 0.0)
    assert numbering.free_from(6) == 6
    assert numbering.free_from(7) == 8
    numbering.release(7)
    numbering.take(batch(range(2, 9)), 0.0)
    assert all(record.kind == MESSAGE for record in all_of(numbering)[3:])


def test_big_bodies_are_spread_over_blocks() -> None:
    numbering = new()
    size = BLOCK_BYTES * 3 // 4
    data = b"".join(bytes([65 + i]) * size for i in range(5))
    plain = batch(range(1, 6))
    numbering.take(plain._replace(data=data, ends=np.arange(1, 6, dtype=np.uint64) * np.uint64(size)), 0.0)
    blocks = numbering.retained.read(0, 1 << 60).blocks
    assert [Block.parse(block).count for block in blocks] == [1] * 5
    assert [record.body[:1] for record in all_of(numbering)] == [b"A", b"B", b"C", b"D", b"E"]


@given(
    rows=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.booleans()), min_size=1, max_size=40),
    cuts=st.sets(st.integers(1, 39)),
    reserved=st.sets(st.integers(1, 60), max_size=8),
)
def test_any_batching_gives_the_same_records(
    rows: list[tuple[int, int, bool]], cuts: set[int], reserved: set[int]
) -> None:
    """Steps between sequences, parts, voids; the same in one batch and in many, with the same places reserved."""
    sequences, parts, voids, at = [], {}, [], 0
    for step, count, is_void in rows:
        at += step
        sequences.append(at)
        parts[at] = 1 if is_void else count
        voids += [at] if is_void else []
    whole, pieces = new(), new()
    for numbering in (whole, pieces):
        for number in reserved:
            if number > numbering.last:
                numbering.reserve(number, Slot(str(number), ADMIN, b"%d" % number), 0.0)
    whole.take(batch(sequences, parts=parts, voids=voids, first=1), 0.0)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(sequences)), len(sequences)]
    through = 0
    for begin, end in pairwise(bounds):
        pieces.take(batch(sequences[begin:end], parts=parts, voids=voids, first=through + 1), 0.0)
        through = sequences[end - 1]
    assert all_of(whole) == all_of(pieces)
    assert [record.number for record in all_of(whole)] == list(range(1, whole.last + 1))
