"""The supervisor's one loop: descriptors that become readable, moments that come, signals that were sent."""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable


class Loop:
    """Calls back, one at a time. Signal handlers only queue; their callbacks run here like everything else."""

    def __init__(self) -> None:
        self._selector = selectors.EpollSelector()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._signals: list[int] = []
        self._on_signal: Callable[[int], None] | None = None
        self._stopping = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.watch(self._wake_read, self._drain_wake)

    @staticmethod
    def now_s() -> float:
        return time.monotonic()

    def watch(self, fd: int, callback: Callable[[], None], *, write: bool = False) -> None:
        """Call back whenever `fd` can be read (and, with `write`, written)."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        if fd in self._selector.get_map():
            self._selector.modify(fd, events, callback)
        else:
            self._selector.register(fd, events, callback)

    def forget(self, fd: int) -> None:
        if fd >= 0 and fd in self._selector.get_map():
            self._selector.unregister(fd)

    def call_after(self, seconds: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.now_s() + seconds, next(self._numbers), callback))

    def every(self, seconds: float, callback: Callable[[], None]) -> None:
        def again() -> None:
            self.call_after(seconds, again)
            callback()

        self.call_after(seconds, again)

    def on_signals(self, numbers: Iterable[int], callback: Callable[[int], None]) -> None:
        self._on_signal = callback
        for number in numbers:
            signal.signal(number, lambda found, _frame: self._signals.append(found))
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def run(self) -> None:
        """Until `stop`."""
        self._stopping = False
        while not self._stopping:
            self.turn()

    def turn(self) -> None:
        """Wait for the next thing and deal with everything that is due."""
        timeout_s = max(0.0, self._timers[0][0] - self.now_s()) if self._timers else None
        if self._signals:
            timeout_s = 0.0
        for key, _ in self._selector.select(timeout_s):
            if key.fd in self._selector.get_map():  # an earlier callback of this turn may have forgotten it
                key.data()
        while self._signals and self._on_signal is not None:
            self._on_signal(self._signals.pop(0))
        now_s = self.now_s()
        while self._timers and self._timers[0][0] <= now_s and not self._stopping:
            heapq.heappop(self._timers)[2]()

    def stop(self) -> None:
        self._stopping = True

    def close(self) -> None:
        if self._on_signal is not None:
            signal.set_wakeup_fd(-1)
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _drain_wake(self) -> None:
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            pass
