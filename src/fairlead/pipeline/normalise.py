"""The job `normalise`: a feed, or its history in a lake, to typed records, by the converter that a live feed runs.

Each batch is converted once and written to two places: what was converted, and what was not with the reason. In
Parquet a batch is a directory `batch=N` that appears whole, and appears as the same one if the batch is done again; as
messages it is published once.
"""

from __future__ import annotations

import json
import shutil
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fairlead.errors import ConfigError
from fairlead.pipeline import converters
from fairlead.pipeline import lake as lakes
from fairlead.pipeline.batches import Plan, batches, pieces
from fairlead.pipeline.registry import claim, write_atomically
from fairlead.pipeline.running import Context, Job, Patience, Summary, follow, triggered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Normalise"]

BATCH_ROWS: Final = 500_000


class Normalise(Job):
    """From a destination as it comes, or from a lake: then what is in it at the beginning."""

    name = "normalise"
    help = "Convert messages to typed records by a function of yours, and keep what could not be, with the reason."
    options = (
        click.option("--destination", default="", help="What is read; with --lake: only of these."),
        click.option("--lake", default="", metavar="DIR", help="Read the history of a lake."),
        click.option("--cursor", default="", help="For queues, which are consumed."),
        click.option("--where", default="", help="Of a lake: a condition in SQL."),
        click.option("--from", "since", default="", metavar="TIME", help="Of a lake: what arrived then or later."),
        click.option("--to", "before", default="", metavar="TIME", help="Of a lake: what arrived before."),
        click.option("--converter", required=True, metavar="MODULE:FUNCTION", help="A function of yours."),
        click.option("--output", default="", metavar="DIR", help="Records as Parquet, a directory for each batch."),
        click.option("--to-destination", default="", help="Records as messages; they need a column body or value."),
        click.option("--create", type=click.Choice(("queue", "topic")), help="Make the destination if it is missing."),
        click.option("--rejected", default="", metavar="DIR", help="What was not converted, as Parquet."),
    )

    def check(self, options: Mapping[str, Any]) -> None:
        if bool(options["output"]) == bool(options["to_destination"]):
            raise ConfigError("Say where to: --output DIR, or --to-destination NAME.")
        if not options["lake"] and not options["destination"]:
            raise ConfigError("Say what to read: --destination NAME, or --lake DIR.")
        if not options["lake"] and (options["where"] or options["since"] or options["before"]):
            raise ConfigError("--where, --from and --to choose from a lake.")
        if options["to_destination"] and not options["rejected"]:
            raise ConfigError("Say where to keep what cannot be converted: --rejected DIR.")
        for name in ("output", "rejected"):
            if lakes.local(options[name]) is None:
                raise ConfigError(f"--{name} is a directory on this machine.")
        _load(options["converter"])

    def run(self, spark: SparkSession, context: Context) -> Summary:
        if not context.checkpoint:
            raise ConfigError("How far the job is has to be kept somewhere: --checkpoint DIR.")
        output = _Output(context)
        if context.options["lake"]:
            if not context.once:
                raise ConfigError("A lake is read as it is now, once: for what comes later read the destination.")
            self._history(spark, context, output)
        else:
            self._live(spark, context, output)
        return context.ended(
            self.name, converted=output.converted, rejected=output.rejected, converter=context.options["converter"]
        )

    def _live(self, spark: SparkSession, context: Context, output: _Output) -> None:
        options = context.options
        frame = context.stream_reader(spark, options["destination"], options["cursor"]).load()
        query = _query_of(Path(context.checkpoint))

        def start() -> StreamingQuery:
            writer = frame.writeStream.foreachBatch(lambda rows, number: output.write(rows, query, number))
            return triggered(writer, context).start()

        follow(start, context)

    def _history(self, spark: SparkSession, context: Context, output: _Output) -> None:
        options, directory = context.options, Path(context.checkpoint)
        names = [name.strip() for name in options["destination"].split(",") if name.strip()]
        frame = lakes.selected(
            lakes.read(spark, options["lake"]),
            destinations=names, where=options["where"], since=options["since"], before=options["before"],
        )  # fmt: skip
        size = min(context.rows_max or BATCH_ROWS, BATCH_ROWS)
        chosen = ("lake", "destination", "where", "since", "before", "converter", "output", "to_destination")
        selection = {name: options[name] for name in chosen} | {"size": size}
        with claim(directory / ".lock", f"A job is going on in {directory}."):
            plan = Plan.load(directory, selection)
            if plan is None:
                plan = Plan(selection, batches(pieces(frame, rows=size), size))
                plan.save(directory)
            for batch in plan.batches[plan.done :]:
                patience, done = Patience(context), False
                while not done and not context.stopping.is_set():
                    try:
                        output.write(batch.of(frame), plan.query, batch.number)
                        done = True
                    except Exception as error:
                        patience.again(error)
                if not done:
                    return
                plan.advance(directory)
                context.tally.add(rows=batch.rows, batch=batch.number, ranges=batch.ranges, lag=plan.left)
                context.look()


def _load(name: str) -> converters.Converter:
    """The converter, also of a module in the directory where one is; such a one travels to Spark's workers whole."""
    from pyspark import cloudpickle

    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    found = converters.load(name)
    module = sys.modules[found.function.__module__]
    file = getattr(module, "__file__", None)
    if file and not Path(file).is_relative_to(sys.prefix):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return found


def _query_of(checkpoint: Path) -> str:
    """The name under which batches of this checkpoint are published, as old as the checkpoint."""
    file = checkpoint / "fairlead-query.json"
    if not file.exists():
        write_atomically(file, json.dumps({"query": f"normalise-{uuid.uuid4()}"}))
    found: str = json.loads(file.read_text(encoding="utf-8"))["query"]
    return found


class _Output:
    """Where the records and the rejected rows of a batch go."""

    def __init__(self, context: Context) -> None:
        options = context.options
        self._context = context
        self._converter = _load(options["converter"])
        rejected = options["rejected"] or f"{options['output'].rstrip('/')}-rejected"
        self._records = lakes.local(options["output"]) if options["output"] else None
        self._rejects = lakes.local(rejected)
        self.converted = self.rejected = 0

    def write(self, rows: DataFrame, query: str, number: int) -> None:
        """Once or again: the outcome is the same."""
        options = self._context.options
        converted = converters.convert(rows, self._converter).persist()
        try:
            good, bad = converters.split(converted)
            refused = bad.count()
            count = converted.count() - refused
            if self._rejects is not None and refused:
                put(bad, self._rejects, number)
            if self._records is not None:
                put(good, self._records, number)
            elif count:
                writer = self._context.writer(good).option("destination", options["to_destination"])
                if options["create"]:
                    writer = writer.option("create", "true").option("kind", options["create"])
                writer.option("query", query).option("batch", str(number)).save()
        finally:
            converted.unpersist()
        self.converted += count
        self.rejected += refused


def put(frame: DataFrame, directory: Path, number: int) -> None:
    """Make these rows the batch of that number: all of them at once, unless they are there."""
    target, work = directory / f"batch={number}", directory / f"_work-{number}"
    if target.exists():
        return
    shutil.rmtree(work, ignore_errors=True)
    frame.write.parquet(str(work))
    work.rename(target)
