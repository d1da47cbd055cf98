"""Source messages in, records out: a converter's batches as the columns that numbering takes (`made.Made`).

Rows with the same source sequence are the parts of one source message. What a converter rejects becomes a void
(STR-11); what it leaves out becomes nothing, and only the previous links tell of it (STR-21).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fairlead.errors import ConfigError

try:
    import numpy as np
    import pyarrow as pa
except ImportError as missing:
    raise ConfigError(f"Feed adapters need Arrow: pip install 'fairlead[feeds]' ({missing}).") from None

from numpy.typing import NDArray

from fairlead.feeds import rows as row_codec
from fairlead.feeds.made import Made
from fairlead.feeds.records import MESSAGE, VOID
from fairlead.feeds.sources.events import SEQUENCE, SOURCE_SCHEMA, SourceBatch
from fairlead.pipeline.converters import Converted, Converter, load, run

__all__ = ["BODY_BYTES_MAX", "Maker", "maker"]

BODY_BYTES_MAX: Final = 1 << 20
PARTS_MAX: Final = 65_535
SOURCE_ID: Final = "source_id"  # a column that a converter may take too
REASONS_MAX: Final = 32


def maker(converter: str, options: Mapping[str, Any] | None = None, keys: Sequence[str] = ()) -> Maker:
    """By the name of a converter; `keys` are the columns by which a snapshot tells its rows apart."""
    return Maker(load(converter, options), keys)


class Maker:
    """Makes records with one converter. `schema` describes their bodies: all columns given but the source sequence."""

    def __init__(self, converter: Converter, keys: Sequence[str] = ()) -> None:
        self.converter = converter
        self.counters = {"taken": 0, "records": 0, "voids": 0, "filtered": 0}
        place = converter.gives.get_field_index(SEQUENCE)
        if place < 0 or converter.gives.field(place).type != pa.int64():
            raise ConfigError(
                f"Converter {converter.name} must give a column {SEQUENCE!r} of type int64, as it got it."
            )
        if SEQUENCE not in converter.takes.names:
            raise ConfigError(f"Converter {converter.name} must take a column {SEQUENCE!r}, to give it again.")
        if unknown := set(converter.takes.names) - {*SOURCE_SCHEMA.names, SOURCE_ID}:
            known = ", ".join([*SOURCE_SCHEMA.names, SOURCE_ID])
            raise ConfigError(
                f"Converter {converter.name} takes {', '.join(sorted(unknown))}; a feed has only {known}."
            )
        if unknown := set(keys) - set(converter.gives.names) | ({SEQUENCE} & set(keys)):
            raise ConfigError(f"Converter {converter.name} gives no column {', '.join(sorted(unknown))} to be a key.")
        self._names = [name for name in converter.gives.names if name != SEQUENCE]
        self._keys = list(keys)
        self._wants_id = SOURCE_ID in converter.takes.names
        self._reasons: dict[str, int] = {}
        body = pa.schema([converter.gives.field(name) for name in self._names])
        self.schema = row_codec.schema_of(body).to_json()

    def make(self, batch: SourceBatch) -> Made:
        """The records of a batch, in source order. ConfigError if the converter gives what nobody gave it."""
        taken = batch.rows
        if self._wants_id:
            ids = pa.DictionaryArray.from_arrays(pa.array(np.zeros(batch.size, np.int8)), pa.array([batch.source]))
            taken = taken.append_column(pa.field(SOURCE_ID, pa.string()), ids.cast(pa.string()))
        (converted,) = run(self.converter, [taken])
        given = np.asarray(batch.rows.column(0), np.int64)
        rows, sequences = self._in_order(converted, given)
        voids = np.asarray(converted.rejected.column(SEQUENCE), np.int64)
        self._note(converted)
        if len(voids) and (both := np.isin(sequences, voids)).any():  # rejected and converted: rejected
            rows, sequences = rows.filter(pa.array(~both)), sequences[~both]
        data, ends = row_codec.encode(rows.select(self._names))
        sizes = ends.astype(np.int64)
        sizes[1:] -= sizes[:-1].copy()
        keys = self._keyed(rows)
        if (len(sizes) and sizes.max() > BODY_BYTES_MAX) or _parts_max(sequences) > PARTS_MAX:
            counts = np.unique(sequences, return_counts=True)
            excessive = np.union1d(sequences[sizes > BODY_BYTES_MAX], counts[0][counts[1] > PARTS_MAX])
            kept = ~np.isin(sequences, excessive)
            rows = rows.filter(pa.array(kept))
            sequences, sizes = sequences[kept], sizes[kept]
            data, _ = row_codec.encode(rows.select(self._names))
            keys = self._keyed(rows)
            voids = np.concatenate([voids, excessive])
            self._reasons["its records are too large or too many"] = len(excessive)
        made = _made(batch.source, sequences, sizes, data, keys, voids)
        self.counters["taken"] += len(given)
        self.counters["voids"] += len(voids)
        self.counters["records"] += len(sequences)
        self.counters["filtered"] += len(given) - int(np.count_nonzero(made.part == 1))
        return made._replace(first=int(given[0]) if len(given) else 0, through=int(given[-1]) if len(given) else 0)

    def take_reasons(self) -> dict[str, int]:
        """Why messages were rejected since this was last asked, for the log; at most 32 different reasons."""
        reasons, self._reasons = self._reasons, {}
        return reasons

    def _in_order(self, converted: Converted, given: NDArray[np.int64]) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        gives = self.converter.gives
        parts = [part for part in converted.rows if part.num_rows]
        if len(parts) == 1:
            rows = parts[0]
        else:
            rows = pa.Table.from_batches(parts, gives).combine_chunks()
            rows = rows.to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], gives)
        if rows.column(SEQUENCE).null_count:
            raise ConfigError(f"Converter {self.converter.name} gave a row without its {SEQUENCE}.")
        sequences = np.asarray(rows.column(SEQUENCE), np.int64)
        if len(sequences) and (sequences[1:] < sequences[:-1]).any():
            order = np.argsort(sequences, kind="stable")
            rows = rows.take(pa.array(order))
            sequences = sequences[order]
        places = np.searchsorted(given, sequences)
        if len(sequences) and (
            places[-1] >= len(given) or (given[np.minimum(places, len(given) - 1)] != sequences).any()
        ):
            raise ConfigError(f"Converter {self.converter.name} gave a {SEQUENCE} that it was not given.")
        return rows, sequences

    def _keyed(self, rows: pa.RecordBatch) -> list[bytes] | None:
        if not self._keys:
            return None
        data, ends = row_codec.encode(rows.select(self._keys))
        stops = ends.tolist()
        return [data[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]

    def _note(self, converted: Converted) -> None:
        if not converted.rejected.num_rows:
            return
        for reason in converted.rejected.column("reason").to_pylist():
            if reason in self._reasons or len(self._reasons) < REASONS_MAX:
                self._reasons[reason] = self._reasons.get(reason, 0) + 1


def _parts_max(sequences: NDArray[np.int64]) -> int:
    """The most rows of one sequence, or a number below the bound if it cannot be exceeded."""
    if len(sequences) <= PARTS_MAX:
        return len(sequences)
    return int(np.unique(sequences, return_counts=True)[1].max())


def _made(
    source: str,
    sequences: NDArray[np.int64],
    sizes: NDArray[np.int64],
    data: bytes,
    keys: list[bytes] | None,
    voids: NDArray[np.int64],
) -> Made:
    """Put the voids between the rows, and count parts."""
    kinds = np.full(len(sequences), MESSAGE, np.uint8)
    if len(voids):
        order = np.argsort(np.concatenate([sequences, voids]), kind="stable")
        sequences = np.concatenate([sequences, voids])[order]
        sizes = np.concatenate([sizes, np.zeros(len(voids), np.int64)])[order]
        kinds = np.concatenate([kinds, np.full(len(voids), VOID, np.uint8)])[order]
        if keys is not None:
            all_keys = [*keys, *([b""] * len(voids))]
            keys = [all_keys[place] for place in order]
    begins = np.ones(len(sequences), bool)
    begins[1:] = sequences[1:] != sequences[:-1]
    (starts,) = np.nonzero(begins)
    if len(starts) == len(sequences):
        part = parts = np.ones(len(sequences), np.uint16)
    else:
        counts = np.empty_like(starts)
        counts[:-1] = starts[1:] - starts[:-1]
        counts[-1] = len(sequences) - starts[-1]
        part = (np.arange(len(sequences)) - np.repeat(starts, counts) + 1).astype(np.uint16)
        parts = np.repeat(counts, counts).astype(np.uint16)
    return Made(
        source=source,
        kinds=kinds,
        sequences=sequences.astype(np.uint64),
        part=part,
        parts=parts,
        data=data,
        ends=np.cumsum(sizes).astype(np.uint64),
        first=0,
        through=0,
        keys=keys,
    )
