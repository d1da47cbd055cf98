"""What the directory has still to be told of connections: in order, once, and never more than there is room for.

What is under way stays known until it is answered. Of a connection that ends before its beginning was told only the
end is told, since its client may have told the beginning (DIR-16). If more waits than `PENDING_MAX`, all of it is
forgotten and everything is stated anew instead (`restate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from fairlead.directory.rows import AppKind

PENDING_MAX: Final = 20_000


class Report(NamedTuple):
    """`opened` or `closed`, of one connection."""

    opened: bool
    app: str
    identity: str
    reservation: str = ""


class Reports:
    def __init__(self, pending_max: int = PENDING_MAX) -> None:
        self._max = pending_max
        self._pending: dict[str, Report] = {}  # by identity, oldest first
        self._under_way: dict[str, Report] = {}
        self._kinds: dict[str, AppKind] = {}  # applications that are to be registered otherwise
        self.restate = False  # everything has to be stated anew
        self.delivered = 0

    def __len__(self) -> int:
        return len(self._pending) + len(self._under_way) + len(self._kinds)

    @property
    def idle(self) -> bool:
        return not len(self) and not self.restate

    def opened(self, app: str, identity: str, reservation: str = "") -> None:
        self._put(Report(True, app, identity, reservation))

    def closed(self, app: str, identity: str) -> None:
        self._put(Report(False, app, identity))

    def _put(self, report: Report) -> None:
        self._pending.pop(report.identity, None)  # the newer word counts, in its own place
        self._pending[report.identity] = report
        if len(self._pending) > self._max:
            self._pending.clear()
            self.restate = True

    def take(self, count: int) -> list[Report]:
        """The next to be told; of one connection never two at once."""
        taken: list[Report] = []
        for report in self._pending.values():
            if len(taken) >= count:
                break
            if report.identity not in self._under_way:
                taken.append(report)
        for report in taken:
            del self._pending[report.identity]
            self._under_way[report.identity] = report
        return taken

    def told(self, report: Report) -> None:
        self._under_way.pop(report.identity, None)
        self.delivered += 1

    def not_told(self, reports: Sequence[Report]) -> None:
        """They may have arrived or not: they are said again, unless there is something newer to say."""
        for report in reports:
            self._under_way.pop(report.identity, None)
        again = {report.identity: report for report in reports if report.identity not in self._pending}
        self._pending = {**again, **self._pending}

    def changed_kind(self, app: str, kind: AppKind) -> None:
        """Registered as that from now on (DIR-29)."""
        self._kinds[app] = kind

    def next_kind(self) -> tuple[str, AppKind] | None:
        return next(iter(self._kinds.items()), None)

    def kind_told(self, app: str, kind: AppKind) -> None:
        if self._kinds.get(app) == kind:
            del self._kinds[app]

    def restating(self) -> None:
        """Everything is about to be stated as it is now: nothing of before has to be told."""
        self._pending.clear()
        self.restate = False
