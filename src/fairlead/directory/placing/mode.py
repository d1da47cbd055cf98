"""Who chooses when the setting says `auto`: the directory while it answers quickly, else the client (DIR-55).

One answer that is late, missing or says "overloaded" is enough to choose here. Going back needs good answers over the
whole of `stable_s`, without a bad one: so the mode changes at most twice in that time.
"""

from __future__ import annotations

from typing import Final, Literal

from fairlead.directory.rows import Heuristic

__all__ = ["HEURISTICS", "Auto", "Placement", "heuristic"]

Placement = Literal["central", "local", "auto", "centralised", "decentralised"]
HEURISTICS: Final[dict[str, Heuristic]] = {
    "central": "centralised",
    "centralised": "centralised",
    "local": "decentralised",
    "decentralised": "decentralised",
    "auto": "auto",
}
LATENCY_MAX_S: Final = 0.5
STABLE_S: Final = 30.0


def heuristic(option: Heuristic | None, told: Heuristic | None) -> Heuristic | None:
    """The most specific setting wins: the client's own, then what the directory says of the cluster (DIR-54)."""
    return option or told


class Auto:
    """`latency_max_s`: how long an answer of the directory may take."""

    def __init__(self, *, latency_max_s: float = LATENCY_MAX_S, stable_s: float = STABLE_S) -> None:
        self.latency_max_s = latency_max_s
        self.stable_s = stable_s
        self.is_centralised = True
        self.switches = 0
        self.reason = ""  # why the client chooses
        self._good_since_s: float | None = None

    def on_answer(self, latency_s: float, overloaded: bool, now_s: float) -> None:
        if overloaded:
            self.on_bad("the directory says that it has too much to do", now_s)
        elif latency_s > self.latency_max_s:
            self.on_bad(f"the directory took {latency_s:.3f} s to answer", now_s)
        elif not self.is_centralised:
            if self._good_since_s is None:
                self._good_since_s = now_s
            if now_s - self._good_since_s >= self.stable_s:
                self._switch(to_centralised=True)

    def on_bad(self, reason: str, now_s: float) -> None:
        self.reason = reason
        self._good_since_s = None
        if self.is_centralised:
            self._switch(to_centralised=False)

    def _switch(self, *, to_centralised: bool) -> None:
        self.is_centralised = to_centralised
        self.switches += 1
        if to_centralised:
            self.reason = ""
            self._good_since_s = None
