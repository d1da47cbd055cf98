"""The job `insights`: what went through, how fast, from whom, and what went wrong, as a report (docs/insights.md).

Every number is a sum of Spark's or a sketch of one (percentiles), so the memory it takes does not grow with the
messages. A gap in time is looked for between seconds: shorter silences are no news.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fairlead.errors import ConfigError
from fairlead.pipeline import inputs
from fairlead.pipeline.insights_page import page_of
from fairlead.pipeline.report import write
from fairlead.pipeline.running import Context, Job, Summary

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Insights", "events_of", "facts_of"]

COLUMNS: Final = (
    *("destination", "key", "headers", "published", "arrived", "delivery_count", "size"),
    "order_number",
)
PERCENTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))
ACCURACY: Final = 10_000  # of percentiles: one part in so many of the rank
STEPS_S: Final = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400, 43_200, 86_400, 604_800)
STEPS_MAX: Final = 150
DESTINATIONS_MAX: Final = 500
TOP: Final = 25
EVENTS_SHOWN: Final = 50
SYSTEM: Final = ("_LOG", "_ADMIN", "_DMQ")


class Insights(Job):
    """Reads a lake or destinations, and the event log; writes a page and its numbers."""

    name = "insights"
    help = "Report on traffic, latency, sizes, fairness, redeliveries, dead messages and events, as a page with plots."
    options = (
        click.option("--input", "source", required=True, help="lake:DIR, parquet:DIR, or destinations."),
        click.option("--only", default="", help="Destinations that count: names or patterns, with commas."),
        click.option("--dead", default="", help="Where the dead are: _DMQ, or a lake that has it."),
        click.option("--log", default="", help="The event log: _LOG, a lake that has it, or file:events.jsonl"),
        click.option("--counters/--no-counters", default=False, help="The broker's own figures too."),
        click.option("--gap", type=click.FloatRange(1), default=5.0, show_default=True,
                     help="Seconds without a message that are worth a line."),
        click.option("--output", required=True, metavar="DIR", help="For insights.html and insights.json."),
    )  # fmt: skip

    def check(self, options: Mapping[str, Any]) -> None:
        log = options["log"]
        if log.startswith("file:") and not Path(log.removeprefix("file:")).is_file():
            raise ConfigError(f"There is no file {log.removeprefix('file:')}.")

    def run(self, spark: SparkSession, context: Context) -> Summary:
        output = Path(context.options["output"])
        output.mkdir(parents=True, exist_ok=True)
        said = inputs.repeated(context, lambda: self._run(spark, context, output))
        return context.ended(self.name, **said)

    def _run(self, spark: SparkSession, context: Context, output: Path) -> dict[str, Any]:
        options = context.options
        read = inputs.Inputs(spark, context, output / ".work")
        try:
            only = inputs.names_of(options["only"])
            messages = read.frame(options["source"], COLUMNS, only=only)
            if not only:  # what the broker says about itself is no traffic
                messages = messages.where(~messages["destination"].isin(*SYSTEM))
            dead = read.frame(options["dead"], COLUMNS, only=("_DMQ",)) if options["dead"] else None
            facts = facts_of(messages, dead, gap_s=options["gap"])
            facts["events"] = self._events(spark, read, options["log"])
        finally:
            read.close()
        facts = {
            "job": self.name,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "inputs": {name: options[name] for name in ("source", "only", "dead", "log")},
            **facts,
            "broker": inputs.counters(context) if options["counters"] else [],
        }
        page, _ = write(page_of(facts), facts, output / "insights.html")
        context.tally.add(rows=facts["totals"]["messages"], size=facts["totals"]["bytes"])
        return {"report": str(page), "totals": facts["totals"]}

    def _events(self, spark: SparkSession, read: inputs.Inputs, log: str) -> dict[str, Any] | None:
        if not log:
            return None
        if log.startswith("file:"):
            lines = spark.read.text(log.removeprefix("file:")).withColumnRenamed("value", "body")
        else:
            lines = read.frame(log, ("destination", "body"), only=("_LOG",))
        return events_of(lines)


def facts_of(messages: DataFrame, dead: DataFrame | None = None, *, gap_s: float = 5.0) -> dict[str, Any]:
    """All numbers of the report; of messages with (at least) the source's columns `COLUMNS`."""
    from pyspark.sql import functions as f

    sums = (f.count("*").alias("messages"), f.coalesce(f.sum("size"), f.lit(0)).alias("bytes"))
    ends = (f.unix_micros(f.min("arrived")).alias("first_us"), f.unix_micros(f.max("arrived")).alias("last_us"))
    wait_us = f.unix_micros("arrived") - f.unix_micros("published")
    by_destination = messages.groupBy("destination").agg(
        *sums,
        *ends,
        _percentiles(wait_us).alias("wait_us"),
        f.max(wait_us).alias("wait_max_us"),
        f.count(f.when(wait_us < 0, 1)).alias("before_sent"),
        _percentiles(f.col("size")).alias("sizes"),
        f.max("size").alias("size_max"),
        f.count(f.when(f.col("delivery_count") > 1, 1)).alias("redelivered"),
        f.coalesce(f.max("delivery_count"), f.lit(0)).alias("deliveries_max"),
    )
    totals = _dict(messages.agg(*sums, *ends, f.countDistinct("destination").alias("destinations")).first())
    rows = [_named(row) for row in by_destination.orderBy(f.desc("messages")).limit(DESTINATIONS_MAX).collect()]
    return {
        "totals": totals,
        "destinations": rows,
        "traffic": _traffic(messages, totals, [row["destination"] for row in rows]),
        "sizes": _sizes(messages),
        "deliveries": {
            str(row.n): row.messages
            for row in messages.groupBy(f.least("delivery_count", f.lit(10)).alias("n"))
            .agg(f.count("*").alias("messages"))
            .orderBy("n")
            .collect()
        },
        "producers": _producers(messages, totals["messages"]),
        "keys": _keys(messages, totals["messages"]),
        "gaps": _gaps(messages, gap_s),
        "gap_s": gap_s,
        "dead": _dead(dead),
    }


