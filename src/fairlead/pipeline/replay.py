"""The job `replay`: messages of a lake sent again, in order, at any pace, none of them twice.

A replay is a plan of numbered batches (`batches`), each published once under the plan's name however often it is
tried. Which batch is next is kept in the checkpoint directory.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fairlead.errors import ConfigError
from fairlead.pipeline import lake as lakes
from fairlead.pipeline.batches import Batch, Plan, batches, pieces
from fairlead.pipeline.registry import claim
from fairlead.pipeline.running import Context, Job, Patience, Summary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Replay"]

BATCH_ROWS: Final = 100_000
STRETCH_S: Final = 1.0
"""At a pace, what belongs to one second of the replay is sent together."""
SENT: Final = ("destination", "key", "body", "header_bytes", "priority")
LOOK_S: Final = 0.5


class Replay(Job):
    """Times to live are not kept: what is in the lake has mostly expired. Bodies that are not there cannot be sent."""

    name = "replay"
    help = "Send messages of a lake again, in order, each once."
    options = (
        click.option("--lake", required=True, metavar="DIR", help="What `archive` wrote."),
        click.option("--destination", default="", help="Only of these: names with commas, or a pattern."),
        click.option("--where", default="", help="A condition in SQL on the columns of a message."),
        click.option("--from", "since", default="", metavar="TIME", help="That arrived then or later."),
        click.option("--to", "before", default="", metavar="TIME", help="That arrived before."),
        click.option("--to-destination", default="", help="Send all of them there."),
        click.option("--prefix", default="", help="Send each to its own name with this before it."),
        click.option("--create", type=click.Choice(("queue", "topic")), help="Make destinations that are missing."),
        click.option("--pace", type=click.FloatRange(0, min_open=True), help="1: as it was, 10: ten times as fast."),
        click.option("--dry-run", is_flag=True, help="Only say what would be sent."),
    )

    def __init__(self) -> None:
        self._without_body = 0

    def check(self, options: Mapping[str, Any]) -> None:
        if bool(options["to_destination"]) == bool(options["prefix"]):
            raise ConfigError("Say where to: --to-destination NAME, or --prefix TEXT before the old names.")

    def run(self, spark: SparkSession, context: Context) -> Summary:
        options = context.options
        names = [name.strip() for name in options["destination"].split(",") if name.strip()]
        frame = lakes.selected(
            lakes.read(spark, options["lake"]),
            destinations=names, where=options["where"], since=options["since"], before=options["before"],
        )  # fmt: skip
        size = min(context.rows_max or BATCH_ROWS, BATCH_ROWS)
        pace = options["pace"] or 0.0
        selection = {
            name: options[name]
            for name in ("lake", "destination", "where", "since", "before", "to_destination", "prefix")
        } | {"pace": pace, "size": size}
        if options["dry_run"]:
            return self._dry_run(context, _plan(frame, selection, size, pace))
        if not context.checkpoint:
            raise ConfigError("A replay that may be gone on with notes how far it is: --checkpoint DIR.")
        directory = Path(context.checkpoint)
        with claim(directory / ".lock", f"A replay is going on in {directory}."):
            plan = Plan.load(directory, selection)
            if plan is None:
                plan = _plan(frame, selection, size, pace)
                plan.save(directory)
            else:
                context.say(f"going on with batch {plan.done} of {len(plan.batches)}")
            self._send(frame, plan, context, directory, pace)
        return context.ended(
            self.name, query=plan.query, planned=plan.rows, left=plan.left, without_body=self._without_body
        )

    def _dry_run(self, context: Context, plan: Plan) -> Summary:
        for batch in plan.batches:
            context.tally.add(rows=batch.rows, batch=batch.number, ranges=batch.ranges, lag=0)
        seconds = (plan.batches[-1].arrived_ms - plan.batches[0].arrived_ms) / 1000 if plan.batches else 0
        return context.ended(self.name, dry_run=True, planned=plan.rows, lasted_s=seconds)

    def _send(self, frame: DataFrame, plan: Plan, context: Context, directory: Path, pace: float) -> None:
        todo = plan.batches[plan.done :]
        began_s, first_ms = time.monotonic(), todo[0].arrived_ms if todo else 0
        for batch in todo:
            due_s = began_s + (batch.arrived_ms - first_ms) / 1000 / pace if pace else 0.0
            while not context.stopping.is_set() and (wait_s := due_s - time.monotonic()) > 0:
                context.look()
                context.stopping.wait(min(wait_s, LOOK_S))
            if context.stopping.is_set():
                return
            if not self._publish_patiently(frame, plan, batch, context):
                return
            plan.advance(directory)
            context.tally.add(rows=batch.rows, batch=batch.number, ranges=batch.ranges, lag=plan.left)
            context.look()

    def _publish_patiently(self, frame: DataFrame, plan: Plan, batch: Batch, context: Context) -> bool:
        patience = Patience(context)
        while True:
            try:
                self._publish(frame, plan, batch, context)
                return True
            except Exception as error:
                if not patience.again(error):
                    return False

    def _publish(self, frame: DataFrame, plan: Plan, batch: Batch, context: Context) -> None:
        from pyspark.sql import functions as f

        options = context.options
        rows = batch.of(frame)
        (found, bodies), *_ = rows.agg(f.count(f.lit(1)), f.count("body")).collect()
        if found != batch.rows:
            raise ConfigError(
                f"Batch {batch.number} has {found} rows and was planned with {batch.rows}: the lake has changed "
                "inside what is being replayed. Begin anew with another --checkpoint."
            )
        self._without_body += found - bodies
        rows = rows.where("body is not null").coalesce(1).sortWithinPartitions("destination", "order_number")
        to = f.concat(f.lit(options["prefix"]), "destination")
        if options["to_destination"]:
            to = f.lit(options["to_destination"])
        writer = context.writer(rows.select(*SENT).withColumn("destination", to))
        if options["create"]:
            writer = writer.option("create", "true").option("kind", options["create"])
        writer.option("query", plan.query).option("batch", str(batch.number)).save()


def _plan(frame: DataFrame, selection: dict[str, Any], size: int, pace: float) -> Plan:
    stretch_ms = max(1, round(STRETCH_S * 1000 * pace)) if pace else 0
    counted = pieces(frame, stretch_ms=stretch_ms) if pace else pieces(frame, rows=size)
    return Plan(selection, batches(counted, size, stretch_ms))
