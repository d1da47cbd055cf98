"""What is looked at, in which order, and what keys do to that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

VIEWS: Final[dict[str, str]] = {
    "o": "overview",
    "d": "destinations",
    "c": "connections",
    "p": "processes",
    "u": "updates",
}
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "overview": (),
    "managers": ("manager", "connections", "in", "out", "bytes", "under way", "up", "down", "arena", "state"),
    "destinations": (
        *("destination", "kind", "depth", "oldest", "in", "out", "acknowledged", "consumers", "again", "dead"),
        "remark",
    ),
    "connections": ("connection", "manager", "state", "peer", "user", "type", "instance", "age"),
    "processes": ("process", "state", "pid", "cpu", "memory", "threads", "restarts", "version", "age"),
    "updates": ("age", "component", "outcome", "pause", "from", "to", "reason"),
}
FIRST_SORT: Final = {"destinations": "in", "connections": "connection", "processes": "process", "updates": "age"}
TEXTS: Final = frozenset(
    ("destination", "kind", "remark", "state", "peer", "user", "type", "instance", "process", "version", "component")
) | {"outcome", "from", "to", "reason"}
UPWARDS: Final = TEXTS | {"age", "connection", "manager", "pid"}
"""Sorted from small to large at first; figures begin with the largest."""

KEYS: Final[dict[bytes, str]] = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down",
    b"\x1b[C": "right", b"\x1bOC": "right", b"\x1b[D": "left", b"\x1bOD": "left",
    b"\x1b[5~": "page up", b"\x1b[6~": "page down", b"\x1b[H": "home", b"\x1b[F": "end",
}  # fmt: skip
PAGE: Final = 10


@dataclass(slots=True)
class State:
    """Of the screen. `press` changes it."""

    view: str = "overview"
    over: bool = False
    offset: int = 0  # rows scrolled away
    sort: dict[str, str] = field(default_factory=lambda: dict(FIRST_SORT))
    reverse: dict[str, bool] = field(default_factory=dict)  # the other way than usual

    @property
    def sorted_by(self) -> str:
        return self.sort.get(self.view, "")

    @property
    def descending(self) -> bool:
        return (self.sorted_by not in UPWARDS) != self.reverse.get(self.view, False)

    def press(self, key: str) -> None:
        if key in ("q", "\x03", "\x04"):
            self.over = True
        elif key in VIEWS:
            self.view, self.offset = VIEWS[key], 0
        elif key == "s" and self.sorted_by:
            self.reverse[self.view] = not self.reverse.get(self.view, False)
        elif key in ("left", "right") and self.sorted_by:
            columns = COLUMNS[self.view]
            step = 1 if key == "right" else -1
            self.sort[self.view] = columns[(columns.index(self.sorted_by) + step) % len(columns)]
            self.reverse[self.view] = False
        else:
            steps = {"up": -1, "down": 1, "page up": -PAGE, "page down": PAGE, "home": -self.offset}
            self.offset = max(self.offset + steps.get(key, 0), 0)


def keys_of(data: bytes) -> list[str]:
    """What was typed. Sequences of keys we do not know are skipped as a whole."""
    found: list[str] = []
    at = 0
    while at < len(data):
        for sequence, key in KEYS.items():
            if data.startswith(sequence, at):
                found.append(key)
                at += len(sequence)
                break
        else:
            if data[at : at + 2] in (b"\x1b[", b"\x1bO"):
                at += 2
                while at < len(data) and not 0x40 <= data[at] <= 0x7E:
                    at += 1
            elif data[at] < 0x80 and data[at] != 0x1B:
                found.append(chr(data[at]).lower())
            at += 1
    return found
