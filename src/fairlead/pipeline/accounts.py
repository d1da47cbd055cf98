"""Where every message of a stream went: ranges of sequence numbers, each with what became of it.

A message is known by its stream and its number there. All that is known of one (it was sent, received, waits, is dead)
is brought together by one sort by stream and number, and neighbours of the same fate become one range at once; so what
is kept is as long as the list of faults, not as the stream. A stream is cut into blocks of numbers that are worked on
apart, however long it is, and what belongs together is joined at their borders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["FATES", "FAULTS", "Books", "balance", "known", "ranges", "sent_by_ranges", "streams"]

FATES: Final = ("delivered", "waiting", "dead", "expired", "lost")
"""What became of a message: exactly one of these. The first that fits counts."""

FAULTS: Final = ("lost", "doubled", "reordered", "altered", "late", "expired", "dead", "unsent", "overlap")
"""What is listed. `unsent`: received, but nobody sent it; `overlap`: in two places at once (received and waiting …)."""

BLOCK_BITS: Final = 16
BIGGEST: Final = (1 << 63) - 1
MANIFEST_MAX: Final = 10_000_000_000
"""Messages that ranges may stand for; more is taken for a slip."""

SENT, RECEIVED, WAITING, DEAD = 0, 1, 2, 3


@dataclass(frozen=True)
class Books:
    """The frames to compare, each as `known` makes them. Without `sent` only the numbers say what there should be."""

    received: DataFrame
    sent: DataFrame | None = None
    waiting: DataFrame | None = None
    dead: DataFrame | None = None
    late_s: float = 0.0
    """A message that took longer to arrive is late; 0: never."""
    dense: bool = False
    """A number that is nowhere is lost, though nobody said that it was sent."""
    first: int | None = None
    """The number every stream begins with, for `dense`."""
    as_of: Any = None
    """What expired before then and is nowhere, is expired; a datetime, now if it is None."""
    block_bits: int = BLOCK_BITS
    sides: Mapping[int, DataFrame] = field(init=False)

    def __post_init__(self) -> None:
        there = {SENT: self.sent, RECEIVED: self.received, WAITING: self.waiting, DEAD: self.dead}
        object.__setattr__(self, "sides", {side: frame for side, frame in there.items() if frame is not None})


def known(frame: DataFrame, *, by: str = "stream", digest: str = "xxhash64") -> DataFrame:
    """What accounts need to know of messages, of a frame with (some of) the source's columns.

    `by="order"` takes the destination as the stream and the order number as the number in it, for messages without
    numbers of their own. A message without a number cannot be accounted for and is left out: count those before.
    """
    from pyspark.sql import functions as f

    there = set(frame.columns)

    def column(name: str, kind: str, otherwise: Any = None) -> Column:
        return (f.col(name) if name in there else f.lit(otherwise)).cast(kind)

    names = ("destination", "order_number") if by == "order" else ("stream_id", "stream_sequence")
    if missing := [name for name in names if name not in there]:
        raise ConfigError(f"A frame to account for has no column {missing[0]}. It has: {', '.join(sorted(there))}.")
    if "digest" in there:
        hashed = f.col("digest").cast("string")
    elif "body" in there:
        body = f.col("body").cast("binary")
        hashed = f.sha2(body, 256) if digest == "sha256" else f.hex(f.xxhash64(body))
        hashed = f.when(body.isNotNull(), hashed)  # a very large message is not looked into
    else:
        hashed = f.lit(None).cast("string")
    headers = "headers" in there and dict(frame.dtypes)["headers"].startswith("map")
    origin = f.col("headers")["dead-destination"] if headers else f.lit(None)
    return frame.select(
        f.col(names[0]).alias("stream"),
        f.col(names[1]).cast("bigint").alias("sequence"),
        f.coalesce(origin, column("destination", "string", "")).alias("destination"),
        column("order_number", "bigint").alias("place"),
        hashed.alias("digest"),
        (f.unix_micros(column("arrived", "timestamp")) - f.unix_micros(column("published", "timestamp"))).alias(
            "wait_us"
        ),
        column("expires", "timestamp").alias("expires"),
        (f.col("headers")["dead-reason"] if headers else column("reason", "string")).alias("reason"),
    ).where("stream is not null and sequence is not null")


def sent_by_ranges(spark: SparkSession, said: Mapping[str, Any]) -> DataFrame:
    """What was sent, of a manifest: by stream the ranges of numbers, both ends included, `{"a": [[1, 500]]}`."""
    from pyspark.sql import functions as f

    rows: list[tuple[str, int, int]] = []
    for stream, spans in said.items():
        if not isinstance(spans, list):
            raise ConfigError(f"The manifest has no list of ranges for stream {stream[:40]!r}.")
        for span in spans:
            match span:
                case [int(first), int(last)] if -BIGGEST <= first <= last < BIGGEST:
                    rows.append((stream, first, last))
                case _:
                    raise ConfigError(f"A range of a manifest is [first, last], not {str(span)[:60]}.")
    if sum(last - first + 1 for _, first, last in rows) > MANIFEST_MAX:
        raise ConfigError(f"The manifest speaks of more than {MANIFEST_MAX:,} messages.")
    frame = spark.createDataFrame(rows, "stream string, first bigint, last bigint")
    step = f.lit(1 << BLOCK_BITS)
    frame = frame.select("stream", "last", f.explode(f.sequence("first", "last", step)).alias("first"))
    frame = frame.repartition("stream", "first")
    numbers = f.explode(f.sequence(f.col("first"), f.least("last", f.col("first") + step - 1)))
    frame = frame.select("stream", numbers.alias("sequence"))
    return frame.selectExpr(
        *("stream", "sequence", "'' as destination", "cast(null as bigint) as place", "cast(null as string) as digest"),
        *("cast(null as bigint) as wait_us", "cast(null as timestamp) as expires", "cast(null as string) as reason"),
    )


def ranges(books: Books) -> DataFrame:
    """All there is to say: kind (a fate or a fault), stream, destination, reason, first, last, count, extra, wait_us.

    Every message is in exactly one range whose kind is a fate, and in one for each other fault. Ranges are as long as
    can be. `extra` counts second copies (of `doubled`), `wait_us` is the longest wait.
    """
    from pyspark.sql import functions as f

    runs = _runs(books)
    shown = ("stream", "destination", "reason", "first", "last", "count", "extra", "wait_us")
    said = f.transform("kinds", lambda kind: f.struct(kind.alias("kind"), *shown))
    if books.dense:
        runs = _after_holes(runs, books.first)
        said = f.concat(said, f.array_compact(f.array("hole")))
    return _joined(runs.select(f.inline(said)))


def balance(found: DataFrame) -> DataFrame:
    """Of ranges, by destination: sent = delivered + waiting + dead + expired + lost; and the other faults."""
    return _table(found, "destination")


def streams(found: DataFrame) -> DataFrame:
    """Of ranges, by stream: the same counts, and the first and the last number."""
    return _table(found, "stream")


# How it is done.


def _table(found: DataFrame, by: str) -> DataFrame:
    from pyspark.sql import functions as f

    is_fate = f.col("kind").isin(*FATES)
    kinds = (*FATES, *(kind for kind in FAULTS if kind not in FATES))

    def total(which: Column) -> Column:  # numbers are strangers' words: two holes may be longer than a bigint
        return f.coalesce(f.sum(f.when(which, f.col("count").cast("decimal(20,0)"))), f.lit(0))

    return (
        found.groupBy(by)
        .agg(
            total(is_fate).alias("messages"),
            *(total(f.col("kind") == kind).alias(kind) for kind in kinds),
            f.sum("extra").alias("copies"),
            f.min("first").alias("first"),
            f.max("last").alias("last"),
        )
        .withColumn("sent", f.col("messages") - f.col("unsent"))
    )


def _runs(books: Books) -> DataFrame:
    """Neighbours within a block of which the same can be said, as one row each."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    def block() -> Column:
        return f.shiftright("sequence", books.block_bits)

    everything: DataFrame | None = None
    for side, frame in books.sides.items():
        one = frame.withColumns({"block": block(), "side": f.lit(side)})
        everything = one if everything is None else everything.unionByName(one)
    assert everything is not None
    # The one shuffle. What follows keeps to its partitions: (stream, block) is part of every key.
    everything = everything.repartition("stream", "block")

    def of(side: int, name: str) -> Column:
        return f.when(f.col("side") == side, f.col(name))

    ledger = everything.groupBy("stream", "block", "sequence").agg(
        *(f.count(of(side, "side")).alias(f"n{side}") for side in (SENT, RECEIVED, WAITING, DEAD)),
        f.coalesce(*(f.min(of(side, "destination")) for side in (SENT, RECEIVED, WAITING, DEAD))).alias("destination"),
        f.min(of(RECEIVED, "destination")).alias("at"),
        f.min(of(RECEIVED, "place")).alias("place"),
        f.min(of(RECEIVED, "wait_us")).alias("wait_us"),
        (f.min("digest") != f.max("digest")).alias("altered"),
        f.max("expires").alias("expires"),
        f.min(of(DEAD, "reason")).alias("reason"),
    )
    # Out of order is what was placed behind a message with a higher number: compared with the first place of all
    # that come after it in its block, and of all blocks after that.
    borders = (
        books.received.withColumn("block", block())
        .groupBy("stream", f.col("destination").alias("at"), "block")
        .agg(f.min("place").alias("place"))
    )
    after = Window.partitionBy("stream", "at").orderBy(f.desc("block")).rowsBetween(Window.unboundedPreceding, -1)
    borders = borders.select("stream", "at", "block", f.min("place").over(after).alias("border"))
    higher = Window.partitionBy("stream", "block", "at").orderBy(f.desc("sequence"))
    higher = higher.rowsBetween(Window.unboundedPreceding, -1)
    ledger = ledger.join(borders, ["stream", "at", "block"], "left")
    soonest = f.least(f.min("place").over(higher), "border")
    ledger = ledger.withColumn("reordered", f.col("place") > soonest)

    judged = ledger.select("stream", "block", "sequence", *_judged(books))
    ordered = Window.partitionBy("stream", "block").orderBy("sequence")
    what = f.struct("kinds", "destination", "reason")
    before = f.lag(f.struct(what.alias("what"), "sequence")).over(ordered)
    # A struct never equals null, so the first of a block begins a run too.
    goes_on = before["what"].eqNullSafe(what) & _next_to(before["sequence"], f.col("sequence"))
    judged = judged.withColumn("begins", f.when(goes_on, 0).otherwise(1))
    judged = judged.withColumn("run", f.sum("begins").over(ordered))
    return judged.groupBy("stream", "block", "run").agg(
        f.first("kinds").alias("kinds"),
        f.first("destination").alias("destination"),
        f.first("reason").alias("reason"),
        f.min("sequence").alias("first"),
        f.max("sequence").alias("last"),
        f.count(f.lit(1)).alias("count"),
        f.sum("extra").alias("extra"),
        f.max("wait_us").alias("wait_us"),
    )


