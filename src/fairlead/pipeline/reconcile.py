"""The job `reconcile`: what was sent against what came, every message accounted for (docs/reconcile.md).

`accounts` does the sums; here is what is read, what is written, and how it is told.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fairlead.errors import ConfigError
from fairlead.pipeline import accounts, figures, inputs, report
from fairlead.pipeline.accounts import FATES, FAULTS
from fairlead.pipeline.running import Context, Job, Summary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Reconcile", "facts_of", "page_of"]

COLUMNS: Final = (
    *("destination", "order_number", "body", "headers", "published", "arrived", "expires", "stream_id"),
    "stream_sequence",
)
MANIFEST: Final = "manifest:"
MANIFEST_BYTES_MAX: Final = 64 << 20
WRONG: Final = ("lost", "doubled", "reordered", "altered", "unsent", "overlap")
"""Faults that should not be, whatever the load; the others are what limits and lifetimes are for."""

PLOTTED: Final = 14
DRAWN_MAX: Final = 1500
STREAMS_MAX: Final = 500


class Reconcile(Job):
    """Reads; the sums; three results: all ranges as Parquet, a page, and its numbers as JSON."""

    name = "reconcile"
    help = "Account for every message: what was lost, doubled, out of order, altered, late, expired or dead, by range."
    options = (
        click.option("--received", required=True, help="What came: lake:DIR, parquet:DIR, or destinations."),
        click.option("--sent", default="", help="What should have come: likewise, or manifest:FILE."),
        click.option("--waiting", default="", help="Queues whose waiting messages count too."),
        click.option("--dead", default="", help="Where the dead are: _DMQ, or a lake that has it."),
        click.option("--only", default="", help="Destinations that count: names or patterns, with commas."),
        click.option("--by", type=click.Choice(["stream", "order"]), default="stream", show_default=True,
                     help="Numbers of the streams, or order numbers of the destinations."),
        click.option("--dense/--sparse", default=None, help="Is a number that is nowhere lost? Yes, without --sent."),
        click.option("--first", type=int, help="The number every stream begins with, if it is known."),
        click.option("--late", type=click.FloatRange(0), default=0.0, help="Seconds; what took longer is late."),
        click.option("--digest", type=click.Choice(["xxhash64", "sha256"]), default="xxhash64", show_default=True,
                     help="How bodies are compared."),
        click.option("--output", required=True, metavar="DIR", help="For ranges/, report.html and report.json."),
        click.option("--list", "listed", type=click.IntRange(0, 100_000), default=1000, show_default=True,
                     help="Ranges of each kind in the report; all are in ranges/."),
        click.option("--counters/--no-counters", default=False, help="Set the broker's own figures beside ours."),
    )  # fmt: skip

    def check(self, options: Mapping[str, Any]) -> None:
        if options["received"].startswith(MANIFEST):
            raise ConfigError("A manifest says what was sent, not what came: --sent manifest:FILE.")
        if options["by"] == "order" and options["dead"]:
            raise ConfigError("--by order and --dead exclude one another: the dead queue has its own order numbers.")
        if options["sent"].startswith(MANIFEST):
            manifest_of(options["sent"].removeprefix(MANIFEST))

    def run(self, spark: SparkSession, context: Context) -> Summary:
        output = Path(context.options["output"])
        output.mkdir(parents=True, exist_ok=True)
        said = inputs.repeated(context, lambda: self._run(spark, context, output))
        return context.ended(self.name, **said)

    def _run(self, spark: SparkSession, context: Context, output: Path) -> dict[str, Any]:
        read = inputs.Inputs(spark, context, output / ".work")
        try:
            books, rows = books_of(spark, context, read)
            fresh = output / ".work" / "ranges"
            accounts.ranges(books).write.mode("overwrite").option("compression", "zstd").parquet(str(fresh))
            facts = facts_of(spark.read.parquet(str(fresh)), listed=context.options["listed"])
            where = _replaced(fresh, output / "ranges")
        finally:
            read.close()
        broker = inputs.counters(context) if context.options["counters"] else []
        facts = {
            "job": self.name,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "inputs": {name: context.options[name] for name in ("sent", "received", "waiting", "dead", "only", "by")},
            "rows": rows,
            **facts,
            "broker": broker,
            "ranges": where,
        }
        page, _ = report.write(page_of(facts), facts, output / "report.html")
        context.tally.add(rows=sum(side["rows"] for side in rows.values()))
        return {"is_clean": facts["is_clean"], "totals": facts["totals"], "report": str(page), "ranges": where}


def _replaced(fresh: Path, before: Path) -> str:
    """Put a new directory in the place of the last run's."""
    if before.exists():
        before.rename(fresh.with_name("before"))
    fresh.rename(before)
    return str(before)


