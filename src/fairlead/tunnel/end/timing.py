"""How long a round trip takes, and so how long to wait before a packet is sent again (TUN-76 … 78)."""

from __future__ import annotations

from fairlead.tunnel.rules import Rules

__all__ = ["LEVELS", "Timing"]

LEVELS = 8
"""Resends after which the interval no longer doubles: the shortest has passed the longest by then."""


class Timing:
    """`intervals_s[k]` is the wait after a packet was sent for the (k+1)th time."""

    def __init__(self, rules: Rules) -> None:
        self.rtt_s: float | None = None
        self.intervals_s: list[float] = []
        self.set_rules(rules)

    def set_rules(self, rules: Rules) -> None:
        """The pull period may have changed: ACKs wait for pulls, so the interval is never shorter (TUN-78)."""
        self.rules = rules
        self._work_out()

    def measured(self, sample_s: float, *, is_bound: bool = False) -> None:
        """One round trip of a packet that was sent once; or longer than one, if it waited for another (`is_bound`)."""
        if is_bound and self.rtt_s is not None and sample_s > self.rtt_s:
            return
        self.rtt_s = sample_s if self.rtt_s is None else self.rtt_s * 0.875 + sample_s * 0.125
        self._work_out()

    @property
    def interval_s(self) -> float:
        return self.intervals_s[0]

    def patience_s(self, limit_s: float) -> float:
        """A limit on silence or standstill, stretched where three intervals would not fit into it."""
        return max(limit_s, 3 * self.intervals_s[0])

    def _work_out(self) -> None:
        rules = self.rules
        if self.rtt_s is None:
            wait_s = rules.resend_first_s
        else:
            wait_s = rules.resend_factor * self.rtt_s + rules.resend_plus_s
        wait_s = min(max(wait_s, rules.resend_min_s), rules.resend_max_s)
        wait_s = max(wait_s, max(rules.pull_period_s, 0.0) + rules.resend_plus_s)
        longest_s = max(rules.resend_max_s, wait_s)
        self.intervals_s = [min(wait_s * 2**level, longest_s) for level in range(LEVELS)]
