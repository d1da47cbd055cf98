"""Conditions of a query that the server can apply, so that only what is wanted travels.

Spark applies every condition once more: here may be taken too much, never too little.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

__all__ = ["Narrowing", "narrowing"]

MOST = 2**63 - 1
KEYS_MAX = 1_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Narrowing:
    """Half-open ranges, but for the priority; None where nothing is said."""

    destinations: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    order: tuple[int, int] = (0, MOST)
    priority: tuple[int, int] = (0, 9)
    arrived_ms: tuple[int, int] = (0, MOST)
    sent_ms: tuple[int, int] = (0, MOST)

    @property
    def is_empty(self) -> bool:
        """Can nothing at all fit?"""
        spans = (self.order, self.arrived_ms, self.sent_ms)
        return (
            self.destinations == frozenset()
            or self.keys == frozenset()
            or self.priority[0] > self.priority[1]
            or any(low >= high for low, high in spans)
        )

    def where(self) -> dict[str, Any]:
        """As a scan takes it."""
        found: dict[str, Any] = {}
        if self.keys is not None and len(self.keys) <= KEYS_MAX:
            found["keys"] = sorted(self.keys)
        for name in ("priority", "arrived_ms", "sent_ms"):
            if getattr(self, name) != getattr(Narrowing, name):
                found[name] = list(getattr(self, name))
        return found


def narrowing(filters: Iterable[Filter]) -> Narrowing:
    """What these conditions, all of which must hold, leave."""
    sets: dict[str, frozenset[str] | None] = {"destination": None, "key": None}
    # One beyond the largest, for every column that has an order; priorities are turned at the end.
    spans = {"order_number": (0, MOST), "priority": (0, 10), "arrived": (0, MOST), "published": (0, MOST)}
    for one in filters:
        match one:
            case EqualTo((str() as name,), value) | EqualNullSafe((str() as name,), value):
                values: tuple[Any, ...] = (value,)
            case In((str() as name,), value):
                values = tuple(value)
            case GreaterThan((str() as name,), value) | GreaterThanOrEqual((str() as name,), value):
                if name in spans and (low := _number(name, value)) is not None:
                    spans[name] = (max(spans[name][0], low), spans[name][1])
                continue
            case LessThan((str() as name,), value) | LessThanOrEqual((str() as name,), value):
                if name in spans and (high := _number(name, value)) is not None:
                    spans[name] = (spans[name][0], min(spans[name][1], high + 1))
                continue
            case _:
                continue
        if name in sets and all(isinstance(value, str) for value in values):
            before = sets[name]
            sets[name] = frozenset(values) if before is None else before & frozenset(values)
        elif name in spans and values:
            numbers = [_number(name, value) for value in values]
            known = [number for number in numbers if number is not None]
            if len(known) == len(numbers):
                spans[name] = (max(spans[name][0], min(known)), min(spans[name][1], max(known) + 1))
    return Narrowing(
        destinations=sets["destination"],
        keys=sets["key"],
        order=spans["order_number"],
        priority=(spans["priority"][0], min(spans["priority"][1], 10) - 1),
        arrived_ms=spans["arrived"],
        sent_ms=spans["published"],
    )


def _number(name: str, value: object) -> int | None:
    """A bound as a whole number, rounded down: a range of whole units around it holds it."""
    if name in ("arrived", "published"):
        if not isinstance(value, datetime):
            return None
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return min(max((aware - EPOCH) // MILLISECOND, 0), MOST - 1)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return min(max(value, 0), MOST - 1)
