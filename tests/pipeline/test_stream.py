"""What the stream reader plans and reads, against a real server; Spark itself is in test_spark.py."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

import fairlead
import fairlead.sync
from fairlead.errors import ConfigError, OffsetGone
from fairlead.pipeline.source import FairleadSource
from fairlead.pipeline.stream import StreamReader
from fairlead.testing import Server

KEEP = {"retain_messages": -1}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[fairlead.sync.Connection]:
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        yield connection


class Query:
    """What Spark does with a reader, and a checkpoint that outlives it."""

    def __init__(self, server: Server, destination: str, checkpoint: dict[str, Any] | None = None, **options: str):
        source = FairleadSource(options={"url": server.url, "destination": destination, **options})
        schema = source.schema()
        self.reader = source.streamReader(schema)
        assert isinstance(self.reader, StreamReader)
        self.worker = pickle.loads(pickle.dumps(source.streamReader(schema)))
        first = self.reader.initialOffset() if checkpoint is None else checkpoint
        self.at: dict[str, Any] = json.loads(json.dumps(first))

    def batch(self, limit: object = None, *, commit: bool = True) -> list[dict[str, Any]]:
        """One batch: planned, read on a worker, and said to be done."""
        end = self.reader.latestOffset(self.at, limit or self.reader.getDefaultReadLimit())  # type: ignore[arg-type]
        end = json.loads(json.dumps(end))
        rows = self.rows(self.at, end)
        self.at = end
        if commit:
            self.reader.commit(end)
        return rows

    def rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        lots = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))
        return [row for lot in lots for part in self.worker.read(lot) for row in part.to_pylist()]


@contextmanager
def query(server: Server, destination: str, checkpoint: Any = None, **options: str) -> Iterator[Query]:
    one = Query(server, destination, checkpoint, **options)
    try:
        yield one
    finally:
        one.reader.stop()


def bodies(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["body"]) for row in rows]


def numbers(first: int, beyond: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, beyond)]


def test_a_topic_that_keeps_its_messages(server: Server, client: fairlead.sync.Connection) -> None:
    topic = client.topic("kept", parameters=KEEP)
    topic.send_many(numbers(0, 10))
    with query(server, "kept") as one:
        begun = one.at
        assert bodies(one.batch()) == list(range(10))
        assert one.batch() == []
        unchanged = json.dumps(one.at)
        one.batch()
        assert json.dumps(one.at) == unchanged, "Spark compares offsets as text"
        topic.send_many(numbers(10, 12))
        assert bodies(one.batch()) == [10, 11]
        assert one.reader.reportLatestOffset() == one.at
        assert bodies(one.rows(begun, one.at)) == list(range(12)), "the same range gives the same rows"
        checkpoint = one.at
    topic.send(b"12")
    with query(server, "kept", checkpoint) as one:
        assert bodies(one.batch()) == [12]
    with query(server, "kept", startingOffsets="latest") as one:
        assert one.batch() == []
    with query(server, "kept", startingOffsets=json.dumps({"kept": begun["kept"] + 11})) as one:
        assert bodies(one.batch()) == [11, 12]
    with query(server, "kept", startingTime="0") as one:
        assert len(one.batch()) == 13


def test_limits(server: Server, client: fairlead.sync.Connection) -> None:
    client.topic("limited", parameters=KEEP).send_many([b"%1000d" % n for n in range(100)])
    with query(server, "limited", maxRowsPerTrigger="30") as one:
        assert one.reader.getDefaultReadLimit() == ReadMaxRows(30)
        assert [len(one.batch()) for _ in range(5)] == [30, 30, 30, 10, 0]
    with query(server, "limited", maxRowsPerTrigger="30") as one:
        assert len(one.batch(ReadAllAvailable())) == 100, "Spark has the last word"
    with query(server, "limited", maxBytesPerTrigger="20000") as one:
        sizes = []
        while rows := one.batch():
            sizes.append(len(rows))
        assert sum(sizes) == 100
        assert max(sizes) <= 20
        assert min(sizes[:-1]) >= 10
    with query(server, "limited", maxBytesPerTrigger="1") as one:
        assert len(one.batch()) == 1, "at least one, or it stands still"
    with query(server, "limited") as one:
        assert one.batch(ReadMinRows(101)) == []
        assert len(one.batch(ReadMinRows(100))) == 100


def test_a_limit_is_shared_between_destinations(server: Server, client: fairlead.sync.Connection) -> None:
    for name, count in (("share.a", 100), ("share.b", 5), ("share.c", 100)):
        client.topic(name, parameters=KEEP).send_many([b"x"] * count)
    with query(server, "share.*", maxRowsPerTrigger="45") as one:
        names = [row["destination"] for row in one.batch()]
        assert (names.count("share.a"), names.count("share.b"), names.count("share.c")) == (20, 5, 20)
    with query(server, "share.*", maxRowsPerTrigger="1") as one:
        assert {one.batch()[0]["destination"] for _ in range(3)} == {"share.a", "share.b", "share.c"}


def test_available_now_ends_where_it_began(server: Server, client: fairlead.sync.Connection) -> None:
    topic = client.topic("now.a", parameters=KEEP)
    topic.send_many(numbers(0, 5))
    with query(server, "now.*", maxRowsPerTrigger="2") as one:
        one.reader.prepareForTriggerAvailableNow()  # type: ignore[attr-defined]
        topic.send_many(numbers(5, 9))
        client.topic("now.b", parameters=KEEP).send(b"99")
        assert [bodies(one.batch()) for _ in range(4)] == [[0, 1], [2, 3], [4], []]
        before = json.dumps(one.at)
        one.batch()
        assert json.dumps(one.at) == before


def test_a_destination_that_comes_later_is_read_from_its_first(
    server: Server, client: fairlead.sync.Connection
) -> None:
    with query(server, "later.>", startingOffsets="latest") as one:
        assert one.at == {}
        client.topic("later.a", parameters=KEEP).send_many(numbers(0, 3))
        assert one.batch() == [], "this batch notes where it begins"
        assert bodies(one.batch()) == [0, 1, 2]


def test_what_is_lost_is_an_error_that_says_what(
    server: Server, client: fairlead.sync.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    topic = client.topic("lossy", parameters={"retain_messages": 5})
    topic.send_many(numbers(0, 5))
    with query(server, "lossy") as one:
        first = one.at["lossy"]
        topic.send_many(numbers(5, 20))
        gap = f"lossy: messages from {first} to {first + 14} are lost"
        with pytest.raises(OffsetGone, match=gap):
            one.batch()
        checkpoint = one.at
    with query(server, "lossy", checkpoint, failOnDataLoss="false") as one, caplog.at_level(logging.WARNING):
        assert bodies(one.batch()) == list(range(15, 20))
        assert gap in caplog.text
        assert one.batch() == []


def test_a_deleted_destination_is_an_error_or_left_out(
    server: Server, client: fairlead.sync.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("gone.a", "gone.b"):
        client.topic(name, parameters=KEEP).send_many(numbers(0, 3))
    with query(server, "gone.*") as one:
        one.batch()
        checkpoint = one.at
    client.admin.execute("delete", destination="gone.a")
    client.topic("gone.b").send(b"3")
    with query(server, "gone.*", checkpoint) as one, pytest.raises(OffsetGone, match=r"gone.a: .*it was deleted"):
        one.batch()
    with query(server, "gone.*", checkpoint, failOnDataLoss="false") as one:
        assert bodies(one.batch()) == [3]
        assert "gone.a" not in one.at
    client.admin.execute("delete", destination="gone.b")
    with fairlead.sync.connect(server.url, name="feeder2") as again:
        again.topic("gone.b", parameters=KEEP).send_many(numbers(0, 50))
    with query(server, "gone.b", checkpoint, failOnDataLoss="false") as one:
        assert one.batch() == []
        assert bodies(one.batch()) == list(range(50)), "made again, it begins at its first"


def test_a_topic_that_keeps_nothing_needs_a_cursor(server: Server, client: fairlead.sync.Connection) -> None:
    topic = client.topic("fleeting")
    topic.send(b"0")
    with pytest.raises(ConfigError, match="set a retention on it, or name a cursor"):
        Query(server, "fleeting")
    with query(server, "fleeting", cursor="spark") as one:
        topic.send_many(numbers(1, 4))
        assert bodies(one.batch(commit=False)) == [1, 2, 3]
    with query(server, "fleeting", one.at, cursor="spark") as one:
        one.reader.commit(one.at)
        topic.send(b"4")
        assert bodies(one.batch()) == [4]
    with query(server, "fleeting", cursor="spark") as one:
        assert one.batch() == [], "a new query with the same cursor goes on where that one was"
        topic.send(b"5")
        assert bodies(one.batch()) == [5]


def test_a_queue_is_consumed(server: Server, client: fairlead.sync.Connection) -> None:
    queue = client.queue("work")
    queue.send_many(numbers(0, 10))
    with pytest.raises(ConfigError, match="name a cursor"):
        Query(server, "work")
    with pytest.raises(ConfigError, match="from its head"):
        Query(server, "work", cursor="c", startingOffsets="latest")
    with query(server, "work", cursor="c", maxRowsPerTrigger="4") as one:
        begun = one.at
        assert begun["work"]["cursor"] == "c"
        assert bodies(one.batch(commit=False)) == [0, 1, 2, 3]
        middle = one.at
        with queue.consume() as consumer:
            assert [int(m.body) for m in consumer.receive_many(2, timeout=5)] == [4, 5], "the others are anybody's"
    # The query dies before it says that it is done, and begins again from its checkpoint.
    with query(server, "work", begun, cursor="c", maxRowsPerTrigger="4") as one:
        assert bodies(one.batch(commit=False)) == [0, 1, 2, 3], "the same rows for the same offsets"
        assert one.at == middle
        one.reader.commit(one.at)
        rest = [*bodies(one.batch()), *bodies(one.batch()), *bodies(one.batch())]
        assert sorted(rest) == [4, 5, 6, 7, 8, 9]
        assert one.batch() == []
    with queue.consume() as consumer:
        assert consumer.receive(timeout=0.2) is None, "what is committed is gone"
    with query(server, "work", begun, cursor="c") as old, pytest.raises(OffsetGone, match="committed"):
        queue.send(b"10")
        old.batch()
    with query(server, "work", begun, cursor="c", failOnDataLoss="false") as old:
        assert bodies(old.batch()) == [10]
    with pytest.raises(ConfigError, match="that of cursor 'c'"), query(server, "work", one.at, cursor="other") as other:
        queue.send(b"11")
        other.batch()


def test_available_now_on_a_queue(server: Server, client: fairlead.sync.Connection) -> None:
    queue = client.queue("nightly")
    queue.send_many(numbers(0, 5))
    with query(server, "nightly", cursor="c", maxRowsPerTrigger="2") as one:
        one.reader.prepareForTriggerAvailableNow()  # type: ignore[attr-defined]
        queue.send_many(numbers(5, 8))
        assert [bodies(one.batch()) for _ in range(4)] == [[0, 1], [2, 3], [4], []]
    with query(server, "nightly", one.at, cursor="c") as one:
        one.reader.prepareForTriggerAvailableNow()  # type: ignore[attr-defined]
        assert bodies(one.batch()) == [5, 6, 7]
        assert one.batch() == []


def test_a_queue_that_keeps_its_messages_may_be_read(server: Server, client: fairlead.sync.Connection) -> None:
    queue = client.queue("ledger", parameters=KEEP)
    queue.send_many(numbers(0, 3))
    with query(server, "ledger", mode="read") as one:
        assert bodies(one.batch()) == [0, 1, 2]
    with queue.consume() as consumer:
        assert len(consumer.receive_many(3, timeout=5)) == 3
    client.queue("plain").send(b"0")
    with pytest.raises(ConfigError, match="set a retention"):
        Query(server, "plain", mode="read")
    with pytest.raises(ConfigError, match="cursor"):
        Query(server, "ledger", mode="read", cursor="c")
    with pytest.raises(ConfigError, match="cursor"):
        Query(server, "kept", mode="consume")


@pytest.mark.parametrize(
    ("options", "says"),
    [({"endingOffsets": "latest"}, "no end"), ({"waiting": "true"}, "spark.read"), ({"endingTime": "1"}, "no end")],
)
def test_options_of_the_other_reader(server: Server, options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Query(server, "kept", **options)


def test_the_connection_is_not_pickled_and_comes_back(server: Server, client: fairlead.sync.Connection) -> None:
    client.topic("again", parameters=KEEP).send(b"0")
    with query(server, "again") as one:
        one.batch()
        assert b"socket" not in pickle.dumps(one.reader)
        server.kill("manager")
        client.topic("again").send(b"1")
        assert bodies(one.batch()) == [1]
