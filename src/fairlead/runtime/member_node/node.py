"""The member node's process: one loop over the bus, the journals of its groups, threads and signals (CLU-33).

`python -m fairlead.runtime.member_node.node PLAN START READY_FD LIFE_FD`, started by the keeper. It first finds out
with the others that its configuration is theirs, then reads its journals. A group whose disk fails ends; the others go
on. When the keeper is gone, or TERM comes, every group that is led here is handed over first.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fairlead.bus.edge.opening import open_bus
from fairlead.bus.port import View
from fairlead.cluster.configuration.edge.admin_port import AdminPort, settings_handler
from fairlead.cluster.configuration.edge.door import Door
from fairlead.cluster.configuration.edge.files import NodeFiles
from fairlead.cluster.configuration.edge.part import ConfigPart
from fairlead.cluster.configuration.types import ClusterSettings, GroupSpec, directory_group, hosted
from fairlead.cluster.edge.engine import faults_of
from fairlead.cluster.edge.eventlog import EventLog
from fairlead.cluster.edge.hosted import Hosted
from fairlead.cluster.edge.member_home import MemberHome
from fairlead.cluster.edge.member_store import prepare
from fairlead.cluster.edge.surroundings import Surroundings
from fairlead.cluster.edge.vote import Vote, VoteBook
from fairlead.cluster.edge.workers import Workers, threads_for
from fairlead.cluster.options import Options
from fairlead.errors import ConfigError
from fairlead.journal.faults import JournalDamaged, JournalFailed, JournalRefused
from fairlead.runtime.child import EXIT_CANNOT_START
from fairlead.runtime.logbook import Logbook
from fairlead.runtime.member_node.administration import Administration
from fairlead.runtime.member_node.keeper import EXIT_REFUSED
from fairlead.runtime.member_node.plan import Plan
from fairlead.runtime.member_node.poller import Poller
from fairlead.runtime.version import VERSION

SWITCH_S: Final = 0.0005  # what a thread of ours may keep the loop waiting for the interpreter
HAND_OVER_S: Final = 8.0  # for all groups together, at an end
EXIT_FAILED: Final = 1


def main(arguments: list[str]) -> int:
    plan = Plan.read(Path(arguments[0]))
    start, ready, life = (int(one) for one in arguments[1:4])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the keeper's to answer
    sys.setswitchinterval(SWITCH_S)
    logbook = Logbook.of(plan.data / "log" / "fairlead.log", plan.node.log)
    node: Node | None = None
    try:
        node = Node(plan, start, logbook)
        node.listen(life)
        gc.collect()
        gc.freeze()
        os.write(ready, b"ready\n")
        os.close(ready)
        return node.run()
    except (ConfigError, JournalRefused) as error:
        logbook.write("error", plan.node.name, f"cannot start: {error}")
        return EXIT_CANNOT_START
    finally:
        if node is not None:
            node.close()


class Node:
    """One member node."""

    def __init__(self, plan: Plan, start: int, logbook: Logbook) -> None:
        self.plan, self.start, self.logbook = plan, start, logbook
        self.poller = Poller()
        self.failed: list[str] = []  # groups whose members could not begin
        self._opening: set[str] = set()  # groups whose journals are being read
        self._around: Surroundings | None = None
        self._stop_s = 0.0
        self._said: dict[str, Any] = {}
        self._present: dict[str, int] = {}  # nodes of the newest view, with their starts
        node = plan.node
        self.book = VoteBook(plan.data, node.name)
        self.workers = Workers(threads_for(plan.settings.messages.pool_threads))
        self.events = EventLog(plan.data / "log")
        config = plan.bus_config(start, log=self._bus_log, tag={"kind": node.kind})
        self.faults = config.faults
        self.bus = open_bus(config)
        self.votes: dict[str, Vote] = {}
        self.hosts: dict[str, Hosted] = {}
        self.port = AdminPort(self.bus, time.monotonic())
        self.door = Door(plan.run, self.port)
        Administration(self, self.port)
        self.bus.on_view(self._on_view)
        self.bus.on_broken(self._on_broken)
        self.bus.on_dead(self._on_dead)
        self.part = self._configuration()
        if self.part is None:
            self.begin(plan.settings)

    # --- Beginning ------------------------------------------------------------------------------------------------
    def _configuration(self) -> ConfigPart | None:
        """Our part in the talk about configuration; None: this node was given a plan and has no files."""
        try:
            files = NodeFiles.recall(self.plan.data)
        except ConfigError:
            return None
        part = ConfigPart(self.bus, files, self._say, time.monotonic(), on_settings=self._on_settings)
        self.port.handle("settings", settings_handler(part))
        return part

    def _on_settings(self, settings: ClusterSettings) -> None:
        if self.part is not None and self.part.state == "checked" and self._around is not None:
            self.begin(settings)

    def begin(self, settings: ClusterSettings) -> None:
        """Vote and host as these settings say; also when they have changed."""
        plan = self.plan = Plan(self.plan.node, self.plan.cluster, settings)
        node = plan.node
        around = self._around = self._around or self._surroundings()
        around.options, around.settings = Options.of(settings.messages, settings.directory), plan.member_settings()
        around.directory_group = directory_group(settings)
        for group in settings.groups:
            if node.vote and group.name not in self.votes:
                vote = Vote(self.bus, group.name, self.book, around.settings, around.founding, around.clock_s)
                self.votes[group.name] = vote
        wanted = hosted(node, settings)
        for name in [one for one in self.hosts if one not in wanted]:
            self._say("info", f"group {name}: is no longer hosted here")
            self.hosts.pop(name).close()
        for name in wanted:
            group = settings.groups[settings.index(name)]
            if name in self.hosts:
                self.hosts[name].configure(frozenset(group.members))
            elif name not in self.failed and name not in self._opening:
                self._host(group, around)

    def _surroundings(self) -> Surroundings:
        plan = self.plan
        return Surroundings(
            node=plan.node.name,
            start=self.start,
            bus=self.bus,
            workers=self.workers,
            events=self.events,
            identity=plan.identity(),
            options=Options.of(plan.settings.messages, plan.settings.directory),
            directory_group=directory_group(plan.settings),
            settings=plan.member_settings(),
            founding=plan.founding(),
            faults=faults_of(plan.settings.messages.faults),
            say=self._say,
            watch=self.poller.watch,
            forget=self.poller.forget,
        )

    def _host(self, group: GroupSpec, around: Surroundings) -> None:
        """Read a member's journal in a thread, so that nobody takes us for lost meanwhile; then take part."""
        name, began_s = group.name, time.monotonic()
        home = MemberHome(self.plan.data, name, around.node)
        engine = around.engine(home, name, self.plan.settings.index(name))
        self._opening.add(name)

        def read(ready: Any) -> None:
            self._opening.discard(name)
            if isinstance(ready, JournalFailed | JournalDamaged):
                self._cannot_begin(name, ready)
            elif isinstance(ready, Exception):
                raise ready
            elif self._stop_s or name not in hosted(self.plan.node, self.plan.settings):
                engine.close()
            else:  # with the settings of now: they may have changed while it was read
                members = self.plan.settings.groups[self.plan.settings.index(name)].members
                try:
                    host = Hosted(self._around or around, home, engine, ready, frozenset(members))
                except (JournalFailed, JournalDamaged) as error:
                    self._cannot_begin(name, error)
                    return
                self.hosts[name] = host
                host.on_view(self.bus.view)
                self._say("info", f"group {name}: read in {time.monotonic() - began_s:.2f} s as {host.member.store}")
                gc.collect()
                gc.freeze()

        self.workers.work(lambda: prepare(engine), read)

    def _cannot_begin(self, name: str, error: JournalFailed | JournalDamaged) -> None:
        self._say("error", f"group {name}: this member cannot begin: {error.text}")
        self.failed.append(name)

    def _repair(self, host: Hosted) -> None:
        """Begin that member anew, as another store that takes everything over from whoever leads (CLU-114, CLU-129)."""
        assert self._around is not None
        self._say("warning", f"group {host.group}: begins anew, since it is damaged")
        host.distrust()
        del self.hosts[host.group]
        settings = self.plan.settings
        if not self._stop_s and host.group in hosted(self.plan.node, settings):
            self._host(settings.groups[settings.index(host.group)], self._around)

    def listen(self, life: int) -> None:
        """For what wakes us up, from now on."""
        self.poller.watch(self.bus.fileno(), lambda: None)  # it is turned in every turn
        self.poller.watch(self.workers.fd, self.workers.collect)
        self.poller.on_signal(signal.SIGTERM, lambda: self.stop("TERM"))

        def gone() -> None:
            self.poller.forget(life)
            self.stop("the keeper is gone")

        self.poller.watch(life, gone)
        self.poller.watch(self.door.fileno(), self.door.turn)

    # --- The loop -------------------------------------------------------------------------------------------------
    def run(self) -> int:
        """Until told to stop, or until no member is left."""
        while True:
            self.turn()
            if self._stop_s and self._has_left():
                return 0
            if self.part is not None and self.part.state == "refused":
                return EXIT_REFUSED
            if not self._stop_s and self._is_useless():
                return EXIT_FAILED

    def _is_useless(self) -> bool:
        """Had we members, and have all of them ended?"""
        had = bool(self.hosts or self.failed) and not self._opening
        return had and all(host.failed for host in self.hosts.values())

    def turn(self) -> None:
        self.poller.turn(self._patience_s())
        now_s = time.monotonic()
        self.bus.turn(now_s)
        if self.part is not None:
            self.part.turn(now_s)
            if self.part.state == "checked" and self._around is None:
                self.begin(self.part.settings)
        for host in list(self.hosts.values()):
            host.turn(now_s)
            if host.is_damaged and host.wants_repair:
                self._repair(host)
        self.port.turn(now_s)
        self._tell()
        self.bus.flush()

    def _patience_s(self) -> float:
        now_s = time.monotonic()
        most_s = self.bus.patience_s(now_s)
        for host in self.hosts.values():
            most_s = min(most_s, host.patience_s(now_s))
        return max(0.0, min(most_s, 0.05 if self._stop_s else 0.25))

    def _tell(self) -> None:
        """What has changed about us, to everybody."""
        groups = {name: host.tag() for name, host in self.hosts.items()}
        if groups != self._said:
            self._said = groups
            self.bus.tag("groups", groups)

    # --- The others -----------------------------------------------------------------------------------------------
    def _on_view(self, view: View) -> None:
        present = {peer.name: peer.start for peer in view.peers.values()}
        for name, start in self._present.items():
            if present.get(name) != start:
                for host in self.hosts.values():
                    host.on_gone(name, start)
        self._present = present
        for host in self.hosts.values():
            host.on_view(view)

    def _on_broken(self, name: str) -> None:
        for host in self.hosts.values():
            host.on_broken(name)

    def _on_dead(self, name: str, start: int) -> None:
        """Its keeper says so: it is certain."""
        for vote in self.votes.values():
            vote.on_dead(name, start)
        for host in self.hosts.values():
            host.on_gone(name, start)

    # --- The end --------------------------------------------------------------------------------------------------
    def stop(self, why: str) -> None:
        """Hand over what is led here, then leave."""
        if self._stop_s:
            return
        self._stop_s = time.monotonic() + HAND_OVER_S
        self._say("info", f"stops: {why}")
        if self._around is not None:
            self._around.is_stopping = True
        for host in self.hosts.values():
            host.hand_over()

    def _has_left(self) -> bool:
        return time.monotonic() >= self._stop_s or not any(
            host.leads and host.handing_to for host in self.hosts.values()
        )

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()
        for vote in self.votes.values():
            vote.close()
        self.door.close()
        self.bus.flush()
        self.bus.close()
        self.workers.close()
        self.events.close()
        self.poller.close()

    # --- What is said ---------------------------------------------------------------------------------------------
    def _say(self, level: str, text: str, **facts: Any) -> None:
        self.logbook.write(level, self.plan.node.name, text, **facts)

    def _bus_log(self, level: str, text: str, facts: Mapping[str, Any]) -> None:
        self._say(level, f"bus: {text}", **facts)

    def facts(self) -> dict[str, Any]:
        return {
            "kind": self.plan.node.kind,
            "pid": os.getpid(),
            "start": self.start,
            "carrier": self.bus.carrier,
            "bus": self.bus.figures(),
            "view": self.bus.view.number,
            "revision": self.plan.settings.revision,
            "rank": mine.rank if (mine := self.bus.view.peers.get(self.plan.node.name)) else None,
            "buses": list(self.plan.node.buses),
            "version": VERSION,
            "config": self.part.facts() if self.part is not None else {},
            "groups": {name: host.facts() for name, host in self.hosts.items()},
            "votes": {name: vote.facts() for name, vote in self.votes.items()},
            "failed": self.failed,
        }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
