"""The process that is killed: a Spark driver with both queries, until its input ends.

It says `ready` once they run, `failed …` whenever one failed, which is started again from its checkpoint, and `done`
when everything there was has gone through after the end of input.

    python -m tests.pipeline.crashing.query --url fairlead://127.0.0.1:7878 --work /somewhere
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fairlead.pipeline.session import spark_session
from tests.pipeline.crashing import flows
from tests.pipeline.crashing.plants import MISHAPS, PLANTS, planted

PAUSE_S: Final = 0.3  # before a query that failed is started again
ALONE_S: Final = 30.0
INITIALIZING: Final = "Initializing sources"


class Queries:
    """They are started again as often as they fail."""

    def __init__(self, spark: SparkSession, url: str, work: Path, names: list[str], source_format: str) -> None:
        self._spark = spark
        self._where = url, work
        self._format = source_format
        self._running: dict[str, StreamingQuery | None] = dict.fromkeys(names)
        self._last_failed_s = dict.fromkeys(names, 0.0)

    def look(self) -> None:
        for name, query in self._running.items():
            if query is not None and query.isActive:
                continue
            if query is not None and (error := query.exception()) is not None:
                self._failed(name, error)
            if time.monotonic() - self._last_failed_s[name] > PAUSE_S:
                self._start(name)

    def _start(self, name: str) -> None:
        url, work = self._where
        try:
            query = flows.start(self._spark, flows.FLOWS[name], url, work, self._format)
            self._running[name] = query
            # One after the other: Spark gives a Python process ten seconds to start, however busy the machine is.
            deadline_s = time.monotonic() + ALONE_S
            while query.isActive and query.status["message"] == INITIALIZING and time.monotonic() < deadline_s:
                time.sleep(0.05)
        except PySparkException as error:
            self._failed(name, error)

    def _failed(self, name: str, error: Exception) -> None:
        self._running[name] = None
        self._last_failed_s[name] = time.monotonic()
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        cause = [line for line in lines if line.startswith(("fairlead.", "pyspark.errors", "Caused by"))]
        say(f"failed {name}: {(cause or lines or [type(error).__name__])[-1][:300]}")

    def finish(self) -> None:
        """Each takes what is there; one that fails meanwhile says so, and is over."""
        for name, query in self._running.items():
            if query is not None:
                try:
                    query.processAllAvailable()
                    query.stop()
                except PySparkException as error:
                    self._failed(name, error)


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--url", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--flows", nargs="+", choices=list(flows.FLOWS), default=list(flows.FLOWS))
    parser.add_argument("--plant", choices=[*PLANTS, *MISHAPS], default="")
    asked = parser.parse_args()
    conf = {
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # a short life, and a cheap start
        "spark.python.authenticate.socketTimeout": "120s",  # on a loaded machine a worker takes its time
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(asked.work / "spark"),
        "spark.sql.warehouse.dir": str(asked.work / "warehouse"),
    }
    spark = spark_session("crashing", asked.master, conf)
    source_format = "fairlead"
    if asked.plant:
        source = planted(asked.plant)
        spark.dataSource.register(source)
        source_format = source.name()
    queries = Queries(spark, asked.url, asked.work, asked.flows, source_format)
    ended = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    queries.look()
    say("ready")
    while not ended.wait(0.05):
        queries.look()
    queries.finish()
    spark.stop()
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
