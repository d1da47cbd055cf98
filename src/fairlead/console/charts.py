"""What is asked of the history, and the answer: which series, since when, in which steps."""

from __future__ import annotations

from typing import Final

from fairlead.console import series
from fairlead.console.history import COARSE_MS, FINE_MS, History
from fairlead.console.shapes_time import History as Answer
from fairlead.console.shapes_time import Series
from fairlead.errors import BadParameter

POINTS_MAX: Final = 3000
SERIES_MAX: Final = 200
SINCE_S: Final = 900  # if nothing is said


def chart(history: History, *, asked: str, since_ms: int, step_s: int, now_ms: int) -> Answer:
    """Steps of whole seconds come from the fine rows as far as these go, all others from the coarse ones."""
    since_ms = since_ms or now_ms - SINCE_S * 1000
    if since_ms > now_ms:
        raise BadParameter("`since_ms` is in the future.")
    names = chosen(asked, history.names)
    is_recent = since_ms >= now_ms - history.fine.rows * FINE_MS
    is_fine = 0 < step_s < COARSE_MS // FINE_MS or (is_recent and not step_s)
    track = history.fine if is_fine else history.coarse
    step_ms = max(step_s * 1000, track.step_ms)
    step_ms -= step_ms % track.step_ms
    oldest_ms = now_ms - track.rows * track.step_ms
    first_ms = max(since_ms, oldest_ms)
    first_ms -= first_ms % step_ms
    while (now_ms - first_ms) // step_ms > POINTS_MAX:
        step_ms *= 2
        first_ms -= first_ms % step_ms
    per, first, count = step_ms // track.step_ms, first_ms // track.step_ms, (now_ms - first_ms) // step_ms
    found = []
    for name in names:
        meaning = series.meaning_of(name)
        values = history.read(name, track, first, first + count * per)
        found.append(Series(name=name, unit=meaning.unit, text=meaning.text, values=_thinned(name, values, per)))
    return Answer(now_ms=now_ms, start_ms=first_ms, step_ms=step_ms, series=found, names=history.names)


def chosen(asked: str, known: list[str]) -> list[str]:
    """Names with commas between them; a `*` at the end of one stands for all that begin so. Empty: none."""
    found: dict[str, None] = {}
    for text in filter(None, (part.strip() for part in asked.split(","))):
        if text.endswith("*"):
            found |= dict.fromkeys(name for name in known if name.startswith(text[:-1]))
        else:
            found[text] = None
    if len(found) > SERIES_MAX:
        raise BadParameter(f"At most {SERIES_MAX} series at a time.")
    return list(found)


def _thinned(name: str, values: list[float | None], per: int) -> list[float | None]:
    if per == 1:
        return values
    out: list[float | None] = []
    for first in range(0, len(values), per):
        known = [value for value in values[first : first + per] if value is not None]
        out.append(round(series.joined(name, known), 6) if known else None)
    return out
