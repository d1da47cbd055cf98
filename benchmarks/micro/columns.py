"""What columns cost: records of messages to a column batch, reading a batch, and columns to entries.

    python benchmarks/micro/columns.py [--rows 10000] [--record 512] [--rounds 50] [--sizes 128,1024]

Everything is in memory, as if a journal file had just been read. Told is time of this thread's processor, in rows and
bytes of bodies a second. `FAIRLEAD_PURE=1` measures the plain twin.
"""

from __future__ import annotations

import argparse
import time
from array import array
from collections.abc import Callable

from fairlead.cluster.stored import Head
from fairlead.wire import column_batch as layout
from fairlead.wire.column_codec import COMPILED, EVERY, ColumnBuilder, entries_of, parse
from fairlead.wire.entry_codec import encode
from fairlead.wire.properties import encode_properties

USUAL = sum(
    1 << column
    for column in (
        *(layout.ORDER_NUMBER, layout.MESSAGE_ID, layout.KEY, layout.BODY, layout.PRIORITY),
        *(layout.PUBLISHED, layout.ARRIVED, layout.EXPIRES),
    )
)
HEADERS = encode_properties({"symbol": "ABC", "quantity": 100, "price": 101.25}, {":type": "trade"})


def span_of(rows: int, per_record: int, size: int, headers: bytes) -> tuple[bytes, array[int]]:
    """Records of messages one behind the other, and where they are."""
    span, table = bytearray(), array("Q")
    for first in range(0, rows, per_record):
        count = min(per_record, rows - first)
        entries = b"".join(encode(bytes(size), key=b"key-%d" % (at % 100), headers=headers) for at in range(count))
        head = Head(1, 1, first, count, bytes(20), 0, 0, 4, 4, 1, 1, bytes(20), len(entries))
        table.extend((first, len(span), 104 + len(entries) | count << 32, 1, 1))
        span += head.pack() + entries + bytes(40)
    return bytes(span), table


def measure(what: Callable[[], object], rounds: int) -> float:
    """Seconds a round."""
    what()
    began = time.thread_time()
    for _ in range(rounds):
        what()
    return (time.thread_time() - began) / rounds


def told(name: str, seconds: float, rows: int, size: int) -> None:
    print(f"  {name:<42} {rows / seconds / 1e6:8.2f} M rows/s {rows * size / seconds / 1e9:8.2f} GB/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--record", type=int, default=512, help="messages of one record")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--sizes", default="128,1024")
    asked = parser.parse_args()
    everything = array("Q", (0, 1 << 62))
    print(f"columns {'compiled' if COMPILED else 'plain'}, batches of {asked.rows} rows, {asked.record} a record")
    for size in map(int, asked.sizes.split(",")):
        print(f"bodies of {size} bytes")
        for name, columns, headers, per_record in (
            ("usual columns", USUAL, b"", asked.record),
            ("usual columns, one message a record", USUAL, b"", 1),
            ("usual columns, headers not asked for", USUAL, HEADERS, asked.record),
            ("all columns, four headers", EVERY, HEADERS, asked.record),
        ):
            span, table = span_of(asked.rows, per_record, size, headers)
            builder = ColumnBuilder(columns)

            def out(builder: ColumnBuilder = builder, span: bytes = span, table: array[int] = table) -> bytearray:
                builder.add_span(span, table, everything)
                return builder.finish(0, True)

            told(name, measure(out, asked.rounds), asked.rows, size)
            blob = out()
            seconds = measure(lambda blob=blob: parse(blob), asked.rounds)  # type: ignore[misc]
            told(f"  parse ({len(blob) / 1e6:.1f} MB)", seconds, asked.rows, size)
        offsets = memoryview(array("i", range(0, (asked.rows + 1) * size, size)))
        keys = memoryview(array("i", range(0, (asked.rows + 1) * 6, 6)))
        values, key_values = b"v" * (asked.rows * size), b"key-01" * asked.rows

        def back() -> None:
            done = 0
            while done < asked.rows:
                _, count = entries_of(
                    asked.rows,
                    body=(offsets, values, None),  # noqa: B023
                    key=(keys, key_values, None),  # noqa: B023
                    first=done,
                    most_bytes=1 << 19,
                )
                done += count

        told("entries of bodies and keys", measure(back, asked.rounds), asked.rows, size)


if __name__ == "__main__":
    main()
