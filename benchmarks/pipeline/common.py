"""What the measurements of the pipeline share: a backlog, a Spark session, and who spent which CPU time."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pyarrow as pa
from pyspark.sql import SparkSession

import fairlead.sync
from fairlead.client.bulk import BulkConnection
from fairlead.pipeline.arrow import entries_from
from fairlead.pipeline.session import spark_session
from fairlead.testing import Server

BODY_BYTES = 1024
KEYS = 1000
PUBLISH_ROWS = 100_000
PIECE_ROWS = 2_000
BACKLOG = "bench.backlog"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")

Cpu = dict[str, float]


def fill(server: Server, rows: int, name: str = BACKLOG) -> None:
    """A topic that keeps everything, with so many messages of random bytes: nothing that could be packed or guessed."""
    with fairlead.sync.connect(server.url, name="feeder") as client:
        client.topic(name, parameters={"retain_messages": -1}).send(b"first")
    with BulkConnection(server.url, name="feeder") as line:
        for batch, first in enumerate(range(1, rows, PUBLISH_ROWS)):
            stage = line.stage(name, f"fill-{batch}", query=f"fill {name}", batch=batch)
            beyond = min(rows, first + PUBLISH_ROWS)
            for at in range(first, beyond, PIECE_ROWS):
                for _, entries, count in entries_from(random_rows(at, min(beyond, at + PIECE_ROWS)), also=name):
                    stage.send(entries, count)
            line.publish(f"fill {name}", batch, [(f"fill-{batch}", {name: stage.finish()})])


def random_rows(first: int, beyond: int) -> pa.RecordBatch:
    data = os.urandom((beyond - first) * BODY_BYTES)
    bodies = [data[at : at + BODY_BYTES] for at in range(0, len(data), BODY_BYTES)]
    keys = [f"key-{number % KEYS}" for number in range(first, beyond)]
    return pa.record_batch([pa.array(keys), pa.array(bodies, pa.binary())], names=["key", "body"])


@contextmanager
def session(work: Path, cores: int = 2, memory: str = "2g") -> Iterator[SparkSession]:
    settings = {
        "spark.driver.memory": memory,
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.local.dir": str(work / "spark"),
    }
    spark = spark_session("benchmark", f"local[{cores}]", settings)
    try:
        yield spark
    finally:
        spark.stop()


class Meter:
    """CPU seconds by part: the server's processes by role, Spark's Java, and the Python processes it started.

    What a Python process spends that begins and ends between two looks is not seen, unless Java itself started it.
    """

    def __init__(self, server: Server, java: int) -> None:
        self._java = java
        self._roles = {one["pid"]: _part(one["role"]) for one in server.status(brief=True)["components"]}

    def _read(self) -> dict[tuple[str, int], float]:
        """By part and process."""
        found = {(part, pid): _spent(pid)[0] for pid, part in self._roles.items()}
        found["java", self._java], found["ended", self._java] = _spent(self._java)
        return found | {("python", pid): _spent(pid)[0] for pid in descendants(self._java)}

    @contextmanager
    def over(self, into: Cpu) -> Iterator[None]:
        """What was spent in the block, added to `into`."""
        before = self._read()
        yield
        after = self._read()
        gone_s = sum(seconds for place, seconds in before.items() if place not in after)
        for (part, pid), seconds in after.items():
            spent_s = seconds - before.get((part, pid), 0.0)
            if part == "ended":  # of one that was there before, only what it spent since
                part, spent_s = "python", max(0.0, spent_s - gone_s)
            into[part] = into.get(part, 0.0) + spent_s


def _part(role: str) -> str:
    return role if role in ("message-manager", "manager") else "other server"


def _spent(pid: int) -> tuple[float, float]:
    """By a process itself, and by children of it that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    user, system, child_user, child_system = map(int, fields[11:15])
    return (user + system) * TICK_S, (child_user + child_system) * TICK_S


def descendants(root: int) -> list[int]:
    """The processes it started, and those they started."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found: list[int] = []
    last = {root}
    while last:
        last = {pid for pid, parent in parents.items() if parent in last}
        found += last
    return found


def java_pid(spark: SparkSession) -> int:
    handle: Any = spark.sparkContext._jvm
    return int(handle.java.lang.ProcessHandle.current().pid())


def timed(work: Callable[[], float | None]) -> tuple[float, float]:
    """Seconds of a run as it tells them itself, and by the clock on the wall."""
    began_s = time.perf_counter()
    told_s = work()
    wall_s = time.perf_counter() - began_s
    return wall_s if told_s is None else told_s, wall_s


def spread(values: list[float]) -> tuple[float, float, float]:
    """Median, least, most."""
    return statistics.median(values), min(values), max(values)


def load() -> float:
    """How busy the machine is: the mean of the last minute."""
    return os.getloadavg()[0]
