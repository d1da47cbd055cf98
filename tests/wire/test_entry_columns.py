"""Columns to entries: both twins, one by one and against each other."""

from __future__ import annotations

from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import BadParameter
from fairlead.wire import durable, entry_codec
from fairlead.wire import entry_columns as plain
from fairlead.wire.entries import TIME_MS_MAX
from fairlead.wire.properties import pairs
from tests.wire.test_columns import MESSAGES, SECTIONS, outcome

try:
    from fairlead.wire import _entry_columns as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

BOTH = [plain] if compiled is None else [plain, compiled]
twin = pytest.mark.parametrize("twin", BOTH, ids=lambda module: module.__name__.rpartition(".")[2])
two = pytest.mark.skipif(compiled is None, reason="the extension is not built")


def ragged(values: list[bytes | None], wide: bool = False) -> plain.Ragged:
    offsets, data = array("q" if wide else "i", [0]), b""
    for value in values:
        data += value or b""
        offsets.append(len(data))
    bitmap = sum(1 << at for at, value in enumerate(values) if value is not None)
    return memoryview(offsets), data, bitmap.to_bytes((len(values) + 7) // 8, "little") if None in values else None


@twin
@given(st.lists(MESSAGES, min_size=1, max_size=12), st.booleans(), st.integers(0, 300))
def test_rows_become_entries_and_come_back(
    twin: ModuleType, messages: list[dict[str, Any]], wide: bool, most_bytes: int
) -> None:
    for message in messages:
        message.pop("flags", None)
    rows, done, entries = len(messages), 0, b""
    columns = {
        "body": ragged([message["body"] for message in messages], wide),
        "key": ragged([message.get("key") or None for message in messages], wide),
        "headers": ragged([message.get("headers") for message in messages], wide),
        "priority": array("i", [message.get("priority", 4) for message in messages]),
        "ttl_ms": array("q", [message.get("ttl_ms", 0) for message in messages]),
        "delay_ms": array("q", [message.get("delay_ms", 0) for message in messages]),
    }
    while done < rows:
        some, count = twin.entries_of(rows, **columns, first=done, most_bytes=most_bytes)
        assert count >= 1
        assert count == 1 or len(some) <= most_bytes
        assert entry_codec.survey(some, 0, len(some))[0] == count
        entries += some
        done += count
    for message in messages:
        section = message.get("headers", b"")
        if any(name == b":dedup" and value[:1] == b"s" for name, value in pairs(section)):
            message["flags"] = durable.ENTRY_DEDUP
    assert entries == b"".join(entry_codec.encode(**message) for message in messages)
    assert twin.entries_of(rows, **columns, first=rows, most_bytes=5) == (b"", 0)


@twin
def test_without_anything_but_a_body(twin: ModuleType) -> None:
    bodies = [b"%d" % at for at in range(70_000)]
    entries, count = twin.entries_of(len(bodies), body=ragged(list(bodies)), most_bytes=1 << 30)
    assert count == durable.COUNT_MAX
    assert entries == entry_codec.encode_many(bodies[:count])
    rest, count = twin.entries_of(len(bodies), body=ragged(list(bodies)), first=count, most_bytes=1 << 30)
    assert rest == entry_codec.encode_many(bodies[durable.COUNT_MAX :])


@two
@given(
    st.lists(st.binary(max_size=4), min_size=1, max_size=4),
    st.lists(st.one_of(st.none(), st.binary(max_size=3)), min_size=4, max_size=4),
    st.lists(st.one_of(st.none(), SECTIONS, st.binary(max_size=8)), min_size=4, max_size=4),
    st.lists(st.integers(-1, 10), min_size=4, max_size=4),
    st.lists(st.integers(-1, TIME_MS_MAX + 1), min_size=4, max_size=4),
)
def test_the_twins_refuse_the_same_rows(
    bodies: list[bytes], keys: list[bytes | None], sections: list[bytes | None], priority: list[int], times: list[int]
) -> None:
    rows = len(bodies)
    columns = {
        "body": ragged(list(bodies)),
        "key": ragged(keys[:rows]),
        "headers": ragged(sections[:rows]),
        "priority": array("i", priority[:rows]),
        "ttl_ms": array("q", times[:rows]),
    }
    found = [outcome(lambda m=module: m.entries_of(rows, **columns, first=0, most_bytes=999)) for module in BOTH]  # type: ignore[misc]
    assert found[0] == found[1]


@twin
@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"body": ragged([b"a", None])}, "Row 1: the body is null"),
        ({"key": ragged([b"a", b"\xff"])}, "Row 1: the key is not UTF-8"),
        ({"key": ragged([b"a", bytes(65_536)])}, "Row 1: the key is longer"),
        ({"priority": array("i", (9, 10))}, "Row 1: the priority is not 0 to 9"),
        ({"ttl_ms": array("q", (0, -1))}, "Row 1: time to live"),
        ({"headers": ragged([b"", bytes(65_537)])}, "Row 1: all headers"),
        ({"headers": ragged([b"", b"\x01a"])}, "Row 1: the headers are not"),
        ({"body": (memoryview(array("i", (0, 1, 9))), b"abc", None)}, "Row 1: its place"),
        ({"body": (memoryview(array("q", (0, 1, 0))), b"abc", None)}, "Row 1: its place"),
        ({"body": (memoryview(array("i", (0, 1))), b"abc", None)}, "offsets of 2 rows"),
        ({"body": (memoryview(array("h", (0, 1, 2))), b"abc", None)}, "offsets of 2 rows"),
        ({"body": (memoryview(array("i", (0, 1, 2))), b"abc", b"")}, "bitmap"),
        ({"priority": array("i", (9,))}, "shorter than 2 rows"),
        ({"first": 3}, "no row 3"),
        ({"first": -1}, "no row -1"),
    ],
)
def test_a_row_that_is_no_message_is_named(twin: ModuleType, columns: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadParameter, match=reason):
        twin.entries_of(2, **{"body": ragged([b"a", b"b"]), "most_bytes": 99, **columns})


@twin
def test_rows_may_have_other_numbers(twin: ModuleType) -> None:
    with pytest.raises(BadParameter, match="Row 77: the body is null"):
        twin.entries_of(2, body=ragged([b"a", None]), most_bytes=99, numbers=array("q", (5, 77)))
