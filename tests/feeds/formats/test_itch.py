"""The converter `itch`: every kind of message, everything that can be wrong with one, and both twins alike."""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.feeds.formats import itch as module
from fairlead.feeds.formats import itch_columns
from fairlead.feeds.formats.layouts import KINDS, LAYOUTS
from fairlead.feeds.sources.day import TradingDay
from fairlead.feeds.sources.runs import rows_of, run_of
from fairlead.pipeline.converters import Converted, load, run

TIME = 34_200 * 10**9
HEAD = struct.Struct(">cQ8s")
TWINS = [pytest.param(itch_columns.read, id="plain")]
if module.COMPILED:
    TWINS.append(pytest.param(module.read, id="compiled"))


def message(kind: bytes, form: str, *values: Any, symbol: bytes = b"ABC", time: int = TIME) -> bytes:
    return HEAD.pack(kind, time, symbol.ljust(8)) + struct.pack(">" + form, *values)


def converted(bodies: list[bytes]) -> Converted:
    (result,) = run(load("itch"), [rows_of([run_of(1, bodies)])])
    return result


def rows(result: Converted) -> list[dict[str, Any]]:
    """Without nulls."""
    return [{k: v for k, v in row.items() if v is not None} for part in result.rows for row in part.to_pylist()]


@pytest.fixture(params=TWINS)
def _twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read", request.param)


@pytest.mark.usefixtures("_twin")
class TestWhatEachKindBecomes:
    @pytest.mark.parametrize(
        ("body", "made"),
        [
            (message(b"S", "c", b"O", symbol=b""), [{"kind": "system", "event": "O"}]),
            (
                message(b"A", "QcII", 7, b"B", 100, 12_500),
                [{"kind": "add", "order_number": 7, "side": "B", "quantity": 100, "price": 12_500}],
            ),
            (
                message(b"E", "QIQ", 7, 40, 99),
                [{"kind": "execute", "order_number": 7, "quantity": 40, "match_number": 99}],
            ),
            (message(b"X", "QI", 7, 10), [{"kind": "cancel", "order_number": 7, "quantity": 10}]),
            (message(b"D", "Q", 7), [{"kind": "delete", "order_number": 7}]),
            (
                message(b"U", "QQcII", 7, 8, b"S", 30, 1),
                [
                    {"kind": "delete", "order_number": 7},
                    {"kind": "add", "order_number": 8, "side": "S", "quantity": 30, "price": 1},
                ],
            ),
            (
                message(b"P", "cIIQ", b"S", 5, 0xFFFFFFFF, 3),
                [{"kind": "trade", "side": "S", "quantity": 5, "price": 0xFFFFFFFF, "match_number": 3}],
            ),
            (
                message(b"C", "QQIIQ", 1, 2, 50, 20_000, 77),
                [
                    {"kind": "execute", "side": "B", "order_number": 1},
                    {"kind": "execute", "side": "S", "order_number": 2},
                    {"kind": "trade"},
                ],
            ),
            (
                message(b"Q", "IIII", 1, 0, 3, 4),
                [{"kind": "quote", "bid": 1, "bid_quantity": 0, "ask": 3, "ask_quantity": 4}],
            ),
            (b"N anything at all", []),
        ],
    )
    def test_kind(self, body: bytes, made: list[dict[str, Any]]) -> None:
        symbol = {} if body[:1] == b"S" else {"symbol": "ABC"}
        crossed = {"quantity": 50, "price": 20_000, "match_number": 77} if body[:1] == b"C" else {}
        result = converted([body])
        assert result.rejected.num_rows == 0
        assert rows(result) == [{"source_sequence": 1, "time_ns": TIME, **symbol, **crossed, **row} for row in made]

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (b"", "empty"),
            (b"?", "no such kind"),
            (b"A", "length"),
            (message(b"D", "Q", 7) + b"x", "length"),
            (b"N" * 97, "length"),
            (message(b"D", "Q", 7, time=86_400 * 10**9), "time"),
            (message(b"D", "Q", 7, symbol=b""), "symbol"),
            (message(b"D", "Q", 7, symbol=b"A B"), "symbol"),
            (message(b"D", "Q", 7, symbol=b"A\x00"), "symbol"),
            (message(b"D", "Q", 7, symbol="é".encode()), "symbol"),
            (message(b"A", "QcII", 7, b"X", 100, 1), "side"),
            (message(b"D", "Q", 0), "number"),
            (message(b"D", "Q", 1 << 63), "number"),
            (message(b"E", "QIQ", 7, 40, 0), "number"),
            (message(b"X", "QI", 7, 0), "quantity"),
            (message(b"X", "QI", 7, 1 << 31), "quantity"),
            (message(b"Q", "IIII", 1, 1 << 31, 3, 4), "quantity"),
            (message(b"S", "c", b"Z"), "event"),
        ],
    )
    def test_fault(self, body: bytes, reason: str) -> None:
        good = message(b"D", "Q", 7)
        result = converted([good, body, good])
        assert [row["source_sequence"] for row in rows(result)] == [1, 3]
        (rejected,) = result.rejected.to_pylist()
        assert rejected["source_sequence"] == 2
        assert rejected["body"] == body
        assert reason in rejected["reason"]


