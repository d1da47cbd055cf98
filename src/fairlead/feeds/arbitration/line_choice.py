"""Which line a client takes messages from, what it asks of the lines it has, and what it tells of its standing.

The state of the Arbiter, and what follows from anything that happened; what happens is in `arbitration.py`.
"""

from __future__ import annotations

from typing import Literal

from fairlead.feeds.arbitration.asks import Ask, Dial, Drop, RenewNow, ReportNow, Say
from fairlead.feeds.arbitration.judging import Judge
from fairlead.feeds.arbitration.lines import Line, Lines
from fairlead.feeds.arbitration.meeting import Meeting
from fairlead.feeds.arbitration.questions import Questions
from fairlead.feeds.arbitration.snapshots import Snapshots
from fairlead.feeds.arbitration.standing import Standing
from fairlead.feeds.arbitration.tracks import is_passed, moved
from fairlead.feeds.block_codec import Block
from fairlead.feeds.blocks import RowReader
from fairlead.feeds.events import FailedOver
from fairlead.feeds.records import PART_MAX, Place
from fairlead.feeds.words import Admin, Fill, Placed, Start, Stop

__all__ = ["LineChoice"]

GRACE_S = 1.0  # for the lines of a new subscription to come up, before the client makes do with what it has
REPORT_S = 5.0


