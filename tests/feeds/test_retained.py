"""The retained buffer: by number, by source position, by cursor, and what leaves it when."""

from __future__ import annotations

import random

import pytest

from fairlead.feeds.adapter.numbering import Numbering, Slot
from fairlead.feeds.adapter.retained import Retained
from fairlead.feeds.block_codec import Block
from fairlead.feeds.records import ADMIN, SOURCE_GAP, Place, Record
from tests.feeds.adapter_scene import batch, records_of

FOREVER = 1 << 60


def filled(*sizes: int, now_s: float = 0.0, **bounds: float) -> Numbering:
    """One batch of messages of source S for each size, sequences from 1."""
    numbering = Numbering(Retained(**bounds), default_source="S")  # type: ignore[arg-type]
    at = 1
    for size in sizes:
        numbering.take(batch(range(at, at + size)), now_s)
        at += size
    return numbering


def numbers(blocks: list[bytes]) -> list[int]:
    return [record.number for record in records_of(blocks)]


def test_a_line_reads_all_from_its_cursor_on_and_goes_over_to_what_is_new() -> None:
    numbering = filled(5, 5)
    retained = numbering.retained
    read = retained.read(retained.oldest, 1)
    assert numbers(read.blocks) == [1, 2, 3, 4, 5], "at least one block, however small the bound"
    read = retained.read(read.cursor, FOREVER)
    assert numbers(read.blocks) == [6, 7, 8, 9, 10]
    assert retained.read(read.cursor, FOREVER) == ([], read.cursor, None)
    numbering.take(batch([11]), 0.0)
    assert numbers(retained.read(read.cursor, FOREVER).blocks) == [11]


def test_a_slow_line_is_told_what_it_missed() -> None:
    numbering = filled(5, 5, messages_max=3, seconds_max=0.0)
    retained = numbering.retained
    numbering.take(batch([11]), 1.0)
    read = retained.read(2, FOREVER)
    assert read.missed == (3, 5)
    assert numbers(read.blocks) == list(range(6, 12)), "the whole block that still holds one of the newest three"


@pytest.mark.requirement("STR-14", half="the machine, without processes")
def test_a_range_by_number_is_repeated_identically() -> None:
    retained = filled(10, 10, 10).retained
    answer = retained.by_number(12, 13)
    assert answer.is_complete
    assert answer.blocks == retained.read(10, 1).blocks
    assert [(r.number, r.sequence) for r in records_of(answer.blocks)][1] == (12, 12)
    assert numbers(retained.by_number(10, 21).blocks) == list(range(1, 31))


@pytest.mark.requirement("STR-14", half="the machine, without processes")
@pytest.mark.parametrize(("first", "last"), [(0, 3), (1, 40), (31, 40), (5, 4), (4, 12)])
def test_a_range_that_is_not_there_is_said_to_be_not_available(first: int, last: int) -> None:
    numbering = filled(10, 10, 10, messages_max=20, seconds_max=0.0)
    numbering.retained.expire(1.0)
    answer = numbering.retained.by_number(first, last)
    assert not answer.is_complete
    assert answer.why
    assert answer.oldest == 11


@pytest.mark.requirement("STR-14", half="the machine, without processes")
def test_which_bound_wins() -> None:
    numbering = filled(10, 10, messages_max=5, seconds_max=60.0)
    retained = numbering.retained
    numbering.take(batch(range(21, 31)), 59.0)
    assert retained.first == 1, "not so old yet, although there are more than enough"
    retained.expire(61.0)
    assert (retained.first, retained.count) == (21, 10)
    retained.expire(1e9)
    assert retained.count == 10, "not so many that one could go"
    small = filled(10, 10, 10, bytes_max=100, messages_max=100, seconds_max=60.0).retained
    assert small.first == 21, "bytes win; the newest block always stays"
    assert small.bytes == len(small.read(0, FOREVER).blocks[0])


@pytest.mark.requirement("STR-51", half="the adapter's answer only")
def test_a_range_by_position_has_all_parts_of_its_end() -> None:
    numbering = Numbering(Retained(), default_source="S")
    for first in range(1, 40, 4):
        numbering.take(batch(range(first, first + 4), parts={9: 3, 10: 2}), 0.0)
    answer = numbering.retained.by_position("S", (9, 2), 10, processed=40)
    assert answer.is_complete
    places = [(record.sequence, record.part) for record in records_of(answer.blocks)]
    assert [place for place in places if (9, 2) < place <= (10, 9)] == [(9, 3), (10, 1), (10, 2)]
    assert places[0] >= (9, 1)
    assert places[-1] < (13, 1)


