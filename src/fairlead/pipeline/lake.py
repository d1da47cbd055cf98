"""A lake: a directory of Parquet files, `destination=…/date=…`, in which a message is once.

Spark's file sink keeps a log of the files that count (`_spark_metadata`); whoever reads the directory with Spark sees
those and no others. So a lake is read with `spark.read` alone, and `read` only adds the types: a destination called
`007` is a name, not a number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlparse

from fairlead.errors import ConfigError
from fairlead.pipeline.registry import claim

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["LOG", "OWN", "PARTITIONS", "Log", "local", "lock", "messages", "read", "schema", "selected"]

LOG: Final = "_spark_metadata"
OWN: Final = "_fairlead"
PARTITIONS: Final = ("destination", "date")
VERSION: Final = "v1"
COMPACT: Final = ".compact"


def schema() -> StructType:
    """The columns of a lake: those of the source, and the day of arrival (UTC)."""
    from pyspark.sql.types import DateType

    from fairlead.pipeline.arrow import SCHEMA
    from fairlead.pipeline.schema import struct_of

    return struct_of([name for name in SCHEMA.names if name != "destination"] + ["destination"]).add("date", DateType())


def read(spark: SparkSession, lake: str) -> DataFrame:
    """The messages of a lake, as they are now."""
    path = local(lake)
    if path is not None and not path.is_dir():
        raise ConfigError(f"There is no lake at {lake}.")
    return spark.read.schema(schema()).parquet(lake)


def messages(spark: SparkSession, lake: str) -> None:
    """Make the lake the view `messages` of this session."""
    read(spark, lake).createOrReplaceTempView("messages")


def selected(
    frame: DataFrame, *, destinations: Sequence[str] = (), where: str = "", since: str = "", before: str = ""
) -> DataFrame:
    """Some messages of a lake: by destination (names or patterns), arrival, and a condition in SQL."""
    from pyspark.sql import functions as f

    from fairlead.topics import compile as compile_pattern

    if destinations:
        patterns = [compile_pattern(name) for name in destinations]
        if any(not one.is_plain for one in patterns):
            there = [row.destination for row in frame.select("destination").distinct().collect()]
            names = [name for name in there if any(one.matches(name) for one in patterns)]
        else:
            names = list(destinations)
        frame = frame.where(f.col("destination").isin(names))
    for text, is_first in ((since, True), (before, False)):
        if text:
            moment = f.lit(_time(text))
            arrived, day = f.col("arrived"), f.col("date")
            frame = frame.where(arrived >= moment if is_first else arrived < moment)
            frame = frame.where(day >= f.to_date(moment) if is_first else day <= f.to_date(moment))
    return frame.where(where) if where else frame


def _time(text: str) -> Any:
    from datetime import UTC, datetime

    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"A time is written like 2026-01-31T12:00, not {text[:40]!r}.") from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def local(path: str) -> Path | None:
    """The directory on this machine, or None if it is somewhere else (hdfs:, s3a: …)."""
    if "://" not in path and not path.startswith("file:"):
        return Path(path).absolute()
    url = urlparse(path)
    return Path(unquote(url.path)) if url.scheme == "file" else None


def lock(lake: Path) -> IO[str]:
    """Nobody else writes to the lake while this is open."""
    (lake / OWN).mkdir(parents=True, exist_ok=True)
    return claim(lake / OWN / "lock", f"Another job is writing to {lake}: stop it first (fairlead pipeline status).")


class Log:
    """The sink's log of a local lake: which files count.

    It is a row of numbered files, one for each batch; every tenth or so, `N.compact`, repeats all before it. Only such
    a one can be replaced in one step that no reader notices, since the files behind it stay as they are.
    """

    def __init__(self, lake: Path) -> None:
        self.lake = lake
        self._directory = lake / LOG

    def newest(self) -> Path | None:
        """The last file that repeats all before it."""
        found = [
            file for file in self._directory.glob(f"[0-9]*{COMPACT}") if file.name.removesuffix(COMPACT).isdecimal()
        ]
        return max(found, key=lambda file: int(file.name.removesuffix(COMPACT)), default=None)

    def files(self, one: Path) -> list[dict[str, Any]]:
        """The entries of one of the log's files; ConfigError if they are not as this Spark writes them."""
        version, *lines = one.read_text(encoding="utf-8").splitlines()
        if version != VERSION:
            raise ConfigError(
                f"{one} is of version {version[:20]!r}, not {VERSION!r}: this lake was written by others."
            )
        entries: list[dict[str, Any]] = [json.loads(line) for line in lines]
        if strange := {entry.get("action") for entry in entries} - {"add"}:
            raise ConfigError(f"{one} says {strange}, which nothing here writes.")
        return entries

    def everything(self) -> set[Path]:
        """All files that count now."""
        base = self.newest()
        number = int(base.name.removesuffix(COMPACT)) if base else -1
        more = [file for file in self._directory.glob("[0-9]*") if file.name.isdecimal() and int(file.name) > number]
        return {path_of(entry) for one in ([base] if base else []) + more for entry in self.files(one)}

    def replace(self, one: Path, entries: Sequence[dict[str, Any]]) -> None:
        """Put other entries into that file, in one step."""
        from fairlead.pipeline.registry import write_atomically

        # The checksum that Hadoop keeps beside a file would no longer fit; without one nothing is checked.
        (one.parent / f".{one.name}.crc").unlink(missing_ok=True)
        write_atomically(one, "\n".join((VERSION, *(json.dumps(entry, ensure_ascii=False) for entry in entries))))


def path_of(entry: dict[str, Any]) -> Path:
    """The file an entry of the log speaks of."""
    found = local(entry["path"])
    if found is None:
        raise ConfigError(f"{entry['path']} is not on this machine.")
    return found


def entry_of(file: Path) -> dict[str, Any]:
    """As the sink would have written it."""
    facts = file.stat()
    return {
        "path": "file://" + quote(str(file), safe="/=:@!$&'()*+,;~"),
        "size": facts.st_size,
        "isDir": False,
        "modificationTime": facts.st_mtime_ns // 1_000_000,
        "blockReplication": 1,
        "blockSize": 32 << 20,
        "action": "add",
    }


def partition_of(lake: Path, file: Path) -> tuple[str, str]:
    """The destination and the day of a file, as its directories are called."""
    *_, destination, day = file.relative_to(lake).parent.parts
    return destination, day


def parts(entries: Sequence[dict[str, Any]], lake: Path) -> Iterator[tuple[tuple[str, str], list[dict[str, Any]]]]:
    """Entries by directory."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in entries:
        found.setdefault(partition_of(lake, path_of(entry)), []).append(entry)
    yield from sorted(found.items())
