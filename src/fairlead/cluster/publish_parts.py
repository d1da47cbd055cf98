"""A `publish` that is longer than one COMMAND: its parts, gathered for each connection until the last one is there.

Parts are numbered, so that one that was lost with a connection, or with a message manager, is noticed: nothing is
published of a list that is not whole. A stage with many destinations may be cut: the next part goes on with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fairlead.errors import OutOfOrder, TooMany

if TYPE_CHECKING:
    from fairlead.cluster.parties import Line
    from fairlead.cluster.requests import Publish

LINE_BYTES_MAX: Final = 32 << 20
ALL_BYTES_MAX: Final = 96 << 20
ITEM_BYTES: Final = 128
"""About what a name costs beyond its letters."""


@dataclass(slots=True)
class _Gathered:
    whole: Publish
    parts: int
    bytes: int


class PublishParts:
    """What has come so far, by connection; one list at a time."""

    def __init__(self) -> None:
        self._gathered: dict[Line, _Gathered] = {}

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self._gathered.values())

    def take(self, line: Line, asked: Publish) -> Publish | None:
        """The whole of it, or None while more is to come. OutOfOrder: a part is missing, begin again with the first."""
        before = self._gathered.pop(line, None)
        if asked.part == 0:
            if not asked.more:
                return asked
            whole, size = asked, _bytes_of(asked)
        else:
            if before is None or (before.whole.query, before.whole.batch, before.parts) != (
                asked.query, asked.batch, asked.part
            ):  # fmt: skip
                raise OutOfOrder(f"Part {asked.part} of a batch came without those before it; begin with part 0.")
            whole, size = before.whole, before.bytes + _bytes_of(asked)
        if size > LINE_BYTES_MAX or self.bytes + size > ALL_BYTES_MAX:
            raise TooMany("The stages named are too many to be remembered: fewer tasks, or fewer destinations.")
        if whole is not asked:
            _join(whole, asked)
        if not asked.more:
            return whole
        self._gathered[line] = _Gathered(whole, asked.part + 1, size)
        return None

    def on_gone(self, line: Line) -> None:
        self._gathered.pop(line, None)


def _join(whole: Publish, more: Publish) -> None:
    stages = list(more.stages)
    if whole.stages and stages and whole.stages[-1][0] == stages[0][0]:
        last, rest = whole.stages[-1][1], stages[0][1]
        if not last.keys() & rest.keys():  # else it is named twice, which is complained about later
            last.update(rest)
            del stages[0]
    whole.stages.extend(stages)


def _bytes_of(asked: Publish) -> int:
    names = sum(ITEM_BYTES + len(name) for name, _ in asked.stages)
    return ITEM_BYTES + names + sum(ITEM_BYTES + len(to) for _, counts in asked.stages for to in counts)
