"""Messages of the `itch` format to columns, all of a kind at once: the plain twin of `_itch.pyx`.

What comes out are Arrow's own buffers: validity (None if there are no nulls) and values, or validity, ends and bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairlead.feeds.formats.layouts import DAY_NS, EVENTS, KINDS, LAYOUTS, NOTICE, NOTICE_BYTES_MAX, SYMBOL_BYTES

__all__ = ["NUMBERS", "REASONS", "read"]

REASONS: Final = (
    "",
    "it is empty",
    "there is no such kind of message",
    "its length is not that of its kind",
    "its time is not within a day",
    "its symbol is not of letters, digits and signs",
    "its side is neither B nor S",
    "an order or match number is out of range",
    "a quantity is out of range",
    "there is no such event",
)
_OK: Final = 0
_EMPTY, _UNKNOWN, _LENGTH, _TIME, _SYMBOL, _SIDE, _NUMBER, _QUANTITY, _EVENT = range(1, 10)

NUMBERS: Final = ("order_number", "quantity", "price", "match_number", "bid", "bid_quantity", "ask", "ask_quantity")
_PARTS: Final = {b"U": 2, b"C": 3}
_NAMES: Final = (b"add", b"cancel", b"delete", b"execute", b"quote", b"system", b"trade")
_NUMBER_MAX: Final = (1 << 63) - 1
_QUANTITY_MAX: Final = (1 << 31) - 1
_KNOWN: Final = np.zeros(256, np.int32)
_COUNTS: Final = np.zeros(256, np.int64)
for _kind, _layout in LAYOUTS.items():
    _KNOWN[_kind[0]] = _layout.itemsize
    _COUNTS[_kind[0]] = _PARTS.get(_kind, 1)

Places: TypeAlias = NDArray[np.int64]
Fields: TypeAlias = NDArray[Any]
Buffers: TypeAlias = list[Any]


def read(offsets: Any, data: Any, sequences: Any) -> tuple[bytes, int, list[Buffers]]:
    """Faults (a byte for each message, a place in REASONS), how many rows there are, and the buffers of each column."""
    ends = np.frombuffer(offsets, np.int32)
    starts, sizes = ends[:-1].astype(np.int64), np.diff(ends)
    content = np.frombuffer(data, np.uint8) if len(memoryview(data)) else np.zeros(0, np.uint8)
    kinds = content[np.minimum(starts, len(content) - 1)] if len(content) else np.zeros(len(starts), np.uint8)
    is_notice = kinds == NOTICE[0]
    known = _KNOWN[kinds]
    faults = np.zeros(len(starts), np.uint8)
    faults[sizes != known] = _LENGTH
    faults[known == 0] = _UNKNOWN
    faults[is_notice] = np.where(sizes[is_notice] > NOTICE_BYTES_MAX, _LENGTH, _OK)
    faults[sizes == 0] = _EMPTY
    fields_of = {}
    for kind, layout in LAYOUTS.items():
        (at,) = np.nonzero((kinds == kind[0]) & (faults == _OK))
        if len(at):
            fields = content[starts[at, None] + np.arange(layout.itemsize)].view(layout)[:, 0]
            found = _faults(fields)
            faults[at] = found
            fields_of[kind] = (at[found == _OK], fields[found == _OK])
    counts = np.where(faults == _OK, _COUNTS[kinds], 0)
    counts[is_notice] = 0
    places = np.cumsum(counts) - counts
    table = _Table(int(counts.sum()))
    for kind, (at, fields) in fields_of.items():
        _WRITERS[kind](table, places[at], fields)
    numbers = np.frombuffer(sequences, np.int64) if len(starts) else np.zeros(0, np.int64)
    return faults.tobytes(), table.count, table.buffers(np.repeat(numbers, counts))


def _faults(fields: Fields) -> NDArray[np.uint8]:
    """The first thing wrong with each message of a kind, in the order of its fields; 0 if nothing is."""
    names = fields.dtype.names or ()
    faults = np.zeros(len(fields), np.uint8)
    for name in names:
        value = fields[name]
        if name == "event":
            bad, fault = ~np.isin(value, np.frombuffer(EVENTS, np.uint8)), _EVENT
        elif name == "side":
            bad, fault = (value != ord("B")) & (value != ord("S")), _SIDE
        elif name.endswith("order") or name == "match":
            bad, fault = (value == 0) | (value > _NUMBER_MAX), _NUMBER
        elif name == "quantity":
            bad, fault = (value == 0) | (value > _QUANTITY_MAX), _QUANTITY
        elif name.endswith("_quantity"):
            bad, fault = value > _QUANTITY_MAX, _QUANTITY
        elif name == "time":
            bad, fault = value >= DAY_NS, _TIME
        elif name == "symbol":
            bad, fault = _bad_symbols(value, may_be_empty="event" in names), _SYMBOL
        else:
            continue
        faults[bad & (faults == _OK)] = fault
    return faults


def _bad_symbols(symbols: NDArray[np.uint8], may_be_empty: bool) -> NDArray[np.bool_]:
    """Not printable, or with a space before its end."""
    is_space = symbols == ord(" ")
    bad = np.asarray(((symbols < ord(" ")) | (symbols > ord("~"))).any(axis=1))
    bad |= (is_space[:, :-1] & ~is_space[:, 1:]).any(axis=1)
    if not may_be_empty:
        bad |= is_space[:, 0]
    return bad


class _Table:
    """The columns while they are written, kind by kind."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.time = np.zeros(count, np.int64)
        self.symbol = np.full((count, SYMBOL_BYTES), ord(" "), np.uint8)
        self.kind = np.zeros(count, np.int64)
        self.letters = {"side": np.zeros((count, 1), np.uint8), "event": np.zeros((count, 1), np.uint8)}
        self.numbers: dict[str, NDArray[Any]] = {
            name: np.zeros(count, np.int32 if name.endswith("quantity") else np.int64) for name in NUMBERS
        }
        self.known = {name: np.zeros(count, bool) for name in NUMBERS}

    def head(self, at: Places, kind: str, fields: Fields) -> None:
        self.time[at] = fields["time"]
        self.symbol[at] = fields["symbol"]
        self.kind[at] = _NAMES.index(kind.encode())

    def put(self, at: Places, name: str, values: NDArray[Any]) -> None:
        self.numbers[name][at] = values
        self.known[name][at] = True

    def letter(self, at: Places, name: str, values: NDArray[np.uint8]) -> None:
        self.letters[name][at, 0] = values

    def buffers(self, sequences: NDArray[np.int64]) -> list[Buffers]:
        """In the order of the schema."""
        names = np.zeros((len(_NAMES), max(map(len, _NAMES))), np.uint8)
        for row, name in enumerate(_NAMES):
            names[row, : len(name)] = np.frombuffer(name, np.uint8)
        return [
            [None, sequences],
            [None, self.time],
            _texts(names[self.kind], 0),
            _texts(self.symbol, ord(" ")),
            _texts(self.letters["side"], 0),
            *([_bitmap(self.known[name]), self.numbers[name]] for name in NUMBERS),
            _texts(self.letters["event"], 0),
        ]


