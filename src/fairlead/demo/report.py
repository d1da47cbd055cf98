"""The page of a tour: what was counted, how fast it went, where it paused. One file that fetches nothing."""

from __future__ import annotations

from fairlead.demo.figures import ladder, pauses, rates
from fairlead.demo.findings import Count, Outcome
from fairlead.demo.words import spell
from fairlead.pipeline.report import Cell, Page, Section, Table, Tile

__all__ = ["page_of"]

COUNTS = ("step", "messages", "sent", "received", "lost", "doubled", "out of order", "disconnected", "again")


def page_of(outcomes: list[Outcome], seconds: float, about: str) -> Page:
    """Everything that was found, in the order of the tour."""
    counts = [(one, count) for one in outcomes for count in one.findings.counts]
    sections = [Section("The books", BOOKS, tables=[_counts(counts)])] if counts else []
    sections += _overview(outcomes)
    sections += [_step(one) for one in outcomes]
    return Page("A tour of Fairlead", about, _tiles(outcomes, seconds), sections, footer=FOOTER)


BOOKS = (
    "Every message has a number, and every number is accounted for. What a queue delivered again is marked as such: it "
    "had not been acknowledged when its process was killed."
)
FOOTER = "Made by `fairlead demo`. Everything on this page was measured in one run, on one machine."


def _tiles(outcomes: list[Outcome], seconds: float) -> list[Tile]:
    counts = [count for one in outcomes for count in one.findings.counts]
    states = [one.state for one in outcomes]
    lost = sum(one.lost for one in counts)
    doubled = sum(one.doubled for one in counts)
    found = [
        Tile("steps passed", f"{states.count('passed')} of {len(states)}", "bad" if "failed" in states else "good"),
        Tile("messages counted", f"{sum(one.sent for one in counts):,}"),
        Tile("lost", f"{lost:,}", "bad" if lost else "good"),
        Tile("doubled", f"{doubled:,}", "bad" if doubled else "good"),
        Tile("the whole tour", f"{seconds:.0f} s"),
    ]
    if skipped := states.count("skipped"):
        found.insert(1, Tile("skipped", f"{skipped}"))
    return found


def _counts(counts: list[tuple[Outcome, Count]]) -> Table:
    rows: list[list[Cell]] = [
        [
            step.name,
            one.what,
            one.sent,
            one.received,
            one.lost,
            one.doubled,
            one.disordered,
            one.disconnected,
            one.again,
        ]
        for step, one in counts
    ]
    return Table(COUNTS, rows)


def _overview(outcomes: list[Outcome]) -> list[Section]:
    """Pauses and latencies of all steps beside each other."""
    sections = []
    silences = {
        f"{one.name}: {pause.text}": pause.length_s
        for one in outcomes
        for chart in one.findings.charts
        for pause in chart.pauses
    }
    if silences:
        text = "The longest time without a message (or a confirmation) in each step that hurt or replaced something."
        sections.append(Section("Pauses", text, plots=[pauses(silences)]))
    delays = {
        name: values for one in outcomes for name, values in one.findings.latencies.items() if values
    }  # fmt: skip
    if delays:
        text = "From sending to receiving, within one process of Python on this machine; the scale is logarithmic."
        names = list(next(iter(delays.values())))
        rows = [[name, *(spell(values[key]) for key in names)] for name, values in delays.items()]
        sections.append(Section("Latencies", text, plots=[ladder(delays)], tables=[Table(("what", *names), rows)]))
    return sections


def _step(one: Outcome) -> Section:
    state = {"passed": "passed", "failed": "FAILED", "skipped": "skipped"}[one.state]
    said = [*one.findings.said, *([one.why] if one.why else [])]
    plots = [rates(chart) for chart in one.findings.charts]
    return Section(f"{one.title}: {state} after {one.seconds:.1f} s", " ".join(map(_sentence, said)), plots=plots)


def _sentence(text: str) -> str:
    """A line of the terminal as part of a paragraph."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
