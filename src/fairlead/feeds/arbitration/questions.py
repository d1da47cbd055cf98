"""Asking adapters for what is missing: one at a time, the one messages come from first (STR-51, STR-67)."""

from __future__ import annotations

from fairlead.feeds.arbitration.admin_ids import Fetch
from fairlead.feeds.arbitration.asks import Ask, Say
from fairlead.feeds.arbitration.judging import Judge
from fairlead.feeds.arbitration.lines import Line, Lines
from fairlead.feeds.arbitration.tracks import Gap, Track, is_passed, moved
from fairlead.feeds.events import AdminLost
from fairlead.feeds.records import Place
from fairlead.feeds.words import FetchAdmin, Fill

__all__ = ["Questions"]

ANSWER_PART = 4  # an adapter that has not answered in this part of the hold time is passed over
AGAIN_PART = 10  # one that may not have come so far yet is asked again after this part of it
FETCH_AGAIN_S = 1.0


class Questions:
    def __init__(self, judge: Judge, lines: Lines) -> None:
        self._judge = judge
        self._lines = lines
        self._last = 0

    def next_id(self) -> int:
        self._last += 1
        return self._last

    def ask(self, current: str, now_s: float) -> list[Ask]:
        """Whatever can be asked now; gaps nobody can fill any more are given up."""
        asks: list[Ask] = []
        lines = sorted(self._lines.up, key=lambda line: line.name != current)
        is_all = self._lines.are_complete
        for track, gap in list(self._judge.gaps):
            if now_s - gap.since_s >= self._judge.hold_s:
                self._judge.lose(track, "nobody had them in time", now_s)
            elif not gap.question or now_s - gap.asked_s >= self._judge.hold_s / ANSWER_PART:
                asks += self._ask_gap(track, gap, lines, is_all, now_s)
        for fetch in list(self._judge.admins.fetches.values()):
            asks += self._ask_fetch(fetch, lines, now_s)
        self._judge.is_troubled = any(True for _ in self._judge.gaps) or bool(self._judge.admins.fetches)
        return asks

    def _ask_gap(self, track: Track, gap: Gap, lines: list[Line], is_all: bool, now_s: float) -> list[Ask]:
        if gap.question:  # no answer: somebody else
            gap.later_s[gap.asked], gap.question = now_s + self._judge.hold_s / AGAIN_PART, 0
        to = track.ask_to
        for line in lines:
            if gap.refused.get(line.name, -1) < to and gap.later_s.get(line.name, now_s) <= now_s:
                gap.question, gap.asked, gap.asked_to, gap.asked_s = self.next_id(), line.name, to, now_s
                return [Say(line.name, self._fill(track, gap, line))]
        if lines and is_all and all(gap.refused.get(line.name, -1) >= to for line in lines):
            self._judge.lose(track, "no adapter has them", now_s)
        return []

    def _fill(self, track: Track, gap: Gap, line: Line) -> Fill:
        """By the name the adapter knows the source by, as far as it has said."""
        name, offset = track.id, 0
        for known, known_offset in self._judge.relations.names(track.id):
            if known in line.positions:
                name, offset = known, known_offset
                break
        position = track.position
        after = (max(position.sequence - offset, 0), position.part, position.parts)
        return Fill(id=gap.question, source=name, after=after, to=max(gap.asked_to - offset, 0))

    def _ask_fetch(self, fetch: Fetch, lines: list[Line], now_s: float) -> list[Ask]:
        if now_s >= fetch.until_s:
            self._judge.admins.add(fetch.id)
            self._judge.out.append(AdminLost(id=fetch.id))
            return []
        if fetch.question or now_s < fetch.again_s:
            if fetch.question and now_s >= fetch.again_s:
                fetch.refused.add(fetch.asked)
                fetch.question = 0
            else:
                return []
        for line in lines:
            if line.name not in fetch.refused:
                fetch.question, fetch.asked, fetch.again_s = self.next_id(), line.name, now_s + FETCH_AGAIN_S
                return [Say(line.name, FetchAdmin(id=fetch.question, admin=fetch.id))]
        fetch.refused.clear()
        fetch.again_s = now_s + FETCH_AGAIN_S
        return []

    def heard(self, name: str, now_s: float) -> None:
        """A heartbeat. If its adapter has looked at all of a gap, and its newest message is still the one that was
        delivered here, then nothing was in the gap: what the other one lost would have given no output."""
        for track, gap in list(self._judge.gaps):
            if gap.empty_by == name:
                gap.empty_by = ""
                if track.position.is_whole and self._has_none_beyond(name, track):
                    track.position = max(track.position, Place(gap.empty_to))
                    self._judge.drain(track, now_s)

    def answered(self, question: int, now_s: float, is_complete: bool = False) -> None:
        """All of an answer has come. What it did not bring, this adapter does not have, or not yet.

        Unless it says that it has all there is (`is_complete`): then perhaps nothing was in the gap (`heard`).
        """
        for track, gap in list(self._judge.gaps):
            if gap.question == question:
                gap.question = 0
                if is_complete and track.position.is_whole and not self._has_passed(gap.asked, track, gap.asked_to):
                    gap.empty_by, gap.empty_to = gap.asked, gap.asked_to
                if self._has_passed(gap.asked, track, gap.asked_to):
                    gap.refused[gap.asked] = gap.asked_to
                else:
                    gap.later_s[gap.asked] = now_s + self._judge.hold_s / AGAIN_PART
        for fetch in self._judge.admins.fetches.values():
            if fetch.question == question:
                fetch.refused.add(fetch.asked)
                fetch.question, fetch.again_s = 0, 0.0

    def _has_passed(self, name: str, track: Track, sequence: int) -> bool:
        """Is the adapter known to have come so far in the source?"""
        if track.held and track.held[0][2].adapter == name:
            return True
        line = self._lines.get(name)
        names = self._judge.relations.names(track.id)
        return line is not None and any(
            line.positions[known][0] + offset >= sequence for known, offset in names if known in line.positions
        )

    def _has_none_beyond(self, name: str, track: Track) -> bool:
        """Has the adapter's newest message of the source been delivered here?"""
        line = self._lines.get(name)
        placed = [
            moved(line.positions[known], offset)
            for known, offset in self._judge.relations.names(track.id)
            if line is not None and known in line.positions
        ]
        return bool(placed) and all(is_passed(place, track.position) for place in placed)

    def line_gone(self, name: str) -> None:
        """It may have what is missing when it is back."""
        for _track, gap in self._judge.gaps:
            gap.refused.pop(name, None)
            gap.later_s.pop(name, None)
            if gap.asked == name:
                gap.question = 0
        for fetch in self._judge.admins.fetches.values():
            fetch.refused.discard(name)
            if fetch.asked == name:
                fetch.question, fetch.again_s = 0, 0.0
