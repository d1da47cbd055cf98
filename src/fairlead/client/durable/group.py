"""One group of the cluster as a connection sees it: the parts of its sessions there, and whether it can be reached.

A server without a cluster is one group without a name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.errors import NoMessageManager

if TYPE_CHECKING:
    from fairlead.client.durable.part import Part
    from fairlead.client.durable.road import Road

__all__ = ["Group"]

PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 1.0


class Group:
    """`is_live`: there is a line to its message manager, as far as we know."""

    def __init__(self, road: Road, name: str, *, is_live: bool = False) -> None:
        self.road = road
        self.name = name
        self.is_live = is_live
        self.parts: list[Part] = []
        self.is_missing = False
        self._losses = 0
        self._pause_s = PAUSE_FIRST_S
        self._retrying = False

    @property
    def numbers(self) -> set[int]:
        """Which numbers of sessions and handles are its, by their highest bits (docs/cluster.md, section 5)."""
        return {part.number >> 24 for part in self.parts if part.is_open}

    def on_live(self) -> None:
        self.is_live = True
        for part in list(self.parts):
            if part.is_wanted:
                part.open()

    def on_lost(self, *, limited: bool) -> None:
        """With `limited` it is for us to give up when it stays away."""
        self.is_live = False
        for part in list(self.parts):
            part.on_lost()
        if limited:
            self._watch()

    def unreachable(self) -> None:
        """A manager answered that its message manager is not there: try again soon, for a while."""
        self.road.on_group_lost(self)
        self._watch()
        if not self._retrying:
            self._retrying = True
            self.road.later(self._pause_s, self._retry)
            self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)

    def _retry(self) -> None:
        self._retrying = False
        if self.road.connected and self.road.ended is None:
            self.road.on_group_live(self)

    def reached(self) -> None:
        self.is_missing = False
        self._pause_s = PAUSE_FIRST_S

    def missed(self) -> None:
        """Somebody waits for it, and it is not there; while there is no connection at all others keep the time."""
        if self.road.connected:
            self._watch()

    def _watch(self) -> None:
        """Everything that waits is told when it stays away too long."""
        if self.is_missing:
            return
        self._losses += 1
        self.is_missing = True
        missing = self._losses
        if self.road.limit_s:
            self.road.later(self.road.limit_s, lambda: self._give_up(missing))
        else:
            self._give_up(missing)

    def _give_up(self, missing: int) -> None:
        if self.is_missing and self._losses == missing and self.road.ended is None:
            self.is_missing = False
            which = f" of group {self.name!r}" if self.name and self.road.is_cluster else ""
            error = NoMessageManager(f"No message manager{which} could be reached within {self.road.limit_s:g} s.")
            self.road.on_given_up(self, error)
