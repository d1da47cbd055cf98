"""What the server answers to the commands for bulk work (docs/durable.md, section 7), checked."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import msgspec

from fairlead.errors import RemoteProtocolError

__all__ = ["Cursor", "Plan", "Position", "Positions", "Published", "Staged", "taken"]


class Position(NamedTuple):
    """What can be read of one destination."""

    name: str
    kind: str
    id: str
    first: int
    """The oldest that can be read."""
    next: int
    """One beyond the newest that is safe."""
    low: int
    """The oldest nobody has settled."""
    retains: Any
    bytes: int = 0
    at: int | None = None
    """The first that arrived at the time asked for, or later."""


class Positions(NamedTuple):
    destinations: list[Position]
    now_ms: int


class Plan(NamedTuple):
    """How far to read without going over a limit."""

    end: int
    first: int
    next: int


class Cursor(NamedTuple):
    """A named cursor: on a queue the positions from `at` to `reserved` are locked for it."""

    kind: str
    at: int
    reserved: int


class Published(NamedTuple):
    """`published` is "now", or "before": this batch, or a later one of the query, was published already."""

    published: str
    messages: int


class Staged(NamedTuple):
    """A stage that is open: up to `accepted` its rows are safe."""

    stage: int
    accepted: int
    window_bytes: int
    published: bool = False
    """Its batch, or a later one of the query, was published already: nobody will want these rows."""


T = TypeVar("T")


def taken(kind: type[T], facts: Any) -> T:
    """The facts of an ANSWER as such a thing; RemoteProtocolError when they are not."""
    try:
        if issubclass(kind, tuple):
            defaults: dict[str, Any] = kind._field_defaults  # type: ignore[attr-defined]
            fields: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
            facts = [facts.get(name, defaults[name]) if name in defaults else facts[name] for name in fields]
        return msgspec.convert(facts, type=kind)
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as fault:
        raise RemoteProtocolError(f"An answer is not what was asked for: {fault}") from None
