"""One stream, several adapters: what a client gives to its program, whichever adapter dies (docs/feeds.md).

The Arbiter is told what came on the lines and what the administration said, and answers with messages and events in the
order in which the program must see them, and with asks of the edge. `line_choice.py` decides which line to take from,
`judging.py` which messages are new. All that was received from a line is judged before another one is taken (STR-32),
and the position is only ever moved by what was delivered or reported lost.
"""

from __future__ import annotations

from fairlead.feeds.arbitration.asks import Ask, Dial, Drop, RenewNow, ReportNow, Say
from fairlead.feeds.arbitration.line_choice import LineChoice
from fairlead.feeds.arbitration.standing import State
from fairlead.feeds.block_codec import Block, StreamMessage
from fairlead.feeds.blocks import RowReader
from fairlead.feeds.events import Event, Revoked
from fairlead.feeds.records import Place
from fairlead.feeds.words import (
    Beat,
    Brokered,
    Closing,
    Fetched,
    LineOffer,
    Missed,
    Notice,
    SnapshotPart,
    Source,
    Unavailable,
    Welcome,
)

__all__ = ["Arbiter", "Ask", "Dial", "Drop", "RenewNow", "ReportNow", "Say"]


class Arbiter(LineChoice):
    """What happens to it."""

    # What can be read off it.

    @property
    def schema(self) -> RowReader | None:
        return self._judge.schema

    @schema.setter
    def schema(self, schema: RowReader | None) -> None:
        self._judge.schema = schema

    @property
    def positions(self) -> dict[str, Place]:
        """What was last handed out of each source."""
        return self._judge.positions

    @property
    def state(self) -> State:
        return self._standing.state

    @property
    def counters(self) -> dict[str, int]:
        names = ("delivered", "duplicates", "gaps_found", "gaps_filled", "gaps_lost", "lost", "failovers")
        more = ("discontinuities", "divergences", "late", "admins", "fetched", "holes")
        counts = self._judge.counts
        return {name: counts[name] for name in (*names, *more)} | {
            "stale_ms": self._standing.stale_ms(self._now_s),
            "epoch": self.epoch,
        }

    def take(self) -> tuple[list[list[StreamMessage] | Event], list[Ask]]:
        """What has gathered: for the program, and for the edge."""
        out, asks = self._judge.out, self._asks
        self._judge.out, self._asks = [], []
        return out, asks

    # What the administration says.

    def on_brokered(self, word: Brokered, now_s: float) -> None:
        """The first time it is where to start; later (a new subscription after the server was away) it is a notice."""
        self._pass(now_s)
        self._heartbeat_s = word.heartbeat_s
        is_first = not self._since_s
        self._meeting.learn(word.sources, now_s)
        if is_first:
            self._since_s = now_s or 1e-9
            if self._start == "positions":
                self._meeting.begin({name: (place[0], place[1], place[2]) for name, place in self._wanted.items()})
            if self._start in ("new", "positions"):
                self._meeting.begin(word.positions)
            self._fallback = word.positions
        self._offered(word.lines, word.epoch, now_s)
        self._attend(now_s)

    def on_notice(self, word: Notice, now_s: float) -> None:
        self._pass(now_s)
        self._learn(word.sources, word.lines, word.epoch, now_s)
        self._attend(now_s)

    def on_revoked(self, why: str, now_s: float) -> None:
        self._pass(now_s)
        self._standing.is_revoked = True
        self._judge.out.append(Revoked(why=why))
        self._asks += [Drop(line.name, why) for line in self._lines.all]
        for line in self._lines.all:
            self._lines.forget(line)
        self.line = ""

    def _learn(self, sources: tuple[Source, ...], offers: tuple[LineOffer, ...], epoch: int, now_s: float) -> None:
        self._meeting.learn(sources, now_s)
        self._offered(offers, epoch, now_s)

    def _offered(self, offers: tuple[LineOffer, ...], epoch: int, now_s: float) -> None:
        if epoch < self.epoch or self._standing.is_revoked:
            return
        is_higher, self.epoch = epoch > self.epoch, epoch
        active = next((offer.adapter for offer in offers if offer.role == "active"), "")
        self._active = active or self._active
        new, moved, gone = self._lines.offer(offers)
        self._asks += [Drop(line.name, "the administration no longer names it") for line in gone]
        for line in moved:
            self._lost(line, "it has moved", now_s)
            self._asks.append(Drop(line.name, "it has moved"))
        self._asks += [Dial(line.offer) for line in (*new, *moved)]
        if is_higher:
            self._follow(self._active, "the administration has made it the active one", now_s)

    # What comes on lines.

    def on_line_up(self, adapter: str, welcome: Welcome, now_s: float) -> None:
        self._pass(now_s)
        line = self._lines.get(adapter)
        if line is None:
            self._asks.append(Drop(adapter, "it is not wanted any more"))
            return
        line.up(welcome, now_s)
        (self._meeting.snapshots_of.add if line.has_snapshots else self._meeting.snapshots_of.discard)(adapter)
        if not self.line:
            self._choose("it is there", now_s)
        elif self._is_both:
            self._begin(line, now_s)
        elif adapter == self._active and self.line != adapter and self._awaited == self.epoch:
            self._follow(adapter, "the active one is there", now_s)
        self._attend(now_s)

    def on_line_down(self, adapter: str, why: str, now_s: float) -> None:
        """The edge dials again by itself. All that was received must have been handed in before (STR-32)."""
        self._pass(now_s)
        if (line := self._lines.get(adapter)) is not None:
            self._lost(line, why, now_s)
        self._attend(now_s)

    def on_paused(self, adapter: str, now_s: float) -> None:
        """The edge does not read this line at the moment, since the program is slow: its silence means nothing."""
        if (line := self._lines.get(adapter)) is not None:
            line.heard_s = now_s

    def on_block(self, adapter: str, epoch: int, payload: bytes | memoryview, now_s: float) -> None:
        """Raises RemoteProtocolError if it is not well-formed: close the line."""
        self._pass(now_s)
        block = Block.parse(payload)
        line = self._lines.get(adapter)
        if line is None or not line.is_up or not line.is_taken or epoch < line.epoch:
            self._judge.counts["late"] += block.count  # row 0
            if line is not None:
                line.heard_s = now_s
            return
        line.heard_s, line.epoch = now_s, epoch
        line.last = max(line.last, block.last)
        for ready in line.order.take(block, now_s):
            self._meeting.take(ready, adapter, now_s)
        if line.order.hole or self._judge.is_troubled or self._judge.switches or not self._is_fresh:
            self._attend(now_s)

    def on_fill(self, adapter: str, question: int, is_last: bool, payload: bytes | memoryview, now_s: float) -> None:
        self._pass(now_s)
        line = self._lines.get(adapter)
        if line is None or not line.is_up:
            return
        line.heard_s = now_s
        if len(payload):
            block = Block.parse(payload)
            if line.question == question and line.is_taken:
                for ready in line.order.take(block, now_s):
                    self._meeting.take(ready, adapter, now_s, is_fill=ready is block)
            else:
                self._meeting.take(block, adapter, now_s, is_fill=True)
        if is_last:
            self._answered(line, question, now_s, is_complete=True)
        self._attend(now_s)

    def on_word(
        self, adapter: str, word: Beat | Missed | Unavailable | SnapshotPart | Fetched | Closing, now_s: float
    ) -> None:
        self._pass(now_s)
        line = self._lines.get(adapter)
        if line is None or not line.is_up:
            return
        line.heard_s = now_s
        match word:
            case Beat():
                if not all(map(self._judge.relations.has, word.sources)):
                    self._meeting.learn(word.sources, now_s)
                self._meeting.hear(word.positions)
                is_anew = line.beat(word, now_s) or word.last + 1 < line.order.expected
                if is_anew and line.is_taken:
                    self._judged(line.order.reset(now_s), line, now_s)
                self._questions.heard(adapter, now_s)
                if line.is_taken:
                    self._judge.passed_admins(line.admins, now_s)
            case Missed():
                self._judged(line.order.skip(word.last, now_s), line, now_s)
            case Unavailable():
                self._answered(line, word.id, now_s)
                self._snapshots.refused(word.id, now_s)
            case SnapshotPart():
                if self._snapshots.part(word, now_s):
                    self._restart(now_s)
            case Fetched():
                self._questions.answered(word.id, now_s)
                self._judge.fetched(word.admin)
            case Closing():
                self._redial(line, word.why, now_s)
        self._attend(now_s)

    def on_tick(self, now_s: float) -> None:
        self._pass(now_s)
        for line in self._lines.silent(self._heartbeat_s, now_s):
            self._redial(line, "nothing was heard of it for three intervals", now_s)
        if not self.line:
            self._choose("it is there", now_s)
        for line in self._lines.up:
            if line.is_taken:
                self._look_for_loss(line, now_s)
        if now_s >= self._report_s:
            self._report(now_s)
        self._judge.is_troubled = True
        self._attend(now_s)
