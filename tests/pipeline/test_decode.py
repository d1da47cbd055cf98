"""Bodies of strangers become values, or are kept; nothing raises (`fairlead.pipeline.decode`, and converters)."""

from __future__ import annotations

import msgspec
import pytest
from pyspark.sql import SparkSession

from fairlead.pipeline import decode
from fairlead.pipeline.converters import convert, load, split

GOOD = b'{"price": 1.5, "symbol": "EURUSD"}'
BODIES = [GOOD, b"\xff\xfe", b"{broken", b"", b"[1]", b"null", b'{"price": "much"}', b"{}", None]


def test_json_bodies_and_those_that_are_none(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(n, body) for n, body in enumerate(BODIES)], "n int, body binary")
    rows = decode.decode(frame, "price double, symbol string").orderBy("n").collect()
    assert rows[0].value.asDict() == {"price": 1.5, "symbol": "EURUSD"}
    assert rows[7].value.asDict() == {"price": None, "symbol": None}
    assert [row.undecodable for row in rows] == [None, *BODIES[1:7], None, None]
    assert [row.value for row in rows][1:7] == [None] * 6
    assert rows[8].value is None, "the body of a very large message is not here, and is not undecodable"


def test_text_that_is_not_text_is_null(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(bytes(b),) for b in ("héllo".encode(), b"\xc3", b"")], "body binary")
    assert [row[0] for row in frame.select(decode.text("body")).collect()] == ["héllo", None, ""]


def test_bodies_sent_as_dict(spark: SparkSession) -> None:
    packed = msgspec.msgpack.encode({"price": 1.5, "symbol": "€", "legs": [1, {"a": None}], "none": None})
    strange = [b"\xc1", b"", b"\x91" * 20_000, msgspec.msgpack.encode([1]), msgspec.msgpack.encode({1: b"\x00"}), None]
    frame = spark.createDataFrame([(n, body) for n, body in enumerate([packed, *strange])], "n int, body binary")
    both = decode.body_map("body").alias("m"), decode.body_json("body").alias("j")
    rows = frame.select("n", *both).orderBy("n").collect()
    assert rows[0].m == {"price": "1.5", "symbol": "€", "legs": '[1,{"a":null}]', "none": None}
    assert msgspec.json.decode(rows[0].j)["legs"] == [1, {"a": None}]
    assert [row.m for row in rows[1:5]] == [None] * 4
    assert rows[5].m == {"1": '"AA=="'}
    decoded = decode.decode(frame, "price double, symbol string", sent_as="map").orderBy("n").collect()
    assert decoded[0].value.symbol == "€"
    assert decoded[1].undecodable == bytearray(strange[0] or b"")


def test_a_converter_on_spark(spark: SparkSession) -> None:
    bodies = [(n, b"%d" % n if n % 10 else b"x") for n in range(1, 101)]
    frame = spark.createDataFrame(bodies, "order_number long, body binary")
    good, bad = split(convert(frame, load("tests.pipeline.test_converters:numbers")).cache())
    assert good.count() == 90
    assert good.where("number <> order_number").count() == 0
    rows = bad.orderBy("order_number").collect()
    assert [row.order_number for row in rows] == list(range(10, 101, 10))
    assert {bytes(row.body) for row in rows} == {b"x"}
    assert all("x" in row.reason for row in rows)


def test_a_schema_that_is_no_struct() -> None:
    with pytest.raises(TypeError, match="struct"):
        decode.json("body", "int")
