"""The frame of every job: what a job is, what it is told, and how a streaming query is kept going and ended.

A job is a class with a name, options of its own and `run(spark, context) -> Summary`; `JOBS` says where each is, so
that `fairlead pipeline --help` needs no Spark. The checkpoint is the record of truth: whatever is killed, a job that is
started again with the same checkpoint goes on where it was.
"""

from __future__ import annotations

import importlib
import json
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple

from fairlead import errors
from fairlead.errors import ConfigError, FairleadError, Unavailable
from fairlead.pipeline.progress import Progress, Tally

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, DataFrameWriter, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

__all__ = ["JOBS", "Context", "Job", "Patience", "Summary", "fault_of", "follow", "job_of", "observed", "triggered"]

JOBS: Final[Mapping[str, tuple[str, str]]] = {
    "archive": ("fairlead.pipeline.archive:Archive", "Destinations to a lake of Parquet files, each message once."),
    "replay": ("fairlead.pipeline.replay:Replay", "Messages of a lake to destinations, at any pace."),
    "normalise": ("fairlead.pipeline.normalise:Normalise", "A feed to typed records, by your converter."),
    "reconcile": ("fairlead.pipeline.reconcile:Reconcile", "Every message accounted for."),
    "insights": ("fairlead.pipeline.insights:Insights", "Traffic, latency, fairness and dead messages as a report."),
}
"""Name: where it is, and what it is for."""

LOOK_S: Final = 0.2
LOOK_CLOSELY_S: Final = 0.01
CONNECT_S: Final = 10.0
PAUSE_S: Final = (0.5, 10.0)
OBSERVED: Final = "fairlead"
BUSY: Final = "Python worker failed to connect back"
"""Spark gives a new worker ten seconds, which a loaded machine may not have."""
MISTAKES: Final = frozenset(("AnalysisException", "ParseException"))
"""What Spark says of a condition or query that somebody wrote."""

State = Literal["done", "stopped"]


