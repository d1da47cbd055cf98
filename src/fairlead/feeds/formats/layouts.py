"""The fixed layouts of the `itch` format (docs/feed-formats.md, section 2): one table for those who write and who read.

All numbers are big-endian, prices are in ten-thousandths, times are nanoseconds since midnight.
"""

from __future__ import annotations

from typing import Final

import numpy as np

__all__ = ["DAY_NS", "EVENTS", "KINDS", "LAYOUTS", "NOTICE", "NOTICE_BYTES_MAX", "PRICE_SCALE", "SYMBOL_BYTES"]

PRICE_SCALE: Final = 10_000
DAY_NS: Final = 86_400 * 10**9
SYMBOL_BYTES: Final = 8
NOTICE: Final = b"N"  # free text for people, which no stream carries
NOTICE_BYTES_MAX: Final = 96
EVENTS: Final = b"OQMC"  # of the day's messages and of the market: open, open, close, close

_HEAD: Final = [("kind", "S1"), ("time", ">u8"), ("symbol", "u1", SYMBOL_BYTES)]


def _layout(*fields: tuple[str, str]) -> np.dtype[np.void]:
    return np.dtype([*_HEAD, *fields])


LAYOUTS: Final = {
    b"S": _layout(("event", "u1")),
    b"A": _layout(("order", ">u8"), ("side", "u1"), ("quantity", ">u4"), ("price", ">u4")),
    b"E": _layout(("order", ">u8"), ("quantity", ">u4"), ("match", ">u8")),
    b"X": _layout(("order", ">u8"), ("quantity", ">u4")),
    b"D": _layout(("order", ">u8")),
    b"U": _layout(("old_order", ">u8"), ("order", ">u8"), ("side", "u1"), ("quantity", ">u4"), ("price", ">u4")),
    b"P": _layout(("side", "u1"), ("quantity", ">u4"), ("price", ">u4"), ("match", ">u8")),
    b"C": _layout(("buy_order", ">u8"), ("sell_order", ">u8"), ("quantity", ">u4"), ("price", ">u4"), ("match", ">u8")),
    b"Q": _layout(("bid", ">u4"), ("bid_quantity", ">u4"), ("ask", ">u4"), ("ask_quantity", ">u4")),
}

KINDS: Final = {
    b"S": "system",
    b"A": "add",
    b"E": "execute",
    b"X": "cancel",
    b"D": "delete",
    b"U": "replace",
    b"P": "trade",
    b"C": "cross",
    b"Q": "quote",
}
