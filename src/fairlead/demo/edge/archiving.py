"""A topic is archived on Spark, and the archive compared with the topic; the report is opened and read.

Both jobs are the commands a user would type, given to one process, so that Java starts once.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import fairlead
from fairlead.demo.edge.stage import Skipped, Stage
from fairlead.demo.findings import Count, Findings
from fairlead.demo.words import spell
from fairlead.errors import ConfigError, Unavailable

__all__ = ["run"]

MESSAGES: Final = 20_000
SYMBOLS: Final = 50
CHUNK: Final = 2_000
SPARK_S: Final = 240.0
TOPIC: Final = "tour.trades"
HOW: Final = "pip install 'fairlead[spark]' brings Spark, and a Java where there is none"

JOBS: Final = """
import json, sys
from fairlead.cli.pipeline import pipeline_group
for words in json.loads(sys.argv[1]):
    pipeline_group.main(words, prog_name="fairlead pipeline", standalone_mode=False)
"""
OPTIONS: Final = "-XX:TieredStopAtLevel=1"
"""So short a life does not earn back what the second compiler of Java costs."""


def run(stage: Stage) -> Findings:
    _check()
    server, home = stage.server(), stage.place.directory
    stage.say(f"{MESSAGES:,} messages are sent to a topic that keeps them")
    asyncio.run(_fill(server.url))
    lake, books = home / "lake", home / "books"
    state = [
        "--state",
        str(home / "state"),
        "--url",
        server.url,
        "--memory",
        "512m",
        "--nice",
        "0",
        "--master",
        "local[2]",
    ]
    state += ["--conf", "spark.sql.shuffle.partitions=2"]  # there is little to do
    words = [
        ["run", "archive", "--destination", TOPIC, "--lake", str(lake), "--json", str(home / "archive.json"), *state],
        ["run", "reconcile", "--sent", TOPIC, "--received", f"lake:{lake}", "--by", "order", "--first", "1",
         "--output", str(books), "--json", str(home / "reconcile.json"), *state],
    ]  # fmt: skip
    began_s = time.monotonic()
    _spark(words, home / "spark.log", stage)
    took_s = time.monotonic() - began_s
    archived, report = _json(home / "archive.json"), _json(books / "report.json")
    totals, faults = report["totals"], report["faults"]
    count = Count(
        what="archive",
        sent=MESSAGES,
        received=totals["delivered"],
        lost=max(0, MESSAGES - totals["delivered"]),
        doubled=faults.get("doubled", {}).get("messages", 0),
    )
    size = sum(file.stat().st_size for file in lake.rglob("*.parquet"))
    page = books / "report.html"
    return Findings(
        said=[
            f"archived {archived['rows']:,} messages to {size / 1024:,.0f} KiB of Parquet files in "
            f"{spell(archived['seconds'])}; with the start of Java and both jobs {spell(took_s)}",
            f"the books: {totals['sent']:,} sent, {totals['delivered']:,} in the archive, lost {count.lost:,}, "
            f"doubled {count.doubled:,}; the report has {page.stat().st_size / 1024:,.0f} KiB",
        ],
        counts=[count],
        checks={
            "as many rows as messages": archived["rows"] == MESSAGES,
            "the books know of every message": totals["sent"] == MESSAGES,
            "the books are clean": report["is_clean"],
            "the report is a page": page.read_text(encoding="utf-8").startswith("<!doctype html>"),
        },
        files=[str(page)],
    )


def _check() -> None:
    """Skipped, with what to do, where there is no Spark or no Java."""
    missing = [name for name in ("pyspark", "pyarrow", "matplotlib") if find_spec(name) is None]
    if missing:
        raise Skipped(f"There is no {' and no '.join(missing)} here: {HOW}.")
    from fairlead.pipeline import java

    try:
        java.find()
    except ConfigError as error:
        raise Skipped(f"{error} Or: {HOW}.") from None


async def _fill(url: str) -> None:
    async with fairlead.connect(url, name="tour-trades") as connection:
        trades = connection.topic(TOPIC, create=True, parameters={"retain_messages": -1})
        for first in range(0, MESSAGES, CHUNK):
            await trades.send_many(
                [f'{{"number": {number}, "price": {100 + number % 7}}}' for number in range(first, first + CHUNK)],
                key=f"S{first // CHUNK % SYMBOLS}",
            )


def _spark(words: list[list[str]], log: Path, stage: Stage) -> None:
    """Both jobs in one process of its own."""
    environment = {"SPARK_SUBMIT_OPTS": OPTIONS, "SPARK_LAUNCHER_OPTS": OPTIONS} | os.environ
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", JOBS, json.dumps(words)], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env=environment,
        )  # fmt: skip
    until_s = time.monotonic() + SPARK_S
    try:
        while process.poll() is None and time.monotonic() < until_s:
            done = _last_line(log)
            stage.say(f"Spark: {done}" if done else "Spark starts, and archives")
            time.sleep(0.1)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise Unavailable(f"The jobs ended with {process.returncode}: {_last_line(log) or 'without a word'}")


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").replace("\r", "\n").strip().splitlines()
    return lines[-1][:200] if lines else ""


def _json(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found