def events_of(lines: DataFrame) -> dict[str, Any]:
    """Of the event log's records (a column `body`): how many of each code, and the last warnings and errors.

    A line that is no record is counted and no more.
    """
    from pyspark.sql import functions as f

    shape = "node string, ms bigint, module string, level string, code string, text string, destination string"
    records = lines.select(f.from_json(f.col("body").cast("string"), shape).alias("record"))
    good = records.where("record.code is not null and record.ms is not null").select("record.*")
    codes = (
        good.groupBy("level", "code")
        .agg(f.count("*").alias("count"), f.min("ms").alias("first_ms"), f.max("ms").alias("last_ms"))
        .orderBy(f.desc("count"), "code")
        .limit(200)
        .collect()
    )
    latest = good.where(f.col("level").isin("warning", "error")).orderBy(f.desc("ms")).limit(EVENTS_SHOWN).collect()
    counted = records.agg(
        f.count("*").alias("lines"),
        f.count(f.when(f.col("record.code").isNull() | f.col("record.ms").isNull(), 1)).alias("strange"),
    ).first()
    return {
        **_dict(counted),
        "codes": [row.asDict() for row in codes],
        "latest": [row.asDict() for row in latest],
    }


# The parts.


def _percentiles(of: Column) -> Column:
    from pyspark.sql import functions as f

    return f.percentile_approx(of, [share for _, share in PERCENTILES], ACCURACY)


def _dict(row: Any) -> dict[str, Any]:
    found: dict[str, Any] = row.asDict() if row is not None else {}
    return found


def _named(row: Any) -> dict[str, Any]:
    facts = _dict(row)
    for name in ("wait_us", "sizes"):
        facts[name] = dict(zip((kind for kind, _ in PERCENTILES), facts[name] or (), strict=False))
    return facts


