"""The names of all groups together: which group has a destination, as far as the groups have told (CLU-3, CLU-87).

A group that is lost keeps its names: who publishes to one of them is told to try again, instead of finding a
transient topic of that name. A group's names are replaced as a whole when it says hello, page by page; nothing of it
is forgotten before the last page is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

TEMPORARY: Final = "temporary:"  # begins names that go with their session


class Entry(NamedTuple):
    """A destination and where it is."""

    group: int
    kind: str
    id: str


@dataclass(slots=True)
class Change:
    """What managers have to be told."""

    add: dict[str, Entry] = field(default_factory=dict)
    remove: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.add or self.remove)


class Directory:
    """Of one agent."""

    def __init__(self, groups: int) -> None:
        self.names: dict[str, Entry] = {}
        self._of: list[dict[str, tuple[str, str]]] = [{} for _ in range(groups)]
        self._told = [False] * groups
        self.changes = 0  # of names that outlive their session

    def __len__(self) -> int:
        return len(self.names)

    @property
    def is_complete(self) -> bool:
        """Has every group told its names at least once? Only then is an unknown name known to be free."""
        return all(self._told)

    def grow(self, groups: int) -> None:
        """The configuration has more groups now."""
        while len(self._of) < groups:
            self._of.append({})
            self._told.append(False)

    def has_told(self, group: int) -> bool:
        return self._told[group]

    def remember(self, group: int, names: dict[str, tuple[str, str]]) -> None:
        """What an earlier life of this agent knew; the group itself may know better and has not told yet."""
        if not self._told[group]:
            self.update(group, names, [])

    def of(self, group: int) -> dict[str, tuple[str, str]]:
        """Name, kind and id of all that a group has."""
        return self._of[group]

    def find(self, name: str) -> Entry | None:
        return self.names.get(name)

    def replace(self, group: int, names: dict[str, tuple[str, str]]) -> Change:
        """All names of a group, as it says them after its hello."""
        gone = [name for name in self._of[group] if name not in names]
        self._told[group] = True
        return self.update(group, names, gone)

    def update(self, group: int, add: dict[str, tuple[str, str]], remove: list[str]) -> Change:
        """Destinations were made and removed there."""
        change, own = Change(), self._of[group]
        self.changes += any(not name.startswith(TEMPORARY) for name in (*add, *remove))
        for name in remove:
            if own.pop(name, None) is not None and self.names[name].group == group:
                heir = self._heir(name)
                if heir is None:
                    del self.names[name]
                    change.remove.append(name)
                else:
                    self.names[name] = change.add[name] = heir
        for name, (kind, id_) in add.items():
            own[name] = (kind, id_)
            known = self.names.get(name)
            if known is None or known.group >= group:  # of two that should never be, the first group's counts
                entry = Entry(group, kind, id_)
                if entry != known:
                    self.names[name] = change.add[name] = entry
        return change

    def _heir(self, name: str) -> Entry | None:
        for group, names in enumerate(self._of):
            if name in names:
                return Entry(group, *names[name])
        return None
