"""Queues and topics in figures: rows out of the facts of administration, their rates, and pages of them.

What went out of a queue is what was delivered; so a message that is delivered twice counts twice.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from fairlead import topics
from fairlead.console.rates import rate
from fairlead.console.shapes_messages import Destination, Destinations, Sort
from fairlead.errors import BadParameter

Facts = dict[str, Any]
APART_S: Final = 0.5  # rates over shorter times would only be noise
UNKNOWN_LAST: Final = -1.0  # what is not known sorts as the smallest


class Ledger:
    """Remembers the last counts of each destination, for rates."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, int, int | None, float | None, float | None]] = {}

    def rows(self, facts: Iterable[Facts], now_s: float, now_ms: int) -> list[Destination]:
        """Rows of these; whatever is not among them any more is forgotten."""
        found, seen = [], {}
        for one in facts:
            name, taken, given = str(one["name"]), int(one["next"]), one.get("delivered")
            at_s, before_in, before_out, rate_in, rate_out = self._before.get(name, (now_s, taken, given, None, None))
            if now_s - at_s >= APART_S or taken < before_in:
                rate_in = rate(before_in, taken, now_s - at_s)
                rate_out = rate(before_out, given, now_s - at_s)
                at_s, before_in, before_out = now_s, taken, given
            seen[name] = at_s, before_in, before_out, rate_in, rate_out
            found.append(row(one, rate_in, rate_out, now_ms))
        self._before = seen
        return found


def row(one: Facts, rate_in: float | None, rate_out: float | None, now_ms: int) -> Destination:
    """`oldest_ms` of administration is when the oldest one came, 0 if none waits."""
    arrived_ms = one.get("oldest_ms") or 0
    return Destination(
        name=one["name"],
        kind=one["kind"],
        group=str(one.get("group", "")),
        own=one["name"].startswith("_"),
        depth=one["depth"],
        bytes=one["bytes"],
        ready=one["ready"],
        locked=one["locked"],
        delayed=one["delayed"],
        aside=one["aside"],
        schedules=one["schedules"],
        transactions=one["transactions"],
        consumers=one["consumers"],
        producers=one.get("producers"),
        subscriptions=_count(one["subscriptions"]),
        first=one["first"],
        next=one["next"],
        kept=one["kept"],
        kept_bytes=one["kept_bytes"],
        redelivered=one.get("redelivered"),
        dropped=one["dropped"],
        oldest_ms=max(0, now_ms - arrived_ms) if arrived_ms else None,
        blocked=bool(one["blocked"]),
        paused=bool(one["paused"]),
        rate_in=rate_in,
        rate_out=rate_out,
    )


def _count(found: Any) -> int:
    return len(found) if isinstance(found, list) else int(found)


def page(
    rows: Iterable[Destination],
    *,
    pattern: str = "",
    kind: str = "",
    sort: Sort = "name",
    descending: bool | None = None,
    limit: int = 100,
    after: str = "",
    complete: bool = True,
) -> Destinations:
    """Those that fit, in order. Figures are sorted with the largest first unless said otherwise, names from A on."""
    fits = matcher(pattern)
    found = [one for one in rows if (not kind or one.kind == kind) and fits(one.name)]
    down = sort != "name" if descending is None else descending
    keyed = sorted(((_key(one, sort), one.name, one) for one in found), key=lambda entry: entry[1])
    keyed.sort(key=lambda entry: entry[0], reverse=down)
    if after:
        mark, name = _read(after)
        keyed = [entry for entry in keyed if _is_beyond(entry[0], entry[1], mark, name, down)]
    shown = keyed[:limit]
    more = len(keyed) > limit
    return Destinations(
        destinations=[entry[2] for entry in shown],
        total=len(found),
        next=_write(shown[-1][0], shown[-1][1]) if more and shown else None,
        complete=complete,
    )


def matcher(pattern: str) -> Callable[[str], bool]:
    """Does a name fit? A plain word is looked for anywhere in it; everything else is a pattern as in subscriptions."""
    if any(sign in pattern for sign in "*>?") or pattern.startswith(("glob:", "regex:")):
        return topics.compile(pattern).matches
    word = pattern.lower()
    return lambda name: word in name.lower()


def _key(one: Destination, sort: Sort) -> float | str:
    if sort == "name":
        return one.name
    value = getattr(one, sort)
    return UNKNOWN_LAST if value is None else float(value)


def _is_beyond(key: float | str, name: str, mark: float | str, last: str, down: bool) -> bool:
    if type(key) is not type(mark):
        raise BadParameter("`after` belongs to another order; begin again without it.")
    if key != mark:
        return (key < mark) == down  # type: ignore[operator]
    return name > last


def _write(key: float | str, name: str) -> str:
    return urlsafe_b64encode(msgspec.json.encode([key, name])).decode().rstrip("=")


def _read(after: str) -> tuple[float | str, str]:
    try:
        raw = urlsafe_b64decode(after + "=" * (-len(after) % 4))
        key, name = msgspec.json.decode(raw, type=tuple[float | str, str])
    except (ValueError, msgspec.DecodeError):
        raise BadParameter("`after` is not the `next` of a page.") from None
    return key, name
