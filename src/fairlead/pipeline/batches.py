"""A part of a lake cut into numbered batches that are the same whenever they are read: for jobs that can go on.

Order numbers of a destination are dense and in order of arrival, so a batch is a few ranges of them. Nothing is copied
and nothing sorted to plan this: messages are counted by piece, a run of numbers or a stretch of time, and pieces are
put together until a batch is full. A lake that grows meanwhile grows behind the ranges.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fairlead.errors import ConfigError
from fairlead.pipeline.progress import Ranges
from fairlead.pipeline.registry import write_atomically

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Batch", "Piece", "Plan", "batches", "joined", "pieces"]

VERSION: Final = 1


class Piece(NamedTuple):
    """Messages of one destination, `[first, beyond)`, the oldest of which arrived then."""

    destination: str
    first: int
    beyond: int
    rows: int
    arrived_ms: int


class Batch(NamedTuple):
    """What is read at once."""

    number: int
    rows: int
    arrived_ms: int
    ranges: Ranges

    def of(self, frame: DataFrame) -> DataFrame:
        """Its rows."""
        from pyspark.sql import functions as f

        condition = f.lit(False)
        for name, (first, beyond) in self.ranges.items():
            number = f.col("order_number")
            condition |= (f.col("destination") == name) & (number >= first) & (number < beyond)
        return frame.where(condition)


def pieces(frame: DataFrame, *, rows: int = 0, stretch_ms: int = 0) -> list[Piece]:
    """Count messages by `rows` numbers at a time, or by stretches of time."""
    from pyspark.sql import functions as f

    number, arrived = f.col("order_number"), f.unix_millis("arrived")
    by = f.floor(arrived / stretch_ms) if stretch_ms else f.floor(number / rows)
    counted = frame.groupBy("destination", by.alias("piece")).agg(
        f.min(number).alias("first"), f.max(number).alias("last"), f.count(f.lit(1)).alias("rows"),
        f.min(arrived).alias("ms"),
    )  # fmt: skip
    return [Piece(row.destination, row.first, row.last + 1, row.rows, row.ms) for row in counted.collect()]


def joined(found: Iterable[Piece]) -> list[Piece]:
    """In order of numbers, none overlapping, and of times, too: clocks may have been set back."""
    result: list[Piece] = []
    for piece in sorted(found):
        last = result[-1] if result and result[-1].destination == piece.destination else None
        if last is not None and piece.first < last.beyond:
            ms, beyond = min(last.arrived_ms, piece.arrived_ms), max(last.beyond, piece.beyond)
            before = result[-2].arrived_ms if len(result) > 1 and result[-2].destination == last.destination else ms
            result[-1] = last._replace(beyond=beyond, rows=last.rows + piece.rows, arrived_ms=max(ms, before))
        elif last is not None:
            result.append(piece._replace(arrived_ms=max(piece.arrived_ms, last.arrived_ms)))
        else:
            result.append(piece)
    return result


def batches(found: Iterable[Piece], rows_max: int, stretch_ms: int = 0) -> list[Batch]:
    """Pieces in order of time, as many in a batch as fit; of one stretch only, if there are stretches."""
    result: list[Batch] = []
    now: list[Piece] = []

    def close() -> None:
        if now:
            spans: dict[str, tuple[int, int]] = {}
            for one in now:
                first, _ = spans.get(one.destination, (one.first, 0))
                spans[one.destination] = (first, one.beyond)
            result.append(Batch(len(result), sum(one.rows for one in now), now[0].arrived_ms, spans))
            now.clear()

    for piece in sorted(joined(found), key=lambda one: (one.arrived_ms, one.destination, one.first)):
        full = sum(one.rows for one in now) + piece.rows > rows_max
        other = stretch_ms and now and piece.arrived_ms // stretch_ms != now[0].arrived_ms // stretch_ms
        if full or other:
            close()
        now.append(piece)
    close()
    return result


@dataclass
class Plan:
    """The batches of one run, kept in a file with the name under which they are published."""

    selection: dict[str, Any]
    batches: list[Batch]
    query: str = field(default_factory=lambda: f"pipeline-{uuid.uuid4()}")
    done: int = 0
    version: int = VERSION

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.batches)

    @property
    def left(self) -> int:
        return sum(one.rows for one in self.batches[self.done :])

    def save(self, directory: Path) -> None:
        write_atomically(directory / "plan.json", json.dumps(asdict(self), ensure_ascii=False))

    def advance(self, directory: Path) -> None:
        """One more batch is done."""
        self.done += 1
        write_atomically(directory / "done.json", json.dumps({"query": self.query, "done": self.done}))

    @classmethod
    def load(cls, directory: Path, selection: dict[str, Any]) -> Plan | None:
        """The one that is there; ConfigError if it is of something else."""
        try:
            facts = json.loads((directory / "plan.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ConfigError(f"The plan in {directory} cannot be read: {error}.") from None
        if facts.get("version") != VERSION:
            raise ConfigError(f"The plan in {directory} is of another version.")
        if facts["selection"] != selection:
            raise ConfigError(
                f"{directory} holds a run of something else ({json.dumps(facts['selection'])}): finish that, or give "
                "another --checkpoint."
            )
        found = cls(selection, [_batch(one) for one in facts["batches"]], facts["query"])
        try:
            done = json.loads((directory / "done.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return found
        if done["query"] == found.query:
            found.done = int(done["done"])
        return found


def _batch(fields: Sequence[Any]) -> Batch:
    number, rows, arrived_ms, ranges = fields
    return Batch(number, rows, arrived_ms, {name: (first, beyond) for name, (first, beyond) in ranges.items()})
