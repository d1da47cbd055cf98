"""How many replacements there were of each component, how they ended, and how long its clients felt them.

The report lists the newest replacements one by one; these numbers go on growing when old ones have left that list.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final

EXPECTED: Final = {
    "router": ("done", "failed", "rolled back", "took over"),
    "dispatcher": ("done", "failed", "rolled back", "took over"),
    "manager": ("moved", "failed"),
    "message-manager": ("done", "failed"),
}
"""Told from the beginning, as zero: who watches a number wants to see it before it matters."""
PAUSE_ENDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


class Pauses:
    """Since this supervisor began."""

    def __init__(self) -> None:
        self._outcomes = {(role, outcome): 0 for role, outcomes in EXPECTED.items() for outcome in outcomes}
        self._spans = {role: [0] * (len(PAUSE_ENDS_MS) + 1) for role in EXPECTED}
        self._total_ms = dict.fromkeys(EXPECTED, 0.0)

    def add(self, component: str, outcome: str, pause_ms: float) -> None:
        role = component.partition(" ")[0]
        self._outcomes[role, outcome] = self._outcomes.get((role, outcome), 0) + 1
        spans = self._spans.setdefault(role, [0] * (len(PAUSE_ENDS_MS) + 1))
        spans[bisect_left(PAUSE_ENDS_MS, pause_ms)] += 1
        self._total_ms[role] = self._total_ms.get(role, 0.0) + pause_ms

    def facts(self) -> dict[str, Any]:
        """`outcomes`: role, how it ended, how often. `pauses`: by role how many took how long, and all together."""
        return {
            "outcomes": [[role, outcome, count] for (role, outcome), count in sorted(self._outcomes.items())],
            "pauses": {
                role: {"spans": list(spans), "total_ms": round(self._total_ms[role], 3)}
                for role, spans in sorted(self._spans.items())
            },
        }
