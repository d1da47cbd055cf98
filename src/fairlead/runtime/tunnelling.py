"""When the processes of tunnels are started: with the first connection that begins with HTTP, and not before.

Managers put such connections into a socket pair whose both ends the supervisor holds (`plumbing`), so whatever waits in
it waits for the next gateway when one dies. Where no gateway can be made to work those who wait are turned away, and
after a rest it is tried again.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from typing import Any, Final

from fairlead.broker.answers import busy_answer
from fairlead.runtime.children import Child
from fairlead.runtime.logbook import Logbook
from fairlead.runtime.loop import Loop
from fairlead.runtime.plumbing import Plumbing
from fairlead.runtime.pool import BROKER, GATEWAY, NOT_NEEDED, TUNNELS, Pool
from fairlead.runtime.watch import Watch

STATUS_NAME: Final = "tunnel-status.sock"  # where the broker of tunnels says how they are
REST_S: Final = 30.0
TURNED_AWAY_MAX: Final = 64  # at a time


class Tunnelling:
    """The supervisor's part in tunnels."""

    def __init__(self, pool: Pool, plumbing: Plumbing, loop: Loop, log: Logbook) -> None:
        self._pool, self._plumbing, self._loop, self._log = pool, plumbing, loop, log
        self._settings = pool.config.tunnel
        self._posts = [pool.posts[role] for role in TUNNELS if role in pool.posts]
        self._watch = Watch(pool.config.limits.frozen_s)
        self._rested_s = 0.0

    def begin(self) -> None:
        """Look out for the first connection; where others are dialled or dial us there is no waiting for it."""
        if not self._settings.enabled:
            return
        if self._settings.gateways or self._settings.link_listen or any(post.active for post in self._posts):
            self._start()
        else:
            self._loop.watch(self._plumbing.intake, self._on_first)

    def _on_first(self) -> None:
        self._loop.forget(self._plumbing.intake)
        self._log.info("supervisor", "somebody comes through HTTP: starting the processes of tunnels")
        self._start()

    def _start(self) -> None:
        for post in self._posts:
            post.halted, post.attempts = "", 0
            self._pool.fill(post)

    def watch(self, passed_on: int, now_s: float) -> Child | None:
        """Now and then: a gateway that has stood still before its work. Given up, it is tried again after a rest."""
        if not self._settings.enabled:
            return None
        if any(post.halted not in ("", NOT_NEEDED) for post in self._posts):
            self._rested_s = self._rested_s or now_s + REST_S
            self._turn_away()
            if now_s >= self._rested_s:
                self._rested_s = 0.0
                self._start()
            return None
        child = self._pool.posts[GATEWAY].active
        waits = child is not None and child.ready_s > 0 and child.state == "active" and self._is_readable()
        return child if self._watch.look(passed_on, waits, now_s) else None

    def _is_readable(self) -> bool:
        poller = select.poll()
        poller.register(self._plumbing.intake, select.POLLIN)
        return bool(poller.poll(0))

    def _turn_away(self) -> None:
        with socket.socket(fileno=os.dup(self._plumbing.intake)) as intake:
            for _ in range(TURNED_AWAY_MAX):
                try:
                    kind, fds, _, _ = socket.recv_fds(intake, 16, 4)
                except OSError:
                    return
                for fd in fds:
                    with socket.socket(fileno=fd) as client, contextlib.suppress(OSError):
                        if kind == b"P":
                            client.setblocking(False)
                            client.recv(65536)  # unread input would destroy the answer on its way
                            client.send(busy_answer())

    def status(self, counters: list[dict[str, int]]) -> dict[str, Any]:
        """For the report; `counters` are the managers'."""
        report: dict[str, Any] = {
            "enabled": self._settings.enabled,
            "name": self._settings.name,
            "passed_on": sum(one["passed_on"] for one in counters),
            "turned_away": sum(one["turned_away"] for one in counters),
        }
        for key, role in (("gateway", GATEWAY), ("broker", BROKER)):
            post = self._pool.posts.get(role)
            state = (
                "switched off"
                if post is None
                else post.active.state
                if post.active is not None
                else post.halted or "starting"
            )
            known = self._pool.tunnels.get(role, {}) if post is not None and post.active is not None else {}
            report[key] = {"state": state, **known}
        return report
