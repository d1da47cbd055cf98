"""The message manager process: one loop over links, journal, threads and the supervisor (docs/durable.md, section 5).

A turn: what the disk did, what came over the links, what is due, the tasks for a bounded while; then one batch to the
journal and one write per link. Nothing in the loop waits for a disk (CLU-65); how long turns take is counted. When
the journal fails, the process ends with status 1 and has confirmed nothing that was not synced; the supervisor starts
it again.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from fairlead.cluster.edge.engine import Engine, Identity, faults_of, now_ms
from fairlead.cluster.edge.eventlog import EventLog
from fairlead.cluster.edge.figures import Figures
from fairlead.cluster.edge.linked import LinkedProcess
from fairlead.cluster.edge.wiring import Wire, socket_name
from fairlead.cluster.edge.workers import Workers, threads_for
from fairlead.cluster.options import Options
from fairlead.errors import ConfigError, FairleadError
from fairlead.journal.faults import JournalFailed, JournalRefused
from fairlead.runtime import config as configuring
from fairlead.runtime.control import Control, Start
from fairlead.runtime.counters import Counters
from fairlead.store import layout
from fairlead.store.edge.segment import open_segment
from fairlead.store.memory import MODE

SAFETY_TICK_S: Final = 0.25
COUNT_S: Final = 0.02
UPKEEP_S: Final = 0.2
EVENTS_MAX: Final = 64  # of one turn
SWITCH_S: Final = 0.0005  # what a thread of ours may keep the loop waiting for the interpreter
STOP_S: Final = 4.0
LINKS_S: Final = 1.0  # for the links of all managers, at the beginning
EXIT_FAILED: Final = 1


def run(control: Control, start: Start) -> int:
    """Be a message manager until told to stop, or until the journal fails."""
    sys.setswitchinterval(SWITCH_S)
    manager = MessageManager(control, start)
    try:
        manager.open()
        gc.collect()
        gc.freeze()
        return manager.serve()
    except JournalRefused as refused:
        raise ConfigError(refused.text) from None
    except JournalFailed as failed:
        control.log("error", f"the journal failed, nothing more is confirmed: {failed.text}")
        return EXIT_FAILED
    finally:
        manager.close()


class MessageManager(LinkedProcess[Wire]):
    """One message manager process."""

    def __init__(self, control: Control, start: Start) -> None:
        data = configuring.data_path(start.config)
        super().__init__(control, data / "run" / socket_name(start.index), STOP_S)
        self._config = start.config
        self._managers = start.managers
        self._options = Options.of(start.config.messages, start.config.directory)
        self._home = data / f"mm-{start.index}"
        self._data = data
        segment = open_segment(
            start.store / layout.counters_name("message-manager", start.index), layout.KIND_COUNTERS, mode=MODE
        )
        self._kept = segment  # mapped as long as the process lives
        self._figures = Figures(Counters("message-manager", segment.view))
        self._read: list[Wire] = []  # in this turn
        self._more = False
        self._stale = True  # the counters are behind
        self._counted_s = self._kept_up_s = 0.0
        self._workers: Workers | None = None
        self._events: EventLog | None = None
        self._engine: Engine | None = None

    # --- Beginning ------------------------------------------------------------------------------------------------
    def open(self) -> None:
        """Read the journal and build the state; nobody is served before that is done."""
        began_ns = time.monotonic_ns()
        self._workers = Workers(threads_for(self._options.pool_threads))
        self._events = EventLog(self._data / "log")
        identity = Identity(site=self._config.messages.site_id, port=self._port())
        self._engine = engine = Engine(
            self._home,
            self._options,
            identity,
            self._workers,
            self._events,
            self._control.log,
            faults=faults_of(self._config.messages.faults),
        )
        found = engine.open()
        journal = engine.journal
        engine.build()
        self.core = engine.core
        engine.read_all(found)
        engine.begin(found.epoch + 1)
        self._create_configured()
        engine.report(found)
        engine.keep(lambda: self.core.on_safe(journal.collect()))
        took_ns = time.monotonic_ns() - began_ns
        self._figures.recovered(took_ns)
        depth = sum(one.depth for one in self.core.destinations.values())
        self._control.log(
            "info",
            f"message manager read {engine.recovery.records:,} records in {took_ns / 1e9:.2f} s: "
            f"{len(self.core.names)} destinations, {depth:,} messages",
        )
        self._watch(journal.fd, self._on_journal)
        self._watch(self._workers.fd, self._workers.collect)
        self._listen()

    def _port(self) -> int:
        """A port this server holds open, to tell it from others of the host in its ids (CLU-89)."""
        for address in self._config.server.listen:
            port = address.rpartition(":")[2]
            if port.isdecimal() and 0 < int(port) < 65536:
                return int(port)
        return 1 + os.getuid() % 65535

    def _create_configured(self) -> None:
        """`[destinations.NAME]`: made if they are not there, changed if they are and differ."""
        for name, wanted in self._config.destinations.items():
            parameters = wanted.parameters()
            try:
                destination = self.core.create(name, wanted.kind, parameters)
            except FairleadError as error:
                self._control.log("error", f"[destinations.{name}] was not made: {error.text}")
                continue
            if destination.parameters != parameters:
                destination.change(parameters)

    # --- The loop -------------------------------------------------------------------------------------------------
    def serve(self) -> int:
        """Tell that we are ready, then turn until it is over."""
        assert self._engine is not None
        self._engine.submit(time.monotonic())
        self._watch_control()
        self._await_links(time.monotonic() + LINKS_S)
        self._control.send("ready")
        while not self._is_over():
            self._turn()
        return 0

    def _await_links(self, until_s: float) -> None:
        """The managers find us within a moment; once they know all names, no publish to one of them is missed."""
        while not self._is_over() and time.monotonic() < until_s:
            if sum(link.manager >= 0 for link in self.core.links.values()) >= self._managers:
                break
            self._turn()

    def _turn(self) -> None:
        events = self._poll.poll(self._patience_s(), EVENTS_MAX)
        began_s = time.monotonic()
        core, engine = self.core, self._engine
        assert engine is not None
        core.on_time(now_ms())
        self._handle(events)
        self._more = core.run()
        core.finish()
        engine.submit(began_s)
        for wire in self._read:
            wire.settle()
        self._read.clear()
        self._write_all()
        now_s = time.monotonic()
        if now_s - self._kept_up_s >= UPKEEP_S or engine.upkeep.is_busy:
            self._kept_up_s = now_s
            engine.upkeep.step(now_s)
        self._look_for_control(now_s)
        if events:
            self._stale = True
            self._figures.turn(now_s - began_s)
        if now_s - self._counted_s >= COUNT_S:
            self._counted_s, self._stale = now_s, False
            assert self._events is not None
            self._figures.count(now_s, self.core, engine.journal, engine.upkeep, self._events)

    def _patience_s(self) -> float:
        if self._more:
            return 0.0
        assert self._engine is not None
        most_s = 0.02 if self._stale or self._engine.upkeep.is_busy or self._stop_s else SAFETY_TICK_S
        return self._engine.patience_s(most_s, time.monotonic())

    def _on_journal(self) -> None:
        assert self._engine is not None
        journal = self._engine.journal
        self.core.on_safe(journal.collect(patiently=True))
        loaded = journal.loaded()
        if loaded:
            self.core.on_loaded(loaded)

    # --- Links, as LinkedProcess asks -----------------------------------------------------------------------------
    def _linked(self, sock: socket.socket) -> Wire:
        return Wire(sock, self.core.link_opened())

    def _take(self, wire: Wire) -> bool:
        self._read.append(wire)
        return wire.read(self.core)

    def _has_room(self, wire: Wire) -> None:
        self.core.flow.link_room(wire.link)

    def _unlinked(self, wire: Wire, why: str) -> None:
        self._more = True
        self.core.link_lost(wire.link)
        if why:
            self.core.event("error", "link-ended", f"The link of manager {wire.link.manager} was ended: {why}")

    def _note(self, record: dict[str, Any]) -> None:
        self.core.note(record)

    def _administer(self, name: str, args: dict[str, Any], then: Callable[[dict[str, Any]], None]) -> None:
        self.core.admin.execute(name, args, then, user="local")

    def _is_over(self) -> bool:
        """After a stop: is everything that was promised on disk, and everything said?"""
        if not self._stop_s:
            return False
        if time.monotonic() >= self._stop_s:
            return True
        return self.core.safe >= self.core.last_index and self.core.tasks.idle and self._is_all_said()

    def close(self) -> None:
        self._close_links()
        if self._engine is not None:
            self._engine.close()
        if self._events is not None:
            self._events.close()
        if self._workers is not None:
            self._workers.close()
