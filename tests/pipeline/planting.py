"""Messages by the million with faults that are known exactly, to see whether `reconcile` finds all, and no others.

Everything follows from a message's number and a seed, so the list of what was planted is not what was read back, and
Spark makes the rows without Python touching one. Half of all messages are of one stream. One number in eight is never
touched, so that what was moved back in order is always behind something.

    python -m tests.pipeline.planting --rows 20_000_000 --memory 2g
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from fairlead.pipeline import accounts

AS_OF = datetime(2026, 1, 2, tzinfo=UTC)
BEGAN_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
LATE_S = 5.0
SINGLE = ("lost", "doubled", "reordered", "altered", "late", "expired", "dead", "waiting", "unsent", "overlap")
ONE_IN = 400  # messages with a fault of their own
BURSTS = ("lost", "dead", "expired", "waiting")
BURST_SPAN = 4096  # one burst at most in so many numbers of a stream
BURST_ONE_IN = 6
CLEAR = 64  # numbers at the edges of a span in which there is no burst
MOVED_BY = 16


@dataclass(frozen=True)
class Planting:
    """Where it is, and what was asked for."""

    where: Path
    rows: int
    streams: int
    seed: int

    def side(self, spark: SparkSession, name: str) -> DataFrame:
        return accounts.known(spark.read.parquet(str(self.where / name)))

    def books(self, spark: SparkSession, block_bits: int = accounts.BLOCK_BITS) -> accounts.Books:
        return accounts.Books(
            received=self.side(spark, "received"),
            sent=self.side(spark, "sent"),
            waiting=self.side(spark, "waiting"),
            dead=self.side(spark, "dead"),
            late_s=LATE_S,
            as_of=AS_OF,
            block_bits=block_bits,
        )


def plan(spark: SparkSession, rows: int, streams: int, seed: int) -> DataFrame:
    """Every message with what is done to it: id, stream, sequence (from 1), fault (or null)."""
    number = f.col("id")
    others = max(1, streams - 1)
    frame = spark.range(rows)
    is_main = number % 2 == 0 if streams > 1 else f.lit(True)
    half = f.floor(number / 2) if streams > 1 else number
    frame = frame.select(
        number,
        f.when(is_main, f.lit(0)).otherwise(half % others + 1).cast("int").alias("lane"),
        (f.when(is_main, half).otherwise(f.floor(half / others)) + 1).cast("bigint").alias("sequence"),
    )

    def drawn(what: str, *of: Column) -> Column:
        return f.pmod(f.xxhash64(f.lit(seed), f.lit(what), *of), f.lit(1 << 40))

    span = f.floor((f.col("sequence") + BURST_SPAN // 2) / BURST_SPAN)
    offset = (f.col("sequence") + BURST_SPAN // 2) % BURST_SPAN
    here = (f.col("lane"), span)
    burst_first = CLEAR + drawn("first", *here) % (BURST_SPAN - 2 * CLEAR - 1)
    burst_last = f.least(burst_first + drawn("length", *here) % 3000, f.lit(BURST_SPAN - CLEAR - 1))
    in_burst_span = (drawn("burst", *here) % BURST_ONE_IN == 0) & (span > 0)
    burst = _choice(BURSTS, drawn("kind", *here))
    luck = drawn("luck", f.col("lane"), f.col("sequence"))
    single = f.when(luck % ONE_IN == 0, _choice(SINGLE, drawn("which", f.col("lane"), f.col("sequence"))))
    length = rows // 2 if streams > 1 else rows
    shortest = min(length, (rows - length) // others) if streams > 1 else length
    single = f.when((f.col("sequence") % 8 != 0) & (f.col("sequence") < shortest - 2 * MOVED_BY), single)
    fault = f.when(in_burst_span, f.when(offset.between(burst_first, burst_last), burst)).otherwise(single)
    stream = f.concat(f.lit("stream-"), f.col("lane"))
    return frame.select("id", "lane", "sequence", fault.alias("fault"), stream.alias("stream"))


def _choice(kinds: tuple[str, ...], drawn: Column) -> Column:
    return f.element_at(f.array(*map(f.lit, kinds)), (drawn % len(kinds) + 1).cast("int"))


def plant(spark: SparkSession, where: Path, rows: int, streams: int = 8, seed: int = 1) -> Planting:
    """Write the four sides: sent, received, waiting, dead."""
    fault = f.col("fault")
    every = plan(spark, rows, streams, seed).withColumns(
        {
            "is_gone": f.coalesce(fault.isin("lost", "expired", "dead", "waiting"), f.lit(False)),
            "published_us": f.lit(BEGAN_US) + f.col("id") * 100,
            "body": f.concat(f.lit("body of "), f.col("id").cast("string")).cast("binary"),
            "destination": f.concat(f.lit("orders."), (f.col("lane") % 4).cast("string")),
        }
    )
    published = f.timestamp_micros("published_us").alias("published")
    expires = f.timestamp_micros(f.when(fault == "expired", f.col("published_us") + 1_000_000)).alias("expires")
    base = ("destination", f.col("stream").alias("stream_id"), f.col("sequence").alias("stream_sequence"))

    sent = every.where(f.coalesce(fault != "unsent", f.lit(True)))
    _write(sent.select(*base, "body", published, expires), where / "sent")

    lane_step = 2 * max(1, streams - 1)  # so far apart, at most, are neighbours of a stream
    place = f.col("id") * 2 + f.when(fault == "reordered", MOVED_BY * lane_step * 2 + 1).otherwise(0)
    wait = f.when(fault == "late", round(LATE_S * 1e6) + 1).otherwise(f.col("id") % 1000)
    got = every.where(~f.col("is_gone")).select(
        *base,
        f.when(fault == "altered", f.lit(b"other")).otherwise(f.col("body")).alias("body"),
        published,
        f.timestamp_micros(f.col("published_us") + wait).alias("arrived"),
        f.explode(
            f.when(fault == "doubled", f.array(place, place + 100_001, place + 5)).otherwise(f.array(place))
        ).alias("order_number"),
    )
    _write(got, where / "received")
    waits = every.where(fault.isin("waiting", "overlap"))
    _write(waits.select(*base, "body", published, f.col("id").alias("order_number")), where / "waiting")
    headers = f.create_map(
        *(f.lit("dead-destination"), f.col("destination"), f.lit("dead-reason"), f.lit("rejected")),
    )
    dead = every.where(fault == "dead").withColumn("headers", headers).withColumn("destination", f.lit("_DMQ"))
    _write(dead.select(*base, "body", "headers", published), where / "dead")
    return Planting(where, rows, streams, seed)


def _write(frame: DataFrame, where: Path) -> None:
    frame.write.mode("overwrite").option("compression", "zstd").parquet(str(where))


@dataclass(frozen=True)
class Verdict:
    """What the comparison said."""

    planted: dict[str, int]
    found: dict[str, int]
    missed: int
    invented: int
    ranges: int
    touching: int

    @property
    def is_exact(self) -> bool:
        return not self.missed and not self.invented and not self.touching and self.planted == self.found


def compare(spark: SparkSession, planting: Planting, found: DataFrame) -> Verdict:
    """Planted against found, message by message, and whether every range is as long as it can be."""
    planned = plan(spark, planting.rows, planting.streams, planting.seed)
    listed = planned.select("stream", "sequence", f.coalesce("fault", f.lit("")).alias("fault"))
    fates = ("waiting", "dead", "expired", "lost")
    gone = f.when(f.col("fault").isin(*fates), f.array("fault"))
    other = f.when(f.col("fault") == "", f.array(f.lit("delivered"))).otherwise(f.array(f.lit("delivered"), "fault"))
    planted = listed.select("stream", "sequence", f.explode(f.coalesce(gone, other)).alias("kind"))
    rows = found.select(
        "stream", "kind", f.explode(f.sequence("first", "last", f.lit(1).cast("bigint"))).alias("sequence")
    )
    both = planted.withColumn("side", f.lit(1)).unionByName(rows.withColumn("side", f.lit(-1)))
    differing = both.groupBy("stream", "sequence", "kind").agg(f.sum("side").alias("difference"))
    row = differing.agg(
        f.coalesce(f.sum(f.greatest("difference", f.lit(0))), f.lit(0)),
        f.coalesce(f.sum(f.greatest(-f.col("difference"), f.lit(0))), f.lit(0)),
    ).first()
    assert row is not None
    ends, begins = found.alias("a"), found.alias("b")
    same = [f.col(f"a.{name}").eqNullSafe(f.col(f"b.{name}")) for name in ("kind", "stream", "destination", "reason")]
    touching = ends.join(begins, [*same, f.col("a.last") + 1 == f.col("b.first")]).count()
    count = f.sum("count").cast("bigint").alias("n")
    return Verdict(
        planted={row.kind: row.n for row in planted.groupBy("kind").agg(f.count("*").alias("n")).collect()},
        found={row.kind: row.n for row in found.groupBy("kind").agg(count).collect()},
        missed=row[0],
        invented=row[1],
        ranges=found.count(),
        touching=touching,
    )


class Watch:
    """The most memory that this process and its children had at once, and the processor time they took."""

    def __init__(self) -> None:
        self.peak_bytes: dict[str, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            sizes: dict[str, int] = {"java": 0, "python": 0}
            me = psutil.Process()
            for one in (me, *me.children(recursive=True)):
                try:
                    sizes["java" if "java" in one.name() else "python"] += one.memory_info().rss
                except psutil.Error:
                    continue
            sizes["all"] = sum(sizes.values())
            for name, size in sizes.items():
                self.peak_bytes[name] = max(self.peak_bytes.get(name, 0), size)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


def cpu_s() -> float:
    """Of this process and all its children that run: Java is one of them."""
    me = psutil.Process()
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime + sum(sum(one.cpu_times()[:2]) for one in me.children(recursive=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=lambda text: int(text.replace("_", "")), default=200_000)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory", default="2g", help="of Spark's driver, which does all the work here")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--partitions", type=int, default=0, help="of the shuffle; 0: one for each half million rows")
    parser.add_argument("--work", type=Path, help="where the files go; a temporary directory otherwise")
    parser.add_argument("--plant-only", action="store_true", help="write the files and say where they are")
    asked = parser.parse_args()

    from fairlead.pipeline.session import spark_session

    with tempfile.TemporaryDirectory() as temporary:
        work: Path = asked.work or Path(temporary)
        partitions = asked.partitions or max(2, asked.rows // 500_000)
        conf = {
            "spark.driver.memory": asked.memory,
            "spark.sql.shuffle.partitions": str(partitions),
            "spark.local.dir": str(work / "spark"),
        }
        spark = spark_session("planting", asked.master, conf)
        try:
            return measured(spark, asked, work)
        finally:
            spark.stop()


def measured(spark: SparkSession, asked: argparse.Namespace, work: Path) -> int:
    planting, took = timed(lambda: plant(spark, work, asked.rows, asked.streams, asked.seed))
    print(json.dumps({"planted": str(work) if asked.work else None, "rows": asked.rows, **took}), flush=True)
    if asked.plant_only:
        return 0
    watch = Watch()

    def reconcile() -> DataFrame:
        accounts.ranges(planting.books(spark)).write.mode("overwrite").parquet(str(work / "ranges"))
        return spark.read.parquet(str(work / "ranges"))

    found, took = timed(reconcile)
    watch.close()
    peaks = {f"peak_{name}_mib": size >> 20 for name, size in watch.peak_bytes.items()}
    facts: dict[str, Any] = {"rows": asked.rows, "streams": asked.streams, "memory": asked.memory, **took, **peaks}
    print(json.dumps({"reconciled": facts}), flush=True)
    verdict, took = timed(lambda: compare(spark, planting, found))
    print(json.dumps({"verdict": vars(verdict), "is_exact": verdict.is_exact, **took}, indent=1), flush=True)
    return 0 if verdict.is_exact else 1


def timed(work: Any) -> tuple[Any, dict[str, float]]:
    began, before = time.monotonic(), cpu_s()
    out = work()
    return out, {"seconds": round(time.monotonic() - began, 1), "cpu_s": round(cpu_s() - before, 1)}


if __name__ == "__main__":
    sys.exit(main())
