"""Sets of order numbers kept as ranges, against plain sets of numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster import ranges
from fairlead.cluster.ranges import U64_MAX, Ranges

SPAN = 60
NUMBER = st.integers(0, SPAN)
STEP = st.tuples(st.sampled_from(["add", "remove", "pop_first"]), NUMBER, NUMBER)


@pytest.fixture(params=[4, 8, 1024], autouse=True)
def block_max(request: pytest.FixtureRequest) -> Iterator[int]:
    """With short blocks a handful of ranges crosses every border there is."""
    before = ranges.BLOCK_MAX
    ranges.BLOCK_MAX = request.param  # type: ignore[misc]
    yield request.param
    ranges.BLOCK_MAX = before  # type: ignore[misc]


def numbers(of: Ranges) -> set[int]:
    return {number for lo, hi in of for number in range(lo, hi)}


def as_ranges(model: set[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in sorted(model):
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found


def check(of: Ranges, model: set[int]) -> None:
    expected = as_ranges(model)
    assert list(of) == expected  # sorted, disjoint, and none touches the next
    assert len(of) == len(expected)
    assert of.total == len(model)
    assert bool(of) == bool(model)
    assert of.first() == (min(model) if model else None)
    assert of.last() == (max(model) if model else None)
    assert of.first_range() == (expected[0] if expected else None)
    assert [number in of for number in range(SPAN + 2)] == [number in model for number in range(SPAN + 2)]
    assert all(0 < len(block) <= ranges.BLOCK_MAX and len(block) % 2 == 0 for block in of._blocks)
    assert of._firsts == [block[0] for block in of._blocks]


@settings(max_examples=150)
@given(st.lists(STEP, max_size=60))
def test_whatever_is_done_it_is_the_set_it_should_be(steps: list[tuple[str, int, int]]) -> None:
    of, model = Ranges(), set[int]()
    for what, a, b in steps:
        if what == "add":
            assert of.add(a, b) == len(set(range(a, b)) - model)
            model |= set(range(a, b))
        elif what == "remove":
            assert of.remove(a, b) == len(model & set(range(a, b)))
            model -= set(range(a, b))
        else:
            first = set(sorted(model)[: a // 4])
            looked = of.peek(a // 4)
            assert of.pop_first(a // 4) == looked == as_ranges(first)
            model -= first
        check(of, model)


@given(st.sets(NUMBER), NUMBER, NUMBER)
def test_questions_about_a_part(model: set[int], lo: int, hi: int) -> None:
    of = Ranges(as_ranges(model))
    part = set(range(lo, hi))
    assert of.intersect(lo, hi) == as_ranges(model & part)
    assert of.gaps(lo, hi) == as_ranges(part - model)
    assert of.count(lo, hi) == len(model & part)
    assert of.covered(lo, hi) == (part <= model)
    assert of.contains(lo) == (lo in model)
    assert list(of.since(lo)) == as_ranges({number for number in model if number >= lo})
    check(of, model)


@given(st.sets(NUMBER))
def test_a_copy_and_a_snapshot_are_equal_and_apart(model: set[int]) -> None:
    of = Ranges(as_ranges(model))
    for other in (of.copy(), Ranges.from_flat(of.flat())):
        check(other, model)
        assert other == of
        other.add(SPAN + 10, SPAN + 11)
        assert other != of
        assert numbers(of) == model
    of.clear()
    assert of == Ranges()


@pytest.mark.parametrize("flat", [[1], [1, 1], [2, 1], [1, 3, 3, 4], [1, 5, 4, 6], [-1, 2], [1, U64_MAX + 1]])
def test_a_snapshot_that_is_none_is_refused(flat: list[int]) -> None:
    with pytest.raises(ValueError, match="ranges"):
        Ranges.from_flat(flat)


def test_the_largest_numbers_there_are() -> None:
    of = Ranges([(U64_MAX - 5, U64_MAX)])
    assert (of.total, of.last()) == (5, U64_MAX - 1)
    with pytest.raises(OverflowError):
        of.add(U64_MAX, U64_MAX + 1)
    assert of.total == 5


def test_very_many_ranges_are_no_burden(block_max: int) -> None:
    of = Ranges()
    for number in range(0, 20_000, 2):
        of.add(number, number + 1)
    for number in range(19_999, 0, -2):  # fill the holes from behind
        of.add(number, number + 1)
    assert list(of) == [(0, 20_000)]
    assert len(of._blocks) == 1
    assert repr(of) == "<Ranges 0…19999>"
