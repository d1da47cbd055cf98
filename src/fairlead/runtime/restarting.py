"""Restarting the message manager in order: told to stop, waited for until its journal is flushed, followed by another.

There is no successor beside it, since a journal has one owner; clients stay connected meanwhile and are told.
"""

from __future__ import annotations

from collections.abc import Callable

from fairlead.runtime.children import Child
from fairlead.runtime.loop import Loop
from fairlead.runtime.pool import Pool, Post
from fairlead.runtime.restart import describe
from fairlead.runtime.status import UpdateRecord


class Restarting:
    """One restart of a post that has no standby."""

    def __init__(
        self,
        pool: Pool,
        loop: Loop,
        post: Post,
        python: str,
        now_ns: int,
        on_done: Callable[[UpdateRecord], None],
    ) -> None:
        assert post.active is not None
        assert post.holder is None
        self._pool = pool
        self._loop = loop
        self._post = post
        self._python = python
        self._now_ns = now_ns
        self._on_done = on_done
        self._old = post.active
        self._new: Child | None = None
        self._began_s = loop.now_s()
        post.halted, post.attempts = "", 0
        post.holder = self
        pool.dismiss(self._old)

    def on_ready(self, child: Child) -> None:
        if child is self._new:
            self._post.python = self._python
            self._end("done", child.version, "")

    def on_active(self, child: Child) -> None:
        """It is active as soon as it is ready."""

    def on_parked(self, child: Child) -> None:
        """It is never parked."""

    def on_died(self, child: Child, status: int) -> bool:
        if child is self._old:
            self._new = self._post.active = self._pool.start(self._post, "active", self._python)
            if self._new is None:
                self._end("failed", "", f"{self._python} cannot be started")
            return True
        if child is self._new:
            # The new program does not work: the old one is started again, by the usual way.
            self._end("failed", child.version, child.failure or f"the successor ended {describe(status)}")
            return False
        return True

    def _end(self, outcome: str, version: str, reason: str) -> None:
        self._post.holder = None
        self._on_done(
            UpdateRecord(
                component=self._post.name,
                when_ns=self._now_ns,
                from_version=self._old.version,
                to_version=version,
                pause_ms=round((self._loop.now_s() - self._began_s) * 1000, 3),
                outcome=outcome,
                reason=reason,
            )
        )
