"""Which messages a batch is made of (`fairlead.pipeline.offsets`)."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import ConfigError
from fairlead.pipeline.offsets import Offsets, Range, losses, mended, pack, ranges, shares


class There(NamedTuple):
    name: str
    first: int
    next: int
    id: str = "1"
    kind: str = "topic"


def offsets(**at: int) -> Offsets:
    return Offsets(dict(at), {}, dict.fromkeys(at, "1"))


def test_offsets_are_plain_json_and_come_back() -> None:
    whole = Offsets({"b": 3, "a": 17}, {"a": "nightly"}, {"a": "x", "b": "y"})
    assert whole.as_json() == {"a": {"cursor": "nightly", "at": 17}, "b": 3, ".ids": {"a": "x", "b": "y"}}
    assert list(whole.as_json()) == ["a", "b", ".ids"], "Spark compares text"
    assert Offsets.parse(json.loads(json.dumps(whole.as_json()))) == Offsets(
        {"a": 17, "b": 3}, {"a": "nightly"}, {"a": "x", "b": "y"}
    )


@pytest.mark.parametrize("strange", [{"a": "x"}, {"a": None}, {"a": [1]}, {"a": {"at": 1}}, {"a": True}, {"a": 1.5}])
def test_a_checkpoint_of_something_else_is_refused(strange: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="not one of Fairlead's"):
        Offsets.parse(strange)


def test_what_was_let_go_before_it_was_read_is_named_exactly() -> None:
    (loss,) = losses(offsets(trades=100), {"trades": There("trades", 250, 900)})
    assert (loss.first, loss.beyond) == (100, 250)
    assert str(loss) == "trades: messages from 100 to 249 are lost, for they were let go before they were read"


def test_a_deleted_destination_and_one_made_again_are_losses() -> None:
    begun = offsets(gone=5, again=900, fine=3)
    known = {"again": There("again", 1, 2000, id="2"), "fine": There("fine", 1, 3)}
    assert [(loss.name, loss.first, loss.beyond) for loss in losses(begun, known)] == [
        ("gone", 5, None),
        ("again", 900, None),
    ]
    assert mended(begun, known).at == {"fine": 3}, "one made again is a new one"


def test_a_store_older_than_the_checkpoint_is_a_loss() -> None:
    (loss,) = losses(offsets(a=50), {"a": There("a", 1, 40)})
    assert (loss.first, loss.beyond) == (40, 50)
    assert mended(offsets(a=50), {"a": There("a", 1, 40)}).at == {"a": 40}


def test_going_on_behind_a_gap() -> None:
    known = {"a": There("a", 250, 900)}
    assert mended(offsets(a=100), known).at == {"a": 250}


def test_a_ledger_of_a_queue_is_not_measured_by_order_numbers() -> None:
    begun = Offsets({"q": 3}, {"q": "c"}, {"q": "1"})
    assert losses(begun, {"q": There("q", 1000, 2000)}) == []


def test_ranges_leave_out_what_was_only_just_found() -> None:
    start, end = offsets(a=1, b=5, gone=2), offsets(a=4, b=5, new=7)
    assert ranges(start, end) == [Range("a", 1, 4)]
    end.ids["a"] = "2"
    assert ranges(start, end) == [], "the numbers of one made again begin anew"
    queue = ranges(Offsets({"q": 1}, {"q": "c"}), Offsets({"q": 9}, {"q": "c"}), jump=True)
    assert queue == [Range("q", 1, 9, "c", jump=True)]


WANTED = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(0, 1000), max_size=8)


@settings(deadline=None)
@given(WANTED, st.integers(1, 3000), st.integers(0, 10_000))
def test_a_limit_is_shared_fairly_and_used_up(wanted: dict[str, int], limit: int, turn: int) -> None:
    got = shares(wanted, limit, turn)
    total = sum(wanted.values())
    assert sum(got.values()) == min(limit, total)
    assert all(0 <= part <= wanted[name] for name, part in got.items())
    busy = [name for name in wanted if wanted[name]]
    if limit >= len(busy):  # whoever got less than it wanted got no less than anybody else, but for rounding
        short = [got[name] for name in busy if got[name] < wanted[name]]
        assert not short or max(got.values()) - min(short) <= 1


def test_everybody_has_a_turn_where_there_is_not_one_for_each() -> None:
    wanted = dict.fromkeys("abcdefg", 10)
    seen = set()
    for turn in range(0, 21, 3):
        seen |= set(shares(wanted, 3, turn))
    assert seen == set(wanted)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5000)), max_size=12),
    st.integers(1, 20),
    st.sampled_from([1, 10, 1000]),
)
def test_lots_hold_every_message_once_and_are_few(sizes: list[tuple[int, int]], slices: int, rows_min: int) -> None:
    whole = [Range(f"d{n}", first, first + size) for n, (first, size) in enumerate(sizes)]
    lots = pack(whole, slices, rows_min)
    assert len(lots) <= slices
    assert all(lot and all(one.rows for one in lot) for lot in lots)
    joined: dict[str, list[tuple[int, int]]] = {}
    for lot in lots:
        for one in lot:
            joined.setdefault(one.destination, []).append((one.first, one.beyond))
    for one in whole:
        pieces = joined.get(one.destination, [])
        if one.rows:
            assert pieces[0][0] == one.first
            assert pieces[-1][1] == one.beyond
            assert all(before[1] == after[0] for before, after in pairwise(pieces))
    big = [sum(one.rows for one in lot) for lot in lots[:-1]]
    assert all(rows >= rows_min for rows in big)