def _judged(books: Books) -> tuple[Column, ...]:
    """Of a message's facts: its kinds, destination, reason, further copies and wait."""
    from pyspark.sql import functions as f

    sent, received, waiting, dead = (f.col(f"n{side}") for side in (SENT, RECEIVED, WAITING, DEAD))
    as_of = f.current_timestamp() if books.as_of is None else f.lit(books.as_of)
    fate = (
        f.when(received > 0, "delivered")
        .when(waiting > 0, "waiting")
        .when(dead > 0, "dead")
        .when(f.col("expires") <= as_of, "expired")
        .otherwise("lost")
    )
    places = (received > 0).cast("int") + (waiting > 0).cast("int") + (dead > 0).cast("int")
    kinds = f.array(
        fate,
        f.when(received > 1, "doubled"),
        f.when(f.col("reordered"), "reordered"),
        f.when(f.col("altered"), "altered"),
        f.when(f.col("wait_us") > round(books.late_s * 1e6), "late") if books.late_s > 0 else f.lit(None),
        f.when(sent == 0, "unsent") if books.sent is not None else f.lit(None),
        f.when(places > 1, "overlap"),
    )
    return (
        f.array_compact(kinds).alias("kinds"),
        f.col("destination"),
        f.col("reason"),
        f.greatest(received - 1, f.lit(0)).alias("extra"),
        f.col("wait_us"),
    )


