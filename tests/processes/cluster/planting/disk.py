"""A disk that becomes slow or full while a file beside the node's data says so: `slow MILLISECONDS`, `full`.

Syncs are made by the plain twin of the journal's writer, which asks for its delay each time. A full disk has no room
for further files of the journal, as a real one.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from fairlead.journal.edge import journal, writer
from fairlead.journal.edge.options import Faults
from fairlead.journal.edge.room import Room


class Switch:
    """The file, looked at whenever the disk is used."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def words(self) -> list[str]:
        try:
            return self._path.read_text().split() or [""]
        except OSError:
            return [""]

    @property
    def delay_ms(self) -> float:
        words = self.words()
        return float(words[1]) if words[0] == "slow" else 0.0

    @property
    def is_full(self) -> bool:
        return self.words()[0] == "full"


class Live(Faults):
    """Faults whose delay is that of the moment."""

    switch: Switch

    def __getattribute__(self, name: str) -> Any:
        if name == "sync_delay_ms":
            return Live.switch.delay_ms
        return super().__getattribute__(name)


def hurt(arguments: list[str]) -> None:
    plan = next(Path(word) for word in arguments if word.endswith("plan.json"))
    switch = Live.switch = Switch(plan.parents[2] / "disk")

    def open_writer(event: int, *_: Any) -> Any:
        return writer.Writer(event, Live())

    right = Room._make

    def make(self: Room) -> Any:
        if switch.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return right(self)

    journal.open_writer = open_writer  # type: ignore[attr-defined]
    Room._make = make  # type: ignore[method-assign]
