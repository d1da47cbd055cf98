"""Taking a manager out of service and putting a successor in its place, drained or with its clients moved (SRV-4)."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.runtime.children import Child
from fairlead.runtime.loop import Loop
from fairlead.runtime.pool import Pool, Post
from fairlead.runtime.restart import describe
from fairlead.runtime.status import UpdateRecord


class Moving:
    """One manager: told to drain, waited for until its last connection has ended, followed by a successor."""

    def __init__(
        self,
        pool: Pool,
        loop: Loop,
        post: Post,
        python: str,
        now_ns: int,
        move: bool,
        on_done: Callable[[UpdateRecord], None],
    ) -> None:
        assert post.active is not None
        assert post.holder is None
        self._pool = pool
        self._loop = loop
        self._post = post
        self._now_ns = now_ns
        self._move = move
        self._on_done = on_done
        self._from_version = post.active.version
        self._old = post.active
        self._python = python
        self._new: Child | None = None
        post.halted, post.attempts = "", 0
        post.holder = self
        post.active.told = True
        post.active.send("drain", move=move)

    def on_ready(self, child: Child) -> None:
        if child is self._new:
            self._end("done", child.version, "")

    def on_active(self, child: Child) -> None:
        """Managers are active as soon as they are ready."""

    def on_parked(self, child: Child) -> None:
        """Managers are never parked."""

    def on_died(self, child: Child, status: int) -> bool:
        if child is self._old:
            self._new = self._post.active = self._pool.start(self._post, "active", self._python)
            return True
        if child is self._new:
            # The new program does not work: the old one takes its place, by the usual way.
            self._end("failed", child.version, child.failure or f"the successor ended {describe(status)}")
            return False
        return True

    def _end(self, outcome: str, version: str, reason: str) -> None:
        if outcome == "done":
            self._post.python = self._python
        self._post.holder = None
        self._on_done(
            UpdateRecord(
                component=self._post.name,
                when_ns=self._now_ns,
                from_version=self._from_version,
                to_version=version,
                pause_ms=0.0,
                outcome=("moved" if self._move else "drained") if outcome == "done" else outcome,
                reason=reason,
            )
        )
