"""The converter `itch`: binary market data of fixed layouts (docs/feed-formats.md, section 2).

A cross trade becomes three records and a replaced order two; a notice becomes none. What is malformed is rejected.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from fairlead.feeds.formats.itch_columns import REASONS
from fairlead.feeds.sources.events import SEQUENCE, SOURCE_SCHEMA
from fairlead.pipeline.converters import Reject, converter

if TYPE_CHECKING:
    from fairlead.feeds.formats.itch_columns import read

    COMPILED: bool
elif os.environ.get("FAIRLEAD_PURE", "0") not in ("", "0"):
    from fairlead.feeds.formats.itch_columns import read

    COMPILED = False
else:
    try:
        from fairlead.feeds.formats._itch import read

        COMPILED = True
    except ImportError:
        from fairlead.feeds.formats.itch_columns import read

        COMPILED = False

__all__ = ["COMPILED", "GIVES", "itch"]

GIVES: Final = pa.schema(
    [
        pa.field(SEQUENCE, pa.int64(), nullable=False),
        pa.field("time_ns", pa.int64(), nullable=False),  # since midnight
        pa.field("kind", pa.string(), nullable=False),
        ("symbol", pa.string()),
        ("side", pa.string()),  # B or S
        ("order_number", pa.int64()),
        ("quantity", pa.int32()),
        ("price", pa.int64()),  # prices are in ten-thousandths
        ("match_number", pa.int64()),
        ("bid", pa.int64()),
        ("bid_quantity", pa.int32()),
        ("ask", pa.int64()),
        ("ask_quantity", pa.int32()),
        ("event", pa.string()),
    ]
)


@converter(takes=SOURCE_SCHEMA, gives=GIVES)
def itch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Messages to typed records, in source order."""
    sequences, bodies = batch.columns
    count = len(bodies)
    _, offsets, data = bodies.buffers()
    numbers = sequences.buffers()[1]
    faults, rows, columns = read(
        memoryview(offsets)[4 * bodies.offset : 4 * (bodies.offset + count + 1)].cast("i"),
        memoryview(data or b"").cast("B"),
        memoryview(numbers)[8 * sequences.offset : 8 * (sequences.offset + count)].cast("q"),
    )
    made = pa.RecordBatch.from_arrays(
        [
            pa.Array.from_buffers(
                field.type, rows, [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
            )
            for field, buffers in zip(GIVES, columns, strict=True)
        ],
        schema=GIVES,
    )
    if any(faults):
        raise Reject({row: REASONS[fault] for row, fault in enumerate(faults) if fault}, made)
    return made