def books_of(spark: SparkSession, context: Context, read: inputs.Inputs) -> tuple[accounts.Books, dict[str, Any]]:
    """The frames to compare, and how many rows each has, and how many of them no number."""
    options = context.options
    only = inputs.names_of(options["only"])
    rows: dict[str, Any] = {}
    sides: dict[str, DataFrame] = {}
    for side in ("sent", "received", "waiting", "dead"):
        text = options[side]
        if not text:
            continue
        if text.startswith(MANIFEST):
            sides[side] = accounts.sent_by_ranges(spark, manifest_of(text.removeprefix(MANIFEST)))
            rows[side] = {"rows": sides[side].count(), "unnumbered": 0}
            continue
        limit = () if side == "dead" else only  # a dead message is in the dead queue, wherever it was sent to
        frame = _of_side(read.frame(text, COLUMNS, only=limit, waiting=side == "waiting"), is_dead=side == "dead")
        known = accounts.known(frame, by=options["by"], digest=options["digest"])
        total = frame.count()
        rows[side] = {"rows": total, "unnumbered": total - known.count()}
        sides[side] = known
    if "dead" in sides:
        sides["dead"] = _ours(sides, only)
    dense = options["dense"] if options["dense"] is not None else "sent" not in sides
    books = accounts.Books(
        received=sides["received"],
        sent=sides.get("sent"),
        waiting=sides.get("waiting"),
        dead=sides.get("dead"),
        late_s=options["late"],
        dense=dense,
        first=options["first"],
        as_of=datetime.now(UTC),
    )
    return books, rows


def _of_side(frame: DataFrame, *, is_dead: bool) -> DataFrame:
    """The dead or the others: a lake has both."""
    from pyspark.sql import functions as f

    if not dict(frame.dtypes).get("headers", "").startswith("map"):
        return frame
    reason = f.col("headers")["dead-reason"]
    return frame.where(reason.isNotNull() if is_dead else reason.isNull())


def _ours(sides: Mapping[str, DataFrame], only: Sequence[str]) -> DataFrame:
    """Of the dead, those of the streams that are looked at: the dead queue is everybody's."""
    from fairlead.pipeline.lake import selected

    dead = selected(sides["dead"], destinations=only)
    streams = sides["sent" if "sent" in sides else "received"].select("stream").distinct()
    return dead.join(streams, "stream", "left_semi")


def manifest_of(file: str) -> dict[str, Any]:
    """A manifest's ranges by stream."""
    try:
        path = Path(file)
        if path.stat().st_size > MANIFEST_BYTES_MAX:
            raise ConfigError(f"{file} is larger than {MANIFEST_BYTES_MAX >> 20} MiB.")
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"The manifest {file} cannot be read: {str(error)[:200]}") from None
    said = said.get("streams", said) if isinstance(said, dict) else said
    if not isinstance(said, dict):
        raise ConfigError(f"The manifest {file} is not like {{'streams': {{'a': [[1, 500]]}}}}.")
    return said


def facts_of(found: DataFrame, *, listed: int = 1000) -> dict[str, Any]:
    """Of ranges, the numbers of the report. Lists are cut; the counts are of everything."""
    from pyspark.sql import functions as f

    balance = [_numbers(row) for row in accounts.balance(found).orderBy(f.desc("messages")).collect()]
    per_stream = accounts.streams(found)
    wrong = sum((f.col(kind) for kind in WRONG), f.lit(0))
    worst = [_numbers(row) for row in per_stream.orderBy(f.desc(wrong), "stream").limit(STREAMS_MAX).collect()]
    kinds = (*FATES, *(kind for kind in FAULTS if kind not in FATES))
    totals = {name: sum(row[name] for row in balance) for name in ("sent", "messages", *kinds, "copies")}
    lists: dict[str, Any] = {}
    per_kind = found.where(f.col("kind").isin(*FAULTS)).groupBy("kind").agg(f.count("*").alias("ranges"))
    counts = {row.kind: row.ranges for row in per_kind.collect()}
    for kind in FAULTS:
        if kind in counts:
            rows = found.where(f.col("kind") == kind).drop("kind").orderBy("stream", "first").limit(listed).collect()
            lists[kind] = {"messages": totals[kind], "ranges": counts[kind], "listed": [_numbers(row) for row in rows]}
    return {
        "is_clean": not any(totals[kind] for kind in WRONG),
        "is_balanced": not totals["lost"],
        "totals": totals,
        "destinations": balance,
        "streams": worst,
        "streams_in_all": per_stream.count(),
        "faults": lists,
    }


def _numbers(row: Any) -> dict[str, Any]:
    from decimal import Decimal

    return {name: int(value) if isinstance(value, Decimal) else value for name, value in row.asDict().items()}


