"""From source messages to records: parts, voids, what is left out, and that two adapters make the same (STR-11)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fairlead.errors import ConfigError
from fairlead.feeds.made import Made
from fairlead.feeds.making import Maker, maker
from fairlead.feeds.records import MESSAGE, VOID
from fairlead.feeds.schema import Schema
from fairlead.feeds.sources.day import TradingDay
from fairlead.feeds.sources.events import SOURCE_SCHEMA, SourceBatch
from fairlead.feeds.sources.runs import rows_of, run_of
from fairlead.pipeline.converters import Reject, converter, load

GIVES = pa.schema([("source_sequence", pa.int64()), ("text", pa.string())])


@converter(takes=SOURCE_SCHEMA, gives=GIVES)
def letters(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A record for each letter of a body, the last first batch-wise; nothing for `-`, a refusal for `!`."""
    rows, faults = [], {}
    for place, (sequence, body) in enumerate(zip(*(column.to_pylist() for column in batch.columns), strict=True)):
        if body == b"!":
            faults[place] = "an exclamation"
        elif body != b"-":
            rows += [{"source_sequence": sequence, "text": chr(letter)} for letter in body]
    made = pa.RecordBatch.from_pylist(rows, GIVES)
    if faults:
        raise Reject(faults, made)
    return made


def shown(made: Made) -> list[tuple[int, int, int, int, bytes]]:
    ends = [0, *made.ends.tolist()]
    return [
        (kind, sequence, part, parts, made.data[ends[row] : ends[row + 1]])
        for row, (kind, sequence, part, parts) in enumerate(
            zip(made.kinds.tolist(), made.sequences.tolist(), made.part.tolist(), made.parts.tolist(), strict=True)
        )
    ]


def batch_of(bodies: list[bytes], first: int = 1) -> SourceBatch:
    return SourceBatch("S1", rows_of([run_of(first, bodies)]))


def test_parts_voids_and_what_is_left_out() -> None:
    one = Maker(load(letters))
    made = one.make(batch_of([b"abc", b"-", b"!", b"d", b"!", b"-"], first=10))
    schema = Schema.from_json(one.schema)
    assert schema.names == ("text",)
    body = {letter: schema.encode({"text": letter}) for letter in "abcd"}
    assert shown(made) == [
        (MESSAGE, 10, 1, 3, body["a"]),
        (MESSAGE, 10, 2, 3, body["b"]),
        (MESSAGE, 10, 3, 3, body["c"]),
        (VOID, 12, 1, 1, b""),
        (MESSAGE, 13, 1, 1, body["d"]),
        (VOID, 14, 1, 1, b""),
    ]
    assert (made.source, made.first, made.through, made.keys) == ("S1", 10, 15, None)
    assert one.counters == {"taken": 6, "records": 4, "voids": 2, "filtered": 2}
    assert one.take_reasons() == {"an exclamation": 2}
    assert one.take_reasons() == {}


def test_nothing_at_all_comes_of_it() -> None:
    made = Maker(load(letters)).make(batch_of([b"-", b"-"], first=3))
    assert shown(made) == []
    assert (made.first, made.through) == (3, 4)


@converter(takes=SOURCE_SCHEMA, gives=GIVES)
def mixed(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Gives its rows in several batches, and not in order."""
    texts = pc.cast(batch.column(1), pa.string())
    whole = pa.record_batch([batch.column(0), texts], schema=GIVES)
    yield whole.take(pa.array(range(1, len(texts), 2), pa.int64()))
    yield whole.take(pa.array(range(0, len(texts), 2), pa.int64()))


def test_rows_are_put_in_source_order() -> None:
    made = Maker(load(mixed)).make(batch_of([b"a", b"b", b"c", b"d"]))
    assert made.sequences.tolist() == [1, 2, 3, 4]
    schema = Schema.of([("text", "string")])
    assert [schema.decode(row[4])["text"] for row in shown(made)] == ["a", "b", "c", "d"]


@converter(takes=SOURCE_SCHEMA, gives=GIVES)
def inventing(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch([pc.add(batch.column(0), 100), pc.cast(batch.column(1), pa.string())], schema=GIVES)


def test_a_converter_that_gives_what_it_was_not_given_is_found_out() -> None:
    with pytest.raises(ConfigError, match="was not given"):
        Maker(load(inventing)).make(batch_of([b"a"]))


@converter(takes=pa.schema([("body", pa.binary())]), gives=pa.schema([("text", pa.string())]))
def without(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@converter(takes=pa.schema([("body", pa.binary())]), gives=GIVES)
def guessing(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@converter(takes=pa.schema([("source_sequence", pa.int64()), ("topic", pa.string())]), gives=GIVES)
def greedy(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@converter(takes=pa.schema([*SOURCE_SCHEMA, ("source_id", pa.string())]), gives=GIVES)
def naming(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch([batch.column(0), batch.column("source_id")], schema=GIVES)


def test_what_a_feed_needs_of_a_converter() -> None:
    with pytest.raises(ConfigError, match="must give a column 'source_sequence'"):
        Maker(load(without))
    with pytest.raises(ConfigError, match="must take a column 'source_sequence'"):
        Maker(load(guessing))
    with pytest.raises(ConfigError, match="takes topic; a feed has only source_sequence, body, source_id"):
        Maker(load(greedy))
    with pytest.raises(ConfigError, match="no column nothing to be a key"):
        maker("itch", None, ["nothing"])
    made = Maker(load(naming)).make(batch_of([b"a"]))
    assert b"S1" in made.data


@converter(takes=SOURCE_SCHEMA, gives=GIVES)
def undecided(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise Reject({0: "no"}, pa.record_batch([batch.column(0), pc.cast(batch.column(1), pa.string())], schema=GIVES))


def test_what_is_rejected_and_given_all_the_same_is_rejected() -> None:
    made = Maker(load(undecided)).make(batch_of([b"a", b"b"]))
    assert [row[:4] for row in shown(made)] == [(VOID, 1, 1, 1), (MESSAGE, 2, 1, 1)]


def test_keys_of_a_snapshot() -> None:
    made = maker("csv", {"columns": [["symbol", "string"], ["price", "int64"]]}, ["symbol"]).make(
        batch_of([b"A,1", b"B,2", b"oops", b"A,3"])
    )
    assert made.keys is not None
    assert made.keys[0] == made.keys[3] != made.keys[1]
    assert made.keys[2] == b""
    assert made.kinds.tolist() == [MESSAGE, MESSAGE, VOID, MESSAGE]


def test_a_record_that_is_too_large_is_a_void() -> None:
    made = Maker(load(mixed)).make(batch_of([b"a", b"x" * (1 << 20), b"c"]))
    assert made.kinds.tolist() == [MESSAGE, VOID, MESSAGE]


@pytest.mark.requirement("STR-11", half="both conversions in one process, without adapters")
def test_a_hundred_thousand_messages_with_some_malformed_give_the_same_twice() -> None:
    """In other batches, with another maker: the same numbers, kinds, parts and bytes."""
    day = TradingDay(seed=11, messages=100_000, malformed=100)
    found = []
    for size in (4096, 1777):
        one = maker("itch")
        digest = voids = records = 0
        for first in range(1, day.messages + 1, size):
            made = one.make(SourceBatch("day", rows_of([day.run(first, size)])))
            for *fields, body in shown(made):
                digest = zlib.crc32(body, zlib.crc32(repr(fields).encode(), digest))
            voids += int((made.kinds == VOID).sum())
            records += made.count
        found.append((digest, voids, records))
        assert one.counters["taken"] == 100_000
    assert found[0] == found[1]
    assert 800 < found[0][1] < 1200
