"""Many small files of a lake become few large ones, and no reader sees a row twice or misses one.

The new files are written beside the old ones, where nobody looks who reads the log; then the log's last `N.compact` is
replaced by one that names them instead, in one step. What an earlier query is reading stays for a while (`keep_s`).
Files of the newest batches, up to nine, are not in such a log file yet and wait for the next time. It cannot be done
while `archive` runs: that may be writing the next `.compact` from the one before.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fairlead.errors import ConfigError
from fairlead.pipeline import lake as lakes
from fairlead.pipeline.registry import write_atomically

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Compaction", "conf"]

FILES_MIN: Final = 2
RETIRED: Final = "retired-"
INTENT: Final = "compaction.json"


def conf() -> dict[str, str]:
    """Settings of a session that compacts."""
    return {
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.compression.codec": "zstd",
    }


class Compaction:
    """Of one lake on this machine."""

    def __init__(self, lake: str, *, file_bytes: int = 128 << 20, keep_s: float = 3600.0) -> None:
        path = lakes.local(lake)
        if path is None:
            raise ConfigError(f"{lake} is not on this machine: there is no way to replace its log in one step.")
        if not path.is_dir():
            raise ConfigError(f"There is no lake at {lake}.")
        if file_bytes < 1 or keep_s < 0:
            raise ConfigError("Files have a size, and are kept for some time or none.")
        self._lake, self._log = path, lakes.Log(path)
        self._own = path / lakes.OWN
        self._file_bytes, self._keep_s = file_bytes, keep_s

    def run(self, spark: SparkSession, *, now_s: float) -> dict[str, Any]:
        """Merge what there is to merge, and say what was done."""
        with lakes.lock(self._lake):
            self._mend()
            swept = self._sweep(now_s)
            facts: dict[str, Any] = {"merged": 0, "into": 0, "rows": 0, "partitions": 0}
            base = self._log.newest()
            if base is not None:
                entries = self._log.files(base)
                today = datetime.fromtimestamp(now_s, UTC).date().isoformat()
                if chosen := self._chosen(entries, f"date={today}"):
                    facts = self._merge(spark, base, entries, chosen, now_s)
            swept += self._sweep(now_s)
        facts |= {"swept": swept, "lake": str(self._lake)}
        facts["text"] = (
            f"{facts['merged']} files of {facts['partitions']} partitions became {facts['into']} "
            f"({facts['rows']:,} rows); {swept} old ones deleted."
        )
        return facts

    def _chosen(self, entries: Sequence[dict[str, Any]], today: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """Small files of days that are over, where there are at least two."""
        found = {}
        for part, there in lakes.parts(entries, self._lake):
            small = [entry for entry in there if entry["size"] < self._file_bytes // 2]
            if part[1] < today and len(small) >= FILES_MIN:
                found[part] = small
        return found

    def _merge(
        self,
        spark: SparkSession,
        base: Path,
        entries: list[dict[str, Any]],
        chosen: dict[tuple[str, str], list[dict[str, Any]]],
        now_s: float,
    ) -> dict[str, Any]:
        work = self._own / f"compacting-{uuid.uuid4().hex}"
        old = [lakes.path_of(entry) for there in chosen.values() for entry in there]
        new: list[Path] = []
        write_atomically(self._own / INTENT, json.dumps({"work": str(work), "new": []}))
        rows = 0
        for number, ((destination, day), there) in enumerate(chosen.items()):
            rows += self._write(spark, work / str(number), [lakes.path_of(entry) for entry in there], destination, day)
        moves = []
        for number, (destination, day) in enumerate(chosen):
            for file in sorted((work / str(number)).glob("*.parquet")):
                moves.append((file, self._lake / destination / day / file.name))
        new = [target for _, target in moves]
        write_atomically(self._own / INTENT, json.dumps({"work": str(work), "new": [str(file) for file in new]}))
        for file, target in moves:
            file.rename(target)
        gone = set(old)
        left = [entry for entry in entries if lakes.path_of(entry) not in gone]
        self._retire(old, now_s)
        self._log.replace(base, left + [lakes.entry_of(file) for file in new])
        self._mend()
        return {"merged": len(old), "into": len(new), "rows": rows, "partitions": len(chosen)}

    def _write(self, spark: SparkSession, work: Path, files: list[Path], destination: str, day: str) -> int:
        """The rows of these files in order, in as many files as they need; how many rows."""
        frame = spark.read.parquet(*(_escaped(file) for file in files))
        frame = frame.drop(*lakes.PARTITIONS)
        before = frame.count()
        count = max(1, round(sum(file.stat().st_size for file in files) / self._file_bytes))
        frame = frame.repartitionByRange(count, "order_number") if count > 1 else frame.coalesce(1)
        frame.sortWithinPartitions("order_number").write.parquet(str(work))
        after = spark.read.parquet(str(work)).count()
        if after != before:
            raise ConfigError(f"{destination}/{day} has {before} rows and {after} after merging: nothing was changed.")
        return after

    def _retire(self, files: list[Path], now_s: float) -> None:
        name = f"{RETIRED}{round(now_s * 1000):015d}-{uuid.uuid4().hex[:8]}.json"
        write_atomically(self._own / name, json.dumps([str(file) for file in files]))

    def _mend(self) -> None:
        """Finish or undo what an earlier run, maybe killed, began."""
        file = self._own / INTENT
        if not file.exists():
            return
        intent = json.loads(file.read_text(encoding="utf-8"))
        counting = self._log.everything()
        for new in map(Path, intent["new"]):
            if new not in counting:
                new.unlink(missing_ok=True)
        shutil.rmtree(intent["work"], ignore_errors=True)
        file.unlink()

    def _sweep(self, now_s: float) -> int:
        """Delete old files whose time has come; how many."""
        swept = 0
        counting: set[Path] | None = None
        for note in sorted(self._own.glob(f"{RETIRED}*.json")):
            if int(note.name.removeprefix(RETIRED).partition("-")[0]) / 1000 > now_s - self._keep_s:
                continue
            if counting is None:
                counting = self._log.everything()
            for file in map(Path, json.loads(note.read_text(encoding="utf-8"))):
                if file not in counting and file.exists():  # a run that was killed before its switch retired nothing
                    file.unlink()
                    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
                    swept += 1
            note.unlink()
        return swept


def _escaped(file: Path) -> str:
    """As a path for Spark, which takes some signs for patterns."""
    return "".join(f"\\{sign}" if sign in "\\*?[]{}" else sign for sign in str(file))
