"""The agent process of a client manager's node: one loop over the managers' links, the bus and the supervisor.

It stands where a server without a cluster has its message manager, listens on the same socket and is replaced in the
same way: managers connect again, clients resume. It also holds this node's votes and its part in the talk about
configuration.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from fairlead.bus.edge.opening import open_bus
from fairlead.bus.port import View
from fairlead.cluster.client_manager.agent import Agent
from fairlead.cluster.client_manager.choke import Choke
from fairlead.cluster.client_manager.coordinator import Coordinator
from fairlead.cluster.client_manager.directory_road import port_of as directory_port
from fairlead.cluster.client_manager.edge.manager_wire import ManagerWire
from fairlead.cluster.client_manager.edge.names_file import NamesFile
from fairlead.cluster.client_manager.link_head import port_of
from fairlead.cluster.client_manager.placement import Group
from fairlead.cluster.client_manager.serving import members_of, serving_of
from fairlead.cluster.configuration.edge.admin_port import AdminPort, fault_handler, settings_handler
from fairlead.cluster.configuration.edge.files import PATHS, NodeFiles
from fairlead.cluster.configuration.edge.gathering import Facts, Reply
from fairlead.cluster.configuration.edge.part import ConfigPart
from fairlead.cluster.configuration.edge.users import ask_for_reload, spread_users
from fairlead.cluster.configuration.types import ClusterSettings, directory_group
from fairlead.cluster.edge.linked import LinkedProcess
from fairlead.cluster.edge.vote import Vote, VoteBook
from fairlead.cluster.edge.wiring import socket_name
from fairlead.errors import ConfigError
from fairlead.runtime import config as configuring
from fairlead.runtime.control import Control, Start
from fairlead.runtime.counters import Counters, MessageManagerCounter
from fairlead.runtime.member_node.plan import PLAN_NAME, Plan
from fairlead.runtime.restart import REFUSED
from fairlead.store import layout
from fairlead.store.edge.segment import open_segment
from fairlead.store.memory import MODE

TICK_S: Final = 0.05
COUNT_S: Final = 0.1
EVENTS_MAX: Final = 64
LINKS_S: Final = 2.0  # at the beginning, for the managers to be answered
STOP_S: Final = 2.0
SWITCH_S: Final = 0.0005


def run(control: Control, start: Start) -> int:
    """Be an agent until told to stop."""
    sys.setswitchinterval(SWITCH_S)
    process = AgentProcess(control, start)
    try:
        gc.collect()
        gc.freeze()
        return process.serve()
    finally:
        process.close()


class AgentProcess(LinkedProcess[ManagerWire]):
    """One agent."""

    def __init__(self, control: Control, start: Start) -> None:
        data = configuring.data_path(start.config)
        super().__init__(control, data / "run" / socket_name(start.index), STOP_S)
        segment = open_segment(
            start.store / layout.counters_name("message-manager", start.index), layout.KIND_COUNTERS, mode=MODE
        )
        self._kept = segment  # mapped as long as the process lives
        self._words = Counters("message-manager", segment.view).words
        self._before = {number: self._words[number] for number in MessageManagerCounter}
        self._managers = start.managers
        self._ticked_s = self._counted_s = 0.0
        self._choke = Choke()
        self._view_is_new = True
        now_s = time.monotonic()
        plan = Plan.read(data / "run" / PLAN_NAME)
        self._plan = plan
        self._start = plan.next_start()
        self._book = VoteBook(data, plan.node.name)
        config = plan.bus_config(self._start, log=self._bus_log, tag={"kind": "cm"})
        self._faults = config.faults
        self.bus = open_bus(config)
        self._listened: set[str] = set()
        coordinator = Coordinator(prepare_s=plan.settings.prepare_limit_s)
        self.agent = Agent(
            plan.node.name,
            groups_of(plan.settings),
            self.bus.send,
            coordinator,
            now_s,
            say=control.log,
            directory_group=directory_group(plan.settings),
        )
        self._names = NamesFile(data / "names.json", self.agent)
        self._votes: dict[str, Vote] = {}
        self._vote_on(plan.settings)
        self._listen_to_groups()
        self.port = AdminPort(self.bus, now_s)
        self._part = self._config_part(data, now_s)
        self._offer()
        self.bus.on_view(self._on_view)
        self.bus.on_broken(self._on_broken)
        self.bus.on_dead(self._on_dead)
        self._watch(self.bus.fileno(), lambda: None)  # it is turned in every turn
        self._listen()

    def _config_part(self, data: Path, now_s: float) -> ConfigPart | None:
        """Our part in the talk about configuration; none if this node was started with values instead of files."""
        if not (data / PATHS).exists():
            return None
        part = ConfigPart(self.bus, NodeFiles.recall(data), self._control.log, now_s, on_settings=self._on_settings)
        self.port.handle("settings", settings_handler(part))
        return part

    def _vote_on(self, settings: ClusterSettings) -> None:
        """A vote in every group there is."""
        plan = self._plan
        for group in settings.groups:
            if plan.node.vote and group.name not in self._votes:
                self._votes[group.name] = Vote(
                    self.bus, group.name, self._book, plan.member_settings(), plan.founding(), time.monotonic
                )

    def _listen_to_groups(self) -> None:
        for group in self.agent.groups:
            if group.name not in self._listened:
                self._listened.add(group.name)
                self.bus.listen(port_of(group.name), self._group_handler(group.name))
                self.bus.listen(directory_port(group.name), lambda _, data: self.agent.directory_road.from_member(data))

    def _group_handler(self, group: str) -> Callable[[str, memoryview], None]:
        return lambda sender, message: self.agent.links.from_group(group, sender, message)

    # --- Administration -------------------------------------------------------------------------------------------
    def _offer(self) -> None:
        """What this node answers other nodes, and what it asks them for an administrator (CLU-182)."""

        def status(question: Facts, reply: Reply) -> Facts:
            return {"status": self.facts()}

        self.port.handle("status", status)
        self.port.handle("fault", fault_handler(self._faults))
        offers = self.agent.administration.offers
        offers["cluster"] = self._ask_nodes
        offers["cluster-status"] = lambda args, then: self._ask_nodes({"do": "status", **args}, then)

    def _ask_nodes(self, args: dict[str, Any], then: Callable[[dict[str, Any]], None]) -> None:
        """All nodes, or those in `nodes`: their answers together, with how many there were to be and who is missing."""
        try:
            self.port.ask(args, lambda facts: then({"ok": facts}))
        except (TypeError, ValueError) as error:
            then({"error": {"code": "bad-parameter", "text": f"This cannot be asked: {error}"}})

    def facts(self) -> dict[str, Any]:
        found = self.agent.facts() | {"pid": os.getpid(), "start": self._start, "carrier": self.bus.carrier}
        mine = self.bus.view.peers.get(self._plan.node.name)
        found |= {"rank": mine.rank if mine else None, "buses": list(self._plan.node.buses)}
        found["chokes"] = self._choke.times
        found["bus"] = self.bus.figures()
        found["revision"] = self._plan.settings.revision if self._part is None else self._part.settings.revision
        found["votes"] = {group: vote.facts() for group, vote in self._votes.items()}
        if self._part is not None:
            found["config"] = self._part.facts()
        return found

    def _on_settings(self, settings: ClusterSettings) -> None:
        try:
            self.agent.configure(groups_of(settings))
        except ValueError as error:
            self._control.log("error", f"settings of revision {settings.revision} cannot be used: {error}")
            return
        self.agent.directory_road.group = directory_group(settings)
        self._vote_on(settings)
        self._listen_to_groups()
        self.agent.commits.coordinator.prepare_s = settings.prepare_limit_s
        try:
            if spread_users(self._plan.data, settings):
                ask_for_reload(self._plan.run)
        except (ConfigError, OSError) as error:
            self._control.log("error", f"the users of settings {settings.revision} are not in force: {error}")

    # --- The loop -------------------------------------------------------------------------------------------------
    def serve(self) -> int:
        """Tell that we are ready, then turn until it is over."""
        self._watch_control()
        until_s = time.monotonic() + LINKS_S
        while not self._is_over() and time.monotonic() < until_s:
            if sum(link.is_known for link in self.agent.managers.values()) >= self._managers:
                break
            self._turn()
            if self._is_refused():
                return REFUSED
        self._control.send("ready")
        while not self._is_over():
            self._turn()
            if self._is_refused():
                return REFUSED
        return 0

    def _is_refused(self) -> bool:
        """Have the others another configuration? Then the whole node ends (CLU-189, CLU-194)."""
        if self._part is None or self._part.state != "refused":
            return False
        self._control.send("failed", text=self._part.reason)
        return True

    def _turn(self) -> None:
        now_s = time.monotonic()
        patience_s = min(TICK_S, self.bus.patience_s(now_s))
        events = self._poll.poll(max(0.0, patience_s), EVENTS_MAX)
        now_s = self.agent.now_s = time.monotonic()
        self.bus.turn(now_s)
        if self._part is not None:
            self._part.turn(now_s)
        if self._view_is_new and (self._part is None or self._part.state == "checked"):
            self._view_is_new = False
            view = self.bus.view
            self.agent.directory_road.members = members_of(view, self.agent.directory_road.group)
            self.agent.links.on_view(view.number, view.peers, serving_of(view))
        self._handle(events)
        if now_s - self._ticked_s >= TICK_S:
            self._ticked_s = now_s
            self.agent.tick()
            self.port.turn(now_s)
        self.bus.flush()
        self._write_all()
        self._look_at_backlog()
        self._look_for_control(now_s)
        if now_s - self._counted_s >= COUNT_S:
            self._counted_s = now_s
            self._count()
            self._names.keep(now_s)

    def _look_at_backlog(self) -> None:
        """While a group's node has too much waiting for it, managers are not read: it ends there, not in our memory."""
        nodes = {group.served.node for group in self.agent.groups if group.served is not None}
        if self._choke.look(map(self.bus.backlog, nodes)):
            for wire in self._wires.values():
                self._listen_to(wire)

    # --- Other nodes ----------------------------------------------------------------------------------------------
    def _on_view(self, view: View) -> None:
        self._view_is_new = True

    def _on_broken(self, node: str) -> None:
        self.agent.links.on_broken(node)

    def _on_dead(self, node: str, start: int) -> None:
        for vote in self._votes.values():
            vote.on_dead(node, start)

    # --- Managers, as LinkedProcess asks --------------------------------------------------------------------------
    def _linked(self, sock: socket.socket) -> ManagerWire:
        return ManagerWire(sock, self.agent.manager_opened())

    def _reads(self) -> bool:
        return not self._choke.closed

    def _take(self, wire: ManagerWire) -> bool:
        return wire.pass_on(self.agent)

    def _has_room(self, wire: ManagerWire) -> None:
        self.agent.has_room(wire.manager_link)

    def _unlinked(self, wire: ManagerWire, why: str) -> None:
        self.agent.manager_lost(wire.manager_link)
        if why:
            self._control.log("error", f"the link of manager {wire.link.manager} was ended: {why}")

    def _note(self, record: dict[str, Any]) -> None:
        self.agent.note(record)

    def _administer(self, name: str, args: dict[str, Any], then: Callable[[dict[str, Any]], None]) -> None:
        self.agent.administration.local(name, args, then)
        self.agent.flush()

    def _is_over(self) -> bool:
        """After a stop: is everything said that was to be said to managers?"""
        if not self._stop_s:
            return False
        return time.monotonic() >= self._stop_s or self._is_all_said()

    def _count(self) -> None:
        words, before, counter, agent = self._words, self._before, MessageManagerCounter, self.agent
        words[counter.LOOP_PROGRESS] += 1
        words[counter.COMMANDS] = before[counter.COMMANDS] + agent.commands.taken
        words[counter.DROPPED] = before[counter.DROPPED] + agent.dropped
        words[counter.DESTINATIONS] = len(agent.directory)
        words[counter.LINKS] = len(agent.managers)
        words[counter.GROUPS_UP] = sum(group.up for group in agent.groups)
        words[counter.INTERRUPTIONS] = before[counter.INTERRUPTIONS] + agent.links.interruptions
        words[counter.CHOKES] = before[counter.CHOKES] + self._choke.times
        words[counter.BYTES_IN] = before[counter.BYTES_IN] + agent.passed_in
        words[counter.BYTES_OUT] = before[counter.BYTES_OUT] + agent.passed_out

    def _bus_log(self, level: str, text: str, facts: Mapping[str, Any]) -> None:
        told = " ".join(f"{name}={value}" for name, value in facts.items())
        self._control.log(level, f"bus: {text} {told}".rstrip())

    def close(self) -> None:
        self._names.write()
        self._close_links()
        for vote in self._votes.values():
            vote.close()
        self.bus.flush()
        self.bus.close()


def groups_of(settings: ClusterSettings) -> list[Group]:
    return [Group(group.name, tuple(group.pins)) for group in settings.groups]
