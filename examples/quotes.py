"""A converter: lines like `EURUSD;1.0731;1500000` to records, of a live feed and of years of history alike.

Live it is called as below. Over a lake, in the directory of this file:

    fairlead pipeline run normalise --lake ./lake --destination 'fx.>' --converter quotes:quotes \
        --output ./quotes --checkpoint ./quotes-checkpoint
"""

import pyarrow as pa
import pyarrow.compute as pc

from fairlead.pipeline.converters import converter, load, run

TIME = pa.timestamp("us", "UTC")
TAKES = pa.schema([("body", pa.binary()), ("arrived", TIME)])
GIVES = pa.schema([("symbol", pa.string()), ("price", pa.float64()), ("volume", pa.int64()), ("at", TIME)])


@converter(takes=TAKES, gives=GIVES)
def quotes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Whole columns at a time; a line that does not fit raises, and is put aside with what was said."""
    parts = pc.split_pattern(batch.column("body").cast(pa.string()), ";", max_splits=2)
    symbol, price, volume = (pc.list_element(parts, place) for place in range(3))
    return pa.RecordBatch.from_arrays(
        [symbol, price.cast(pa.float64()), volume.cast(pa.int64()), batch.column("arrived")], schema=GIVES
    )


def main() -> None:
    lines = [b"EURUSD;1.0731;1500000", b"EURUSD;oops;1", b"USDCHF;0.8812;250000", b"\xff\xfe", b"GBPUSD;1.2504"]
    feed = pa.RecordBatch.from_arrays([pa.array(lines, pa.binary()), pa.nulls(len(lines), TIME)], schema=TAKES)
    for converted in run(load(quotes), [feed]):
        for part in converted.rows:
            for row in part.to_pylist():
                print(f"{row['symbol']} {row['price']} x {row['volume']}")
        for row in converted.rejected.to_pylist():
            print(f"put aside: {row['body']!r}, {row['reason']}")


if __name__ == "__main__":
    main()
