"""What all requests of one client know together: copies, places in the rotation, failures, and who chooses.

A client is a process; its connections share this, so that they rotate together and learn from each other's failures.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection
from typing import Any, Final

from fairlead.directory.placing.cooling import Cooling
from fairlead.directory.placing.copy import Copies, Copy
from fairlead.directory.placing.mode import Auto
from fairlead.directory.placing.rotation import Cursors, Start
from fairlead.directory.rows import Broker, Rule

__all__ = ["Knowledge"]

ATTEMPTS_KEPT: Final = 64


class Knowledge:
    """`random` gives numbers from 0 to 1, below 1."""

    def __init__(
        self, random: Callable[[], float], *, auto: Auto | None = None, cooling: Cooling | None = None
    ) -> None:
        self.copies = Copies()
        self.cursors = Cursors(random)
        self.cooling = cooling or Cooling()
        self.auto = auto or Auto()
        self.requests = 0
        self.picks = 0  # asked of the directory
        self.fetches = 0
        self.attempted: Counter[str] = Counter()  # by broker
        self.failures: Counter[str] = Counter()
        self.recent: deque[dict[str, Any]] = deque(maxlen=ATTEMPTS_KEPT)

    def choose(
        self,
        app: str,
        copy: Copy,
        *,
        secure: bool,
        rule: Rule,
        start: Start,
        without: Collection[str],
        now_s: float,
        whoever: bool = False,
    ) -> Broker | None:
        """The next broker that is available, and takes its turn; those that cool down only when there is no other.

        `whoever`: if there is none, also those the copy says are not available, for it cannot be renewed.
        """
        rows = {broker.name: broker for broker in copy.brokers}
        order = copy.order
        left = [
            name
            for name in self.cursors.turns(app, copy.cluster, order, start)
            if name not in without and has_port(rows[name], secure=secure)
        ]
        fit = [name for name in left if rows[name].available] or (left if whoever else [])
        names = [name for name in fit if not self.cooling.is_cooling(name, now_s)] or fit
        if not names:
            return None
        if rule == "least_connections":
            opened = self.copies.opened
            names.sort(key=lambda name: rows[name].connections + rows[name].reserved + opened.get(name, 0))
        self.cursors.used(app, copy.cluster, names[0], order)
        return rows[names[0]]

    def note_attempt(self, app: str, cluster: str, broker: str) -> None:
        self.attempted[broker] += 1
        self.recent.append({"application": app, "cluster": cluster, "broker": broker, "result": ""})

    def note_result(self, app: str, broker: str, result: str) -> None:
        """How the newest attempt of the application at the broker ended."""
        for attempt in reversed(self.recent):
            if (attempt["application"], attempt["broker"], attempt["result"]) == (app, broker, ""):
                attempt["result"] = result
                return

    def reached(self, app: str, broker: str) -> None:
        self.note_result(app, broker, "accepted")
        self.cooling.reached(broker)
        self.copies.count(broker, 1)

    def failed(self, app: str, broker: str, reason: str, now_s: float) -> None:
        self.failures[broker] += 1
        self.note_result(app, broker, reason)
        self.cooling.fail(broker, reason, now_s)

    def facts(self, now_s: float) -> dict[str, Any]:
        """For the status (DIR-7, DIR-40, DIR-81)."""
        return {
            "clusters": [_facts_of(copy, now_s) for copy in self.copies],
            "cursors": self.cursors.facts(),
            "auto": {
                "mode": "centralised" if self.auto.is_centralised else "decentralised",
                "reason": self.auto.reason,
                "switches": self.auto.switches,
            },
            "requests": self.requests,
            "picks": self.picks,
            "fetches": self.fetches,
            "attempts": [dict(attempt) for attempt in self.recent],
            "attempted": dict(self.attempted),
            "failures": dict(self.failures),
            "cooling": self.cooling.facts(now_s),
        }


def has_port(broker: Broker, *, secure: bool) -> bool:
    return bool(broker.secure_port if secure else broker.port)


def _facts_of(copy: Copy, now_s: float) -> dict[str, Any]:
    return {
        "cluster": copy.cluster,
        "revision": copy.revision,
        "age_s": round(copy.age_s(now_s), 3),
        "from_disk": copy.from_disk,
        "failed": copy.failed,
        "heuristic": copy.heuristic,
        "rule": copy.rule,
        "brokers": [
            {
                "name": broker.name,
                "ip": broker.ip,
                "port": broker.port,
                "secure_port": broker.secure_port,
                "available": broker.available,
                "state": broker.state,
            }
            for broker in copy.brokers
        ],
    }
