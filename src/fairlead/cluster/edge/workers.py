"""Threads for blocking work: a bounded pool whose results come back into the loop through an eventfd (CLU-81)."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

THREADS_MIN = 8
THREADS_PER_CORE = 4


def threads_for(wanted: int) -> int:
    """How many threads the pool has; 0 asks for the default."""
    return wanted or max(THREADS_MIN, THREADS_PER_CORE * (os.cpu_count() or 1))


class Workers:
    """The pool. Jobs run in threads, `then` runs where `collect` is called."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.open = 0  # jobs whose result has not been collected
        self._pool = ThreadPoolExecutor(threads, "worker")
        self._done: deque[tuple[Callable[[Any], None], Any]] = deque()

    def work(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        def finished(future: Future[Any]) -> None:
            error = future.exception()
            self._done.append((then, future.result() if error is None else error))
            os.eventfd_write(self.fd, 1)

        self.open += 1
        self._pool.submit(job).add_done_callback(finished)

    def collect(self) -> None:
        """Hand out what is done."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return
        while self._done:
            then, result = self._done.popleft()
            self.open -= 1
            then(result)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        os.close(self.fd)