@dataclass(frozen=True)
class Summary:
    """How a run ended; `details` are the job's own."""

    job: str
    state: State
    tally: Tally
    details: Mapping[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        return {"job": self.job, "state": self.state, **self.tally.facts(), **self.details}


@dataclass
class Context:
    """What a job is told about its run."""

    name: str
    options: Mapping[str, Any]
    access: Mapping[str, str] = field(default_factory=lambda: dict[str, str]())
    checkpoint: str = ""
    every_s: float | None = None
    rows_max: int = 0
    patience_s: float = 300.0
    tally: Tally = field(default_factory=Tally)
    progress: Progress | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    on_look: Callable[[Tally, str], None] | None = None

    @property
    def once(self) -> bool:
        return self.every_s is None

    def look(self, state: str = "running") -> None:
        """Show and note how far the job is. To be called now and then, at least once a batch."""
        if self.progress is not None:
            self.progress.show(self.tally, state)
        if self.on_look is not None:
            self.on_look(self.tally, state)

    def say(self, text: str) -> None:
        if self.progress is not None:
            self.progress.say(text)

    def reader(self, spark: SparkSession, destination: str) -> DataFrameReader:
        """For a batch read of destinations."""
        return spark.read.format("fairlead").options(**self._access()).option("destination", destination)

    def stream_reader(self, spark: SparkSession, destination: str, cursor: str = "") -> DataStreamReader:
        """For a stream of destinations, a batch of it no larger than was asked for."""
        found = spark.readStream.format("fairlead").options(**self._access()).option("destination", destination)
        if cursor:
            found = found.option("cursor", cursor)
        return found.option("maxRowsPerTrigger", str(self.rows_max)) if self.rows_max else found

    def writer(self, frame: DataFrame) -> DataFrameWriter:
        """For rows that become messages."""
        return frame.write.format("fairlead").mode("append").options(**self._access())

    def _access(self) -> dict[str, str]:
        # A connection waits a little by itself; the job waits longer, and says so.
        return {**self.access, "patience": f"{min(self.patience_s, CONNECT_S):g}"}

    def ended(self, job: str, **details: Any) -> Summary:
        return Summary(job, "stopped" if self.stopping.is_set() else "done", self.tally, details)


class Job(ABC):
    """One kind of work. Its module imports Spark inside functions only: `--help` is to be quick."""

    name: ClassVar[str]
    help: ClassVar[str]
    options: ClassVar[Sequence[Callable[[Any], Any]]] = ()
    """What `click.option(…)` gives; the values are in `context.options` under click's names."""

    def check(self, options: Mapping[str, Any]) -> None:  # noqa: B027 - most have nothing to complain about
        """Complain (ConfigError) about options that do not fit together, before Spark is started."""

    def conf(self, options: Mapping[str, Any]) -> dict[str, str]:
        """Settings of the Spark session that the job wants."""
        return {}

    @abstractmethod
    def run(self, spark: SparkSession, context: Context) -> Summary: ...


def job_of(name: str) -> Job:
    """The job of that name."""
    if name not in JOBS:
        raise ConfigError(f"There is no job {name!r}. There are: {', '.join(JOBS)}.")
    module, _, attribute = JOBS[name][0].partition(":")
    found: Job = getattr(importlib.import_module(module), attribute)()
    return found


# Streaming queries.


def triggered(writer: DataStreamWriter, context: Context) -> DataStreamWriter:
    """What is there now and no more, or every so often; with the checkpoint, without which nothing is exactly once."""
    if not context.checkpoint:
        raise ConfigError("A job that runs on needs a checkpoint: --checkpoint DIR.")
    writer = writer.option("checkpointLocation", context.checkpoint).queryName(context.name)
    if context.every_s is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{max(1, round(context.every_s * 1000))} milliseconds")


def observed(frame: DataFrame) -> DataFrame:
    """The same rows, their bytes counted as they pass, where they have a column `size`."""
    from pyspark.sql import functions as f

    return frame.observe(OBSERVED, f.sum("size").alias("bytes")) if "size" in frame.columns else frame


def follow(start: Callable[[], StreamingQuery], context: Context) -> None:
    """Run a query to its end, or until somebody stops the job; begin again while the broker is away.

    What went wrong otherwise, or for longer than `patience_s`, is raised.
    """
    patience = Patience(context)
    while True:
        try:
            _watch(start(), context)
            return
        except Exception as error:
            if not patience.again(error):
                return


class Patience:
    """Whether to try again what failed: while the broker is away, less and less often, and not for ever."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._batches = -1
        self._pause_s, self._since_s = PAUSE_S[0], 0.0

    def again(self, error: Exception) -> bool:
        """After a pause; False if the job was stopped meanwhile. What another try cannot help is raised."""
        context, fault = self._context, fault_of(error)
        if fault is None:
            raise error
        now_s = time.monotonic()
        if context.tally.batches != self._batches:  # it got somewhere since
            self._batches, self._pause_s, self._since_s = context.tally.batches, PAUSE_S[0], now_s
        if not isinstance(fault, Unavailable) or now_s - self._since_s > context.patience_s:
            raise fault from error
        context.say(f"{fault} Trying again.")
        context.look("waiting")
        if context.stopping.wait(self._pause_s):
            return False
        self._pause_s = min(self._pause_s * 2, PAUSE_S[1])
        return True


def _watch(query: StreamingQuery, context: Context) -> None:
    seen = _Seen(context)
    try:
        while not context.stopping.is_set():
            ended = query.awaitTermination(LOOK_S)  # type: ignore[arg-type]  # fractions are fine
            seen.look(query)
            if ended:
                return
        # Between two batches is a good moment: a batch cut short would be done again from its beginning.
        context.look("stopping")
        first, due_s = seen.batch, 0.0
        while query.isActive and query.status["isTriggerActive"] and seen.batch == first:
            time.sleep(LOOK_CLOSELY_S)
            if time.monotonic() >= due_s:
                seen.look(query, quietly=True)
                due_s = time.monotonic() + LOOK_S
    finally:
        if query.isActive:
            query.stop()
        seen.look(query, quietly=True)  # the last batches before the end, or before a failure
    context.look()


class _Seen:
    """Which of a query's progress reports were counted."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.batch = -1

    def look(self, query: StreamingQuery, *, quietly: bool = False) -> None:
        for report in query.recentProgress:
            if report["batchId"] <= self.batch:
                continue
            rows = int(report.numInputRows)  # by its name in brackets it is None over Spark Connect
            offsets = _offsets(report["sources"], rows)
            if rows or offsets.moved:
                self.batch = report["batchId"]
                size = (report.get("observedMetrics") or {}).get(OBSERVED, {}) if rows else {}
                self._context.tally.add(
                    rows=rows, size=int(_field(size, "bytes") or 0), batch=self.batch,
                    ranges=offsets.ranges, lag=offsets.lag,
                )  # fmt: skip
            elif offsets.lag is not None:
                self._context.tally.lag = offsets.lag
        if not quietly:
            self._context.look()


class _Moved(NamedTuple):
    ranges: dict[str, tuple[int, int]]
    lag: int | None

    @property
    def moved(self) -> bool:
        return any(beyond > first for first, beyond in self.ranges.values())


def _offsets(sources: Sequence[Mapping[str, Any]], rows: int) -> _Moved:
    from fairlead.pipeline.offsets import Offsets

    ranges: dict[str, tuple[int, int]] = {}
    lag: int | None = 0
    for source in sources:
        try:
            start, end, latest = (
                Offsets.parse(json.loads(source.get(name) or "{}") or {})
                for name in ("startOffset", "endOffset", "latestOffset")
            )
        except (ValueError, AttributeError, ConfigError):  # not one of ours
            lag = None
            continue
        ranges |= {name: (start.at[name], at) for name, at in end.at.items() if start.at.get(name, at) != at}
        new = [name for name in end.at if name not in start.at]
        if new and rows:  # Spark does not say where a query began; of one destination it can be reckoned
            known = sum(beyond - first for first, beyond in ranges.values())
            ranges |= {name: (end.at[name] - (rows - known), end.at[name]) for name in new if len(new) == 1}
        if not latest.at or latest.cursors:  # of a queue nobody knows how many are free
            lag = None
        elif lag is not None:
            lag += sum(max(0, latest.at[name] - end.at.get(name, 0)) for name in latest.at)
    return _Moved(ranges, lag)


def _field(row: Any, name: str) -> Any:
    return row.get(name) if isinstance(row, Mapping) else getattr(row, name, None)


def fault_of(error: BaseException) -> FairleadError | None:
    """Fairlead's own error inside one of Spark's, which carries it as text; None if it is not one of ours."""
    if isinstance(error, FairleadError):
        return error
    found = re.findall(r"fairlead\.errors\.(\w+): ([^\n]*)", str(error))
    for name, text in reversed(found):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, FairleadError):
            try:
                return kind(text)
            except TypeError:  # it wants to know more than its text
                return FairleadError(text)
    if type(error).__name__ in MISTAKES and type(error).__module__.startswith("pyspark."):
        return ConfigError(str(error).splitlines()[0])
    if BUSY in str(error):
        return Unavailable(f"{BUSY}: this machine is busy.")
    return None
