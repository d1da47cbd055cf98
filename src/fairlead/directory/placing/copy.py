"""What a client keeps of the directory: the brokers of the clusters it uses, how new that is, and why not newer.

A copy is replaced as a whole, confirmed (`unchanged`), or kept although the directory does not answer: then it grows
old, and says so (DIR-40, DIR-43). Times are the caller's clock; what is saved carries ages, not times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from fairlead.directory.rows import Broker, Heuristic, Rule

__all__ = ["COPIES_MAX", "Copies", "Copy"]

COPIES_MAX: Final = 1024


class Copy(Struct, kw_only=True):
    """One cluster as it was told `at_s`."""

    cluster: str
    brokers: tuple[Broker, ...]
    heuristic: Heuristic
    rule: Rule
    revision: int
    at_s: float
    from_disk: bool = False
    failed: str = ""  # why the last refresh did not succeed

    def age_s(self, now_s: float) -> float:
        return max(now_s - self.at_s, 0.0)

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(broker.name for broker in self.brokers)


class Saved(Struct, kw_only=True):
    """A copy in a file; `age_s` when the file was written."""

    cluster: str
    brokers: tuple[Broker, ...]
    heuristic: Heuristic
    rule: Rule
    revision: int
    age_s: float


class File(Struct, kw_only=True):
    """`written_s` is the calendar's: the only clock that goes on while no program runs."""

    written_s: float
    copies: tuple[Saved, ...]


class Copies:
    """The copies of a client, by cluster; the one used longest ago makes room."""

    def __init__(self) -> None:
        self._by_cluster: dict[str, Copy] = {}
        self.opened: dict[str, int] = {}
        """By broker: own connections opened less closed since the copies were told, for `least_connections`."""

    def __iter__(self) -> Iterator[Copy]:
        return iter(tuple(self._by_cluster.values()))

    def __len__(self) -> int:
        return len(self._by_cluster)

    def get(self, cluster: str) -> Copy | None:
        return self._by_cluster.get(cluster)

    def take(
        self,
        cluster: str,
        brokers: Sequence[Broker],
        *,
        heuristic: Heuristic,
        rule: Rule,
        revision: int,
        now_s: float,
    ) -> Copy:
        """A whole new copy."""
        self._by_cluster.pop(cluster, None)
        if len(self._by_cluster) >= COPIES_MAX:
            del self._by_cluster[next(iter(self._by_cluster))]
        made = Copy(
            cluster=cluster, brokers=tuple(brokers), heuristic=heuristic, rule=rule, revision=revision, at_s=now_s
        )
        self._by_cluster[cluster] = made
        for broker in made.brokers:
            self.opened.pop(broker.name, None)
        return made

    def confirm(self, cluster: str, now_s: float) -> None:
        """The directory says that it is unchanged."""
        copy = self._by_cluster.get(cluster)
        if copy is not None:
            copy.at_s, copy.failed, copy.from_disk = now_s, "", False

    def fail(self, cluster: str, why: str) -> None:
        """It could not be renewed: it stays, and grows old."""
        copy = self._by_cluster.get(cluster)
        if copy is not None:
            copy.failed = why

    def drop(self, cluster: str) -> None:
        """The directory knows no such cluster any more."""
        self._by_cluster.pop(cluster, None)

    def count(self, broker: str, by: int) -> None:
        """An own connection was opened or closed."""
        self.opened[broker] = self.opened.get(broker, 0) + by

    # Saving.

    def save(self, now_s: float, calendar_s: float) -> bytes:
        saved = tuple(
            Saved(
                cluster=copy.cluster,
                brokers=copy.brokers,
                heuristic=copy.heuristic,
                rule=copy.rule,
                revision=copy.revision,
                age_s=copy.age_s(now_s),
            )
            for copy in self._by_cluster.values()
        )
        return msgspec.json.encode(File(written_s=calendar_s, copies=saved))

    def load(self, data: bytes, now_s: float, calendar_s: float, *, age_max_s: float) -> int:
        """Take over what is in a file and not too old, where nothing newer is known; how many were taken.

        msgspec.DecodeError (a ValueError) when it is no such file.
        """
        file = msgspec.json.decode(data, type=File)
        taken = 0
        for saved in file.copies[:COPIES_MAX]:
            age_s = max(calendar_s - file.written_s, 0.0) + max(saved.age_s, 0.0)
            if age_s >= age_max_s or saved.cluster in self._by_cluster:
                continue
            copy = self.take(
                saved.cluster,
                saved.brokers,
                heuristic=saved.heuristic,
                rule=saved.rule,
                revision=saved.revision,
                now_s=now_s - age_s,
            )
            copy.from_disk = True
            taken += 1
        return taken
