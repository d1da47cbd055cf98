"""What a step of the tour found out: counts by number, rates over time with their pauses, latencies, sentences.

A step has passed when its counts are clean and its checks hold; nobody says so for it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct, field

__all__ = ["Chart", "Count", "Curve", "Findings", "Mark", "Outcome", "Pause", "State", "exit_code", "state_of"]

State: TypeAlias = Literal["passed", "failed", "skipped"]
EXIT_LOST = 1


class Count(Struct, kw_only=True):
    """One flow of messages, accounted for by number; None: nobody looked, or nothing is promised.

    `again` are those that were delivered once more and marked so, as queues may.
    """

    what: str
    sent: int
    received: int
    lost: int = 0
    doubled: int = 0
    disordered: int | None = None
    again: int = 0
    disconnected: int | None = None

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.disordered or self.disconnected)


class Curve(Struct):
    """Messages a second, one value for each `bin_s` from the beginning of the flow."""

    name: str
    bin_s: float
    rates: list[float]


class Mark(Struct):
    """Something that was done, and when."""

    at_s: float
    text: str


class Pause(Struct):
    """The longest time in which nothing came."""

    at_s: float
    length_s: float
    text: str = "pause"


class Chart(Struct, kw_only=True):
    """Rates over time. Times are seconds since the flow began."""

    title: str
    curves: list[Curve]
    marks: list[Mark] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)


class Findings(Struct, kw_only=True):
    """What a step hands back: the lines it shows, and what they rest on; `latencies` are percentiles in seconds."""

    said: list[str] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    latencies: dict[str, dict[str, float]] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)


class Outcome(Struct, kw_only=True):
    """A step that is over. `why` says what went wrong, or why it was left out."""

    name: str
    title: str
    state: State
    seconds: float
    why: str = ""
    findings: Findings = field(default_factory=Findings)


def state_of(findings: Findings) -> tuple[State, str]:
    """Passed, or failed and why."""
    wrong = [sentence for sentence, is_true in findings.checks.items() if not is_true]
    for count in findings.counts:
        if not count.is_clean:
            names = ("lost", "doubled", "disordered", "disconnected")
            faults = [f"{getattr(count, name):,} {name}" for name in names if getattr(count, name)]
            wrong.append(f"{count.what}: {', '.join(faults)}")
    return ("failed", "not so: " + "; ".join(wrong)) if wrong else ("passed", "")


def exit_code(outcomes: list[Outcome]) -> int:
    """0 if nothing failed; what was skipped was not shown, and is not held against it."""
    return EXIT_LOST if any(one.state == "failed" for one in outcomes) else 0