def page_of(facts: Mapping[str, Any]) -> report.Page:
    """The report, of its facts."""
    totals = facts["totals"]
    extra = f" + {totals['unsent']:,} that nobody sent" if totals["unsent"] else ""
    parts = " + ".join(f"{totals[name]:,} {name}" for name in FATES)
    balanced = f"{totals['sent']:,} sent{extra} = {parts}."
    tiles = [
        report.Tile("the books", "balance" if facts["is_balanced"] else "do not balance",
                    "good" if facts["is_balanced"] else "bad"),
        *(report.Tile(name, f"{totals[name]:,}") for name in ("sent", "delivered", "waiting", "expired", "dead")),
        *(report.Tile(name, f"{totals[name]:,}", "bad" if totals[name] else "good") for name in WRONG),
        report.Tile("late", f"{totals['late']:,}"),
    ]  # fmt: skip
    read = "; ".join(f"{name}: {text}" for name, text in facts["inputs"].items() if text)
    return report.Page(
        "Reconciliation", f"{read}. {facts['made']}", tiles, [*_overview(facts, balanced), *_lists(facts)]
    )


def _overview(facts: Mapping[str, Any], balanced: str) -> list[report.Section]:
    by_destination = {row["destination"] or "(unknown)": row for row in facts["destinations"][:PLOTTED]}
    drawn = [{"kind": kind, **one} for kind, found in facts["faults"].items() for one in found["listed"][:DRAWN_MAX]]
    streams = {row["stream"]: (row["first"], row["last"]) for row in facts["streams"][:PLOTTED]}
    shown = ("sent", *FATES, "unsent")
    depths = {one.get("name"): one for one in facts["broker"]}
    told = ("depth", "first", "next") if depths else ()
    balance = report.Table(
        ("destination", *shown, *(f"broker: {name}" for name in told)),
        [
            (row["destination"] or "(unknown)", *(row[name] for name in shown),
             *(depths.get(row["destination"], {}).get(name) for name in told))
            for row in facts["destinations"]
        ],
    )  # fmt: skip
    columns = ("stream", "first", "last", "messages", *FAULTS)
    per_stream = report.Table(
        columns,
        [tuple(row[name] for name in columns) for row in facts["streams"]],
        facts["streams_in_all"] - len(facts["streams"]),
    )
    sections = [
        report.Section(
            "Balance",
            balanced,
            [figures.stacked("balance", by_destination, FATES, "messages")] if by_destination else [],
            [balance],
        ),
        report.Section(
            "Streams",
            "The worst first. A mark is never too thin to be seen, so many small faults look like more than they are.",
            [figures.map_of_faults("streams", streams, drawn, FAULTS)] if drawn and streams else [],
            [per_stream],
        ),
    ]
    unnumbered = {side: one["unnumbered"] for side, one in facts["rows"].items() if one["unnumbered"]}
    if unnumbered:
        said = ", ".join(f"{count:,} {side}" for side, count in unnumbered.items())
        sections.append(report.Section("Not accounted for", f"Messages without a stream and a number: {said}."))
    return sections


EXPLAINED: Final = {
    "lost": "Sent, and nowhere to be found: not received, not waiting, not dead, and their time was not over.",
    "doubled": "Received more than once; copies are those beyond the first.",
    "reordered": "Received behind a message of the same stream with a higher number.",
    "altered": "The same stream and number with different bodies.",
    "late": "Took longer from being published to arriving than the limit.",
    "expired": "Nowhere, and their time was over.",
    "dead": "Given up, with the reason.",
    "unsent": "Received, waiting or dead, but nobody sent them.",
    "overlap": "In two places at once: received and waiting, or received and dead.",
}


def _lists(facts: Mapping[str, Any]) -> list[report.Section]:
    sections = []
    for kind, found in facts["faults"].items():
        extra = {"doubled": ("copies",), "late": ("longest wait",), "dead": ("reason",)}.get(kind, ())
        table = report.Table(
            ("stream", "destination", "first", "last", "messages", *extra),
            [
                (one["stream"], one["destination"], one["first"], one["last"], one["count"],
                 *_extra(kind, one))
                for one in found["listed"]
            ],
            found["ranges"] - len(found["listed"]),
        )  # fmt: skip
        text = f"{EXPLAINED[kind]} {found['messages']:,} messages in {found['ranges']:,} ranges."
        sections.append(report.Section(kind.capitalize(), text, (), [table]))
    return sections


def _extra(kind: str, one: Mapping[str, Any]) -> tuple[report.Cell, ...]:
    if kind == "doubled":
        return (one["extra"],)
    if kind == "late":
        return (report.time_text(one["wait_us"]),)
    return (one["reason"] or "",) if kind == "dead" else ()
