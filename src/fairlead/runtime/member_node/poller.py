"""Descriptors and what to do when they become readable: one epoll for the member node's loop."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Final

EVENTS_MAX: Final = 64  # of one turn


class Poller:
    """Calls back, one at a time. A callback may watch and forget."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._actions: dict[int, Callable[[], None]] = {}

    def watch(self, fd: int, action: Callable[[], None], *, write: bool = False) -> None:
        """Call back whenever `fd` can be read (and, with `write`, written)."""
        events = select.EPOLLIN | (select.EPOLLOUT if write else 0)
        if fd in self._actions:
            self._poll.modify(fd, events)
        else:
            self._poll.register(fd, events)
        self._actions[fd] = action

    def forget(self, fd: int) -> None:
        if self._actions.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def turn(self, patience_s: float) -> int:
        """Wait so long for something to happen; how much did."""
        events = self._poll.poll(patience_s, EVENTS_MAX)
        for fd, _ in events:
            action = self._actions.get(fd)  # an earlier callback of this turn may have forgotten it
            if action is not None:
                action()
        return len(events)

    def close(self) -> None:
        self._poll.close()
