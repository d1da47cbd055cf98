"""The converter `fix`: FIX tag=value messages. Body length and checksum are checked.

Of a repeated field the first is taken. Session messages (logon, heartbeat, …) give nothing. `columns` says which tags
become which columns.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa

from fairlead.errors import ConfigError
from fairlead.feeds.formats.texts import Faults, columns_of, gives_of, typed_batch
from fairlead.feeds.sources.events import BODY, SOURCE_SCHEMA
from fairlead.pipeline.converters import Convert, converter, factory

__all__ = ["COLUMNS", "fix"]

COLUMNS: Final = [
    ["message_type", "string", 35],
    ["time", "timestamp[us]", 52],
    ["symbol", "string", 55],
    ["side", "string", 54],
    ["order_id", "string", 37],
    ["quantity", "decimal128(20, 4)", 38],
    ["price", "decimal128(20, 8)", 44],
    ["last_quantity", "decimal128(20, 4)", 32],
    ["last_price", "decimal128(20, 8)", 31],
]
SESSION_TYPES: Final = frozenset({b"0", b"1", b"2", b"3", b"4", b"5", b"A"})
_WHOLE: Final = re.compile(
    rb"8=FIXT?\.[0-9.]{1,8}\x019=(\d{1,6})\x01(35=([^\x01]{1,8})\x01.*)10=(\d{3})\x01", re.DOTALL
)
_STAMP: Final = re.compile(r"(\d{4})(\d\d)(\d\d)-(\d\d:\d\d:\d\d(?:\.\d{1,9})?)")


@factory
def fix(*, columns: object = COLUMNS, message_types: object = ()) -> Convert:
    """`columns`: [["price", "decimal128(20, 8)", 44], …] with the tag; `message_types`: only these give records."""
    names, tags = _tagged(columns)
    gives = gives_of(columns_of(names))
    wanted = _types(message_types)
    places_of = {str(tag).encode(): place for place, tag in enumerate(tags)}
    stamps = [pa.types.is_timestamp(field.type) for field in list(gives)[1:]]

    def values(body: bytes) -> list[str | None] | None:
        """None for a message that gives nothing; ValueError for what is no message."""
        whole = _WHOLE.fullmatch(body)
        if whole is None:
            raise ValueError("it is no FIX message")
        if len(whole[2]) != int(whole[1]):
            raise ValueError("its body length is not right")
        if sum(body[: whole.start(4) - 3]) & 0xFF != int(whole[4]):
            raise ValueError("its checksum is not right")
        kind = whole[3]
        if (wanted and kind not in wanted) or (not wanted and kind in SESSION_TYPES):
            return None
        found: list[str | None] = [None] * len(tags)
        for field in whole[2][:-1].split(b"\x01"):
            tag, equals, value = field.partition(b"=")
            if not equals or not tag.isdigit():
                raise ValueError("a field is no tag=value")
            place = places_of.get(tag)
            if place is not None and found[place] is None:
                text = value.decode("latin-1")
                found[place] = _iso(text) if stamps[place] else text
        return found

    @converter(takes=SOURCE_SCHEMA, gives=gives)
    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        faults: Faults = {}
        places: list[int] = []
        rows: list[list[str | None]] = []
        for place, body in enumerate(batch.column(BODY).to_pylist()):
            try:
                row = values(body)
            except ValueError as error:
                faults[place] = str(error)
                continue
            if row is not None:
                rows.append(row)
                places.append(place)
        texts = [[row[column] for row in rows] for column in range(len(tags))]
        return typed_batch(batch, places, texts, gives, faults)

    return convert


def _iso(text: str) -> str:
    """FIX writes 20260102-09:30:00.123; others 2026-01-02T09:30:00.123."""
    found = _STAMP.fullmatch(text)
    return f"{found[1]}-{found[2]}-{found[3]}T{found[4]}" if found else text or " "


def _tagged(columns: Any) -> tuple[list[tuple[str, str]], list[int]]:
    try:
        triples = [(str(name), str(kind), int(tag)) for name, kind, tag in columns]
    except (TypeError, ValueError):
        raise ConfigError('The option columns is a list such as [["price", "decimal128(20, 8)", 44], …].') from None
    if not triples or any(tag < 1 for _, _, tag in triples) or len({tag for _, _, tag in triples}) < len(triples):
        raise ConfigError("The option columns names at least one tag, and each only once.")
    return [(name, kind) for name, kind, _ in triples], [tag for _, _, tag in triples]


def _types(message_types: Any) -> frozenset[bytes]:
    if isinstance(message_types, str) or not all(isinstance(one, str) and one for one in message_types):
        raise ConfigError('The option message_types is a list such as ["8", "D"].')
    return frozenset(one.encode() for one in message_types)