class LineChoice:
    def __init__(
        self,
        *,
        stream: str,
        start: Literal["new", "oldest", "snapshot", "positions"] = "new",
        positions: dict[str, Place] | None = None,
        mode: Literal["single", "both"] = "single",
        gaps: Literal["hold", "mark"] = "hold",
        hold_messages: int = 10_000,
        hold_s: float = 2.0,
        schema: RowReader | None = None,
    ) -> None:
        self.stream = stream
        self.epoch = 0
        self.line = ""  # the adapter messages are taken from; empty: none
        self._start = start
        self._wanted = positions or {}
        self._is_both = mode == "both"
        self._hold_s = hold_s
        self._judge = Judge(gaps=gaps, hold_messages=hold_messages, hold_s=hold_s)
        self._judge.schema = schema
        self._meeting = Meeting(self._judge)
        self._meeting.takes_oldest = start == "oldest"
        self._lines = Lines(hold_messages)
        self._questions = Questions(self._judge, self._lines)
        self._snapshots = Snapshots(self._meeting, self._questions, is_wanted=start == "snapshot")
        self._standing = Standing()
        self._asks: list[Ask] = []
        self._active = ""  # by the administration
        self._awaited = -1  # the epoch whose active one is still to be followed
        self._fallback: dict[str, Placed] = {}  # where to begin if there is no snapshot
        self._last_line = ""  # the one before the stream went down
        self._heartbeat_s = 0.2
        self._since_s = 0.0  # of the brokering
        self._taken_s = 0.0  # of the last change of lines
        self._taken_delivered = 0  # messages delivered by then
        self._report_s = 0.0
        self._now_s = 0.0
        self.next_s = 0.0  # on_tick is due then at the latest

    @property
    def is_local(self) -> bool:
        """Has this client left the group's active adapter by itself (STR-31)?"""
        return bool(self.line) and self.line != self._active

    # Which line.

    def _choose(self, why: str, now_s: float) -> None:
        line = self._lines.best()
        if line is None:
            return
        is_new = not self._standing.is_begun and now_s - self._since_s < GRACE_S
        active = self._lines.get(self._active)
        if is_new and line.name != self._active and active is not None and not active.is_tried:
            return  # the active one may be there in a moment
        self._take_from(line, why, now_s)

    def _follow(self, adapter: str, why: str, now_s: float) -> None:
        """Roles have changed: take from that one, at once or when it is there."""
        self._awaited = self.epoch
        line = self._lines.get(adapter)
        if line is not None and line.is_up and self.line and self.line != adapter:
            self._take_from(line, why, now_s)

    def _lost(self, line: Line, why: str, now_s: float) -> None:
        if line.is_up and line.is_taken:
            self._judged(line.order.reset(now_s), line, now_s)
        line.down()
        if not line.is_named and self._lines.get(line.name) is line:
            self._lines.forget(line)
            self._asks.append(Drop(line.name, "the administration no longer names it"))
        self._questions.line_gone(line.name)
        self._snapshots.line_gone(line.name)
        if line.name == self.line:
            self._last_line, self.line = self.line, ""
            if (other := self._lines.best(line.name)) is not None:
                self._take_from(other, why, now_s)
        if not self._lines.up and all(other.is_tried for other in self._lines.all):
            self._judge.out += self._standing.down(why, now_s)

    def _redial(self, line: Line, why: str, now_s: float) -> None:
        self._asks.append(Drop(line.name, why))
        self._lost(line, why, now_s)
        if line.is_named:
            self._asks.append(Dial(line.offer))

    def _take_from(self, line: Line, why: str, now_s: float) -> None:
        old = self.line or self._last_line
        if self.line and not self._is_both and (before := self._lines.get(self.line)) is not None and before.is_up:
            self._judged(before.order.reset(now_s), before, now_s)
            before.is_taken = False
            self._asks.append(Say(before.name, Stop()))
        self.line = self._last_line = line.name
        if line.name == self._active:
            self._awaited = -1
        if old and old != line.name:
            self._judge.counts["failovers"] += 1
            self._judge.out.append(
                FailedOver(old=old, new=line.name, why=why, epoch=self.epoch, local=line.name != self._active)
            )
        self._judge.out += self._standing.up(line.name)
        self._taken_s, self._taken_delivered = now_s, self._judge.counts["delivered"]
        for other in self._lines.up if self._is_both else [line]:
            if not other.is_taken:
                self._begin(other, now_s)
        self._report(now_s)

    def _begin(self, line: Line, now_s: float) -> None:
        """Ask a line to send what is after the position (STR-34)."""
        line.is_taken, line.start_s, line.question = True, now_s, 0
        line.order.reset(now_s)
        self._judge.passed_admins(line.admins, now_s)
        if self._snapshots.is_wanted:
            return  # it begins when the snapshot is there
        positions = self._judge.relations.spread(self._judge.reached)
        if any(placed[0] for placed in positions.values()):
            positions.setdefault(self.stream, (0, PART_MAX, PART_MAX))  # of before the first message of any source
        if positions or not self._meeting.takes_oldest:
            self._asks.append(Say(line.name, Start(epoch=self.epoch, positions=positions)))
        else:
            self._asks.append(Say(line.name, Start(epoch=self.epoch, at="oldest")))

    def _restart(self, now_s: float) -> None:
        for line in self._lines.up:
            if line.is_taken:
                self._begin(line, now_s)

    def _judged(self, blocks: list[Block], line: Line, now_s: float) -> None:
        for block in blocks:
            self._meeting.take(block, line.name, now_s)

    # What is missing on a line.

    def _look_for_loss(self, line: Line, now_s: float) -> None:
        """Numbers that a hole or a heartbeat tells of and that do not come (STR-25)."""
        order = line.order
        if order.hole:
            if now_s - order.since_s >= self._hold_s / 2:
                line.question = 0
                self._judged(order.give_up(now_s), line, now_s)
        elif line.beat_s > max(order.since_s, line.start_s) + self._heartbeat_s and not self._snapshots.is_wanted:
            if order.expected and line.last >= order.expected:
                order.since_s = now_s
                self._asks.append(Say(line.name, Start(epoch=self.epoch, at="number", number=order.expected)))
            elif not order.expected and self._is_ahead(line):
                self._begin(line, now_s)

    def _is_ahead(self, line: Line) -> bool:
        """Does its heartbeat name positions beyond those of this client?"""
        for source, placed in line.positions.items():
            root, offset = self._judge.relations.root(source)
            track = self._judge.tracks.get(root)
            if track is None or not is_passed(moved(placed, offset), track.position):
                return True
        return False

    def _answered(self, line: Line, question: int, now_s: float, is_complete: bool = False) -> None:
        if line.question == question:
            line.question = 0
            self._judged(line.order.give_up(now_s), line, now_s)
        self._questions.answered(question, now_s, is_complete)

    # After everything that happens.

    def _attend(self, now_s: float) -> None:
        for line in self._lines.up:
            if line.is_taken and not line.question and (hole := line.order.hole) is not None:
                line.question = self._questions.next_id()
                self._judge.counts["holes"] += 1
                self._asks.append(Say(line.name, Fill(id=line.question, first=hole[0], last=hole[1])))
        if self._judge.is_troubled:
            self._meeting.settle(now_s)
            self._asks += self._questions.ask(self.line, now_s)
            self._meeting.settle(now_s)
        if self._meeting.wants_notice:
            self._meeting.wants_notice = False
            self._asks.append(RenewNow())
        self._asks += self._snapshots.ask(self._lines, self.line, now_s)
        if self.line and self._snapshots.is_hopeless(self._lines):
            self._snapshots.give_up()
            self._meeting.begin(self._fallback)
            self._restart(now_s)
        while self._judge.switches:
            self._switch(self._judge.switches.pop(0), now_s)
        if any(track.is_cut and track.is_settled for track in self._judge.tracks.values()):
            for track in self._judge.tracks.values():
                track.is_cut = False
            self._restart(now_s)
        self._stand(now_s)

    def _switch(self, admin: Admin, now_s: float) -> None:
        """A planned switch was met in its place (STR-78)."""
        if admin.epoch > self.epoch:
            self.epoch, self._active = admin.epoch, admin.to
            self._follow(admin.to, "a planned switch", now_s)

    def _stand(self, now_s: float) -> None:
        if not self.line:
            return
        current = self._lines.get(self.line)
        if current is not None and not current.source_alive and not self._is_both:
            better = self._lines.best(self.line)
            if better is not None and better.source_alive:
                self._take_from(better, "it has lost its source", now_s)
                current = better
        others = [line.name for line in self._lines.up if line.name != self.line]
        if others or now_s - self._since_s >= GRACE_S or all(line.is_tried for line in self._lines.all):
            why = "no other adapter can be reached" if len(self._lines.all) > 1 else "there is no other adapter"
            self._judge.out += self._standing.backup(others[0] if others else None, why)
        if current is not None:
            self._judge.out += self._standing.stale(self._why_stale(current, now_s), now_s)

    @property
    def _is_fresh(self) -> bool:
        """Has the line messages are taken from brought anything new yet?"""
        return self._judge.counts["delivered"] > self._taken_delivered and self._standing.state != "stale"

    def _why_stale(self, line: Line, now_s: float) -> str | None:
        if not line.source_alive:
            return "the adapter has lost its source"
        if self._judge.counts["delivered"] > self._taken_delivered or not self._taken_delivered:
            return None
        is_behind = any(
            moved(placed, offset).reach < track.position.reach
            for source, placed in line.positions.items()
            for root, offset in [self._judge.relations.root(source)]
            if (track := self._judge.tracks.get(root)) is not None and not track.is_over
        )
        if is_behind and line.beat_s >= self._taken_s:
            return "the adapter is behind"
        is_talking = line.order.expected > 0 and line.beat_s < self._taken_s
        return "the adapter is behind" if is_talking and now_s - self._taken_s >= 2 * self._heartbeat_s else None

    def _report(self, now_s: float) -> None:
        self._report_s = now_s + REPORT_S
        if self._since_s:
            self._asks.append(ReportNow(self.is_local))

    def _pass(self, now_s: float) -> None:
        """Time goes on. If this client itself was asleep, that says nothing about the lines."""
        if self.next_s and now_s > self.next_s + self._heartbeat_s:
            for line in self._lines.up:
                line.heard_s += now_s - self.next_s
        self._now_s = now_s
        self.next_s = now_s + self._heartbeat_s / 2
