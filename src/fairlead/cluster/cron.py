"""When a schedule falls due next: cron expressions, their nicknames, and `@every 10s`.

Fields are those of cron: minute, hour, day of month, month, day of week; a sixth one before them is for seconds. When
the clocks are put forward, what was for a time that is left out is due right after; when they are put back, what is
for a fixed time of the day is due once.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from typing import Final, NoReturn
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from fairlead.errors import BadParameter

__all__ = ["check", "next_after"]

TEXT_MAX: Final = 200
EVERY_MS_MIN: Final = 100
EVERY_MS_MAX: Final = 10 * 366 * 86_400_000
NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
FIELDS: Final = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")
_DURATION: Final = re.compile(r"(\d{1,12})(ms|s|m|h|d)")
_FIELD: Final = re.compile(r"\S+")


def next_after(expression: str, ms: int, timezone: str = "UTC") -> int | None:
    """The first time after `ms` at which it is due; None: never again. BadParameter says where it is wrong."""
    zone = _zone(timezone)
    text = expression.strip()
    if len(text) > TEXT_MAX:
        raise BadParameter(f"A schedule of {len(text)} characters is longer than {TEXT_MAX}.")
    if text.lower().startswith("@every"):
        return ms + _every_ms(expression)
    if text.startswith("@"):
        if text.lower() not in NICKNAMES:
            _refuse(expression, expression.index("@"), f"it is one of {', '.join(NICKNAMES)} or @every")
        text = expression = NICKNAMES[text.lower()]
    try:
        from_ = datetime.fromtimestamp(ms // 1000, UTC).astimezone(zone)
    except (OverflowError, ValueError, OSError):
        return None  # the calendar ends before that
    search = _search(expression, from_)
    try:
        return int(next(search).timestamp()) * 1000
    except (StopIteration, OverflowError):
        return None


def check(expression: str, timezone: str = "UTC") -> None:
    """BadParameter if this is no schedule."""
    next_after(expression, 0, timezone)


def _search(expression: str, from_: datetime) -> CronSim:
    fields = list(_FIELD.finditer(expression))
    if len(fields) not in (5, 6):
        place = fields[6].start() if len(fields) > 6 else len(expression.rstrip())
        _refuse(expression, place, f"it has {len(fields)} fields, and needs 5: {', '.join(FIELDS[1:])}")
    names = FIELDS[-len(fields) :]
    for name, field in zip(names, fields, strict=True):
        # One field at a time, with every other one a star: then we know which of them it is.
        alone = " ".join(field[0] if other == name else "*" for other in names)
        try:
            CronSim(alone, from_)
        except (CronSimError, AssertionError, TypeError, ValueError):
            _refuse(expression, field.start(), f"{field[0]!r} is not a {name.replace('-', ' ')}")
    try:
        return CronSim(expression, from_)
    except CronSimError:
        days = fields[-3]
        _refuse(expression, days.start(), f"there is no day {days[0]!r} in these months")


def _every_ms(expression: str) -> int:
    at = expression.index("@") + len("@every")
    begin = at = len(expression) - len(expression[at:].lstrip())
    total = 0
    while match := _DURATION.match(expression, at):
        total += int(match[1]) * UNITS_MS[match[2]]
        at = match.end()
    if at == begin or expression[at:].strip():
        _refuse(expression, at, "a time such as 500ms, 10s, 5m, 1h30m or 2d belongs here")
    if not EVERY_MS_MIN <= total <= EVERY_MS_MAX:
        _refuse(expression, begin, f"it is every {EVERY_MS_MIN} ms to every ten years")
    return total


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):  # KeyError: there is no such zone; the others: no such name
        raise BadParameter(f"There is no time zone {name[:60]!r}.") from None


def _refuse(expression: str, place: int, why: str) -> NoReturn:
    shown = re.sub(r"\s", " ", expression)
    raise BadParameter(f"Not a schedule, at column {place + 1}: {why}.\n  {shown}\n  {' ' * place}^")
