"""The lines a client may have, what it last heard on each, and which one to take messages from."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.feeds.arbitration.line_order import LineOrder
from fairlead.feeds.words import Beat, LineOffer, Placed, Positions, Welcome

__all__ = ["Line", "Lines"]

LINES_MAX = 4
SILENT_INTERVALS = 3


class Line:
    def __init__(self, offer: LineOffer, hold_messages: int) -> None:
        self.offer = offer
        self.name = offer.adapter
        self.is_up = False
        self.is_tried = False  # it was up, or could not be had
        self.is_named = True  # by the administration
        self.is_taken = False  # Start was said, and its blocks are judged
        self.heard_s = 0.0
        self.epoch = 0
        self.incarnation = 0
        self.last = 0  # the highest number it has told of
        self.positions: Positions = {}
        self.admins: tuple[tuple[str, str, Placed], ...] = ()  # the newest in its stream
        self.beat_s = -1.0  # when these were told
        self.source_alive = True
        self.synchronised = True
        self.has_snapshots = False
        self.order = LineOrder(hold_messages)
        self.question = 0  # the Fill by numbers that is under way
        self.start_s = 0.0

    def up(self, welcome: Welcome, now_s: float) -> None:
        self.is_up = self.is_tried = True
        self.is_taken = False
        self.heard_s, self.question = now_s, 0
        self.epoch, self.incarnation, self.last = welcome.epoch, welcome.incarnation, welcome.last
        self.source_alive = self.synchronised = True
        self.positions, self.beat_s, self.admins = {}, -1.0, ()
        self.has_snapshots = welcome.has_snapshots
        self.order.reset(now_s)

    def down(self) -> None:
        self.is_tried = True
        self.is_up = self.is_taken = False
        self.question = 0

    def beat(self, beat: Beat, now_s: float) -> bool:
        """True: its numbering has begun anew."""
        anew = beat.incarnation != self.incarnation
        self.incarnation, self.last = beat.incarnation, beat.last
        self.epoch = max(self.epoch, beat.epoch)
        self.positions, self.beat_s, self.admins = beat.positions, now_s, beat.admins
        self.source_alive, self.synchronised = beat.source_alive, beat.synchronised
        return anew


class Lines:
    """All lines of a stream, in the order of preference: the active one first."""

    def __init__(self, hold_messages: int) -> None:
        self._hold_messages = hold_messages
        self._lines: dict[str, Line] = {}
        self._ever: dict[str, None] = {}  # the adapters there were, the newest last

    def get(self, name: str) -> Line | None:
        return self._lines.get(name)

    @property
    def up(self) -> list[Line]:
        return [line for line in self._lines.values() if line.is_up]

    @property
    def all(self) -> list[Line]:
        return list(self._lines.values())

    def offer(self, offers: Iterable[LineOffer]) -> tuple[list[Line], list[Line], list[Line]]:
        """What changed: lines that are new, those to dial anew since they moved, and those that are gone.

        One that is not named any more and lives is kept, after the others: the administration may only have lost sight
        of it (STR-3). It is not dialled again.
        """
        wanted = {offer.adapter: offer for offer in list(offers)[:LINES_MAX]}
        unnamed = [line for name, line in self._lines.items() if name not in wanted]
        gone = [line for line in unnamed if not line.is_up]
        for name in wanted:
            self._ever.pop(name, None)
            self._ever[name] = None
        for name in list(self._ever)[:-LINES_MAX]:
            del self._ever[name]
        new, moved, ordered = [], [], {}
        for name, offer in wanted.items():
            line = self._lines.get(name)
            if line is None:
                line = Line(offer, self._hold_messages)
                new.append(line)
            elif (line.offer.address, line.offer.token) != (offer.address, offer.token):
                moved.append(line)
            line.offer = offer
            ordered[name] = line
        for line in self._lines.values():
            line.is_named = line.name in wanted
        self._lines = ordered | {line.name: line for line in unnamed if line.is_up}
        return new, moved, gone

    def forget(self, line: Line) -> None:
        del self._lines[line.name]

    @property
    def are_complete(self) -> bool:
        """Is there a line to every adapter there ever was? Otherwise one may come back that has what is missing."""
        return all(name in self._lines and self._lines[name].is_up for name in self._ever)

    def best(self, besides: str = "") -> Line | None:
        """The one to take from: with a live source, then synchronised, then as preferred."""
        usable = [line for line in self.up if line.name != besides]
        return min(usable, key=lambda line: (not line.source_alive, not line.synchronised), default=None)

    def silent(self, heartbeat_s: float, now_s: float) -> list[Line]:
        """Those that have said nothing for three intervals (STR-30)."""
        return [line for line in self.up if now_s - line.heard_s >= SILENT_INTERVALS * heartbeat_s]
