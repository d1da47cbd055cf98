"""A recording of a stream: whenever the recorder dies, what it goes on with has each message once."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from fairlead.errors import ConfigError
from fairlead.feeds.block_codec import StreamMessage
from fairlead.feeds.events import FailedOver, Lost
from fairlead.feeds.records import ADMIN, MESSAGE, Place
from fairlead.feeds.schema import Schema
from fairlead.feeds.words import Admin
from fairlead.pipeline import accounts
from fairlead.pipeline.recording import Recording, state_of

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SCHEMA = Schema.of({"symbol": "string", "price": "int64", "at": "timestamp[ns]", "number": "int32"})


def message(sequence: int, part: int = 1, parts: int = 1) -> StreamMessage:
    row = {"symbol": f"S{sequence % 3}", "price": sequence * 100 + part, "at": sequence, "number": 7}
    return StreamMessage(1000 + sequence, MESSAGE, "DAY", sequence, part, parts, SCHEMA.encode(row))


def admin(name: str, after: int) -> StreamMessage:
    return StreamMessage(
        1000, ADMIN, "DAY", after, 1, 1, b"\x80", admin=Admin(id=name, kind="phase", body=name.encode())
    )


def read(directory: Path) -> list[dict[str, object]]:
    return ds.dataset(directory, format="parquet").to_table().sort_by("order_number").to_pylist()


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32))
def test_whenever_the_recorder_dies_each_message_is_there_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance = random.Random(seed)
    directory = tmp_path_factory.mktemp("recording")
    stream: list[StreamMessage] = []
    for sequence in range(1, 40):
        parts = chance.choice([1, 1, 1, 3])
        stream += [message(sequence, part, parts) for part in range(1, parts + 1)]
        if chance.random() < 0.1:
            stream.append(admin(f"a{sequence}", sequence))
    done = False
    while not done:
        with Recording(directory, "prices") as recording:
            place = recording.state.position.get("DAY", Place(0))
            at = next(
                (
                    index
                    for index, one in enumerate(stream)
                    if one.admin is None and (one.sequence, one.part) > (place.sequence, place.part)
                ),
                len(stream),
            )
            while at > 0 and stream[at - 1].admin is not None:
                at -= 1  # an adapter sends administrative messages at the border again
            while chance.random() > 0.15 and not done:
                items = stream[at : at + chance.randint(1, 9)]
                at += len(items)
                for one in items:
                    if one.admin is None:
                        place = Place(one.sequence, one.part, one.parts)
                recording.add(items, {"DAY": place}, SCHEMA, NOW)
                if chance.random() < 0.3 or at >= len(stream):
                    recording.commit()
                    done = at >= len(stream)
    rows = read(directory)
    assert [row["order_number"] for row in rows] == list(range(len(stream)))
    assert [(row["source"], row["sequence"], row["part"], row["admin_id"]) for row in rows] == [
        (one.source, one.sequence, one.part, one.admin.id if one.admin else None) for one in stream
    ]
    assert [row["price"] for row in rows] == [
        None if one.admin else one.sequence * 100 + one.part for one in stream
    ]  # fmt: skip


def test_a_file_has_who_a_message_is_and_its_record_in_plain_types(tmp_path: Path) -> None:
    strange = StreamMessage(8, MESSAGE, "DAY", 8, 1, 1, b"no record", late=True)
    items = [message(7, 2, 2), admin("x", 7), strange, FailedOver(old="a", new="b", why="", epoch=2, local=False)]
    with Recording(tmp_path, "prices") as recording:
        assert recording.add(items, {"DAY": Place(8)}, SCHEMA, NOW) == 3
        file = recording.commit()
    first, second, third = pq.read_table(file).to_pylist()
    assert {name: first[name] for name in ("stream_id", "stream_sequence", "source", "sequence", "part", "parts")} == {
        "stream_id": "DAY#2", "stream_sequence": 7, "source": "DAY", "sequence": 7, "part": 2, "parts": 2
    }  # fmt: skip
    assert (first["number"], first["number_"], first["price"], first["at_ns"], first["arrived"]) == (
        1007,
        7,
        702,
        7,
        NOW,
    )
    assert first["body"] is None
    assert (second["admin_id"], second["admin_kind"], second["body"], second["price"]) == ("x", "phase", b"x", None)
    assert (third["body"], third["late"], third["price"]) == (b"no record", True, None)


def test_a_stream_without_schema_is_recorded_as_it_is(tmp_path: Path) -> None:
    with Recording(tmp_path, "prices") as recording:
        recording.add([StreamMessage(1, MESSAGE, "DAY", 1, 1, 1, b"raw")], {"DAY": Place(1)}, None, NOW)
        recording.commit()
        recording.add([message(2)], {"DAY": Place(2)}, SCHEMA, NOW)  # and then it has one
        recording.add([message(3)], {"DAY": Place(3)}, SCHEMA, NOW)
        recording.commit()
    assert [pq.read_table(tmp_path / f"part-0000000{n}.parquet")["body"].to_pylist() for n in (0, 1)] == [
        [b"raw"], [None, None]
    ]  # fmt: skip


def test_a_schema_that_changes_begins_a_new_file(tmp_path: Path) -> None:
    other = Schema.of({"symbol": "string"})
    with Recording(tmp_path, "prices") as recording:
        recording.add([message(1)], {"DAY": Place(1)}, SCHEMA, NOW)
        body = other.encode({"symbol": "B"})
        recording.add([StreamMessage(2, MESSAGE, "DAY", 2, 1, 1, body)], {"DAY": Place(2)}, other, NOW)
        recording.commit()
    assert [row["symbol"] for row in read(tmp_path)] == ["S1", "B"]
    assert state_of(tmp_path) == recording.state


def test_what_is_lost_is_kept_by_range_also_where_nothing_else_came(tmp_path: Path) -> None:
    with Recording(tmp_path, "prices") as recording:
        recording.add([Lost(source="DAY", first=3, last=9, why="")], {"DAY": Place(9)}, SCHEMA, NOW)
        assert recording.is_dirty
        recording.commit()
    with Recording(tmp_path, "prices") as recording:
        assert (recording.state.lost, recording.state.position) == ((("DAY", 3, 9),), {"DAY": Place(9, 1, 1)})
        assert not recording.is_new


def test_a_directory_has_one_recorder_of_one_stream(tmp_path: Path) -> None:
    with Recording(tmp_path, "prices") as recording:
        recording.add([message(1)], {"DAY": Place(1)}, SCHEMA, NOW)
        recording.commit()
        with pytest.raises(ConfigError, match="Something else is recording"):
            Recording(tmp_path, "prices")
    with pytest.raises(ConfigError, match="a recording of prices"):
        Recording(tmp_path, "rates")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "part-00000001.parquet")
    with pytest.raises(ConfigError, match="no file of a recording"):
        Recording(tmp_path, "prices")
    (tmp_path / "part-00000001.parquet").write_bytes(b"garbage")
    with pytest.raises(ConfigError, match="no file of a recording"):
        Recording(tmp_path, "prices")


def test_two_recordings_are_reconciled_on_spark(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:  # fmt: skip
    whole, damaged = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("damaged")
    stream = [message(sequence, part, 2) for sequence in range(1, 30) for part in (1, 2)]
    for directory, items in ((whole, stream), (damaged, [*stream[:20], *stream[21:], stream[40]])):
        with Recording(directory, "prices") as recording:
            recording.add(items, {"DAY": Place(29, 2, 2)}, SCHEMA, NOW)
            recording.commit()
    frames = [accounts.known(spark.read.parquet(str(directory))) for directory in (whole, damaged)]
    ranges = accounts.ranges(accounts.Books(sent=frames[0], received=frames[1], as_of=NOW)).collect()
    found = {(row.kind, row.stream, row.first, row.last) for row in ranges if row.kind != "delivered"}
    assert found == {("lost", "DAY", 11, 11), ("doubled", "DAY", 21, 21)}
    same = accounts.ranges(accounts.Books(sent=frames[0], received=frames[0], as_of=NOW)).collect()
    assert {row.kind for row in same} == {"delivered"}
