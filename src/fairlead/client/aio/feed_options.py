"""How a program wants a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from fairlead.errors import BadParameter
from fairlead.feeds.records import Place

__all__ = ["Gaps", "Mode", "Start", "StreamOptions", "stream_options"]

Start: TypeAlias = 'Literal["new", "oldest", "snapshot"] | Mapping[str, Place | tuple[int, ...]]'
"""Where to begin: a word, or a position that a stream said it had reached."""
Mode: TypeAlias = Literal["single", "both"]
Gaps: TypeAlias = Literal["hold", "mark"]
Begin: TypeAlias = Literal["new", "oldest", "snapshot", "positions"]

NAME_BYTES_MAX: Final = 255
SOURCES_MAX: Final = 1024
NUMBER_MAX: Final = (1 << 63) - 1


class StreamOptions(NamedTuple):
    """Checked: see `Connection.stream` for what they mean."""

    stream: str
    start: Begin
    positions: dict[str, Place]
    mode: Mode
    gaps: Gaps
    hold_messages: int
    hold_s: float
    buffer: int
    timeout: float | None


def stream_options(
    stream: str,
    start: Start,
    mode: Mode,
    gaps: Gaps,
    hold_messages: int,
    hold_s: float,
    buffer: int,
    timeout: float | None,
) -> StreamOptions:
    """BadParameter if one of them cannot be."""
    if not stream or len(stream.encode()) > NAME_BYTES_MAX:
        raise BadParameter(f"A stream has a name of 1 to {NAME_BYTES_MAX} bytes, such as 'prices.emea'.")
    if mode not in ("single", "both"):
        raise BadParameter(f"`mode` is 'single' or 'both', and not {mode!r}.")
    if gaps not in ("hold", "mark"):
        raise BadParameter(f"`gaps` is 'hold' or 'mark', and not {gaps!r}.")
    if hold_messages < 1 or buffer < 1 or not hold_s > 0 or (timeout is not None and not timeout > 0):
        raise BadParameter("`hold_messages`, `hold_s`, `buffer` and `timeout` are greater than 0.")
    begin: Begin
    positions: dict[str, Place] = {}
    if isinstance(start, str):
        if start not in ("new", "oldest", "snapshot"):
            raise BadParameter(f"`start` is 'new', 'oldest', 'snapshot' or a position, and not {start!r}.")
        begin = start
    else:
        begin, positions = "positions", _positions(start)
    return StreamOptions(stream, begin, positions, mode, gaps, hold_messages, hold_s, buffer, timeout)


def _is_count(given: Any) -> bool:
    return isinstance(given, int) and 0 <= given <= NUMBER_MAX


def _positions(given: Any) -> dict[str, Place]:
    """From what was kept: JSON makes lists of places, and that is as good."""
    if not isinstance(given, Mapping) or not 1 <= len(given) <= SOURCES_MAX:
        raise BadParameter("A position is a map of source ids, as `stream.position` gives it; it cannot be empty.")
    found: dict[str, Place] = {}
    for source, place in given.items():
        try:
            made = Place(*place)
        except TypeError:
            made = Place(-1)
        if not isinstance(source, str) or not all(_is_count(n) for n in made):
            raise BadParameter(f"The place {place!r} of {source!r} is not (sequence, part, parts).")
        found[source] = made
    return found
