"""The source and the sink beside Spark's own Parquet stream, in one Spark process, run by run in turn.

python benchmarks/pipeline/throughput.py [--rows 1000000 | --scale small] [--repeat 3] [--only noop] [--out FILE.json]

A run reads all rows in one trigger. What counts is the time of the whole trigger (`triggerExecution`): planning,
reading, writing, the commit to the checkpoint. The start of the query is not in it; `wall_s` in the file has that, too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import fairlead.sync
from benchmarks.pipeline.common import BACKLOG, BODY_BYTES, Cpu, Meter, fill, java_pid, load, session, spread, timed
from fairlead.runtime.version import VERSION
from fairlead.testing import Server

SCALES = {"small": 4_000, "medium": 200_000, "full": 1_000_000}
FEW = "order_number,key,body"
SLICES = (1, "1 slice"), (2, "2 slices")
RUN_S_MAX = 600

Frame = Callable[[], DataFrame]


@dataclass
class Case:
    """One path, and the seconds of each of its runs; `beside` is the path it is compared with."""

    name: str
    run: Callable[[], float | None]
    beside: str = ""
    seconds: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    cpu: Cpu = field(default_factory=dict)

    def add(self, seconds: float, wall_s: float, spent: Cpu) -> None:
        self.seconds.append(seconds)
        self.wall_s.append(wall_s)
        for part, cpu_s in spent.items():
            self.cpu[part] = self.cpu.get(part, 0.0) + cpu_s

    def facts(self, rows: int) -> dict[str, Any]:
        return {
            "name": self.name,
            "beside": self.beside,
            "rows_per_s": [round(rows / seconds) for seconds in self.seconds],
            "wall_s": [round(seconds, 3) for seconds in self.wall_s],
            "cpu_us_per_row": {
                part: round(cpu_s / len(self.seconds) / rows * 1e6, 3) for part, cpu_s in self.cpu.items()
            },
        }


class Bench:
    """The cases. Every run has a checkpoint, a directory and a destination of its own."""

    def __init__(self, spark: SparkSession, server: Server, work: Path, rows: int) -> None:
        self._spark = spark
        self._server = server
        self._work = work
        self._rows = rows
        self._count = 0
        self._parquet = str(work / "parquet")
        self._frame("").write.mode("overwrite").parquet(self._parquet)
        self._schema = spark.read.parquet(self._parquet).schema

    def cases(self) -> list[Case]:
        found = []
        for columns, word in (("", "all columns"), (FEW, "3 columns")):
            stream, batch = f"Parquet stream -> noop, {word}", f"Parquet batch -> noop, {word}"
            found.append(Case(stream, partial(self._noop, partial(self._files, columns))))
            for slices, many in SLICES:
                name = f"source -> noop, {word}, {many}"
                found.append(Case(name, partial(self._noop, partial(self._stream, columns, slices)), stream))
            found.append(Case(batch, partial(self._look, partial(self._file, columns))))
            name = f"batch source -> noop, {word}"
            found.append(Case(name, partial(self._look, partial(self._frame, columns)), batch))
        lake = "Parquet stream -> Parquet (archive)"
        found.append(Case(lake, partial(self._archive, partial(self._files, ""))))
        for slices, many in SLICES:
            name = f"source -> Parquet (archive), {many}"
            found.append(Case(name, partial(self._archive, partial(self._stream, "", slices)), lake))
        found.append(Case("Parquet stream -> sink", partial(self._sink, partial(self._files, FEW))))
        found.append(Case("source -> sink", partial(self._sink, partial(self._stream, FEW, 2))))
        return found

    # What is read.

    def _stream(self, columns: str, slices: int) -> DataFrame:
        options = {"url": self._server.url, "slices": str(slices)} | ({"columns": columns} if columns else {})
        return self._spark.readStream.format("fairlead").options(**options).load(BACKLOG)

    def _frame(self, columns: str) -> DataFrame:
        options = {"url": self._server.url} | ({"columns": columns} if columns else {})
        return self._spark.read.format("fairlead").options(**options).load(BACKLOG)

    def _files(self, columns: str) -> DataFrame:
        frame = self._spark.readStream.schema(self._schema).parquet(self._parquet)
        return frame.select(*columns.split(",")) if columns else frame

    def _file(self, columns: str) -> DataFrame:
        frame = self._spark.read.parquet(self._parquet)
        return frame.select(*columns.split(",")) if columns else frame

    # Where it goes.

    def _look(self, frame: Frame) -> None:
        frame().write.format("noop").mode("overwrite").save()

    def _noop(self, frame: Frame) -> float:
        return self._through(frame(), "noop", {})

    def _archive(self, frame: Frame) -> float:
        where = self._fresh("lake")
        parts = frame().withColumn("date", f.to_date("arrived"))
        seconds = self._through(parts, "parquet", {"path": str(where), "compression": "zstd"}, ("destination", "date"))
        shutil.rmtree(where)
        return seconds

    def _sink(self, frame: Frame) -> float:
        name = self._fresh("bench.sink").name
        options = {"url": self._server.url, "destination": name, "kind": "queue", "create": "true"}
        seconds = self._through(frame().select("key", "body"), "fairlead", options)
        with fairlead.sync.connect(self._server.url, name="cleaner") as client:
            client.admin.execute("delete", destination=name)
        return seconds

    def _fresh(self, name: str) -> Path:
        self._count += 1
        return self._work / f"{name}-{self._count}"

    def _through(self, frame: DataFrame, form: str, options: dict[str, str], parts: tuple[str, ...] = ()) -> float:
        """All there is in one trigger; how long that took."""
        checkpoint = self._fresh("checkpoint")
        writer = frame.writeStream.format(form).options(**options).option("checkpointLocation", str(checkpoint))
        if parts:
            writer = writer.partitionBy(*parts)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(RUN_S_MAX), "the query does not end"
        batches = [one for one in query.recentProgress if one.numInputRows]
        rows = sum(one.numInputRows for one in batches)
        assert rows == self._rows, f"{rows} rows came, of {self._rows}"
        shutil.rmtree(checkpoint)
        return sum(one.durationMs["triggerExecution"] for one in batches) / 1000


Save = Callable[[dict[str, Any]], None]


def measure(rows: int, repeat: int, warm: int, only: Sequence[str], memory: str, save: Save) -> dict[str, Any]:
    """With a server and a Spark session of its own."""
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as place:
        work = Path(place)
        (work / "server").mkdir()
        with Server(data=work / "server") as server, session(work, memory=memory) as spark:
            return run(spark, server, work, rows=rows, repeat=repeat, warm=warm, only=only, save=save)


def run(
    spark: SparkSession,
    server: Server,
    work: Path,
    *,
    rows: int,
    repeat: int,
    warm: int = 0,
    only: Sequence[str] = (),
    save: Save = lambda _: None,
) -> dict[str, Any]:
    """What was found so far is saved after each turn."""
    fill(server, rows)
    meter = Meter(server, java_pid(spark))
    cases = [
        case for case in Bench(spark, server, work, rows).cases() if not only or any(word in case.name for word in only)
    ]
    loads: list[float] = []
    for turn in range(warm + repeat):
        for case in cases:
            spent: Cpu = {}
            loads.append(load())
            with meter.over(spent):
                seconds, wall_s = timed(case.run)
            print(f"{turn - warm + 1:3} {case.name}: {rows / seconds:,.0f} rows/s", file=sys.stderr)
            if turn >= warm:
                case.add(seconds, wall_s, spent)
        if turn >= warm:
            save(result := found(cases, loads, rows, warm, spark.version))
    return result


def found(cases: list[Case], loads: list[float], rows: int, warm: int, spark: str) -> dict[str, Any]:
    return {
        "rows": rows, "body_bytes": BODY_BYTES, "repeat": len(cases[0].seconds), "warm_up": warm, "fairlead": VERSION,
        "python": platform.python_version(), "spark": spark, "cores": os.cpu_count(),
        "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "load": [min(loads), max(loads)],
        "cases": [case.facts(rows) for case in cases],
    }  # fmt: skip


def table(result: dict[str, Any]) -> str:
    """Markdown. A ratio is that of runs of the same turn, so that a slow moment of the machine strikes both."""
    cases = result["cases"]
    rates = {case["name"]: case["rows_per_s"] for case in cases}
    lines = [
        "| path | rows/s, median (least to most) | beside Parquet | CPU, µs a row |",
        "|---|---:|---:|---|",
    ]
    for case in cases:
        middle, least, most = spread(case["rows_per_s"])
        beside = ""
        if case["beside"] in rates:
            ratio = spread([a / b for a, b in zip(case["rows_per_s"], rates[case["beside"]], strict=True)])
            beside = "{:.2f} x ({:.2f} to {:.2f})".format(*ratio)
        cpu = case["cpu_us_per_row"]
        parts = ", ".join(f"{cpu[part]:.2f}" for part in ("message-manager", "manager", "python", "java"))
        lines.append(f"| {case['name']} | {middle:,.0f} ({least:,.0f} to {most:,.0f}) | {beside} | {parts} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--rows", type=int, help="messages of the backlog")
    size.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each path that count")
    parser.add_argument("--warm", type=int, default=1, help="runs of each path before")
    parser.add_argument("--only", nargs="*", default=(), help="paths whose name has one of these in it")
    parser.add_argument("--memory", default="2g", help="of Spark's Java")
    parser.add_argument("--out", type=Path, help="write the figures there, as JSON")
    options = parser.parse_args()

    def save(result: dict[str, Any]) -> None:
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    rows = options.rows or SCALES[options.scale]
    print(table(measure(rows, options.repeat, options.warm, options.only, options.memory, save)))


if __name__ == "__main__":
    main()
