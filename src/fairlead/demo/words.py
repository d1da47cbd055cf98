"""Figures in words, as the tour says them: short enough for a line of eighty columns."""

from __future__ import annotations

import textwrap

from fairlead.demo.findings import Count, Outcome

__all__ = ["WIDTH", "counted", "spell", "summary", "wrapped"]

WIDTH = 80
MILLI, MICRO = 1e-3, 1e-6


def spell(seconds: float) -> str:
    """A length of time in the unit that suits it: 850 µs, 12.3 ms, 1.25 s."""
    if seconds >= 1:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds >= MILLI:
        return f"{seconds / MILLI:.1f} ms" if seconds < 100 * MILLI else f"{seconds / MILLI:.0f} ms"
    return f"{seconds / MICRO:.0f} µs"


def counted(count: Count) -> str:
    """`3,000 sent, 3,000 received; lost 0, doubled 0, …`: the zeros are the point, so they are said."""
    text = f"{count.what}: {count.sent:,} sent, {count.received:,} received; lost {count.lost:,}"
    text += f", doubled {count.doubled:,}"
    if count.disordered is not None:
        text += f", out of order {count.disordered:,}"
    if count.disconnected is not None:
        text += f", disconnected {count.disconnected:,}"
    if count.again:
        text += f" (delivered again, and marked so: {count.again:,})"
    return text


def summary(outcomes: list[Outcome], seconds: float) -> str:
    """The last line of the tour."""
    counts = [count for one in outcomes for count in one.findings.counts]
    states = [one.state for one in outcomes]
    parts = [f"{states.count(state)} {state}" for state in ("passed", "failed", "skipped") if state in states]
    lost, doubled = sum(one.lost for one in counts), sum(one.doubled for one in counts)
    sent = sum(one.sent for one in counts)
    return f"{', '.join(parts)} in {seconds:.0f} s; {sent:,} messages counted: {lost:,} lost, {doubled:,} doubled"


def wrapped(text: str, indent: str, width: int = WIDTH) -> list[str]:
    """A sentence as lines of a terminal."""
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent) or [indent]
