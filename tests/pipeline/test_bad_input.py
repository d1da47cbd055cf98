"""What strangers do wrong, seen through Spark: every mistake ends with an error that says what to do, and no secret."""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import fairlead
import fairlead.sync
from fairlead.pipeline.decode import decode
from fairlead.pipeline.running import BUSY, fault_of
from fairlead.testing import Server
from tests.processes.test_access import add_user, certificate

KEEP = {"retain_messages": -1}
SECRET = "s3cret-of-alice"
AWAY = "fairlead://127.0.0.1:1"  # nobody listens there
TRIES = 4
"""Spark gives a new Python worker ten seconds to report, whatever else the machine does."""
HINT = "With failOnDataLoss=false"


class Guarded(NamedTuple):
    """A server that asks who it is, and its certificate."""

    server: Server
    pem: Path


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[fairlead.sync.Connection]:
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        yield connection


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data = tmp_path_factory.mktemp("guarded")
    add_user(data, "bob", "--publish", "public.>", "--subscribe", "public.>")
    pem, _ = certificate(tmp_path_factory.mktemp("certificate"))
    settings: dict[str, Any] = {"security.tls_certificate": str(pem), "security.tls_key": str(pem)}
    with Server(managers=1, data=data, **settings) as server:
        yield Guarded(server, pem)


def read(spark: SparkSession, destination: str, **options: str) -> DataFrame:
    return spark.read.format("fairlead").options(destination=destination, **options).load()


def write(frame: DataFrame, **options: str) -> None:
    frame.write.format("fairlead").mode("append").options(**options).save()


