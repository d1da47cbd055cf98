"""What a start makes of the items found in a segment: which are data, what is damage, and what is a torn tail.

A record is data if its checksums are right and its index is the next. Anything bad at or below a synced mark, or
before anything valid, is damage: its place is reported and its followers are kept. Only a bad end beyond the marks is
torn: the write that was under way when the power failed, and nobody was told that it is safe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from fairlead.journal.layout import (
    FOUND_BATCH,
    FOUND_BODY_BAD,
    FOUND_END,
    FOUND_RECORD,
    ITEM_BYTES,
    Found,
    padded,
)


class Finding(NamedTuple):
    """Something in the files that is not as it was written."""

    what: str  # "damage" or "torn"
    segment: int  # 0: not a segment
    offset: int
    size: int
    first: int  # index of the first record lost, 0: none, or not known
    last: int
    below_mark: bool  # certainly was safe once; if False, it may be the write that a power failure cut off
    text: str

    def __str__(self) -> str:
        where = f"segment {self.segment}, offset {self.offset}" if self.segment else "journal"
        return f"{self.what}: {where}: {self.text}"


@dataclass(slots=True)
class Judged:
    """One segment, judged."""

    records: list[Found] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    expected: int = 0  # the index that comes next
    start: int = 0  # offset of the first item
    end: int = 0  # offset behind the last item that counts
    marked: int = 0  # offset up to which everything is below the mark
    mark: int = 0  # highest synced mark in this segment
    is_marked: bool = False  # something in it is below a mark, here or in the segments behind it
    zero_to: int = 0  # offset behind the last byte that is not zero


@dataclass(slots=True)
class _Doubt:
    offset: int
    size: int
    first: int = 0
    last: int = 0
    at: int = 0  # the index it stands before, if it has none itself


def judge(
    number: int, found: list[Found], start: int, expected: int, *, beyond: int = 0, recycled: bool = False
) -> Judged:
    """Judge a segment whose items begin at offset `start`.

    `expected` is the index of its first record, 0 if nobody knows. `beyond` is the first index of the segment behind
    it: records from there on count there and not here. 0: this is the last one.
    """
    judged = Judged(expected=expected, start=start, end=start, marked=start)
    doubts: list[_Doubt] = []
    promised = 0  # one beyond the last index the last batch header speaks of
    for what, offset, size, count, index, extra, _ in found:
        if what == FOUND_END:
            judged.zero_to = offset + size
            break
        if what == FOUND_BODY_BAD:
            if not beyond or index < beyond:
                gap = _gap(judged, index)
                doubts.append(_Doubt(offset, ITEM_BYTES + size, gap or index, index))
                judged.expected = max(judged.expected, index + 1)
        elif what in (FOUND_RECORD, FOUND_BATCH):
            if beyond and index >= beyond:
                continue
            if judged.expected and index < judged.expected:
                text = f"{_name(what)} {index} stands where {judged.expected} should; it is not read as data"
                length = ITEM_BYTES + (size if what == FOUND_RECORD else 0)
                judged.findings.append(Finding("damage", number, offset, length, index, index, True, text))
                continue
            gap = _gap(judged, index)
            if gap and not _blame(doubts, gap, index - 1):
                doubts.append(_Doubt(offset, 0, gap, index - 1))
            _settle(judged, number, doubts)
            if what == FOUND_BATCH:
                judged.mark = max(judged.mark, extra)
                promised = index + count
                judged.expected = index
                judged.end = offset + ITEM_BYTES
                if extra + 1 >= index:
                    judged.marked = offset
            else:
                judged.records.append((what, offset, size, count, index, extra, _))
                judged.expected = index + 1
                judged.end = offset + ITEM_BYTES + padded(size)
        else:
            doubts.append(_Doubt(offset, size))
    _finish(judged, number, doubts, beyond, promised, recycled)
    return judged


def _name(what: int) -> str:
    return "record" if what == FOUND_RECORD else "batch"


def _gap(judged: Judged, index: int) -> int:
    """First index that is missing before this one, or 0."""
    return judged.expected if judged.expected and index > judged.expected else 0


def _blame(doubts: list[_Doubt], first: int, last: int) -> bool:
    """Put missing indexes down to the stretch that has none yet."""
    for doubt in reversed(doubts):
        if not doubt.first:
            doubt.first, doubt.last = first, last
            return True
    return False


def _settle(judged: Judged, number: int, doubts: list[_Doubt]) -> None:
    """Something valid follows: what was doubtful is damage. Whether it was below a mark is known at the end."""
    for doubt in doubts:
        judged.findings.append(_damage(number, doubt, below_mark=False))
    doubts.clear()


def _damage(number: int, doubt: _Doubt, *, below_mark: bool) -> Finding:
    lost = (
        "no record is missing"
        if not doubt.first
        else f"record {doubt.first} is lost"
        if doubt.first == doubt.last
        else f"records {doubt.first} to {doubt.last} are lost"
    )
    text = f"{doubt.size} bytes are not what was written, {lost}" if doubt.size else lost
    return Finding("damage", number, doubt.offset, doubt.size, doubt.first, doubt.last, below_mark, text)


def _finish(judged: Judged, number: int, doubts: list[_Doubt], beyond: int, promised: int, recycled: bool) -> None:
    mark = max(judged.mark, beyond - 1)
    judged.is_marked = beyond > 0 or judged.marked > judged.start
    following = judged.expected
    for doubt in reversed(doubts):
        following = doubt.at = doubt.first or following
    certain = [doubt for doubt in doubts if doubt.at <= mark]
    for doubt in certain:
        judged.findings.append(_damage(number, doubt, below_mark=True))
        judged.end = max(judged.end, doubt.offset + padded(doubt.size))
    if beyond and judged.expected and judged.expected < beyond:
        doubt = _Doubt(judged.end, 0, judged.expected, beyond - 1)
        judged.findings.append(_damage(number, doubt, below_mark=True))
    judged.findings[:] = [
        one._replace(below_mark=one.below_mark or (one.first or one.last or judged.expected) <= mark)
        for one in judged.findings
    ]
    if beyond:
        judged.expected = beyond
        return
    torn = [doubt for doubt in doubts if doubt.at > mark]
    if torn:
        judged.expected = torn[0].at
    missing = promised - judged.expected if promised > judged.expected else 0
    garbage = judged.zero_to - judged.end
    if torn or missing or (garbage > 0 and not recycled):
        last = max(promised - 1, torn[-1].last if torn else 0, judged.expected)
        text = "the last write was cut off and was not confirmed"
        judged.findings.append(Finding("torn", number, judged.end, max(garbage, 0), judged.expected, last, False, text))
