"""What the batch reader reads, against a real server; Spark itself is in test_spark.py."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual
from pyspark.sql.types import StructType

import fairlead
import fairlead.sync
from fairlead.errors import ConfigError, NoDestination, OffsetGone
from fairlead.pipeline.filters import narrowing
from fairlead.pipeline.source import BatchReader, FairleadSource, FilteringReader
from fairlead.testing import Server

KEEP = {"retain_messages": -1}
ROWS = 3_000


@pytest.fixture(scope="module")
def trades(server: Server) -> str:
    """A topic that keeps its messages, with keys and one of another priority."""
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        topic = connection.topic("trades", parameters=KEEP)
        for base in range(0, ROWS, 500):
            topic.send_many([b"%d" % n for n in range(base, base + 500)], key=f"k{base // 500}")
        topic.send(b"last", key="clé", priority=7)
    return "trades"


def reader(server: Server, destination: str, *, filters: Sequence[Filter] = (), **options: str) -> BatchReader:
    source = FairleadSource(options={"url": server.url, "destination": destination, **options})
    found = source.reader(source.schema())
    assert isinstance(found, BatchReader)
    found._narrowing = narrowing(filters)
    return found


def read(server: Server, destination: str, **options: Any) -> list[dict[str, Any]]:
    one = reader(server, destination, **options)
    return [row for lot in one.partitions() for batch in one.read(lot) for row in batch.to_pylist()]


def bodies(server: Server, destination: str, **options: Any) -> list[bytes]:
    return [row["body"] for row in read(server, destination, **options)]


def test_every_order_number_once_whatever_the_slices(server: Server, trades: str) -> None:
    for slices in (1, 3, 7):
        options = {"slices": str(slices), "batchRows": "170", "columns": "order_number"}
        assert len(reader(server, trades, **options).partitions()) == slices
        orders = [row["order_number"] for row in read(server, trades, **options)]
        assert orders == list(range(orders[0], orders[0] + ROWS + 1))
    assert len(reader(server, trades).partitions()) == 2, "without being asked, where there is enough for two"


def test_offsets_of_both_ends(server: Server, trades: str) -> None:
    first = read(server, trades)[0]["order_number"]
    ends = {"startingOffsets": f'{{"trades": {first + 10}}}', "endingOffsets": f'{{"trades": {first + 13}}}'}
    assert bodies(server, trades, **ends) == [b"10", b"11", b"12"]
    assert bodies(server, trades, startingOffsets="latest") == []
    assert bodies(server, trades, endingOffsets="earliest") == []
    assert len(bodies(server, trades, endingOffsets='{"trades": 1000000}')) == ROWS + 1
    with pytest.raises(ConfigError, match="other, which is not read here"):
        read(server, trades, startingOffsets='{"other": 1}')


def test_times_of_both_ends(server: Server) -> None:
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        topic = connection.topic("times", parameters=KEEP)
        topic.send(b"before")
        (row,) = read(server, "times")
        while (now := datetime.now(UTC)).timestamp() * 1000 < row["arrived"].timestamp() * 1000 + 3:
            pass
        topic.send(b"after")
    middle = now.isoformat()
    assert bodies(server, "times", startingTime=middle) == [b"after"]
    assert bodies(server, "times", endingTime=middle) == [b"before"]
    assert bodies(server, "times", startingTime="0", endingTime=middle) == [b"before"]
    assert bodies(server, "times", startingTime="99999999999999") == []


def test_conditions_go_to_the_server(server: Server, trades: str) -> None:
    def matching(*filters: Filter) -> int:
        return len(read(server, trades, filters=filters))

    assert matching(EqualTo(("key",), "k2")) == 500
    assert matching(In(("key",), ("k1", "k3", "none"))) == 1000
    assert matching(EqualTo(("key",), "clé")) == 1
    assert matching(GreaterThan(("priority",), 5)) == 1
    assert matching(EqualTo(("destination",), "other")) == 0
    assert matching(EqualTo(("key",), "a"), EqualTo(("key",), "b")) == 0
    whole = read(server, trades)
    times = [row["arrived"] for row in whole]
    assert 0 < matching(LessThanOrEqual(("arrived",), times[0])) <= times.count(times[0])
    assert matching(LessThan(("arrived",), min(times).replace(year=2000))) == 0
    assert 0 < matching(GreaterThanOrEqual(("arrived",), times[-1])) < ROWS
    assert 0 < matching(GreaterThanOrEqual(("published",), whole[-1]["published"])) < ROWS
    first = whole[0]["order_number"]
    between = GreaterThanOrEqual(("order_number",), first + 5), LessThan(("order_number",), first + 8)
    assert bodies(server, trades, filters=between)[:3] == [b"5", b"6", b"7"]


def test_conditions_are_all_given_back_for_spark_to_apply_again(server: Server) -> None:
    one = FilteringReader(reader(server, "trades")._reading, StructType())
    filters: list[Filter] = [EqualTo(("key",), "a"), EqualTo(("size",), 1)]
    assert list(one.pushFilters(filters)) == filters


def test_a_queue_is_looked_at_and_nothing_is_taken(server: Server) -> None:
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        queue = connection.queue("orders")
        queue.send_many([b"%d" % n for n in range(10)])
        with queue.consume() as consumer:
            for message in consumer.receive_many(3, timeout=5):
                message.ack(confirm=True)
        assert bodies(server, "orders") == [b"%d" % n for n in range(3, 10)]
        with queue.consume() as consumer:
            assert [m.body for m in consumer.receive_many(10, timeout=5)] == [b"%d" % n for n in range(3, 10)]


def test_what_a_queue_keeps_after_it_was_consumed(server: Server) -> None:
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        queue = connection.queue("kept", parameters=KEEP)
        queue.send_many([b"0", b"1", b"2"])
        with queue.consume() as consumer:
            consumer.receive(timeout=5).ack(confirm=True)
    assert bodies(server, "kept") == [b"1", b"2"]
    assert bodies(server, "kept", waiting="false") == [b"0", b"1", b"2"]


def test_patterns_and_lists(server: Server) -> None:
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        for name in ("fx.eur", "fx.usd", "fx.jpy", "bonds"):
            connection.topic(name, parameters=KEEP).send_many([name] * 3)
    found = [(row["destination"], row["body"].decode()) for row in read(server, "fx.>")]
    assert found == [(name, name) for name in ("fx.eur", "fx.jpy", "fx.usd") for _ in range(3)]
    assert len(reader(server, "fx.>").partitions()) == 1, "small destinations share a task"
    assert len(read(server, "bonds,fx.eur,fx.*")) == 12
    assert read(server, "nothing.>") == []


def test_mistakes_are_named(server: Server, trades: str) -> None:
    with pytest.raises(NoDestination, match="nowhere"):
        read(server, "nowhere")
    with pytest.raises(ConfigError, match="only looks"):
        read(server, trades, mode="consume", cursor="c")


def test_messages_that_are_gone_are_an_error_where_they_were_asked_for(server: Server) -> None:
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        topic = connection.topic("short", parameters={"retain_messages": 5})
        topic.send_many([b"%d" % n for n in range(20)])
    kept = bodies(server, "short")
    assert kept == [b"%d" % n for n in range(15, 20)]
    with pytest.raises(OffsetGone, match="1"):
        read(server, "short", startingOffsets='{"short": 1}')
    assert bodies(server, "short", startingOffsets='{"short": 1}', failOnDataLoss="false") == kept
