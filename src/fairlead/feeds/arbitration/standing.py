"""How a stream is: normal, without a backup, stale or down; each change is an event, once (STR-27, STR-36, STR-38)."""

from __future__ import annotations

from typing import Literal

from fairlead.feeds.events import BackupAgain, Down, Event, Fresh, NoBackup, Resumed, Stale

__all__ = ["Standing", "State"]

State = Literal["starting", "normal", "no-backup", "stale", "down", "revoked"]


class Standing:
    def __init__(self) -> None:
        self.is_revoked = False
        self.is_begun = False
        self._is_down = False
        self._has_backup = True
        self._stale_since_s: float | None = None
        self._stale_s = 0.0

    @property
    def state(self) -> State:
        if self.is_revoked:
            return "revoked"
        if self._is_down:
            return "down"
        if not self.is_begun:
            return "starting"
        if self._stale_since_s is not None:
            return "stale"
        return "normal" if self._has_backup else "no-backup"

    def stale_ms(self, now_s: float) -> int:
        since_s = now_s if self._stale_since_s is None else self._stale_since_s
        return int((self._stale_s + now_s - since_s) * 1000)

    def backup(self, adapter: str | None, why: str) -> list[Event]:
        """The backup there is, or None."""
        if (adapter is not None) is self._has_backup:
            return []
        self._has_backup = adapter is not None
        return [NoBackup(why=why)] if adapter is None else [BackupAgain(adapter=adapter)]

    def stale(self, why: str | None, now_s: float) -> list[Event]:
        """Why nothing new can come, or None."""
        if (why is not None) is (self._stale_since_s is not None):
            return []
        if why is not None:
            self._stale_since_s = now_s
            return [Stale(why=why)]
        assert self._stale_since_s is not None
        self._stale_s += now_s - self._stale_since_s
        self._stale_since_s = None
        return [Fresh()]

    def down(self, why: str, now_s: float) -> list[Event]:
        if self._is_down:
            return []
        self._is_down = True
        return [*self.stale(None, now_s), Down(why=why)]

    def up(self, adapter: str) -> list[Event]:
        self.is_begun = True
        if not self._is_down:
            return []
        self._is_down = False
        return [Resumed(adapter=adapter)]
