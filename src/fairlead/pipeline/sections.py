"""Header sections of rows: from the columns header_bytes, headers, properties, stream_id and stream_sequence.

What a message brings in `header_bytes` keeps its types. The other columns, which are text, add to it, and replace what
they say differently; so rows that were read can be written as they are, or with something changed. Headers that only
the server may set are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise, repeat
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from fairlead.errors import BadParameter, FairleadError, HeaderTooLarge
from fairlead.wire.columns import text_of
from fairlead.wire.properties import (
    OWN_NAMES,
    SERVER_NAMES,
    SERVER_PREFIXES,
    VALUE_BYTES_MAX,
    encode_properties,
    pairs,
)

__all__ = ["CHOSEN", "section", "sections_of"]

COLUMNS: Final = ("header_bytes", "headers", "properties", "stream_id", "stream_sequence")
NUMBERS: Final = frozenset((":due", ":sequence"))
CHOSEN: Final = tuple(sorted(name[1:] for name in OWN_NAMES - SERVER_NAMES))
"""The headers a sender may set, as they are called in the column."""
_SEQUENCE: Final = struct.Struct("<B9sHcq")

Pairs = list[tuple[str, str | None]]


def sections_of(columns: dict[str, pa.Array], rows: int, number_of: Callable[[int], int]) -> pa.Array | None:
    """The section of each row, or None if no column says anything; `number_of` gives the number a row is known by."""
    given = [name for name in COLUMNS if name in columns]
    if not given:
        return None
    if given == ["header_bytes"] and not _has_server_headers(columns["header_bytes"]):
        return columns["header_bytes"]
    values = zip(*(_values(columns[name]) if name in columns else repeat(None, rows) for name in COLUMNS), strict=True)
    found: list[bytes] = []
    for row, (raw, headers, properties, stream, sequence) in enumerate(values):
        try:
            found.append(section(raw or b"", headers or [], properties or [], stream, sequence))
        except FairleadError as error:
            raise BadParameter(f"Row {number_of(row)}: {error}") from None
    return pa.array(found, pa.binary())


def _has_server_headers(column: pa.Array) -> bool:
    """At a glance: one of them may only look so."""
    data = column.cast(pa.large_binary())
    return any(pc.any(pc.match_substring(data, name.decode())).as_py() for name in SERVER_PREFIXES)


def _values(column: pa.Array) -> Iterator[object]:
    """The values of a column; of a map, lists of pairs."""
    if not pa.types.is_map(column.type):
        text = pa.types.is_string(column.type) or pa.types.is_integer(column.type)
        yield from column.to_pylist() if text else column.cast(pa.binary()).to_pylist()
        return
    # All pairs in one go, for there may be many rows. What lies behind a null is nobody's.
    everything = list(zip(column.keys.to_pylist(), column.items.to_pylist(), strict=True))
    for (low, high), known in zip(pairwise(column.offsets.to_pylist()), column.is_valid().to_pylist(), strict=True):
        yield everything[low:high] if known else None


def section(raw: bytes, headers: Pairs, properties: Pairs, stream: str | None, sequence: int | None) -> bytes:
    """One of them. Of two headers with one name the first counts, so what replaces another comes before it."""
    said: list[bytes] = []
    kept = _kept(raw) if raw else {}
    if stream is not None:
        said.append(_text(b"\x07:stream", stream))
    if sequence is not None:
        said.append(_SEQUENCE.pack(9, b":sequence", 9, b"i", sequence))
    for name, text in headers:
        own = None if text is None else _own(name)
        if own and text is not None and (not kept or _differs(kept, own, text)):
            said.append(_number(own, name, text) if own[1:].decode() in NUMBERS else _text(own, text))
    for name, text in properties:
        if text is not None:
            one = _property(name)
            if not kept or _differs(kept, one, text):
                said.append(_text(one, text))
    if said and kept:
        replaced = {name for one in said for name, _ in pairs(one)}
        kept = {name: value for name, value in kept.items() if name not in replaced}
    for raw_name, value in kept.items():
        said.append(b"".join((bytes((len(raw_name),)), raw_name, len(value).to_bytes(2, "little"), value)))
    return b"".join(said)


def _kept(raw: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, value in pairs(raw):
        if not name.startswith(SERVER_PREFIXES):
            found.setdefault(name, value)
    return found


def _differs(kept: dict[bytes, bytes], name: bytes, text: str) -> bool:
    value = kept.get(name[1:])
    return value is None or text_of(value) != text.encode()


@lru_cache(maxsize=4096)
def _own(name: str) -> bytes | None:
    """One of Fairlead's headers, its length before it; None: only the server may set it."""
    own = f":{name}"
    if own.encode().startswith(SERVER_PREFIXES):
        return None
    if own not in OWN_NAMES:
        raise BadParameter(f"There is no header {name!r}. There are: {', '.join(CHOSEN)}. Use properties.")
    return bytes((len(own),)) + own.encode()


@lru_cache(maxsize=4096)
def _property(name: str) -> bytes:
    """The name of a property, its length before it."""
    one = encode_properties({name: ""})
    return one[: 1 + one[0]]


def _text(name: bytes, text: str) -> bytes:
    content = text.encode()
    if len(content) > VALUE_BYTES_MAX:
        raise HeaderTooLarge(
            f"The value of {name[1:].decode()!r} is {len(content)} bytes long, more than {VALUE_BYTES_MAX}."
        )
    return b"".join((name, (len(content) + 1).to_bytes(2, "little"), b"s", content))


def _number(own: bytes, name: str, text: str) -> bytes:
    try:
        return b"".join((own, b"\x09\x00i", struct.pack("<q", int(text))))
    except (ValueError, struct.error):
        raise BadParameter(f"The header {name!r} is a whole number of 64 bits, not {text[:40]!r}.") from None