@contextmanager
def streaming(spark: SparkSession, checkpoint: Path, **options: str) -> Iterator[StreamingQuery]:
    """A query that runs on, into nothing."""
    frame = spark.readStream.format("fairlead").options(columns="body", **options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    for _ in range(TRIES):
        query = writer.trigger(processingTime="100 milliseconds").start()
        until(lambda query=query: not query.isActive or "Initializing" not in query.status["message"])  # type: ignore[misc]
        if query.isActive or BUSY not in str(query.exception()):
            break
    try:
        yield query
    finally:
        query.stop()


def rows(query: StreamingQuery) -> int:
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def until(condition: Callable[[], bool], query: StreamingQuery | None = None, timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert query is None or query.isActive, query.exception()
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def said(call: Callable[[], object]) -> str:
    """What the error says in Fairlead's own words; nothing secret is in it, nor around it."""
    for _ in range(TRIES):
        with pytest.raises(PySparkException) as raised:
            call()
        if BUSY not in str(raised.value):
            break
    assert SECRET not in str(raised.value)
    fault = fault_of(raised.value)
    assert fault is not None, f"not an error of ours: {raised.value}"
    return f"{type(fault).__name__}: {fault}"


def ending(query: StreamingQuery) -> str:
    """What a query says that fails."""
    return said(lambda: query.awaitTermination(60))


def beginning(spark: SparkSession, checkpoint: Path, **options: str) -> str:
    """What a query says that fails at once."""

    def run() -> None:
        with streaming(spark, checkpoint, **options) as query:
            query.awaitTermination(60)

    return said(run)


# Destinations, and messages that are not there.


def test_a_destination_that_does_not_exist(
    spark: SparkSession, server: Server, client: fairlead.sync.Connection, tmp_path: Path
) -> None:
    assert "NoDestination: There is no queue or topic 'nowhere'" in said(
        lambda: read(spark, "nowhere", url=server.url).count()
    )
    assert "NoDestination: There is no queue or topic 'nowhere'" in beginning(
        spark, tmp_path / "a", url=server.url, destination="nowhere"
    )
    text = said(lambda: write(spark.range(1).selectExpr("'x' as body"), url=server.url, destination="nowhere"))
    assert "'nowhere'" in text
    assert ".option('create', True)" in text
    assert read(spark, "no.such.>", url=server.url).count() == 0, "a pattern may match nothing, yet"
    with streaming(spark, tmp_path / "b", url=server.url, destination="no.such.>") as query:
        client.topic("no.such.one", parameters=KEEP).send_many([b"1", b"2"])
        until(lambda: rows(query) == 2, query)
    text = said(lambda: read(spark, "a..b", url=server.url).count())
    assert "BadPattern: 'a..b' is not a pattern" in text


def test_messages_that_were_let_go(
    spark: SparkSession, server: Server, client: fairlead.sync.Connection, tmp_path: Path
) -> None:
    topic = client.topic("lossy", parameters={"retain_messages": 5})
    topic.send_many([b"x"] * 20)
    first = int(read(spark, "lossy", url=server.url).selectExpr("min(order_number)").first()[0])  # type: ignore[index]
    wanted = {"url": server.url, "startingOffsets": f'{{"lossy": {first - 10}}}'}
    gap = f"OffsetGone: lossy: messages from {first - 10} to {first - 1} are lost"
    text = said(lambda: read(spark, "lossy", **wanted).count())
    assert gap in text
    assert HINT in text
    assert read(spark, "lossy", **wanted, failOnDataLoss="false").count() == 5
    text = beginning(spark, tmp_path / "a", destination="lossy", **wanted)
    assert gap in text
    assert HINT in text
    with streaming(spark, tmp_path / "a", destination="lossy", **wanted, failOnDataLoss="false") as query:
        until(lambda: rows(query) == 5, query)


def test_a_destination_deleted_in_mid_stream(
    spark: SparkSession, server: Server, client: fairlead.sync.Connection, tmp_path: Path
) -> None:
    client.topic("doomed.a", parameters=KEEP).send(b"1")
    with streaming(spark, tmp_path, url=server.url, destination="doomed.*") as query:
        until(lambda: rows(query) == 1, query)
        client.admin.execute("delete", destination="doomed.a")
        text = ending(query)
    assert "doomed.a: messages from" in text
    assert "it was deleted" in text
    assert HINT in text


def test_a_queue_without_a_cursor(
    spark: SparkSession, server: Server, client: fairlead.sync.Connection, tmp_path: Path
) -> None:
    client.queue("work").send(b"1")
    text = beginning(spark, tmp_path, url=server.url, destination="work")
    assert "name a cursor that is this query's own, .option('cursor', 'my-query')" in text
    text = said(lambda: read(spark, "work", url=server.url, cursor="mine").count())
    assert "use readStream with a cursor" in text


# Bodies.


def test_very_large_messages_and_bodies_that_are_not_what_they_should_be(
    spark: SparkSession, server: Server, client: fairlead.sync.Connection
) -> None:
    topic = client.topic("bodies", parameters=KEEP)
    topic.send_many([b'{"price": 1.5}', b"{broken", b"\xff\xfe", b'{"price": "none"}', b""])
    topic.send(io.BytesIO(b"x" * 3_000_000))
    frame = decode(read(spark, "bodies", url=server.url, columns="order_number,body,size"), "price double")
    found = frame.orderBy("order_number").collect()
    assert [row.value.price if row.value else None for row in found] == [1.5, None, None, None, None, None]
    assert [row.undecodable for row in found] == [None, b"{broken", b"\xff\xfe", b'{"price": "none"}', b"", None]
    assert (found[-1].body, found[-1].size) == (None, 3_000_000), "it is there, and only the client fetches it"


WRONG_FRAMES = {
    "missing body": ("id", "A message has no column 'id'. There are: body, value,"),
    "no body": ("'k' as key", "There is no column 'body' (or 'value')"),
    "body of a wrong type": ("id as body", "Column body has to be binary or a string, not int64"),
    "key of a wrong type": ("'x' as body; id as key", "Column key has to be binary or a string, not int64"),
    "properties": ("'x' as body; map('a', 1) as properties", "a map of strings to strings, not map<string, int32>"),
    "unknown column": ("'x' as body; id as colour", "A message has no column 'colour'"),
    "null body": ("cast(null as binary) as body", "Row 0: the body is null"),
    "null destination": ("'x' as body; cast(null as string) as destination", "Row 0: the destination is null"),
    "pattern as a name": ("'x' as body; 'a.>' as destination", "'a.>' cannot be a name"),
    "long key": ("'x' as body; repeat('k', 1000000) as key", "Row 0: the key is longer than 65535 bytes"),
    "long body": ("repeat('x', 2000000) as body", "BodyTooLarge: Partition 0, in its rows 0 to 0"),
    "unknown header": ("'x' as body; map('colour', 'red') as headers", "There is no header 'colour'"),
    "priority": ("'x' as body; 12 as priority", "Row 0: the priority is not 0 to 9"),
    "nowhere": ("'x' as body", "Nothing says where to"),
}


def test_rows_that_cannot_be_messages(spark: SparkSession, server: Server, client: fairlead.sync.Connection) -> None:
    client.topic("target", parameters=KEEP).send(b"before")
    wrong = []
    for name, (columns, expected) in WRONG_FRAMES.items():
        to = {} if "destination" in columns or name == "nowhere" else {"destination": "target"}
        frame = spark.range(0, 1, 1, 1).selectExpr(*columns.split("; "))
        text = said(lambda frame=frame, to=to: write(frame, url=server.url, create="true", **to))  # type: ignore[misc]
        if expected not in text or len(text) > 1000:
            wrong.append(f"{name}: {text[:1000]}")
    assert not wrong
    assert read(spark, "target", url=server.url).count() == 1, "nothing of them was written"


WRONG_OPTIONS: dict[str, tuple[dict[str, str], str]] = {
    "misspelt": ({"startingOffset": "latest"}, "Did you mean startingOffsets?"),
    "of a sink": ({"create": "true"}, "The option create has no meaning for reading"),
    "offsets": ({"startingOffsets": "yesterday"}, "startingOffsets is earliest, latest, or JSON like"),
    "of others": ({"startingOffsets": '{"other": 1}'}, "Offsets are given for other, which is not read here"),
    "time": ({"startingTime": "noon"}, "startingTime is an ISO time or milliseconds since 1970, not 'noon'"),
    "number": ({"slices": "many"}, "slices is a whole number from 1 to 10000, not 'many'"),
    "flag": ({"failOnDataLoss": "perhaps"}, "failOnDataLoss is true or false, not 'perhaps'"),
    "seconds": ({"patience": "nan"}, "patience is seconds, from above 0 to 86400, not 'nan'"),
    "column": ({"columns": "bodi"}, "There is no column 'bodi'. Did you mean body?"),
    "scheme": ({"url": "ftp://x"}, "does not begin with fairlead://, fairleads://, fairlead+unix://"),
    "address": (
        {"url": f"fairlead://alice:{SECRET}@x:port"},
        "'fairlead://x:port' has an address that is not host:port",
    ),
}


def test_options_that_do_not_exist_or_say_nothing(
    spark: SparkSession, server: Server, client: fairlead.sync.Connection
) -> None:
    client.topic("kept", parameters=KEEP).send(b"1")
    wrong = []
    for name, (options, expected) in WRONG_OPTIONS.items():
        text = said(lambda options=options: read(spark, "kept", **{"url": server.url} | options).count())  # type: ignore[misc]
        if expected not in text:
            wrong.append(f"{name}: {text}")
    assert not wrong
    assert "Say what to read: .option('destination', 'orders')" in said(lambda: read(spark, "", url=server.url))
    assert "use mode('append')" in said(
        lambda: spark.range(1).selectExpr("'x' as body").write.format("fairlead").mode("overwrite").save("kept")
    )


# Who is there.


def test_strangers_and_those_who_may_not(
    spark: SparkSession, guarded: Guarded, capfd: pytest.CaptureFixture[str]
) -> None:
    url, one = guarded.server.url, spark.range(1).selectExpr("'x' as body")
    assert "BadCredentials: This server asks for a user" in said(lambda: read(spark, "public.x", url=url).count())
    for wrong in ({"url": url, "user": "bob", "password": SECRET}, {"url": url.replace("//", f"//bob:{SECRET}@")}):
        text = said(lambda wrong=wrong: read(spark, "public.x", **wrong).count())  # type: ignore[misc]
        assert "BadCredentials: Unknown user or wrong password" in text
    bob = {"url": url, "user": "bob", "password": "bob-secret"}
    assert "NotAllowed: bob may not browse private.x" in said(lambda: read(spark, "private.x", **bob).count())
    text = said(lambda: write(one, **bob, destination="private.x", create="true"))
    assert "NotAllowed: bob may not send private.x" in text
    missing = {"url": url, "user": "bob", "passwordFile": "/nonexistent/password"}
    assert "passwordFile '/nonexistent/password' cannot be read" in said(
        lambda: read(spark, "public.x", **missing).count()
    )
    shown = "".join(capfd.readouterr())
    assert SECRET not in shown
    assert "bob-secret" not in shown


def test_certificates(spark: SparkSession, guarded: Guarded) -> None:
    bob = {"url": f"fairleads://localhost:{guarded.server.port}", "user": "bob", "password": "bob-secret"}
    text = said(lambda: read(spark, "public.>", **bob).count())
    assert f"The certificate of localhost:{guarded.server.port} is not to be trusted" in text
    assert "tlsCa" in text
    text = said(lambda: read(spark, "public.>", **bob, tlsCa="/nonexistent/ca.pem").count())
    assert "The TLS files cannot be used (/nonexistent/ca.pem)" in text
    assert read(spark, "public.>", **bob, tlsCa=str(guarded.pem)).count() == 0


# A server that is away.


def test_nobody_there_at_the_start(spark: SparkSession, tmp_path: Path) -> None:
    refused = "ConnectionLost: Cannot connect to 127.0.0.1:1: "
    began_s = time.monotonic()
    assert refused in said(lambda: read(spark, "x", url=AWAY, patience="1").count())
    one = spark.range(1).selectExpr("'x' as body")
    assert refused in said(lambda: write(one, url=AWAY, destination="x", patience="1"))
    assert refused in beginning(spark, tmp_path, url=AWAY, destination="x", patience="1")
    assert time.monotonic() - began_s < 110


@pytest.mark.long
def test_a_server_that_goes_away_in_mid_stream(spark: SparkSession, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{probe.getsockname()[1]}"
    (tmp_path / "data").mkdir()

    def send(server: Server, count: int) -> None:
        with fairlead.sync.connect(server.url, name="feeder") as connection:
            connection.topic("on", parameters=KEEP).send_many([b"x"] * count)

    with Server(managers=1, data=tmp_path / "data", listen=listen) as server:
        send(server, 3)
        options = {"url": server.url, "destination": "on"}
        with streaming(spark, tmp_path / "a", **options, patience="60") as query:
            until(lambda: rows(query) == 3, query)
            server.stop()
            server.start()
            send(server, 4)
            until(lambda: rows(query) == 7, query)
        with streaming(spark, tmp_path / "b", **options, patience="1") as query:
            until(lambda: rows(query) == 7, query)
            server.stop()
            text = ending(query)
    assert text.startswith(("ConnectionLost: ", "RequestTimeout: ")), text
    assert listen in text
    assert "Tried " in text
