"""The converters `csv`, `json` and `fix`."""

from __future__ import annotations

import datetime
import locale
import time
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import ConfigError
from fairlead.feeds.sources.runs import rows_of, run_of
from fairlead.pipeline.converters import Converter, load, run

CSV = {"columns": [["symbol", "string"], ["price", "decimal128(18, 4)"], ["count", "int32"], ["at", "timestamp[us]"]]}
JSON = {
    "columns": [
        ["a", "int32"],
        ["b", "float64"],
        ["c", "string"],
        ["d", "decimal128(10, 2)"],
        ["e", "bool"],
        ["f", "date32"],
    ]
}


def outcome(one: Converter, bodies: list[bytes]) -> tuple[list[tuple[Any, ...]], dict[int, str]]:
    """Rows as tuples, and reasons by sequence."""
    (result,) = run(one, [rows_of([run_of(1, bodies)])])
    rows = [tuple(row.values()) for part in result.rows for row in part.to_pylist()]
    return rows, {row["source_sequence"]: row["reason"] for row in result.rejected.to_pylist()}


def fixed(body: bytes, begin: bytes = b"8=FIX.4.4") -> bytes:
    whole = b"%s\x019=%d\x01%s" % (begin, len(body), body)
    return whole + b"10=%03d\x01" % (sum(whole) & 255)


def test_csv() -> None:
    rows, reasons = outcome(
        load("csv", CSV),
        [
            b"ABC,12.5,7,2026-01-02T03:04:05.250Z\r",
            b'"a, ""b""",,,',
            b"a,b",
            b"\xff,1,1,",
            b"q,zz,,",
            b'"unfinished,1,1,',
            b"ok,1,,2026-13-45T00:00:00",
            b"ok,,99999999999,",
            b"+,-0.5,+3,2026-01-02 03:04:05",
            b"ok,1 000,,",
            b"ok,,0x10,",
        ],
    )
    assert rows == [
        (1, "ABC", Decimal("12.5000"), 7, datetime.datetime(2026, 1, 2, 3, 4, 5, 250_000)),
        (2, 'a, "b"', None, None, None),
        (9, "+", Decimal("-0.5000"), 3, datetime.datetime(2026, 1, 2, 3, 4, 5)),
    ]
    assert reasons == {
        3: "it has 2 values, not 4",
        4: "it is not UTF-8",
        5: "price is no decimal128(18, 4)",
        6: "it is not CSV: unexpected end of data",
        7: "at is no timestamp[us]",
        8: "count is no int32",
        10: "price is no decimal128(18, 4)",
        11: "count is no int32",
    }


def test_csv_with_a_header_and_another_delimiter() -> None:
    one = load("csv", {"columns": [["a", "int64"], ["b", "string"]], "header": True, "delimiter": ";"})
    assert outcome(one, [b"a;b", b"1;x", b"oops", b"2;y"]) == (
        [(2, 1, "x"), (4, 2, "y")],
        {3: "it has 1 values, not 2"},
    )
    assert outcome(one, [b"a;b"]) == ([], {})


def test_json() -> None:
    rows, reasons = outcome(
        load("json", JSON),
        [
            b'{"a": 1, "b": 2.5, "c": "x", "d": 1.25, "e": true, "f": "2026-01-02", "other": [1]}',
            b'[{"a": 1}, {"a": 2}, {"d": "7"}]',
            b'{"a": "1"}',
            b'{"a": 1.0}',
            b'{"a": 99999999999}',
            b"nonsense",
            b'{"d": 1e400}',
            b'{"d": 1e99999999999999999999}',
            b'[{"a": 1}, {"a": true}]',
            b"[]",
            b"[" * 100_000,
            b'{"c": "\\ud800"}',
            b"7",
            b'{"f": "2026-02-30"}',
        ],
    )
    assert rows == [
        (1, 1, 2.5, "x", Decimal("1.25"), True, datetime.date(2026, 1, 2)),
        (2, 1, None, None, None, None, None),
        (2, 2, None, None, None, None, None),
        (2, None, None, None, Decimal("7.00"), None, None),
    ]
    assert set(reasons) == {3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14}
    assert reasons[6] == "it is not JSON"
    assert reasons[11] == "it is nested too deeply"
    assert reasons[9] == "a is no int32"


