"""A thread for what may take its time: making files ready, writing sidecars and checkpoints, removing old files."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

Then = Callable[[Any, OSError | None], None]
"""Called by the journal's own thread with what the chore returned, or with what went wrong."""


class Chores:
    """Chores are done one after the other; `settle` runs what is to follow them."""

    def __init__(self, event: int) -> None:
        self._event = event
        self._wake = threading.Condition()
        self._jobs: deque[tuple[Callable[[], Any], Then]] = deque()
        self._done: deque[tuple[Then, Any, OSError | None]] = deque()
        self._closing = False
        self._broken: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="journal-chores", daemon=True)
        self._thread.start()

    def ask(self, chore: Callable[[], Any], then: Then) -> None:
        with self._wake:
            self._jobs.append((chore, then))
            self._wake.notify_all()

    def settle(self, *, wait_s: float = 0.0) -> bool:
        """Follow up what is done, waiting for one if there is none; False: nothing came."""
        if not (wait_s or self._done or self._broken):
            return False  # nearly always, and not worth a lock
        with self._wake:
            if wait_s and not self._done:
                self._wake.wait_for(lambda: bool(self._done) or self._broken is not None, wait_s)
            done = list(self._done)
            self._done.clear()
            if self._broken is not None and not done:
                raise self._broken
        for then, result, error in done:
            then(result, error)
        return bool(done)

    def close(self) -> None:
        """Finish what was asked, then end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: bool(self._jobs) or self._closing)
                if not self._jobs:
                    return
                chore, then = self._jobs.popleft()
            result, failed = None, None
            try:
                result = chore()
            except OSError as error:
                failed = error
            except BaseException as error:
                with self._wake:
                    self._broken = error
                    self._wake.notify_all()
                    os.eventfd_write(self._event, 1)
                raise
            with self._wake:
                self._done.append((then, result, failed))
                self._wake.notify_all()
                os.eventfd_write(self._event, 1)
