"""Figures in words, and lines of eighty columns."""

from __future__ import annotations

import pytest

from fairlead.demo.findings import Count, Findings, Outcome
from fairlead.demo.words import WIDTH, counted, spell, summary, wrapped


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.00085, "850 µs"), (0.0123, "12.3 ms"), (0.25, "250 ms"), (1.25, "1.25 s"), (57.4, "57 s"), (0.0, "0 µs")],
)
def test_times_come_in_the_unit_that_suits_them(seconds: float, text: str) -> None:
    assert spell(seconds) == text


def test_zeros_are_said_where_something_was_looked_at() -> None:
    count = Count(what="x", sent=3000, received=3000)
    assert counted(count) == "x: 3,000 sent, 3,000 received; lost 0, doubled 0"
    count.disordered = count.disconnected = 0
    count.again = 2
    assert counted(count).endswith("out of order 0, disconnected 0 (delivered again, and marked so: 2)")


def test_the_last_line_adds_up() -> None:
    found = Findings(counts=[Count(what="x", sent=5, received=3, lost=2)])
    outcomes = [
        Outcome(name="a", title="A", state="failed", seconds=1.0, findings=found),
        Outcome(name="b", title="B", state="skipped", seconds=0.0),
    ]
    assert summary(outcomes, 12.3) == "1 failed, 1 skipped in 12 s; 5 messages counted: 2 lost, 0 doubled"


def test_sentences_are_wrapped() -> None:
    lines = wrapped("word " * 50, "    ")
    assert len(lines) > 1
    assert all(len(line) <= WIDTH and line.startswith("    ") for line in lines)
    assert wrapped("", "  ") == ["  "]