def _bitmap(known: NDArray[np.bool_]) -> NDArray[np.uint8] | None:
    return None if known.all() else np.packbits(known, bitorder="little")


def _texts(padded: NDArray[np.uint8], padding: int) -> Buffers:
    """Strings without what they were padded with; null where there is nothing else."""
    is_text = padded != padding
    ends = np.zeros(len(padded) + 1, np.int32)
    np.cumsum(is_text.sum(axis=1), out=ends[1:])
    return [_bitmap(ends[1:] > ends[:-1]), ends, padded[is_text]]


# How the records of each kind are written: `at` is where the first of them goes.


def _system(table: _Table, at: Places, fields: Fields) -> None:
    table.head(at, "system", fields)
    table.letter(at, "event", fields["event"])


def _plain(kind: bytes) -> Callable[[_Table, Places, Fields], None]:
    """One record, with a column for each field."""
    names = {"order": "order_number", "match": "match_number"}

    def write(table: _Table, at: Places, fields: Fields) -> None:
        table.head(at, KINDS[kind], fields)
        for name in (fields.dtype.names or ())[3:]:
            if name == "side":
                table.letter(at, name, fields[name])
            else:
                table.put(at, names.get(name, name), fields[name])

    return write


def _replace(table: _Table, at: Places, fields: Fields) -> None:
    """The old order goes, the new one comes."""
    table.head(at, "delete", fields)
    table.put(at, "order_number", fields["old_order"])
    table.head(at + 1, "add", fields)
    table.letter(at + 1, "side", fields["side"])
    for name, column in (("order", "order_number"), ("quantity", "quantity"), ("price", "price")):
        table.put(at + 1, column, fields[name])


def _cross(table: _Table, at: Places, fields: Fields) -> None:
    """Both orders are executed, and a trade is seen."""
    for part, (order, side) in enumerate((("buy_order", "B"), ("sell_order", "S"))):
        table.head(at + part, "execute", fields)
        table.letter(at + part, "side", np.full(len(at), ord(side), np.uint8))
        table.put(at + part, "order_number", fields[order])
    table.head(at + 2, "trade", fields)
    for part in range(3):
        for name, column in (("quantity", "quantity"), ("price", "price"), ("match", "match_number")):
            table.put(at + part, column, fields[name])


_WRITERS: Final = {kind: _plain(kind) for kind in (b"A", b"E", b"X", b"D", b"P", b"Q")} | {
    b"S": _system,
    b"U": _replace,
    b"C": _cross,
}
