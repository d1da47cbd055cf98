"""`fairlead pipeline`: jobs on messages by the million, which of them run, and a lake at hand.

Spark is started only by what needs it: `list`, `status`, `stop` and every `--help` answer at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from fairlead.cli.options import as_json_option, fail, one_sentence
from fairlead.cli.traffic import DEFAULT_URL
from fairlead.errors import ConfigError
from fairlead.pipeline import registry
from fairlead.pipeline.progress import Progress, Tally, sentence
from fairlead.pipeline.running import JOBS, Context, Job, Summary, fault_of, job_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NICE: Final = 10
ROWS_MAX: Final = 1_000_000
UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
EXIT_FAILED: Final = 1

nice_option = click.option(
    "--nice", default=NICE, show_default=True, help="On local masters: leave the processor to others."
)
state_option = click.option("--state", metavar="DIR", help="Where it is noted which pipelines run.")


def span(text: str) -> float:
    """A length of time in seconds: 500ms, 10s, 5m, 1h; a bare number is seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)", str(text).strip())
    if not found:
        raise click.BadParameter(f"{text!r} is not a time like 500ms, 10s or 5m.")
    return float(found[1]) * UNITS[found[2]]


@click.group("pipeline")
def pipeline_group() -> None:
    """Archive, replay, convert and check messages by the million, on Apache Spark.

    \b
    Examples:
      fairlead pipeline run archive --destination 'trades.>' --lake ./lake --once
      fairlead pipeline sql --lake ./lake "select destination, count(*) from messages group by 1"
      fairlead pipeline status
    """


class JobGroup(click.Group):
    """The jobs as commands, each imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return command_of(job_of(cmd_name)) if cmd_name in JOBS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Jobs"):
            formatter.write_dl([(name, help_) for name, (_, help_) in JOBS.items()])


@pipeline_group.group("run", cls=JobGroup)
def run_group() -> None:
    """Run a job, here and now. `--once` does what is there and ends; `--every 10s` goes on until it is stopped."""


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """What all jobs are told."""
    for option in (
        click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; may be repeated."),
        click.option("--memory", default="1g", show_default=True, help="Of Spark's driver, on local masters of all."),
        nice_option,
        click.option(
            "--patience", type=span, metavar="TIME", default="5m", show_default=True, help="With a broker away."
        ),
        click.option("--json", "json_file", metavar="FILE", help="Write the summary there (`-`: standard output)."),
        click.option("--max-rows", type=click.IntRange(0), default=ROWS_MAX, show_default=True, help="Of one batch."),
        click.option("--checkpoint", metavar="DIR", default="", help="Where it is kept how far the job is."),
        click.option("--master", default="local[*]", show_default=True, help="Where Spark runs."),
        click.option("--every", type=span, metavar="TIME", help="Go on, a batch every so often, until stopped."),
        click.option("--once", is_flag=True, help="Do what is there now and end (if nothing is said)."),
        state_option,
        click.option("--name", help="What `status` and `stop` call it; the job's name if nothing is said."),
        click.option("--tls-ca", metavar="FILE", default="", help="Certificates to trust, for fairleads://."),
        click.option("--password-file", metavar="FILE", default="", help="Better than FAIRLEAD_PASSWORD on clusters."),
        click.option("--password", envvar="FAIRLEAD_PASSWORD", default="", help="Better given in FAIRLEAD_PASSWORD."),
        click.option("--user", default="", help="Name to authenticate with."),
        click.option("--url", "--server", metavar="URL", default=DEFAULT_URL, show_default=True, envvar="FAIRLEAD_URL"),
    ):
        command = option(command)
    return command


COMMON: Final = frozenset(
    (
        *("conf", "memory", "nice", "patience", "json_file", "max_rows", "checkpoint", "master", "every", "once"),
        *("state", "name", "tls_ca", "password_file", "password", "user", "url"),
    )
)


def command_of(job: Job) -> click.Command:
    """A job as a command: its own options, then those all have."""

    def run(**given: Any) -> None:
        own = {name: value for name, value in given.items() if name not in COMMON}
        run_job(job, own, {name: given[name] for name in COMMON})

    command: Callable[..., Any] = common(one_sentence(run))
    for option in reversed(job.options):
        command = option(command)
    return click.command(job.name, help=job.help)(command)


def run_job(job: Job, own: dict[str, Any], given: dict[str, Any]) -> None:
    """Start Spark, run the job, say how it ended."""
    if given["once"] and given["every"] is not None:
        raise ConfigError("--once and --every exclude one another.")
    if given["every"] is not None and given["every"] <= 0:
        raise ConfigError("--every is a time above 0.")
    job.check(own)
    name = given["name"] or job.name
    url = re.sub(r"//[^/@]*@", "//", given["url"])
    shown = {key: own[key] for key in ("destination", "lake", "to_destination", "output") if own.get(key)}
    entry = registry.Entry(registry.state_directory(given["state"]), name, {"job": job.name, "url": url, **shown})
    progress = Progress(name)
    context = Context(
        name=name,
        options=own,
        access=access_of(given),
        checkpoint=given["checkpoint"],
        every_s=given["every"],
        rows_max=given["max_rows"],
        patience_s=given["patience"],
        progress=progress,
        on_look=entry.note,
    )
    ended: dict[str, Any] = {"error": "It ended without a word."}
    state = "failed"
    try:
        with signals(context.stopping, progress), session(job, own, given) as spark:
            context.tally = Tally()  # the time Spark takes to start is not the job's
            summary = job.run(spark, context)
        state, ended = summary.state, {"summary": summary.facts()}
    except KeyboardInterrupt:
        state, ended = "stopped", {}
        raise
    except Exception as error:
        fault = fault_of(error)
        ended = {"error": str(fault or error)[:2000]}
        if fault is None:
            raise
        raise fault from error
    finally:
        progress.close()
        entry.note(context.tally, state, **ended)
        entry.close()
    report(summary, given["json_file"])


def report(summary: Summary, file: str | None) -> None:
    facts = summary.facts()
    if file == "-":
        click.echo(json.dumps(facts, ensure_ascii=False))
    else:
        if file:
            registry.write_atomically(Path(file).absolute(), json.dumps(facts, ensure_ascii=False, indent=1) + "\n")
        click.echo(f"{summary.job}: {summary.state}, {sentence(facts)} in {facts['seconds']:.1f} s")


def access_of(given: dict[str, Any]) -> dict[str, str]:
    """Options of Spark's source by which it reaches the server."""
    named = {
        "url": given["url"],
        "user": given["user"],
        "password": "" if given["password_file"] else given["password"],
        "passwordFile": given["password_file"],
        "tlsCa": given["tls_ca"],
    }
    return {name: value for name, value in named.items() if value}


