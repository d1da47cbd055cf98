"""Getting a snapshot: at the start of a subscription, or for a source without relation (STR-48, STR-54, STR-74)."""

from __future__ import annotations

from fairlead.feeds.arbitration.asks import Ask, Say
from fairlead.feeds.arbitration.lines import Lines
from fairlead.feeds.arbitration.meeting import Meeting
from fairlead.feeds.arbitration.questions import Questions
from fairlead.feeds.events import Discontinuity
from fairlead.feeds.words import Placed, SnapshotAsk, SnapshotPart

__all__ = ["Snapshots"]

BYTES_MAX = 1 << 30
ANSWER_S = 10.0


class Snapshots:
    """`is_wanted`: nothing else begins before there is one."""

    def __init__(self, meeting: Meeting, questions: Questions, is_wanted: bool) -> None:
        self.is_wanted = is_wanted
        self._meeting = meeting
        self._questions = questions
        self._question = 0
        self._asked = ""
        self._asked_s = 0.0
        self._refused: set[str] = set()
        self._bodies: list[bytes] = []
        self._bytes = 0

    def ask(self, lines: Lines, current: str, now_s: float) -> list[Ask]:
        if not (self.is_wanted or self._meeting.waits_for_snapshot) or not current:
            return []
        if self._question:
            if now_s - self._asked_s < ANSWER_S:
                return []
            self.refused(self._question, now_s)
        for line in sorted(lines.up, key=lambda line: line.name != current):
            if line.has_snapshots and line.name not in self._refused:
                self._question, self._asked, self._asked_s = self._questions.next_id(), line.name, now_s
                self._bodies, self._bytes = [], 0
                return [Say(line.name, SnapshotAsk(id=self._question))]
        return []

    def part(self, part: SnapshotPart, now_s: float) -> bool:
        """True: this was the last one, and the stream begins."""
        if part.id != self._question or not self._question:
            return False
        self._bodies += part.bodies
        self._bytes += sum(map(len, part.bodies))
        self._asked_s = now_s
        if self._bytes > BYTES_MAX:
            self.refused(part.id, now_s)
            return False
        if not part.is_last:
            return False
        begins, self.is_wanted, self._question = self.is_wanted, False, 0
        self._refused.clear()
        self._apply(part.positions, now_s)
        return begins

    def _apply(self, positions: dict[str, Placed], now_s: float) -> None:
        bodies, self._bodies, self._bytes = self._bodies, [], 0
        self._meeting.apply_snapshot(positions, bodies, now_s)

    def refused(self, question: int, now_s: float) -> None:
        if question == self._question and question:
            self._question, self._bodies, self._bytes = 0, [], 0
            self._refused.add(self._asked)

    def line_gone(self, name: str) -> None:
        self._refused.discard(name)
        if self._asked == name:
            self._question = 0

    def is_hopeless(self, lines: Lines) -> bool:
        """The start needs one, and no adapter has any."""
        if not self.is_wanted or self._question:
            return False
        return all(line.is_tried and (not line.has_snapshots or line.name in self._refused) for line in lines.all)

    def give_up(self) -> None:
        """The stream begins without one, and says so."""
        self.is_wanted = False
        self._meeting.judge.out.append(Discontinuity(source="", sequence=0))
