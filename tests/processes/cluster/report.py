"""How a run of the cluster harness ended: what was done, what was counted, how long clients waited, what was wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.processes.durable.books import Faults


@dataclass
class Report:
    """Of one run, or of several added up."""

    seed: int
    rounds: int = 0
    hurts: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    faults: Faults = field(default_factory=Faults)
    pauses_s: dict[str, list[float]] = field(default_factory=dict)
    budgets_s: dict[str, float] = field(default_factory=dict)
    whole_s: list[float] = field(default_factory=list)

    def pause(self, what: str, seconds: float, budget_s: float) -> None:
        """The longest wait of a client of that group, while this alone was done to the cluster."""
        self.pauses_s.setdefault(what, []).append(seconds)
        self.budgets_s[what] = budget_s

    @property
    def checked(self) -> int:
        """Messages whose way from sender to receiver was followed."""
        return sum(count for name, count in self.counts.items() if name.endswith(" received"))

    def rows(self) -> list[tuple[str, str]]:
        return [
            ("rounds", str(self.rounds)),
            *((what, f"{count:,}") for what, count in sorted(self.hurts.items())),
            ("messages checked", f"{self.checked:,}"),
            *((name, f"{count:,}") for name, count in sorted(self.counts.items())),
            *((f"told to the application: {name}", f"{count:,}") for name, count in sorted(self.errors.items())),
            ("until all groups were whole again", spread(self.whole_s)),
            ("faults", "; ".join(f"{what} ({count})" for what, count in self.faults.counts.items()) or "none"),
        ]

    def table(self) -> str:
        lines = ["| | |", "|---|---:|", *(f"| {name} | {value} |" for name, value in self.rows())]
        lines += ["", "| longest wait of a client | times | median | 90 % | most | budget | over it |"]
        lines.append("|---|---:|---:|---:|---:|---:|---:|")
        for what, found in sorted(self.pauses_s.items()):
            budget_s = self.budgets_s[what]
            over = sum(one > budget_s for one in found)
            lines.append(
                f"| {what} | {len(found)} | {_at(found, 0.5):.2f} s | {_at(found, 0.9):.2f} s | {max(found):.2f} s | "
                + (f"{budget_s:g} s | {over} |" if budget_s else "– | – |")
            )
        return "\n".join(lines)


def spread(found: list[float]) -> str:
    if not found:
        return "–"
    return f"median {_at(found, 0.5):.1f} s, 90 % {_at(found, 0.9):.1f} s, most {max(found):.1f} s"


def _at(found: list[float], share: float) -> float:
    return sorted(found)[min(len(found) - 1, int(share * len(found)))]