@contextlib.contextmanager
def session(job: Job, own: dict[str, Any], given: dict[str, Any]) -> Iterator[SparkSession]:
    """A Spark session as the command line wants it, which is over afterwards."""
    conf = {"spark.driver.memory": given["memory"], **job.conf(own)}
    for text in given["conf"]:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"A setting of Spark is NAME=VALUE, not {text!r}.")
        conf[key] = value
    with started(f"fairlead-{job.name}", given["master"], conf, given["nice"]) as spark:
        yield spark


@contextlib.contextmanager
def started(app: str, master: str, conf: dict[str, str], nice: int) -> Iterator[SparkSession]:
    try:
        from fairlead.pipeline.session import spark_session
    except ImportError as error:
        raise ConfigError(f"The data pipeline needs Spark: pip install 'fairlead[spark]' ({error}).") from None
    if master.startswith("local") and nice > 0:
        os.nice(nice)  # Java and the workers inherit it
    before = signal.getsignal(signal.SIGINT)
    spark = spark_session(app, master, conf)
    signal.signal(signal.SIGINT, before)  # Spark would cancel its jobs and go
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def signals(stopping: threading.Event, progress: Progress) -> Iterator[None]:
    """SIGINT and SIGTERM ask for an orderly end; a second one does not ask."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()
        progress.say("stopping when the batch is done; once more to stop at once")

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- Which there are --------------------------------------------------------------------------------------------
@pipeline_group.command("list")
@as_json_option
def list_jobs(as_json: bool) -> None:
    """The jobs there are."""
    if as_json:
        click.echo(json.dumps({name: help_ for name, (_, help_) in JOBS.items()}))
        return
    for name, (_, help_) in JOBS.items():
        click.echo(f"{name:12} {help_}")


@pipeline_group.command("status")
@state_option
@as_json_option
def show_status(state: str | None, as_json: bool) -> None:
    """Pipelines that run on this machine, and those that did."""
    found = list(registry.entries(registry.state_directory(state)))
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    if not found:
        click.echo("No pipeline has run here.")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for head in ("name", "job", "state", "pid", "rows", "rate", "lag", "batch", "last batch"):
        table.add_column(head, justify="right" if head in {"pid", "rows", "rate", "lag", "batch"} else "left")
    for one in found:
        cells = (
            one["name"], one.get("job"), one.get("state"), one.get("pid"), _number(one.get("rows")),
            f"{_number(one.get('rate'))}/s", _number(one.get("lag")), _number(one.get("last_batch")),
            _when(one.get("updated")),
        )  # fmt: skip
        table.add_row(*(Text(str(cell)) for cell in cells))
    Console(file=sys.stdout).print(table)
    for one in found:
        if one.get("error") and one.get("state") == "failed":
            click.echo(f"{one['name']}: {one['error'].splitlines()[0]}")


def _number(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, (int, float)) else "?"


def _when(value: Any) -> str:
    return datetime.fromtimestamp(value).strftime("%m-%d %H:%M:%S") if isinstance(value, (int, float)) else "?"


@pipeline_group.command("stop")
@click.argument("name")
@click.option("--wait", type=span, metavar="TIME", default="1m", show_default=True, help="For its end.")
@state_option
@one_sentence
def stop_pipeline(name: str, wait: float, state: str | None) -> None:
    """Ask a pipeline to end when its batch is done."""
    if not registry.stop(registry.state_directory(state), name, wait):
        fail(f"{name} was asked to end, and has not in {wait:g} s.", EXIT_FAILED)
    click.echo(f"{name} has ended.")


# --- A lake at hand ---------------------------------------------------------------------------------------------
def with_spark(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        nice_option,
        click.option("--memory", default="1g", show_default=True, help="Of Spark's driver."),
        click.option("--master", default="local[*]", show_default=True, help="Where Spark runs."),
        click.option("--lake", required=True, metavar="DIR", help="What `archive` wrote."),
    ):
        command = option(command)
    return command


@pipeline_group.command("sql")
@with_spark
@click.option("--rows", default=1000, show_default=True, help="Print no more than these.")
@click.argument("query")
@as_json_option
@one_sentence
def sql(lake: str, master: str, memory: str, nice: int, rows: int, query: str, as_json: bool) -> None:
    """Ask a lake in SQL; its messages are the view `messages`.

    \b
    Example:
      fairlead pipeline sql --lake ./lake "select date, count(*) n, sum(size) from messages group by date"
    """
    from fairlead.pipeline import lake as lakes

    with started("fairlead-sql", master, {"spark.driver.memory": memory}, nice) as spark:
        lakes.messages(spark, lake)
        frame = asked(spark, query).limit(rows)
        found = frame.collect()
        if as_json:
            for row in found:
                click.echo(json.dumps(row.asDict(recursive=True), default=_plain, ensure_ascii=False))
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table()
        for name in frame.columns:
            table.add_column(Text(name))
        for row in found:
            table.add_row(*(Text(_shown(value)) for value in row))
        Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200).print(table)


def asked(spark: SparkSession, query: str) -> Any:
    try:
        return spark.sql(query)
    except Exception as error:
        raise fault_of(error) or error from None


def _plain(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode(errors="replace")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _shown(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else _plain(value)
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text[:500])


@pipeline_group.command("compact")
@with_spark
@click.option("--file-bytes", default=128 << 20, show_default=True, help="As large as files should become.")
@click.option("--keep", type=span, metavar="TIME", default="1h", show_default=True, help="Old files, for readers.")
@as_json_option
@one_sentence
def compact(lake: str, master: str, memory: str, nice: int, file_bytes: int, keep: float, as_json: bool) -> None:
    """Merge the small files of days that are over. Not while `archive` writes to the lake."""
    from fairlead.pipeline.compaction import Compaction, conf

    with started("fairlead-compact", master, {"spark.driver.memory": memory, **conf()}, nice) as spark:
        facts = Compaction(lake, file_bytes=file_bytes, keep_s=keep).run(spark, now_s=time.time())
    click.echo(json.dumps(facts) if as_json else facts["text"])


@pipeline_group.command("init")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--destination", default="trades.>", show_default=True, help="What feeds the project's first table.")
@click.option("--url", "--server", metavar="URL", default=DEFAULT_URL, show_default=True, envvar="FAIRLEAD_URL")
@one_sentence
def init(directory: Path, destination: str, url: str) -> None:
    """Write a project of Spark's declarative pipelines whose tables are fed by destinations."""
    from fairlead.pipeline.project import write_project

    for file in write_project(directory, destination=destination, url=url):
        click.echo(file)
    click.echo(f"Next: cd {directory} && ./run")