def test_fix() -> None:
    order = b"35=D\x0134=2\x0152=20260102-09:30:00.123\x0155=ABC\x0154=1\x0138=100\x0144=1.25\x0155=ZZZ\x01"
    rows, reasons = outcome(
        load("fix"),
        [
            fixed(order),
            fixed(b"35=0\x01"),
            fixed(b"35=D\x0138=x\x01"),
            fixed(order)[:-2] + b"9\x01",
            fixed(order).replace(b"\x019=", b"\x019=1"),
            b"",
            fixed(b"35=D\x01oops\x01"),
            fixed(b"35=D\x0152=yesterday\x01"),
            fixed(order) + b"x",
        ],
    )
    stamp = datetime.datetime(2026, 1, 2, 9, 30, 0, 123_000)
    assert rows == [(1, "D", stamp, "ABC", "1", None, Decimal("100.0000"), Decimal("1.25000000"), None, None)]
    assert reasons == {
        3: "quantity is no decimal128(20, 4)",
        4: "its checksum is not right",
        5: "its body length is not right",
        6: "it is no FIX message",
        7: "a field is no tag=value",
        8: "time is no timestamp[us]",
        9: "it is no FIX message",
    }


def test_fix_with_columns_and_message_types_of_ones_own() -> None:
    one = load("fix", {"columns": [["account", "string", 1], ["price", "float64", 44]], "message_types": ["8"]})
    bodies = [fixed(b"35=8\x0144=2.5\x011=me\x01"), fixed(b"35=D\x0144=1\x01")]
    assert outcome(one, bodies) == ([(1, "me", 2.5)], {})


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("csv", {}, "columns"),
        ("csv", {"columns": [["a", "int64"]], "delimeter": ";"}, "delimeter"),
        ("csv", {"columns": [["a", "int64"]], "delimiter": ";;"}, "one ASCII character"),
        ("csv", {"columns": [["a", "no such type"]]}, "columns"),
        ("csv", {"columns": [["source_sequence", "int64"]]}, "the source's own"),
        ("json", {"columns": "abc"}, "columns"),
        ("fix", {"columns": [["a", "int64"]]}, "44"),
        ("fix", {"columns": [["a", "int64", 1], ["b", "int64", 1]]}, "only once"),
        ("fix", {"message_types": "8"}, "message_types"),
        ("itch", {"columns": []}, "takes no options"),
    ],
)
def test_options_that_are_not_right(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(name, options)


LINES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"A,1.5,2,2026-01-02T03:04:05", b'{"a": 1}', b'[{"a":1},{"b":2}]', fixed(b"35=D\x0144=2\x01")]),
)


@settings(deadline=None, max_examples=40)
@given(bodies=st.lists(LINES, max_size=30), cuts=st.lists(st.integers(0, 30), max_size=4))
@pytest.mark.parametrize(("name", "options"), [("csv", CSV), ("json", JSON), ("fix", None)])
def test_any_bytes_in_any_batches_give_the_same(
    name: str, options: dict[str, Any] | None, bodies: list[bytes], cuts: list[int]
) -> None:
    one = load(name, options)
    whole = rows_of([run_of(1, bodies)])
    edges = sorted({0, *cuts, len(bodies)} - {n for n in cuts if n > len(bodies)})
    pieces = [whole.slice(a, b - a) for a, b in pairwise(edges)]
    results = list(run(one, pieces))
    rows = [row for result in results for part in result.rows for row in part.to_pylist()]
    (once,) = run(one, [whole])
    assert repr(rows) == repr([row for part in once.rows for row in part.to_pylist()])
    assert [row for result in results for row in result.rejected.to_pylist()] == once.rejected.to_pylist()
    for part in once.rows:
        part.validate(full=True)


@pytest.mark.requirement("STR-11", half="the converters alone")
def test_neither_locale_nor_time_zone_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [b"A,1.5,2,2026-07-01T03:04:05", b"A,1,5,2"]
    before = outcome(load("csv", CSV), bodies)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    former = locale.setlocale(locale.LC_ALL)
    try:
        for name in ("de_DE.UTF-8", "C.UTF-8", "C"):
            try:
                locale.setlocale(locale.LC_ALL, name)
            except locale.Error:
                continue
            assert outcome(load("csv", CSV), bodies) == before
    finally:
        locale.setlocale(locale.LC_ALL, former)
        monkeypatch.undo()
        time.tzset()


def test_all_types_can_be_columns_of_texts() -> None:
    kinds = {
        "bool": ("true", True), "int8": ("-128", -128), "uint64": (str((1 << 64) - 1), (1 << 64) - 1),
        "float32": ("0.5", 0.5), "float64": ("-1e3", -1000.0), "date32": ("2026-01-02", datetime.date(2026, 1, 2)),
        "time64[us]": ("09:30:00.5", datetime.time(9, 30, 0, 500_000)), "binary": ("ab", b"ab"), "string": ("ü", "ü"),
        "decimal128(5, 1)": ("1.5", Decimal("1.5")),
    }  # fmt: skip
    one = load("csv", {"columns": [[f"c{n}", kind] for n, kind in enumerate(kinds)]})
    rows, reasons = outcome(one, [",".join(text for text, _ in kinds.values()).encode()])
    assert not reasons
    assert rows == [(1, *(value for _, value in kinds.values()))]
    assert pa.schema(one.gives).field(1).type == pa.bool_()
