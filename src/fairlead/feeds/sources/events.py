"""What a source tells its adapter, in the order in which it happened.

Every source stream is declared before its first batch: ids carry the source's session, which is known only when the
first packet has come. A `SourceReset` is the declaration of a source that counts afresh (STR-22).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import pyarrow as pa

from fairlead.feeds.words import Source

__all__ = [
    "BODY",
    "SEQUENCE",
    "SOURCE_SCHEMA",
    "SourceBatch",
    "SourceDeclared",
    "SourceDown",
    "SourceEvent",
    "SourceGap",
    "SourceReset",
    "SourceTrouble",
    "SourceUp",
]

SEQUENCE = "source_sequence"
BODY = "body"
SOURCE_SCHEMA = pa.schema([pa.field(SEQUENCE, pa.int64(), nullable=False), pa.field(BODY, pa.binary(), nullable=False)])
"""What a converter is handed. Signed, since Spark has no other integers; sequences end at 2**63 - 1."""


class SourceBatch(NamedTuple):
    """Messages of one source stream, with rising sequences."""

    source: str
    rows: pa.RecordBatch  # as SOURCE_SCHEMA

    @property
    def size(self) -> int:
        return int(self.rows.num_rows)

    @property
    def first(self) -> int:
        return int(self.rows.column(0)[0].as_py())

    @property
    def last(self) -> int:
        return int(self.rows.column(0)[self.rows.num_rows - 1].as_py())


class SourceGap(NamedTuple):
    """These sequences are lost, after all means of recovery (STR-15)."""

    source: str
    first: int
    last: int


class SourceDeclared(NamedTuple):
    """A source stream begins, with what is known of its relations (STR-44)."""

    declared: Source


class SourceReset(NamedTuple):
    """The source counts afresh: `source` is the successor of `successor_of` (STR-22)."""

    source: str
    successor_of: str
    start: int
    declared: Source


class SourceDown(NamedTuple):
    """Nothing comes any more, heartbeats neither. `source` is the id as configured, without a session."""

    source: str
    why: str


class SourceUp(NamedTuple):
    source: str
    why: str = ""


class SourceTrouble(NamedTuple):
    """Something that does not belong here was met so many times since the last word about it. For the log."""

    source: str
    what: str
    times: int


SourceEvent: TypeAlias = SourceBatch | SourceGap | SourceDeclared | SourceReset | SourceDown | SourceUp | SourceTrouble