def _traffic(messages: DataFrame, totals: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Messages and bytes by time; the destinations with most by themselves, the rest as `others`."""
    from pyspark.sql import functions as f

    from fairlead.pipeline.figures import SERIES

    if not totals["messages"]:
        return {"step_s": 0, "times_s": [], "messages": {}, "bytes": {}}
    span_s = (totals["last_us"] - totals["first_us"]) / 1e6
    fitting = (step for step in STEPS_S if span_s / step <= STEPS_MAX)
    step_s = next(fitting, max(STEPS_S[-1], int(span_s / STEPS_MAX) + 1))  # hostile times may span a millennium
    shown = list(names[: SERIES - 1 if len(names) > SERIES else SERIES])
    first = totals["first_us"] // (step_s * 1_000_000)
    steps = totals["last_us"] // (step_s * 1_000_000) - first + 1
    rows = (
        messages.groupBy(
            (f.floor(f.unix_micros("arrived") / (step_s * 1_000_000)) - first).alias("step"),
            f.when(f.col("destination").isin(*shown), f.col("destination")).alias("name"),
        )
        .agg(f.count("*").alias("messages"), f.sum("size").alias("bytes"))
        .collect()
    )
    series: dict[str, dict[str, list[int]]] = {"messages": {}, "bytes": {}}
    for row in rows:
        name = "others" if row.name is None else row.name
        for kind, lists in series.items():
            lists.setdefault(name, [0] * steps)[row.step] += row[kind] or 0
    order = [name for name in (*shown, "others") if name in series["messages"]]
    return {
        "step_s": step_s,
        "times_s": [(first + step) * step_s for step in range(steps)],
        **{kind: {name: lists[name] for name in order} for kind, lists in series.items()},
    }


def _sizes(messages: DataFrame) -> dict[str, int]:
    """How many messages are up to so many bytes, by powers of two."""
    from pyspark.sql import functions as f

    size = f.greatest(f.col("size"), f.lit(1).cast("bigint"))
    up_to = f.pow(f.lit(2.0), f.ceil(f.log2(size))).cast("bigint")
    rows = messages.groupBy(up_to.alias("up_to")).agg(f.count("*").alias("messages")).orderBy("up_to").collect()
    return {str(row.up_to): row.messages for row in rows if row.up_to is not None}


def _producers(messages: DataFrame, total: int) -> dict[str, Any]:
    """Shares of those who sent, and how even they are: Jain's index, 1 if all sent the same, 1/n if one sent all."""
    from pyspark.sql import functions as f

    who = f.coalesce(f.col("headers")["from"], f.lit("")).alias("producer")
    per = messages.groupBy(who).agg(
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
        f.percentile_approx(f.unix_micros("arrived") - f.unix_micros("published"), 0.99, ACCURACY).alias("wait_p99_us"),
    )
    sums = _dict(
        per.agg(f.count("*").alias("n"), f.sum(f.col("messages").cast("double") ** 2).alias("squares")).first()
    )
    top = per.orderBy(f.desc("messages"), "producer").limit(TOP).collect()
    squares = sums["squares"] or 0.0
    return {
        "producers": sums["n"],
        "evenness": round(total**2 / (sums["n"] * squares), 4) if squares else None,
        "top": [row.asDict() | {"share": round(row.messages / total, 6)} for row in top],
    }


def _keys(messages: DataFrame, total: int) -> dict[str, Any]:
    from pyspark.sql import functions as f

    keyed = messages.where("key is not null").groupBy("destination", "key")
    per = keyed.agg(f.count("*").alias("messages"), f.sum("size").alias("bytes"))
    counted = _dict(per.agg(f.count("*").alias("n"), f.sum("messages").alias("messages")).first())
    top = per.orderBy(f.desc("messages"), "destination", "key").limit(TOP).collect()
    return {
        "keys": counted["n"],
        "messages_with_key": counted["messages"] or 0,
        "top": [row.asDict() | {"share": round(row.messages / total, 6)} for row in top],
    }


def _gaps(messages: DataFrame, gap_s: float) -> dict[str, Any]:
    """The longest silences of each destination, to the microsecond: within a second there is none worth a line."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    at_us = f.unix_micros("arrived")
    by_second = messages.groupBy("destination", f.floor(at_us / 1_000_000).alias("second"))
    seconds = by_second.agg(f.min(at_us).alias("first_us"), f.max(at_us).alias("last_us"))
    before = f.lag("last_us").over(Window.partitionBy("destination").orderBy("second"))
    gaps = seconds.select("destination", before.alias("from_us"), f.col("first_us").alias("to_us"))
    gaps = gaps.withColumn("length_us", f.col("to_us") - f.col("from_us")).where(f.col("length_us") >= int(gap_s * 1e6))
    top = gaps.orderBy(f.desc("length_us"), "destination").limit(TOP).collect()
    return {"gaps": gaps.count(), "top": [row.asDict() for row in top]}


def _dead(dead: DataFrame | None) -> dict[str, Any] | None:
    from pyspark.sql import functions as f

    if dead is None:
        return None
    of = f.col("headers")
    per = (
        dead.groupBy(
            f.coalesce(of["dead-destination"], f.lit("")).alias("destination"),
            f.coalesce(of["dead-reason"], f.lit("")).alias("reason"),
        )
        .agg(f.count("*").alias("messages"), f.max(of["dead-count"].try_cast("bigint")).alias("deliveries_max"))
        .orderBy(f.desc("messages"), "destination", "reason")
    )
    return {"messages": dead.count(), "by": [row.asDict() for row in per.limit(DESTINATIONS_MAX).collect()]}
