"""A node that has votes and nothing else: the third of three machines, so that the loss of one leaves a majority."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Mapping
from typing import Any, Final

from fairlead.bus.edge.opening import open_bus
from fairlead.cluster.configuration.edge.admin_port import AdminPort, fault_handler, settings_handler
from fairlead.cluster.configuration.edge.door import Door
from fairlead.cluster.configuration.edge.files import NodeFiles
from fairlead.cluster.configuration.edge.gathering import Facts, Reply
from fairlead.cluster.configuration.edge.part import ConfigPart
from fairlead.cluster.configuration.types import ClusterSettings
from fairlead.cluster.edge.vote import Vote, VoteBook
from fairlead.runtime import rundir
from fairlead.runtime.logbook import Logbook
from fairlead.runtime.member_node.plan import Plan
from fairlead.runtime.version import VERSION

PATIENCE_S: Final = 0.25
EXIT_OK, EXIT_REFUSED = 0, 1


class Witness:
    """One witness: a loop over the bus, its local socket and signals."""

    def __init__(self, files: NodeFiles) -> None:
        self._plan = plan = Plan(files.node, files.cluster, files.settings)
        self._lock = rundir.lock(plan.data)
        self._log = Logbook.of(plan.data / "log" / "fairlead.log", files.node.log)
        self._book = VoteBook(plan.data, files.node.name)
        self._start = plan.next_start()
        config = plan.bus_config(self._start, log=self._on_bus_log, tag={"kind": "witness"})
        self._bus = open_bus(config)
        now_s = time.monotonic()
        self._port = AdminPort(self._bus, now_s)
        self._votes: dict[str, Vote] = {}
        self._part = ConfigPart(self._bus, files, self._say, now_s, on_settings=self._vote_on)
        self._port.handle("status", self._status)
        self._port.handle("settings", settings_handler(self._part))
        self._port.handle("fault", fault_handler(config.faults))
        self._door = Door(plan.run, self._port)
        self._bus.on_dead(self._on_dead)
        self._stopping = False

    def run(self) -> int:
        """Until it is told to stop; the status to exit with."""
        poll = select.epoll()
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        for fd in (self._bus.fileno(), self._door.fileno(), wake_read):
            poll.register(fd, select.EPOLLIN)
        try:
            while not self._stopping and self._part.state != "refused":
                poll.poll(max(0.0, min(PATIENCE_S, self._bus.patience_s(time.monotonic()))))
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
                self._turn(time.monotonic())
        finally:
            signal.set_wakeup_fd(-1)
            self._close()
        return EXIT_REFUSED if self._part.state == "refused" else EXIT_OK

    def _turn(self, now_s: float) -> None:
        self._bus.turn(now_s)
        self._part.turn(now_s)
        if self._part.state == "checked" and not self._votes:
            self._vote_on(self._part.settings)
        self._door.turn()
        self._port.turn(now_s)
        self._bus.flush()

    def _vote_on(self, settings: ClusterSettings) -> None:
        """A vote in every group there is; not before our files are known to be those of the others."""
        if self._part.state != "checked" or not self._plan.node.vote:
            return
        for group in settings.groups:
            if group.name not in self._votes:
                self._votes[group.name] = Vote(
                    self._bus,
                    group.name,
                    self._book,
                    self._plan.member_settings(),
                    self._plan.founding(),
                    time.monotonic,
                )

    def _status(self, question: Facts, reply: Reply) -> Facts:
        return {
            "status": {
                "kind": "witness",
                "pid": os.getpid(),
                "start": self._start,
                "version": VERSION,
                "carrier": self._bus.carrier,
                "view": self._bus.view.number,
                "revision": self._part.settings.revision,
                "votes": {name: vote.facts() for name, vote in self._votes.items()},
                "config": self._part.facts(),
            }
        }

    def _on_dead(self, node: str, start: int) -> None:
        for vote in self._votes.values():
            vote.on_dead(node, start)

    def _on_signal(self, number: int, frame: object) -> None:
        self._stopping = True

    def _say(self, level: str, text: str) -> None:
        self._log.write(level, "witness", text)

    def _on_bus_log(self, level: str, text: str, facts: Mapping[str, Any]) -> None:
        self._log.write(level, "bus", text, **facts)

    def _close(self) -> None:
        for vote in self._votes.values():
            vote.close()
        self._door.close()
        self._bus.close()
        os.close(self._lock)
