"""Where checks and reports get their messages from: a lake, Parquet files, or destinations of a running broker.

An input is a text: `lake:DIR`, `parquet:DIR`, or the names of destinations. What is read from a broker is put aside in
files first: a check reads it more than once, and must see the same each time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fairlead.errors import FairleadError
from fairlead.pipeline import lake as lakes
from fairlead.pipeline.running import Context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Inputs", "counters", "names_of", "repeated"]

LAKE: Final = "lake:"
PARQUET: Final = "parquet:"
PAGE: Final = 1000
PAGES_MAX: Final = 1000


def names_of(text: str) -> list[str]:
    """Of a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


class Inputs:
    """Reads inputs for one run; `work` is a directory for what is put aside, gone when it is closed."""

    def __init__(self, spark: SparkSession, context: Context, work: Path) -> None:
        self._spark = spark
        self._context = context
        self._work = work
        self._count = 0

    def frame(self, text: str, columns: Sequence[str], *, only: Sequence[str] = (), waiting: bool = False) -> DataFrame:
        """The messages of an input, with those of the columns that it has. `waiting`: only what is not consumed."""
        if text.startswith(PARQUET):
            frame = self._spark.read.parquet(text.removeprefix(PARQUET))
        elif text.startswith(LAKE):
            frame = lakes.selected(lakes.read(self._spark, text.removeprefix(LAKE)), destinations=only)
        else:
            reader = self._context.reader(self._spark, text).option("columns", ",".join(columns))
            frame = self._aside((reader.option("waiting", "true") if waiting else reader).load())
        if only and not text.startswith(LAKE) and "destination" in frame.columns:
            frame = lakes.selected(frame, destinations=only)
        return frame.select(*(name for name in columns if name in frame.columns))

    def _aside(self, frame: DataFrame) -> DataFrame:
        self._count += 1
        where = str(self._work / f"input-{self._count}")
        frame.write.mode("overwrite").option("compression", "zstd").parquet(where)
        return self._spark.read.schema(frame.schema).parquet(where)

    def close(self) -> None:
        shutil.rmtree(self._work, ignore_errors=True)


def counters(context: Context, pattern: str = "") -> list[dict[str, Any]]:
    """The broker's own figures of its destinations; none, and a word about it, if it does not tell them to us."""
    import fairlead.sync
    from fairlead.pipeline.options import Reading

    access = Reading.parse({**context.access, "destination": "_DMQ"}).access
    found: list[dict[str, Any]] = []
    try:
        options: dict[str, Any] = {"user": access.user or None, "password": access.secret() or None}
        if (tls := access.tls()) is not None:
            options["tls"] = tls
        with fairlead.sync.connect(access.url, name="pipeline", **options) as connection:
            page: Any = 0
            for _ in range(PAGES_MAX):
                answer = connection.admin.execute("destinations", pattern=pattern, page=page, count=PAGE)
                found += [one for one in answer["destinations"] if isinstance(one, dict)]
                page = answer.get("next")
                if page is None:
                    break
    except (FairleadError, OSError) as error:
        context.say(f"The broker's counters are left out: {error}")
        return []
    return found


def repeated(context: Context, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Do it once, or again every so often until the job is stopped; what the last time said."""
    while True:
        said = work()
        context.look()
        if context.every_s is None or context.stopping.wait(context.every_s):
            return said
