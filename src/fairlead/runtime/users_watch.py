"""Notices that the users file is another one than before, and says what changed in it.

Looked at are place, size and times of the file, twice a second; a change by `fairlead user`, `acl` or `tenant` replaces
the file, so it is never seen half written.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from fairlead.errors import ConfigError
from fairlead.runtime import config as configuring
from fairlead.runtime.config import Config
from fairlead.security import users
from fairlead.security.changes import differences

Mark = tuple[int, int, int, int]


class UsersWatch:
    """The users file of one server."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._mark = self._look()
        self._known: users.Users | None = None
        with suppress(ConfigError):
            self._known = self._read()

    def changed(self) -> bool:
        """Is it another file than when this was asked last?"""
        before, self._mark = self._mark, self._look()
        return before != self._mark

    def read_again(self) -> list[str]:
        """What changed since it was read last; ConfigError if it cannot be read, and then the old one counts."""
        self._mark = self._look()
        found = self._read()
        if found is None and self._known is not None:
            raise ConfigError("it is gone; the users there were stay in force, since nobody said that all may come in")
        before, self._known = self._known, found
        return differences(before, self._known)

    def pinned(self, config: Config) -> Config:
        """For children to come: once there is a users file, one that is gone lets nobody in, not everybody."""
        path = configuring.users_path(config)
        if path is None or self._known is None:
            return config
        return replace(config, security=replace(config.security, users=str(path.absolute())))

    def _read(self) -> users.Users | None:
        path = configuring.users_path(self._config)
        return None if path is None else users.read(path)

    def _look(self) -> Mark | None:
        path = configuring.users_path(self._config)
        if path is None:
            return None
        try:
            found = path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
