"""What the members of one node share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from fairlead.bus.port import Bus
from fairlead.cluster.edge.engine import Engine, Identity
from fairlead.cluster.edge.eventlog import EventLog
from fairlead.cluster.edge.member_home import MemberHome
from fairlead.cluster.edge.workers import Workers
from fairlead.cluster.options import Options
from fairlead.cluster.replication.record import ControlRecord
from fairlead.cluster.replication.settings import Settings
from fairlead.journal.edge.options import Faults


@dataclass(slots=True)
class Surroundings:
    """What all members of a node share."""

    node: str
    start: int  # of this process
    bus: Bus
    workers: Workers
    events: EventLog
    identity: Identity
    options: Options
    settings: Settings
    founding: ControlRecord
    faults: Faults | None  # of the journals, for tests
    say: Callable[[str, str], None]
    watch: Callable[[int, Callable[[], None]], None]
    forget: Callable[[int], None]
    clock_s: Callable[[], float] = time.monotonic
    directory_group: str = ""  # which of them keeps the directory
    is_stopping: bool = False  # whoever stops leading now needs no state any more

    def options_of(self, group: str) -> Options:
        """The options of one of them."""
        return self.options if group == self.directory_group else replace(self.options, directory=None)

    def engine(self, home: MemberHome, group: str, index: int) -> Engine:
        """The parts of one member's message manager."""
        return Engine(
            home.path,
            self.options_of(group),
            self.identity,
            self.workers,
            self.events,
            lambda level, text: self.say(level, f"group {group}: {text}"),
            faults=self.faults,
            group=group,
            index=index,
            node=self.node,
        )