def test_a_range_whose_end_gave_no_output_is_complete_once_it_was_processed() -> None:
    numbering = Numbering(Retained(), default_source="S")
    numbering.take(batch([1, 2, 3]), 0.0)
    numbering.take(batch([7, 8], first=4, through=9), 0.0)
    retained = numbering.retained
    assert retained.by_position("S", (3, 1), 6, processed=9).is_complete
    assert retained.by_position("S", (8, 1), 9, numbering.processed["S"]).is_complete
    behind = retained.by_position("S", (8, 1), 10, numbering.processed["S"])
    assert not behind.is_complete
    assert "9" in behind.why


def test_a_source_gap_that_covers_more_than_the_range_is_part_of_the_answer() -> None:
    """Otherwise an empty answer would say that what is lost never gave output."""
    numbering = Numbering(Retained(), default_source="S")
    numbering.take(batch([1]), 0.0)
    numbering.source_gap("S", 2, 3, 0.0)
    numbering.take(batch([4]), 0.0)
    answer = numbering.retained.by_position("S", (1, 1), 2, numbering.processed["S"])
    assert answer.is_complete
    assert [(r.kind, r.previous, r.sequence) for r in records_of(answer.blocks)][1:] == [(SOURCE_GAP, 1, 3)]


def test_a_range_that_begins_before_the_buffer_is_not_complete() -> None:
    numbering = Numbering(Retained(messages_max=3, seconds_max=0.0), default_source="S")
    for first in (1, 6, 11):
        numbering.take(batch(range(first, first + 5)), float(first))
    retained = numbering.retained
    assert retained.first == 11
    assert not retained.by_position("S", (9, 1), 12, 15).is_complete
    assert retained.by_position("S", (10, 1), 12, 15).is_complete, "its previous link says that nothing is between"
    assert not retained.by_position("T", (1, 1), 2, 15).is_complete


def test_from_where_on_somebody_could_follow_without_a_gap() -> None:
    numbering = Numbering(Retained(), default_source="S")
    assert not numbering.retained.reaches_to("S", 9), "there is nothing yet"
    numbering.take(batch(range(10, 15)), 0.0)
    assert not numbering.retained.reaches_to("S", 8)
    assert numbering.retained.reaches_to("S", 9)
    assert not numbering.retained.reaches_to("T", 9)


@pytest.mark.requirement("STR-34", half="the adapter's part only")
def test_where_a_client_begins_after_its_position() -> None:
    numbering = filled(5)
    numbering.put(Slot("x", ADMIN, b"x"), 0.0)
    numbering.take(batch([6, 7]), 0.0)
    retained = numbering.retained

    def first_after(sequence: int) -> int:
        return numbers(retained.read(retained.cursor_after({"S": Place(sequence)}), 1).blocks)[0]

    assert first_after(5) == 1, (
        "the block of its last record, since the administrative record behind it may be new to it"
    )
    assert first_after(6) == 7
    assert first_after(8) == 7, "a backup that is behind: from its newest record on, and live"
    numbering.put(Slot("y", ADMIN, b"y"), 0.0)
    numbering.put(Slot("z", ADMIN, b"z"), 0.0)
    assert first_after(8) == first_after(7) == 7, "also what stands behind its newest record"
    assert retained.cursor_after({}) == retained.oldest


def test_a_source_that_rests_does_not_pull_everybody_back() -> None:
    numbering = filled(5)
    retained = numbering.retained
    for first in range(1, 2000, 10):
        numbering.take(batch(range(first, first + 10), source="T"), 0.0)

    def first_after(**positions: int) -> int:
        places = {source: Place(sequence) for source, sequence in positions.items()}
        return numbers(retained.read(retained.cursor_after(places), 1).blocks)[0]

    assert 1900 < first_after(S=5, T=2000) <= 1996
    assert first_after(S=4, T=2000) == 1, "something of it is missing"
    assert first_after(T=2000) == 1, "a source that is not named is sent from its oldest record on"
    assert first_after(S=5, T=1000) in range(900, 1006)
    numbering.take(batch([6]), 0.0)
    assert first_after(S=6, T=2000) >= 1900
    assert first_after(S=9, T=3000) >= 1900


