"""What waits for the application: runs of messages and events, in order; and the position of what it was given.

The position moves with what is handed out, and not with what arrived (STR-24), so it may be kept and started from. Runs
are lists that are handed out as they are: nothing is done for each message but to remember the last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fairlead.feeds.events import Event, Lost, SnapshotEnded, Succeeded
from fairlead.feeds.records import MESSAGE, Place

if TYPE_CHECKING:
    from fairlead.feeds.blocks import StreamMessage

__all__ = ["Entry", "Tray"]

Run: TypeAlias = "list[StreamMessage]"
Entry: TypeAlias = "list[StreamMessage] | Event"

_NOTHING: Final[Iterator[Any]] = iter(())


class Tray:
    """`rest` is what is left of the run at hand: whoever takes from it says so in `last`."""

    def __init__(self, places: dict[str, Place] | None = None) -> None:
        self.messages = 0  # that wait, those of the run at hand not counted
        self.bytes = 0  # roughly, as they came
        self.rest: Iterator[Any] = _NOTHING
        self.last: StreamMessage | None = None
        self._places: dict[str, Place] = dict(places or {})
        self._entries: deque[tuple[Entry, int]] = deque()
        self._run: Run = []

    # The side that fills it.

    def put(self, entries: list[Entry], size: int) -> None:
        """`size`: of all that came in for it, in bytes. Runs of one source become one: small blocks make small runs."""
        run: Run | None = None
        is_ours = False  # others may still look at a run that came as it is
        for entry in entries:
            if isinstance(entry, list):
                if not entry:
                    continue
                self.messages += len(entry)
                if run is not None and run[0].source == entry[0].source:
                    if is_ours:
                        run += entry
                    else:
                        run, is_ours = run + entry, True
                        self._entries[-1] = (run, self._entries[-1][1])
                    continue
                run, is_ours = entry, False
            else:
                run = None
            self._entries.append((entry, size))
            self.bytes += size
            size = 0

    # The side that empties it.

    def __len__(self) -> int:
        """How many runs and events there are behind the run at hand."""
        return len(self._entries)

    @property
    def is_run_done(self) -> bool:
        return length_hint(self.rest) == 0

    def next(self) -> Event | None:
        """Go on to the next run, which is then in `rest`; or the event that is next."""
        entry = self.pop()
        self._settle()
        if not isinstance(entry, list):
            self._heard(entry)
            return entry
        self._run, self.rest = entry, iter(entry)
        return None

    def pop(self) -> Entry:
        """The next run or event as it is, for another tray: it is not handed out yet."""
        entry, size = self._entries.popleft()
        self.bytes -= size
        if isinstance(entry, list):
            self.messages -= len(entry)
        return entry

    def take(self, count: int) -> list[StreamMessage]:
        """Up to so many of the run at hand."""
        taken = list(islice(self.rest, count))
        if taken:
            self.last = taken[-1]
        return taken

    def clear(self) -> None:
        """Nothing of what waits is wanted any more."""
        self._entries.clear()
        self.messages = self.bytes = 0
        deque(self.rest, maxlen=0)  # whoever goes through it comes to the end

    @property
    def position(self) -> dict[str, Place]:
        """Of each source what was last handed out, or what was started from."""
        last = self.last
        if last is None:
            return dict(self._places)
        return {**self._places, **_reached(self._run, last)}

    def start_from(self, places: dict[str, Place]) -> None:
        """Where a stream begins of which nothing was handed out yet."""
        self._places = {**places, **self._places}

    def _heard(self, event: Event) -> None:
        """Some events move the position as messages do."""
        match event:
            case SnapshotEnded(positions=positions):
                self._places = dict(positions)
            case Succeeded(old=old, new=new, start=start):
                self._places.pop(old, None)
                self._places.setdefault(new, Place(max(start - 1, 0)))
            case Lost(source=source, last=last, last_part=last_part):
                whole = last - 1 if last_part else last  # of the last one some parts are still to come
                if whole > self._places.get(source, Place(0)).sequence:
                    self._places[source] = Place(whole)

    def _settle(self) -> None:
        """The run at hand is done with."""
        if self.last is not None:
            self._places.update(_reached(self._run, self.last))
            self._run, self.last = [], None


def _reached(run: Run, last: StreamMessage) -> dict[str, Place]:
    """Where `last`, one of the run, has brought us: a run is of one source, and administrative and late messages in it
    move nothing."""
    if last.kind == MESSAGE and not last.late:
        return {last.source: Place(last.sequence, last.part, last.parts)}
    if last.snapshot:
        return {}
    index = next(index for index in range(len(run) - 1, -1, -1) if run[index] is last)
    for message in reversed(run[:index]):
        if message.kind == MESSAGE and not message.late:
            return {message.source: Place(message.sequence, message.part, message.parts)}
    return {}
