"""Ids: unique whatever clocks and restarts do, compact, and made by nodes alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster import ids
from fairlead.cluster.ids import EPOCH_S, ID_BYTES, SEQUENCE_MAX, Generator, Kind, Node

NOW_S = EPOCH_S + 200_000_000.0
STARTS = st.tuples(st.sampled_from(["10.0.0.1", "10.0.0.2"]), st.integers(0, 1), st.sampled_from([7400, 7401]))
STEPS = st.lists(st.tuples(STARTS, st.integers(-100_000, 100_000), st.integers(1, 40)), max_size=30)


@pytest.mark.requirement("CLU-91", state="half")
def test_the_layout_is_as_documented() -> None:
    node = Node("192.168.1.20", 513, 7400, NOW_S)
    first = Generator(node, Kind.SESSION).next()
    assert first.hex() == "c0a80114" + "0201" + "1ce8" + f"{200_000_000:08x}" + "03" + "00000000000001"
    assert ids.decode(first) == ("192.168.1.20", 513, 7400, 200_000_000, Kind.SESSION, 1)
    assert ids.decode(first).start_s == NOW_S
    assert len(first) == ID_BYTES
    assert ids.from_text(ids.text(first)) == ids.from_text("ID:" + ids.text(first)) == first


@pytest.mark.requirement("CLU-89", state="half")
@pytest.mark.requirement("CLU-90", state="half")
@given(STEPS)
def test_no_id_comes_twice_whatever_the_clock_does(steps: list[tuple[tuple[str, int, int], int, int]]) -> None:
    last: dict[tuple[str, int, int], int] = {}
    seen: set[bytes] = set()
    for place, drift_s, count in steps:
        node = Node(*place, NOW_S + drift_s, last.get(place, 0))
        last[place] = node.start
        for kind in (Kind.MESSAGE, Kind.SESSION):
            made = Generator(node, kind)
            block = made.block(count)
            new = {ids.at(block.first, number) for number in range(count)} | {made.next()}
            assert len(new) == count + 1
            assert not new & seen
            seen |= new


@pytest.mark.requirement("CLU-90", state="half")
def test_a_start_within_the_same_second_or_a_day_back_is_a_later_one() -> None:
    first = Node("10.0.0.1", 0, 7400, NOW_S)
    again = Node("10.0.0.1", 0, 7400, NOW_S, first.start)
    back = Node("10.0.0.1", 0, 7400, NOW_S - 86_400, again.start)
    assert (again.start, back.start) == (first.start + 1, first.start + 2)
    assert Node("10.0.0.1", 0, 7400, 0.0).start == 1  # a clock that was never set


@pytest.mark.requirement("CLU-90", state="half")
def test_when_a_sequence_overflows_the_start_is_renewed() -> None:
    node = Node("10.0.0.1", 0, 7400, NOW_S)
    messages, sessions = Generator(node, Kind.MESSAGE, SEQUENCE_MAX - 2), Generator(node, Kind.SESSION)
    sessions.next()
    before = messages.block(2, NOW_S + 5)
    assert ids.decode(ids.at(before.first, 1)).sequence == SEQUENCE_MAX
    after = messages.block(2, NOW_S + 5)
    assert ids.decode(after.first) == ("10.0.0.1", 0, 7400, 200_000_005, Kind.MESSAGE, 1)
    assert ids.at(before.first, 1) < after.first
    assert ids.decode(sessions.next()).start == 200_000_005


def test_ids_sort_as_they_were_made() -> None:
    made = Generator(Node("10.0.0.1", 0, 7400, NOW_S), Kind.MESSAGE, 250)
    several = [made.next() for _ in range(20)]
    assert several == sorted(several)


@pytest.mark.requirement("CLU-92", state="half")
def test_a_block_knows_its_ids() -> None:
    made = Generator(Node("10.0.0.1", 0, 7400, NOW_S), Kind.MESSAGE, 9)
    block = made.block(100)
    assert (block.number, block.count) == (10, 100)
    assert block.first in block
    assert ids.at(block.first, 99) in block
    assert ids.at(block.first, 100) not in block
    assert made.next() == ids.at(block.first, 100)
    stranger = Generator(Node("10.0.0.1", 0, 7401, NOW_S), Kind.MESSAGE, 9)
    assert stranger.next() not in block
    assert b"" not in block


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Node("10.0.0.1", 65_536, 7400, NOW_S),
        lambda: Node("10.0.0.1", 0, 0, NOW_S),
        lambda: Node("not an address", 0, 7400, NOW_S),
        lambda: Node("10.0.0.1", 0, 7400, NOW_S, ids.START_MAX),
        lambda: Generator(Node("10.0.0.1", 0, 7400, NOW_S), 256),
        lambda: Generator(Node("10.0.0.1", 0, 7400, NOW_S), Kind.MESSAGE).block(0),
        lambda: ids.decode(b"short"),
        lambda: ids.from_text("12"),
        lambda: ids.from_text("x" * 40),
    ],
    ids=range(9),
)
def test_what_is_no_id_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError):
        wrong()
