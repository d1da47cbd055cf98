"""Gaps and copies while they happen: a stream of messages in, a stream of findings out, by stream and range.

`Watched` is what is known of one stream: the numbers seen, as ranges. It lives in Spark's state store (RocksDB), so
that a query that is started again knows what it knew. `reconcile` judges afterwards, with everything at hand; this
tells at once, and therefore says `gap` where later a `filled` may follow.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fairlead.cluster.ranges import Ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["CONF", "OUTPUT", "Finding", "Watched", "watched"]

CONF: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
"""What a session needs for `watched`."""

OUTPUT: Final = "stream string, kind string, first bigint, last bigint, messages bigint"
HOLES_MAX: Final = 10_000
"""Of one stream. Beyond that the oldest are given up, so that a hostile stream has bounded state."""

NUMBER_MAX: Final = (1 << 63) - 2


class Finding(NamedTuple):
    """`gap`: numbers that were passed over; `filled`: some of them came after all; `doubled`: they came again;
    `given-up`: nobody waits for these any more; `unusable`: not a number a stream can have."""

    kind: str
    first: int
    last: int
    messages: int


class Watched:
    """One stream. Its numbers are 0 and above; it begins with the least that was seen."""

    def __init__(self, kept: bytes = b"") -> None:
        self._seen = Ranges.from_flat(struct.unpack(f"<{len(kept) // 8}q", kept))

    def kept(self) -> bytes:
        """All it knows, for the next time."""
        flat = self._seen.flat()
        return struct.pack(f"<{len(flat)}q", *flat)

    def take(self, numbers: Sequence[int]) -> list[Finding]:
        """These came, in any order; what is new about the stream."""
        counts = Counter(number for number in numbers if 0 <= number <= NUMBER_MAX)
        found: list[Finding] = []
        if bad := [number for number in numbers if not 0 <= number <= NUMBER_MAX]:
            found.append(Finding("unusable", min(bad), max(bad), len(bad)))
        seen = self._seen
        copies = {number: count - (number not in seen) for number, count in counts.items()}
        holes_before = _holes(seen)
        for first, beyond in _runs(sorted(counts)):
            seen.add(first, beyond)
        holes = _holes(seen)
        found += _findings("gap", holes, without=holes_before)
        found += _findings("filled", holes_before, without=holes)
        for first, beyond in _runs(sorted(number for number, more in copies.items() if more)):
            found.append(Finding("doubled", first, beyond - 1, sum(copies[number] for number in range(first, beyond))))
        for first, beyond in list(holes)[: max(0, len(holes) - HOLES_MAX)]:
            seen.add(first, beyond)
            found.append(Finding("given-up", first, beyond - 1, beyond - first))
        return found


def _holes(seen: Ranges) -> Ranges:
    first, last = seen.first(), seen.last()
    return Ranges() if first is None or last is None else Ranges(seen.gaps(first, last))


def _findings(kind: str, ranges: Ranges, *, without: Ranges) -> Iterator[Finding]:
    for first, beyond in ranges:
        for low, high in without.gaps(first, beyond):
            yield Finding(kind, low, high - 1, high - low)


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Of rising numbers, the runs: first and beyond."""
    at = 0
    for here, number in enumerate(numbers):
        if here + 1 == len(numbers) or numbers[here + 1] > number + 1:
            yield numbers[at], number + 1
            at = here + 1


def watched(frame: DataFrame) -> DataFrame:
    """Findings of a streaming frame with `stream_id` and `stream_sequence`; messages without are left out.

    The session needs `CONF`. Memory: the numbers of one stream in one batch, and its ranges.
    """
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Watch(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._state = handle.getValueState("seen", "seen binary")

        def handleInputRows(  # noqa: N802 - Spark's name
            self, key: Any, rows: Iterator[Any], timerValues: Any  # noqa: N803
        ) -> Iterator[Any]:  # fmt: skip
            import pandas as pd  # type: ignore[import-untyped]

            kept = self._state.get()
            one = Watched(b"" if kept is None else bytes(kept[0]))
            found = one.take([number for lot in rows for number in lot["stream_sequence"].tolist()])
            self._state.update((one.kept(),))
            if found:
                columns = zip(*found, strict=True)
                names = ("kind", "first", "last", "messages")
                yield pd.DataFrame(
                    {"stream": key[0], **{name: list(values) for name, values in zip(names, columns, strict=True)}}
                )

        def close(self) -> None:
            pass

    numbered = frame.select("stream_id", "stream_sequence").dropna()
    return numbered.groupBy("stream_id").transformWithStateInPandas(
        statefulProcessor=Watch(), outputStructType=OUTPUT, outputMode="Update", timeMode="None"
    )
