"""Carrying out a live update: the hands of the machine in `update`."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.runtime.children import Child
from fairlead.runtime.loop import Loop
from fairlead.runtime.pool import Pool, Post
from fairlead.runtime.status import UpdateRecord
from fairlead.runtime.update import Effect, Input, State, Update


class Replacing:
    """One update of a post, from the start of the successor to the standby of the new version."""

    def __init__(
        self,
        pool: Pool,
        loop: Loop,
        post: Post,
        python: str,
        now_ns: int,
        on_decided: Callable[[UpdateRecord], None],
    ) -> None:
        assert post.active is not None
        assert post.holder is None
        limits = pool.config.limits
        self._pool = pool
        self._loop = loop
        self._post = post
        self._now_ns = now_ns
        self._on_decided = on_decided
        self._python_before = post.python
        self._python = python
        self._machine = Update(loop.now_s(), ready_s=limits.ready_s, parked_s=limits.parked_s)
        self._old: Child | None = post.active
        self._from_version = post.active.version
        self._paused_s = 0.0
        self._reason = ""
        self._reported = False
        post.halted, post.attempts = "", 0
        post.holder = self
        self._new: Child | None = pool.start(post, "standby", python)
        self._version = ""
        if self._new is None:
            self._reason = f"{python} cannot be started"
            self._feed(Input.NEW_DIED)
        self._tick_later()

    # --- What the pool tells its holder ---------------------------------------------------------------------------
    def on_ready(self, child: Child) -> None:
        if child is self._new:
            self._version = child.version
            self._feed(Input.NEW_READY)

    def on_active(self, child: Child) -> None:
        if child is self._new:
            self._feed(Input.NEW_ACTIVE)
        elif child is self._old:
            self._feed(Input.OLD_ACTIVE)

    def on_parked(self, child: Child) -> None:
        if child is self._old:
            self._feed(Input.OLD_PARKED)

    def on_died(self, child: Child, status: int) -> bool:
        if child is self._new:
            self._new = None
            self._reason = self._reason or child.failure or f"the successor ended with status {status}"
            self._version = self._version or child.version
            self._feed(Input.NEW_DIED)
        elif child is self._old:
            self._old = None
            self._feed(Input.OLD_DIED)
        return True  # a standby that dies now is replaced when the update is over

    def settle_now(self) -> bool:
        """The next update shall not wait until the parked one has had its time. True: the post is free."""
        if self._machine.state is State.SETTLING:
            self._feed(Input.TIMEOUT)
        return self._machine.over

    # --- The machine ----------------------------------------------------------------------------------------------
    def _tick_later(self) -> None:
        if not self._machine.over:
            self._loop.call_after(max(0.0, self._machine.deadline_s - self._loop.now_s()) + 0.001, self._tick)

    def _tick(self) -> None:
        if self._machine.over:
            return
        effects = self._machine.on_tick(self._loop.now_s())
        if Effect.KILL_NEW in effects and not self._reason:
            self._reason = "the successor was not ready in time"
        self._perform(effects)
        self._tick_later()

    def _feed(self, what: Input) -> None:
        self._perform(self._machine.on(what, self._loop.now_s()))
        self._tick_later()

    def _perform(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            self._perform_one(effect)
        if self._machine.over and self._post.holder is self:
            self._post.holder = None
            self._pool.fill(self._post)

    def _perform_one(self, effect: Effect) -> None:
        post, pool = self._post, self._pool
        match effect:
            case Effect.PARK_OLD:
                self._paused_s = self._loop.now_s()
                if self._old is not None:
                    self._old.send("park")
            case Effect.ACTIVATE_NEW:
                assert self._new is not None
                self._paused_s = self._paused_s or self._loop.now_s()
                post.active = self._new
                pool.activate(self._new)
            case Effect.ACTIVATE_OLD:
                assert self._old is not None
                self._paused_s = self._paused_s or self._loop.now_s()
                post.active, post.python = self._old, self._python_before
                pool.activate(self._old)
            case Effect.ACTIVATE_SPARE:
                # An update under way goes on against the standby; one that has failed leaves it to `fill`.
                self._paused_s = self._paused_s or self._loop.now_s()
                post.python = self._python_before
                post.active = None
                if post.spare is None:
                    post.spare = pool.start(post, "standby", post.python)
                if post.spare is not None:
                    self._old = post.active = post.spare
                    post.spare = None
                    pool.activate(self._old)
            case Effect.KILL_OLD:
                if self._old is not None:
                    self._old.kill()
            case Effect.KILL_NEW:
                if self._new is not None:
                    self._new.told = True
                    self._new.kill()
            case Effect.STOP_OLD:
                if self._old is not None:
                    pool.dismiss(self._old)
            case Effect.RENEW_SPARE:
                if post.spare is not None:
                    pool.dismiss(post.spare)
                    post.spare = None
            case Effect.REPORT_DONE:
                post.python = self._python
                self._report("done", "")
            case Effect.REPORT_FAILED:
                self._report("failed", self._reason or "the old one died and the successor did not take over")

    def _report(self, outcome: str, reason: str) -> None:
        again = self._reported
        self._reported = True
        pause_ms = round((self._loop.now_s() - self._paused_s) * 1000, 3) if self._paused_s else 0.0
        self._paused_s = 0.0
        record = UpdateRecord(
            component=self._post.name,
            when_ns=self._now_ns,
            from_version=self._from_version,
            to_version=self._version,
            pause_ms=pause_ms,
            outcome="rolled back" if again else outcome,
            reason=reason,
        )
        self._on_decided(record)
