"""Descriptors and what to do when they become readable: one epoll for the member node's loop."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from typing import Final

EVENTS_MAX: Final = 64  # of one turn


class Poller:
    """Calls back, one at a time. A callback may watch and forget."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._actions: dict[int, Callable[[], None]] = {}
        self._signals: dict[int, Callable[[], None]] = {}
        self._wake: tuple[int, int] | None = None

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

    def on_signal(self, number: int, action: Callable[[], None]) -> None:
        """Call back in a later turn; never inside what the signal interrupts, such as the writing of a file."""
        if self._wake is None:
            read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self._wake = read, write
            signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            self.watch(read, self._on_signals)
        self._signals[number] = action
        signal.signal(number, lambda *_: None)  # its number comes through the pipe

    def _on_signals(self) -> None:
        assert self._wake is not None
        try:
            came = set(os.read(self._wake[0], 4096))
        except BlockingIOError:
            return
        for number in came & self._signals.keys():
            self._signals[number]()

    def turn(self, patience_s: float) -> int:
        """Wait so long for something to happen; how much did."""
        events = self._poll.poll(patience_s, EVENTS_MAX)
        for fd, _ in events:
            action = self._actions.get(fd)  # an earlier callback of this turn may have forgotten it
            if action is not None:
                action()
        return len(events)

    def close(self) -> None:
        if self._wake is not None:
            signal.set_wakeup_fd(-1)
            for fd in self._wake:
                os.close(fd)
        self._poll.close()
