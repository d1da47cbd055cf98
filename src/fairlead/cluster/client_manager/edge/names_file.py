"""The names of all groups on disk, for the next life of this agent: a group that is away then still has its names.

It is a memory, not a promise: written some seconds after a change, and believed only until the group tells its own.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from fairlead.cluster.client_manager.agent import Agent
from fairlead.cluster.client_manager.directory import TEMPORARY

EVERY_S: Final = 5.0

Names = dict[str, dict[str, tuple[str, str]]]  # by group: name -> kind and id


class NamesFile:
    """Read when it is made."""

    def __init__(self, path: Path, agent: Agent) -> None:
        self._path = path
        self._agent = agent
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            for name, names in msgspec.json.decode(path.read_bytes(), type=Names).items():
                group = agent.named(name)
                if group is not None:
                    agent.directory.remember(group.index, names)
        self._written = agent.directory.changes
        self._written_s = 0.0

    def keep(self, now_s: float) -> None:
        """Write it if something has changed, and not too often."""
        if self._agent.directory.changes != self._written and now_s - self._written_s >= EVERY_S:
            self._written_s = now_s
            self.write()

    def write(self) -> None:
        directory = self._agent.directory
        if directory.changes == self._written:
            return
        self._written = directory.changes
        found = {
            group.name: {
                name: facts for name, facts in directory.of(group.index).items() if not name.startswith(TEMPORARY)
            }
            for group in self._agent.groups
        }
        fresh = self._path.with_name(f".{self._path.name}.new")
        with contextlib.suppress(OSError):  # without it only the next start knows less
            fresh.write_bytes(msgspec.json.encode(found))
            fresh.replace(self._path)