def _after_holes(runs: DataFrame, first: int | None) -> DataFrame:
    """Runs with the `hole` before each: numbers nobody knows of, lost, of a destination nobody knows."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    before = f.lag("last").over(Window.partitionBy("stream").orderBy("first"))
    if first is not None:
        before = f.coalesce(before, f.lit(first - 1).cast("bigint"))
    runs = runs.withColumn("before", before)
    count = f.try_subtract(f.try_subtract("first", "before"), f.lit(1).cast("bigint"))
    hole = f.struct(
        f.lit("lost").alias("kind"),
        "stream",
        f.lit("").alias("destination"),
        f.lit(None).cast("string").alias("reason"),
        (f.col("before") + 1).alias("first"),
        (f.col("first") - 1).alias("last"),
        f.coalesce(count, f.lit(BIGGEST)).alias("count"),
        f.lit(0).cast("bigint").alias("extra"),
        f.lit(None).cast("bigint").alias("wait_us"),
    )
    # A number next to the one before it leaves no hole; only where there is one can both sums be told.
    is_hole = f.col("before").isNotNull() & f.when(
        f.col("before") < f.col("first"), f.col("first") - 1 > f.col("before")
    )
    return runs.withColumn("hole", f.when(is_hole, hole))


def _joined(pieces: DataFrame) -> DataFrame:
    """Ranges of one kind that touch, as one: blocks, and faults that other faults cut in pieces."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    key = ("kind", "stream", "destination", "reason")
    ordered = Window.partitionBy(*key).orderBy("first")
    before = f.lag("last").over(ordered)
    pieces = pieces.withColumn("begins", f.when(_next_to(before, f.col("first")), 0).otherwise(1))
    pieces = pieces.withColumn("island", f.sum("begins").over(ordered))
    return pieces.groupBy(*key, "island").agg(
        f.min("first").alias("first"),
        f.max("last").alias("last"),
        f.sum("count").alias("count"),
        f.sum(f.when(f.col("kind") == "doubled", f.col("extra")).otherwise(0)).alias("extra"),
        f.max("wait_us").alias("wait_us"),
    ).drop("island")  # fmt: skip


def _next_to(before: Column, number: Column) -> Column:
    """Does `number` come right after `before`, which is smaller? Neither end of what a bigint holds is passed."""
    from pyspark.sql import functions as f

    return f.when(before < number, number - 1 == before)
