"""What the sink writes, against a real server; Spark itself is in test_spark.py."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

import fairlead
import fairlead.sync
from fairlead.errors import BadParameter, ConfigError, NoDestination, StageMissing, WrongKind
from fairlead.pipeline import sink
from fairlead.pipeline.sink import BatchWriter, Staged, StreamWriter
from fairlead.pipeline.source import FairleadSource
from fairlead.testing import Server

BODY = StructType().add("body", "binary")


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[fairlead.sync.Connection]:
    with fairlead.sync.connect(server.url, name="reader") as connection:
        yield connection


def source(server: Server, **options: str) -> FairleadSource:
    return FairleadSource(options={"url": server.url, **options})


def batch_writer(server: Server, schema: StructType = BODY, **options: str) -> BatchWriter:
    found = source(server, **options).writer(schema, overwrite=False)
    assert isinstance(found, BatchWriter)
    return found


def batches(*parts: list[Any], name: str = "body") -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch([pa.array(part, pa.binary())], names=[name]) for part in parts])


def taken(client: fairlead.sync.Connection, name: str) -> list[bytes]:
    found = []
    with client.queue(name, create=False).consume() as consumer:
        while (more := consumer.receive_many(1000, timeout=0.3)) or client.admin.destination(destination=name)["depth"]:
            found += [message.body for message in more]
            consumer.ack_many(more)
    return found


def test_a_batch_is_seen_when_it_is_committed_and_only_what_won(
    server: Server, client: fairlead.sync.Connection
) -> None:
    writer = batch_writer(server, destination="out", create="true")
    lost = writer.write(batches([b"lost"]))
    late = writer.write(batches([b"3"], [b"4", b"5"]))
    early = writer.write(batches([b"1", b"2"]))
    empty = writer.write(batches())
    assert isinstance(lost, Staged)
    assert isinstance(early, Staged)
    early.partition, late.partition = 0, 1  # type: ignore[attr-defined]
    assert early.rows == {"out": 2}
    assert taken(client, "out") == []
    messages = pickle.loads(pickle.dumps([late, empty, early]))
    driver = pickle.loads(pickle.dumps(writer))
    driver.commit(messages)
    assert taken(client, "out") == [b"1", b"2", b"3", b"4", b"5"], "in the order of the partitions"
    driver.commit(messages)
    driver.abort(messages)
    assert taken(client, "out") == [], "once, whatever comes after"


def test_a_batch_that_is_aborted_leaves_nothing(server: Server, client: fairlead.sync.Connection) -> None:
    writer = batch_writer(server, destination="aborted", create="true")
    message = writer.write(batches([b"1"]))
    writer.abort([message, None])
    with pytest.raises(StageMissing):
        writer.commit([message])
    assert taken(client, "aborted") == []


def test_batches_with_a_name_of_their_own_are_written_once(server: Server, client: fairlead.sync.Connection) -> None:
    for number in (0, 1, 2, 0, 1, 2):  # a job that is run again
        writer = batch_writer(server, destination="named", create="true", query="job-1", batch=str(number))
        writer.commit([writer.write(batches([b"%d" % number]))])
    assert taken(client, "named") == [b"0", b"1", b"2"]


def test_a_stream_is_told_by_spark_which_batch_it_is(server: Server, client: fairlead.sync.Connection) -> None:
    writing = source(server, destination="streamed", create="true").streamWriter(BODY, overwrite=False)
    assert isinstance(writing, StreamWriter)
    with pytest.raises(fairlead.errors.LocalProtocolError, match="which batch"):
        writing.write(batches([b"1"]))

    def staged(batch: int, body: bytes) -> Staged:
        return sink.staged(writing._writing, "query", batch, batches([body]))

    crashed = staged(0, b"never seen")
    writing.commit([staged(0, b"0")], 0)
    writing.commit([staged(0, b"0 again")], 0)  # the checkpoint had not got that far
    writing.abort([crashed, None], 0)
    writing.commit([staged(1, b"1"), None], 1)
    writing.commit([], 2)
    assert taken(client, "streamed") == [b"0", b"1"]


def test_messages_have_all_their_parts(server: Server, client: fairlead.sync.Connection) -> None:
    now = datetime.now(UTC)
    rows = [
        {
            "value": "text",
            "destination": "parts.a",
            "key": "k",
            "priority": 8,
            "properties": [("region", "eu")],
            "headers": [("type", "t"), ("correlation", "c")],
            "expires": now + timedelta(hours=1),
        },
        {"value": "b", "destination": "parts.b"},
        {"value": "c", "destination": "parts.a", "priority": None},
    ]
    schema = pa.schema(
        [
            ("value", pa.string()),
            ("destination", pa.string()),
            ("key", pa.string()),
            ("priority", pa.int32()),
            ("properties", pa.map_(pa.string(), pa.string())),
            ("headers", pa.map_(pa.string(), pa.string())),
            ("expires", pa.timestamp("us", "UTC")),
        ]
    )
    writer = batch_writer(server, from_arrow_schema(schema), create="true")
    message = writer.write(iter([pa.RecordBatch.from_pylist(rows, schema)]))
    assert isinstance(message, Staged)
    assert message.rows == {"parts.a": 2, "parts.b": 1}
    writer.commit([message])
    with client.queue("parts.a").consume() as consumer:
        first, second = consumer.receive_many(2, timeout=5)
    assert (first.body, first.key, first.priority, first.type, first.correlation_id) == (b"text", "k", 8, "t", "c")
    assert first.properties["region"] == "eu"
    assert (second.body, second.key, second.priority) == (b"c", None, 4)
    assert taken(client, "parts.b") == [b"b"]


def test_the_option_says_where_to_whatever_a_column_says(server: Server, client: fairlead.sync.Connection) -> None:
    schema = pa.schema([("body", pa.binary()), ("destination", pa.string())])
    writer = batch_writer(server, from_arrow_schema(schema), destination="there", create="true")
    rows = [{"body": b"1", "destination": "here"}, {"body": b"2", "destination": None}]
    writer.commit([writer.write(iter([pa.RecordBatch.from_pylist(rows, schema)]))])
    assert taken(client, "there") == [b"1", b"2"]


def test_mistakes_are_named_before_anything_runs(server: Server) -> None:
    with pytest.raises(ConfigError, match="overwritten"):
        source(server, destination="x").writer(BODY, overwrite=True)
    with pytest.raises(ConfigError, match="overwritten"):
        source(server, destination="x").streamWriter(BODY, overwrite=True)
    with pytest.raises(ConfigError, match="Nothing says where to"):
        batch_writer(server)
    with pytest.raises(BadParameter, match="no column 'body'"):
        batch_writer(server, StructType().add("key", "string"), destination="x")
    with pytest.raises(BadParameter, match="Column priority has to be an integer"):
        batch_writer(server, StructType().add("body", "binary").add("priority", "string"), destination="x")
    with pytest.raises(BadParameter, match="no column 'colour'"):
        batch_writer(server, StructType().add("body", "binary").add("colour", "string"), destination="x")
    with pytest.raises(ConfigError, match="query and batch are for"):
        source(server, destination="x", query="q").streamWriter(BODY, overwrite=False)


def test_a_row_that_cannot_be_a_message_is_named(server: Server) -> None:
    schema = pa.schema([("body", pa.binary()), ("priority", pa.int32())])
    writer = batch_writer(server, from_arrow_schema(schema), destination="bad", create="true")
    good = pa.RecordBatch.from_pylist([{"body": b"x", "priority": 4}] * 10, schema)
    bad = pa.RecordBatch.from_pylist([{"body": b"x", "priority": 4}] * 3 + [{"body": b"x", "priority": 12}], schema)
    with pytest.raises(Exception, match=r"in its rows 10 to 13, counted from 0 there: .*3.*priority"):
        writer.write(iter([good, bad]))


def test_destinations_that_are_not_there(server: Server, client: fairlead.sync.Connection) -> None:
    with pytest.raises(NoDestination):
        batch_writer(server, destination="nowhere").write(batches([b"1"]))
    client.topic("a.topic").send(b"x")
    with pytest.raises(WrongKind):
        batch_writer(server, destination="a.topic", kind="queue").write(batches([b"1"]))
    writer = batch_writer(server, destination="a.new.topic", create="true", kind="topic")
    writer.commit([writer.write(batches([b"1"]))])
