"""What the recovery of a numbered source may take, and what it asks to be done."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from fairlead.feeds.sources.runs import Run

__all__ = ["DEFAULTS", "Action", "Alive", "Ask", "Began", "Limits", "Lost", "Ready", "Silent"]


class Limits(NamedTuple):
    """How long and how much. A `window` that is full gives the first hole up at once."""

    reorder_s: float = 0.01  # a hole is left to the other line and to reordering so long
    ask_s: float = 0.05  # then asked for so often
    patience_s: float = 1.0  # and given up when nothing of it came for so long
    silent_s: float = 1.0  # no packet for so long: the line is down
    window_messages: int = 262_144
    window_bytes: int = 64 << 20
    ask_messages: int = 4096
    jump_max: int = 1_000_000


DEFAULTS: Final = Limits()


class Began(NamedTuple):
    """A session begins; `after` is the one before it, "" for the first."""

    session: str
    after: str
    start: int


class Ready(NamedTuple):
    session: str
    run: Run


class Lost(NamedTuple):
    session: str
    first: int
    last: int


class Ask(NamedTuple):
    """Send this to the rewind server (to the next one each time, if there are several)."""

    question: bytes


class Silent(NamedTuple):
    why: str


class Alive(NamedTuple):
    pass


Action: TypeAlias = Began | Ready | Lost | Ask | Silent | Alive