def test_the_table_of_layouts_and_the_docs_agree_with_what_is_read() -> None:
    assert set(KINDS) == set(LAYOUTS)
    assert {kind: layout.itemsize for kind, layout in LAYOUTS.items()} == {
        b"S": 18, b"A": 34, b"E": 37, b"X": 29, b"D": 25, b"U": 42, b"P": 34, b"C": 49, b"Q": 33,
    }  # fmt: skip


def spoilt(seed: int, count: int) -> list[bytes]:
    """Messages of a day of which many have a byte changed, are cut short or lengthened, or are noise."""
    chance = random.Random(seed)
    bodies = TradingDay(seed=seed, messages=100_000, symbols=20).run(chance.randrange(1, 90_000), count).bodies()
    for place in range(len(bodies)):
        body = bytearray(bodies[place])
        match chance.randrange(6):
            case 0:
                body[chance.randrange(len(body))] = chance.randrange(256)
            case 1:
                del body[chance.randrange(len(body)) :]
            case 2:
                body += chance.randbytes(3)
            case 3 if chance.random() < 0.3:
                body = bytearray(chance.randbytes(chance.randrange(60)))
        bodies[place] = bytes(body)
    return bodies


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 1 << 20), count=st.integers(0, 300), skip=st.integers(0, 5))
def test_both_twins_agree_on_anything(seed: int, count: int, skip: int) -> None:
    if not module.COMPILED:
        pytest.skip("there is only one twin")
    batch = rows_of([run_of(5, spoilt(seed, count + skip))]).slice(skip)
    found = []
    fast = module.read
    for read in (itch_columns.read, fast):
        module.read = read
        try:
            (result,) = run(load("itch"), [batch])
        finally:
            module.read = fast
        for part in result.rows:
            part.validate(full=True)
        found.append((rows(result), result.rejected.to_pylist()))
    assert found[0] == found[1]


@settings(deadline=None, max_examples=60)
@given(bodies=st.lists(st.binary(max_size=60), max_size=20))
def test_noise_is_rejected_or_left_out_and_nothing_raises(bodies: list[bytes]) -> None:
    result = converted(bodies)
    taken = {row["source_sequence"] for row in rows(result)} | set(result.rejected.column(0).to_pylist())
    assert taken >= {n for n, body in enumerate(bodies, 1) if body[:1] != b"N"}


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 1 << 20), cuts=st.lists(st.integers(0, 200), max_size=12))
@pytest.mark.requirement("STR-11", half="the converter alone")
def test_any_batching_gives_the_same_records(seed: int, cuts: list[int]) -> None:
    whole = rows_of([run_of(1, spoilt(seed, 200))])
    edges = sorted({0, *cuts, 200})
    pieces = [whole.slice(a, b - a) for a, b in pairwise(edges)]
    results = list(run(load("itch"), pieces))
    (once,) = run(load("itch"), [whole])
    assert pa.Table.from_batches([part for one in results for part in one.rows], module.GIVES) == pa.Table.from_batches(
        once.rows, module.GIVES
    )
    assert [row for one in results for row in one.rejected.to_pylist()] == once.rejected.to_pylist()


def test_hostile_offsets_are_refused_by_the_compiled_twin() -> None:
    if not module.COMPILED:
        pytest.skip("the plain twin reads no raw memory")
    sequences = np.array([1], np.int64)
    for offsets in ([0, 50], [-1, 2], [2, 1]):
        with pytest.raises(ValueError, match="offsets"):
            module.read(np.array(offsets, np.int32), b"abc", sequences)
    with pytest.raises(ValueError, match="offset"):
        module.read(np.array([0], np.int32), b"abc", sequences)
