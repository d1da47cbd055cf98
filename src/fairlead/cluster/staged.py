"""What is staged and not published: stages, their rows by destination, and the sinks they are for.

A stage's messages lie in HIDDEN records. Of each record only its place and a few numbers are kept here, forty bytes,
however many messages it has: a batch of millions costs next to no memory until it is published.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fairlead.cluster import stored
from fairlead.cluster.records import STAGED, STORE_RECORD
from fairlead.journal.facts import Bytes

COLUMNS: Final = 5


class Row(NamedTuple):
    """One HIDDEN record of a stage."""

    index: int  # type: ignore[assignment]  # a tuple has a method of this name
    place: int
    size: int
    count: int  # type: ignore[assignment]  # and of this one
    flags: int
    low: int  # priorities
    high: int
    first: int  # number of its first row in the stage; 0: a part of another record, written again for a publishing

    def head(self, destination: int, order: int, arrival_ms: int) -> stored.Head:
        """As if it had been stored just now, as far as one needs to know without looking into it."""
        return stored.Head(
            destination, self.flags, order, self.count, stored.NOBODY, 0, 0, self.low, self.high, 0, arrival_ms,
            stored.NOBODY, self.size - STORE_RECORD.size,
        )  # fmt: skip


class Rows:
    """A stage's records in one destination, in the order in which they came."""

    __slots__ = ("_table", "accepted", "bytes")

    def __init__(self, packed: Bytes = b"") -> None:
        self._table = array("Q", bytes(packed))
        self.accepted = 0  # number of the last row
        self.bytes = 0
        for row in self:
            self._count(row)

    def add(self, row: Row) -> None:
        index, place, size, count, flags, low, high, first = row
        self._table.extend((index, place, size | count << 32, flags | low << 32 | high << 48, first))
        self._count(row)

    def _count(self, row: Row) -> None:
        if row.first:
            self.accepted = row.first + row.count - 1
            self.bytes += row.size

    def __len__(self) -> int:
        return len(self._table) // COLUMNS

    def __iter__(self) -> Iterator[Row]:
        table = self._table
        for at in range(0, len(table), COLUMNS):
            index, place, lengths, facts, first = table[at : at + COLUMNS]
            yield Row(
                index, place, lengths & 0xFFFF_FFFF, lengths >> 32, facts & 0xFFFF_FFFF, facts >> 32 & 0xFFFF,
                facts >> 48, first,
            )  # fmt: skip

    def staged(self) -> Iterator[Row]:
        """The rows as they came, without what an unfinished publishing wrote again."""
        return (row for row in self if row.first)

    def touches(self, first: int, last: int) -> bool:
        """Has any of its records an index from the first to the last?"""
        table = self._table
        if not table or table[0] > last or table[-COLUMNS] < first:
            return False
        indexes = table[0::COLUMNS]
        return indexes[bisect_left(indexes, first)] <= last

    def packed(self) -> bytes:
        return self._table.tobytes()


@dataclass(slots=True, eq=False)
class Stage:
    """A place for messages that nobody sees yet."""

    id: bytes  # in the place of a session's, in its records
    query: str
    batch: int
    name: str
    user: str
    opened_ms: int
    active_ms: int
    rows: dict[int, Rows] = field(default_factory=dict)  # by destination number

    @property
    def key(self) -> tuple[str, int, str]:
        return self.query, self.batch, self.name

    def accepted(self, destination: int) -> int:
        """How many rows it has for that destination."""
        rows = self.rows.get(destination)
        return rows.accepted if rows is not None else 0

    @property
    def messages(self) -> int:
        return sum(rows.accepted for rows in self.rows.values())

    def add(self, destination: int, row: Row) -> None:
        rows = self.rows.get(destination)
        if rows is None:
            rows = self.rows[destination] = Rows()
        rows.add(row)

    def facts(self) -> dict[str, Any]:
        """What lasts of it, but for its rows: the record that opens it."""
        return {
            "id": self.id.hex(),
            "query": self.query,
            "batch": self.batch,
            "name": self.name,
            "user": self.user,
            "ms": self.opened_ms,
        }

    def snapshot(self) -> dict[str, Any]:
        return {**self.facts(), "active_ms": self.active_ms, "rows": [(n, r.packed()) for n, r in self.rows.items()]}

    @staticmethod
    def restored(facts: dict[str, Any]) -> Stage:
        """From `facts` or `snapshot`."""
        rows = {number: Rows(packed) for number, packed in facts.get("rows", ())}
        active_ms = facts.get("active_ms", facts["ms"])
        return Stage(
            bytes.fromhex(facts["id"]), facts["query"], facts["batch"], facts["name"], facts["user"], facts["ms"],
            active_ms, rows,
        )  # fmt: skip


class Sink(NamedTuple):
    """What is remembered of a query: the last batch it published."""

    query: str
    batch: int
    user: str
    ms: int
    messages: int
    index: int  # type: ignore[assignment]  # of the record that says so


def is_staged(body: Bytes) -> bool:
    """Are the messages of this HIDDEN record a stage's, and not a transaction's?"""
    return bool(STORE_RECORD.unpack_from(body)[6] == STAGED)


def row_of(index: int, place: int, size: int, head: stored.Head) -> Row:
    return Row(index, place, size, head.count, head.flags, head.low, head.high, head.send)