def test_renumbering_moves_every_number_and_no_cursor() -> None:
    numbering = filled(5, 5)
    retained = numbering.retained
    cursor = retained.read(0, 1).cursor
    before = [record._replace(number=0) for record in records_of(retained.read(0, FOREVER).blocks)]
    numbering.renumber(1000, 0.0)
    assert numbers(retained.read(cursor, FOREVER).blocks) == list(range(1006, 1011))
    after = records_of(retained.read(0, FOREVER).blocks)
    assert [record._replace(number=0) for record in after] == before
    numbering.take(batch([11]), 0.0)
    assert retained.by_number(1011, 1011).is_complete
    assert retained.number_of("S", Place(11)) == 1011
    numbering.renumber(-1003, 0.0)
    assert (retained.first, retained.last) == (1, 8), "what would be before number 1 is gone, in the middle of a block"
    assert retained.number_of("S", Place(11)) == 8
    assert retained.number_of("S", Place(3)) == 0
    left = records_of(retained.read(0, FOREVER).blocks)
    assert [(r.number, r.sequence, r.previous) for r in left] == [(n, n + 3, n + 2) for n in range(1, 9)]
    assert not retained.by_position("S", (2, 1), 9, 11).is_complete
    assert retained.by_position("S", (3, 1), 9, 11).is_complete
    numbering.renumber(-5, 0.0)
    assert numbers(retained.read(0, FOREVER).blocks) == [1, 2, 3]


def test_the_number_of_a_record() -> None:
    numbering = Numbering(Retained(messages_max=4, seconds_max=0.0), default_source="S")
    numbering.take(batch([2, 4, 5], parts={4: 3}), 0.0)
    numbering.put(Slot("x", ADMIN, b"x"), 0.0)
    retained = numbering.retained
    assert [retained.number_of("S", Place(*place)) for place in ((2,), (4, 1, 3), (4, 3, 3), (5,))] == [1, 2, 4, 5]
    assert [retained.number_of("S", Place(sequence)) for sequence in (1, 3, 6)] == [0, 0, 0]
    numbering.take(batch([6, 7, 8]), 9.0)
    assert retained.first == 6
    assert retained.number_of("S", Place(5)) == 0, "the administrative record behind it is not the record itself"


@pytest.mark.parametrize("seed", range(30))
def test_it_agrees_with_a_plain_list(seed: int) -> None:
    """Two sources, administrative records and expiry, against a list of records that is searched from end to end."""
    chance = random.Random(seed)
    numbering = Numbering(Retained(messages_max=40, seconds_max=3.0, bytes_max=4000), default_source="S")
    retained = numbering.retained
    model: list[Record] = []
    at = {"S": 1, "T": 1}
    for step in range(120):
        now_s, before = float(step), retained.last
        source = chance.choice("ST")
        if chance.random() < 0.2:
            numbering.put(Slot(f"{step}", ADMIN, b"x"), now_s)
        else:
            count = chance.randint(1, 9)
            skipped = chance.randint(0, 2)
            first = at[source] + skipped
            parts = {first: chance.randint(1, 3)}
            numbering.take(batch(range(first, first + count), source=source, parts=parts, first=at[source]), now_s)
            at[source] = first + count
        model += records_of(retained.by_number(before + 1, retained.last).blocks)
        kept = [record for record in model if record.number >= retained.first]
        assert numbers(retained.read(retained.oldest, FOREVER).blocks) == [record.number for record in kept]
        assert retained.bytes == sum(map(len, retained.read(retained.oldest, FOREVER).blocks))
        a, b = sorted((chance.randint(1, retained.last + 3), chance.randint(1, retained.last + 3)))
        answer = retained.by_number(a, b)
        assert answer.is_complete == (a >= retained.first and b <= retained.last)
        wanted = [record for record in kept if a <= record.number <= b]
        assert set(wanted) <= set(records_of(answer.blocks))
        after, to = sorted((chance.randint(0, at[source]), chance.randint(0, at[source])))
        by_position = retained.by_position(source, (after, 1), to, numbering.processed.get(source, 0))
        inside = [
            record
            for record in model
            if record.source == source and record.kind != ADMIN and (after, 1) < (record.sequence, record.part)
            if record.sequence <= to
        ]
        if by_position.is_complete:
            assert set(inside) <= set(records_of(by_position.blocks))
        else:
            assert (
                not set(inside) <= set(kept)
                or to >= at[source]
                or not [r for r in kept if r.source == source]
                or (after < next(r for r in kept if r.source == source).previous)
            )
        for record in chance.sample(model, 3) if len(model) > 3 else []:
            if record.kind != ADMIN:
                found = retained.number_of(record.source, record.place)
                assert found == (record.number if record.number >= retained.first else 0)


def test_blocks_are_what_a_client_can_parse() -> None:
    for data in filled(3, 70_000).retained.read(0, FOREVER).blocks:
        assert 1 <= Block.parse(data).count <= 4096
