"""What happened, and how figures went: history, the event log, and the live stream."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from fairlead.console.shapes import Level


class Series(Struct, kw_only=True):
    """One line of a chart: values at `start_ms`, `start_ms + step_ms` …; null where nothing was measured."""

    name: str  # such as `messages.in`, `depth/orders`, `manager/0/share`
    unit: str  # messages/s, bytes/s, messages, ms, ratio
    text: str  # a sentence for people
    values: list[float | None]


class History(Struct, kw_only=True):
    """GET /api/v1/history; `names` are all series there are."""

    now_ms: int
    start_ms: int
    step_ms: int
    series: list[Series]
    names: list[str]


class Event(Struct, kw_only=True):
    """A record of the event log."""

    ms: int
    level: Level
    code: str
    text: str
    node: str
    module: str
    user: str  # who ordered it, if somebody did
    facts: dict[str, Any]  # what else it says


class Events(Struct, kw_only=True):
    """The newest first."""

    events: list[Event]
    complete: bool  # false: there may be more than were looked at


class Sample(Struct, kw_only=True):
    """The event `history` of the live stream: the newest value of every series."""

    ms: int
    values: dict[str, float]


class Check(Struct, kw_only=True):
    name: str
    ok: bool
    text: str


class Health(Struct, kw_only=True):
    """GET /health/ready and /health/live."""

    ok: bool
    checks: list[Check]
