"""The keeper: starts the member node, starts it again, and tells the cluster at once when it died.

Nobody has to wait for the lease of a process whose parent says that it is dead (CLU-149). The keeper holds no message
and no vote; it sleeps. TERM and INT are passed on; the node then hands over what it leads and leaves in order.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

from fairlead.bus.edge import announcing
from fairlead.cluster.configuration.types import ClusterConfig, ClusterSettings, NodeConfig
from fairlead.runtime import rundir
from fairlead.runtime.logbook import Logbook
from fairlead.runtime.member_node.plan import Plan
from fairlead.runtime.restart import Halt, describe, on_exit

STOP_S: Final = 20.0  # then a child that was told to stop is killed
EXIT_HALTED: Final = 1
EXIT_REFUSED: Final = 4  # of a child whose configuration is not that of the others

Announce = Callable[[Plan, int], None]
"""Tells the others that this start of the node is dead."""


def run_mm_node(node: NodeConfig, cluster: ClusterConfig, settings: ClusterSettings) -> int:
    """Keep a member node running until told to stop. The status to exit with."""
    plan = Plan(node, cluster, settings)
    lock = rundir.lock(plan.data)
    try:
        return Keeper(plan, Logbook.of(plan.data / "log" / "fairlead.log", node.log)).run()
    finally:
        os.close(lock)


class Keeper:
    """One child at a time."""

    def __init__(self, plan: Plan, logbook: Logbook, announce: Announce | None = None) -> None:
        self._plan = plan
        self._log = logbook
        self._announce = announce or announce_death
        self._stopping = False
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        old = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        before = {number: signal.signal(number, self._on_stop) for number in (signal.SIGTERM, signal.SIGINT)}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes us up
        try:
            return self._keep(wake_read)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old)
            os.close(wake_read)
            os.close(wake_write)

    def _on_stop(self, number: int, frame: object) -> None:
        self._stopping = True

    def _keep(self, wake: int) -> int:
        attempts = 0
        while True:
            status, lived_s = self._one_life(wake)
            if self._stopping:
                return 0
            if status == EXIT_REFUSED:
                return EXIT_HALTED  # its log says why
            verdict = on_exit(status, lived_s, attempts)
            if isinstance(verdict, Halt):
                self._log.error("keeper", f"the member node is not started again: {verdict.reason}")
                return EXIT_HALTED
            attempts = verdict.attempts
            self._log.write("warning", "keeper", f"the member node ended {describe(status)}; it is started again")
            if not self._pause(wake, verdict.after_s):
                return 0

    def _pause(self, wake: int, seconds: float) -> bool:
        """False: we were told to stop meanwhile."""
        until_s = time.monotonic() + seconds
        while not self._stopping and (left_s := until_s - time.monotonic()) > 0:
            select.select([wake], [], [], left_s)
            drain(wake)
        return not self._stopping

    def _one_life(self, wake: int) -> tuple[int, float]:
        """Status of the child, and how long it lived after it was ready (0: it never was)."""
        start = self._plan.next_start()
        ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
        life_read, life_write = os.pipe2(os.O_CLOEXEC)  # the child sees its end when we are no more
        arguments = [sys.executable, "-m", "fairlead.runtime.member_node.node", str(self._plan.write()), str(start)]
        child = self._child = subprocess.Popen(
            [*arguments, str(ready_write), str(life_read)], pass_fds=(ready_write, life_read), stdin=subprocess.DEVNULL
        )
        os.close(ready_write)
        os.close(life_read)
        self._log.info("keeper", "started the member node", pid=child.pid, start=start)
        ready_s, told_s = 0.0, 0.0
        watched = [wake, ready_read]
        try:
            while child.poll() is None:
                for fd in select.select(watched, [], [], 1.0)[0]:
                    if fd == wake:
                        drain(wake)
                    else:
                        watched.remove(ready_read)
                        if os.read(ready_read, 16):
                            ready_s = time.monotonic()
                if self._stopping and not told_s:
                    told_s = time.monotonic()
                    child.send_signal(signal.SIGTERM)
                if told_s and time.monotonic() - told_s > STOP_S:
                    self._log.error("keeper", "the member node did not stop in time and is killed")
                    child.kill()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            os.close(ready_read)
            os.close(life_write)
        status = child.returncode
        if not (self._stopping and status == 0):  # else it has left by itself
            with contextlib.suppress(OSError):
                self._announce(self._plan, start)
        return status, time.monotonic() - ready_s if ready_s else 0.0


def announce_death(plan: Plan, start: int) -> None:
    """Tell whoever was there that this life of our node is over."""
    announcing.announce_death(plan.bus_config(start), plan.node.name, start, announcing.read_peers(plan.peers_file))


def drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(fd, 4096)
