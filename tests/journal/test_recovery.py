"""Damage, doubt and torn tails: what is made of the items found in a segment."""

from __future__ import annotations

import pytest

from fairlead.journal.layout import (
    FOUND_BAD,
    FOUND_BATCH,
    FOUND_BODY_BAD,
    FOUND_END,
    FOUND_RECORD,
    ITEM_BYTES,
    Found,
    padded,
)
from fairlead.journal.recovery import Judged, judge

pytestmark = pytest.mark.requirement("CLU-114")
START = 64


def items(*wanted: tuple[int, ...]) -> list[Found]:
    """(what, index, count or size, mark) laid out one behind the other."""
    out: list[Found] = []
    offset = START
    for what, *facts in wanted:
        index, number, mark = (*facts, 0, 0, 0)[:3]
        if what == FOUND_BATCH:
            out.append((what, offset, 0, number, index, mark, 0))
            offset += ITEM_BYTES
        elif what in (FOUND_RECORD, FOUND_BODY_BAD):
            out.append((what, offset, number, 8, index, 1, 1))
            offset += ITEM_BYTES + padded(number)
        else:
            out.append((what, offset, number, 0, 0, 0, 0))
            offset += number
    return out


def summary(judged: Judged) -> list[tuple[str, int, int, bool]]:
    return [(one.what, one.first, one.last, one.below_mark) for one in judged.findings]


def test_a_batch_header_without_its_records_is_a_torn_tail() -> None:
    found = items((FOUND_BATCH, 1, 1, 0), (FOUND_RECORD, 1, 8), (FOUND_BATCH, 2, 3, 1), (FOUND_END,))
    judged = judge(1, found, START, 1)
    assert summary(judged) == [("torn", 2, 4, False)]
    assert judged.expected == 2


def test_a_lost_batch_header_before_a_bad_record_is_a_torn_tail() -> None:
    found = items(
        (FOUND_BATCH, 1, 1, 0), (FOUND_RECORD, 1, 8), (FOUND_BAD, 0, 40), (FOUND_BODY_BAD, 2, 8), (FOUND_END,)
    )
    judged = judge(1, found, START, 1)
    assert summary(judged) == [("torn", 2, 2, False)]
    assert (judged.expected, judged.end) == (2, found[2][1])


def test_a_hole_in_the_last_batch_is_in_doubt_and_one_before_a_mark_is_certain() -> None:
    hole = ((FOUND_BATCH, 1, 3, 0), (FOUND_RECORD, 1, 8), (FOUND_BAD, 0, 48), (FOUND_RECORD, 3, 8))
    assert summary(judge(1, items(*hole, (FOUND_END,)), START, 1)) == [("damage", 2, 2, False)]
    marked = items(*hole, (FOUND_BATCH, 4, 0, 3), (FOUND_END,))
    assert summary(judge(1, marked, START, 1)) == [("damage", 2, 2, True)]
    assert summary(judge(1, items(*hole, (FOUND_END,)), START, 1, beyond=4)) == [("damage", 2, 2, True)]


def test_what_is_missing_at_the_end_of_a_sealed_segment_is_damage() -> None:
    found = items((FOUND_BATCH, 1, 2, 0), (FOUND_RECORD, 1, 8), (FOUND_BODY_BAD, 2, 8), (FOUND_END,))
    assert summary(judge(1, found, START, 1, beyond=5)) == [("damage", 2, 2, True), ("damage", 3, 4, True)]


def test_records_that_the_next_segment_took_over_do_not_count() -> None:
    found = items((FOUND_BATCH, 1, 2, 0), (FOUND_RECORD, 1, 8), (FOUND_RECORD, 2, 8), (FOUND_END,))
    judged = judge(1, found, START, 1, beyond=2)
    assert [record[4] for record in judged.records] == [1]
    assert not judged.findings


def test_a_record_out_of_order_is_not_data() -> None:
    found = items((FOUND_BATCH, 5, 1, 4), (FOUND_RECORD, 5, 8), (FOUND_RECORD, 3, 8), (FOUND_END,))
    judged = judge(1, found, START, 5)
    assert [record[4] for record in judged.records] == [5]
    assert summary(judged)[0] == ("damage", 3, 3, True)


def test_left_overs_of_a_recycled_file_are_no_torn_tail() -> None:
    found = [*items((FOUND_BATCH, 1, 1, 0), (FOUND_RECORD, 1, 8)), (FOUND_END, 152, 900, 0, 0, 0, 0)]
    assert not judge(1, found, START, 1, recycled=True).findings
    assert summary(judge(1, found, START, 1)) == [("torn", 2, 2, False)]
