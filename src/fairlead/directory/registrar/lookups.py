"""What the directory said of applications at other brokers, remembered: messages to them go on without it (DIR-78).

An answer is fresh for a short while; after that the directory is asked again, and only if it cannot be reached the
old answer still counts, however old. That an application is unknown is not remembered: it may just be coming.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from fairlead.directory.rows import Application, Broker

FRESH_S: Final = 1.0
KEPT_MAX: Final = 10_000


class Known(NamedTuple):
    app: Application | None
    brokers: Sequence[Broker]  # of its connections, and where it waits
    said_s: float


class Lookups:
    def __init__(self, *, fresh_s: float = FRESH_S, kept_max: int = KEPT_MAX) -> None:
        self._fresh_s = fresh_s
        self._max = kept_max
        self._known: dict[str, Known] = {}
        self.turn = 0  # counts questions, so that of several brokers each has its turn

    def __len__(self) -> int:
        return len(self._known)

    def remember(self, name: str, app: Application | None, brokers: Sequence[Broker], now_s: float) -> Known:
        """Under the name of an application, or another key that cannot be one; nothing if there is nothing."""
        self._known.pop(name, None)
        known = Known(app, brokers, now_s)
        if app is not None or brokers:
            self._known[name] = known
            if len(self._known) > self._max:
                del self._known[next(iter(self._known))]  # the one that was asked for longest ago
        return known

    def fresh(self, name: str, now_s: float) -> Known | None:
        known = self._known.get(name)
        return known if known is not None and now_s - known.said_s < self._fresh_s else None

    def old(self, name: str) -> Known | None:
        return self._known.get(name)

    def forget(self, name: str) -> None:
        self._known.pop(name, None)
