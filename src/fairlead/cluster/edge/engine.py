"""What one message manager consists of, without a loop: core, journal, side files, upkeep, and the ids it gives.

The process of a single server has one (message_manager.py), a member node one per group it hosts (member.py). It is
the `World` of its core.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairlead.cluster import ids, records
from fairlead.cluster.core import GROUP, MESSAGE_BITS, Core
from fairlead.cluster.describe import Describer
from fairlead.cluster.edge.bulk import BulkReader
from fairlead.cluster.edge.eventlog import EventLog
from fairlead.cluster.edge.large import SideFiles
from fairlead.cluster.edge.offers import Offers
from fairlead.cluster.edge.tracing import Traces
from fairlead.cluster.edge.upkeep import Upkeep
from fairlead.cluster.edge.workers import Workers
from fairlead.cluster.options import Options
from fairlead.cluster.outgoing import encode_json
from fairlead.cluster.recovery import Recovery
from fairlead.errors import ConfigError
from fairlead.journal.edge.journal import Journal
from fairlead.journal.edge.opening import Recovery as Found
from fairlead.journal.edge.options import Faults
from fairlead.journal.edge.options import Options as JournalOptions
from fairlead.journal.edge.spill import Spill
from fairlead.journal.index import Pool
from fairlead.runtime.version import VERSION

LINGER_S: Final = 0.002  # records nobody waits for are written with those of somebody who does, or after this time

Say = Callable[[str, str], None]
"""Level and text: a line the operator should see."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Where the ids given here come from (CLU-89)."""

    address: str = "127.0.0.1"
    site: int = 0
    port: int = 1  # one this node holds open


class Engine:
    """One message manager's parts. `open`, then `build`; then either `read_all` and `begin`, or a replica does both."""

    def __init__(
        self,
        home: Path,
        options: Options,
        identity: Identity,
        workers: Workers,
        events: EventLog,
        say: Say,
        *,
        faults: Faults | None = None,
        group: str = GROUP,
        index: int = 0,
        node: str = "",
    ) -> None:
        self.home = home
        self.options = options
        self.group, self.index = group, index
        self.say = say
        self._identity = identity
        self._workers = workers
        self._events = events
        self._faults = faults
        self._node = node  # its name in the event log and in administration; empty: the default
        self._generators: dict[str, ids.Generator] = {}
        self._linger_s = 0.0  # until then; 0: nothing does
        self.large: SideFiles
        self.journal: Journal
        self.core: Core
        self.recovery: Recovery
        self.upkeep: Upkeep

    # --- Beginning ------------------------------------------------------------------------------------------------
    def open(self) -> Found:
        """Open the journal, or make one."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.large = SideFiles(self.home / "large")
        self.journal, found = Journal.open(self.home / "journal", self.journal_options())
        return found

    def journal_options(self) -> JournalOptions:
        options = self.options
        return JournalOptions(
            segment_bytes=options.segment_bytes,
            cache_bytes=options.cache_bytes,
            quota_bytes=options.quota_bytes,
            sync=options.sync == "always",
            describe=Describer(),
            faults=self._faults,
            clock_ms=now_ms,
        )

    def configure(self, options: Options) -> None:
        """Other values of `[messages]`, while it runs."""
        self.options = options
        self.journal.options.quota_bytes = options.quota_bytes
        self.core.configure(options)

    def build(self) -> None:
        """A core of which nothing is known yet."""
        journal = self.journal
        self.core = Core(
            journal,
            self,
            self.options,
            self.large,
            now_ms=now_ms(),
            pool=Pool(Spill(self.home)),
            reader=BulkReader(journal),
            group=self.group,
            index=self.index,
        )
        if self._node:
            self.core.admin.node = self._node
        self.recovery = Recovery(self.core)

    def read_all(self, found: Found) -> None:
        """The whole state, from what the journal has found."""
        self.recovery.restore(found.blobs())
        self.recovery.place(found.entries())
        self.recovery.replay(found.records(), lambda text: self.say("info", text))

    def begin(self, epoch: int) -> None:
        """Write from now on, in this epoch: the record that says so, then what follows from a start."""
        recovery, core = self.recovery, self.core
        where = self._identity
        node = ids.Node(where.address, where.site, where.port, time.time(), recovery.start)
        first = self.index << MESSAGE_BITS  # groups of one node may begin in the same second
        self._generators = {kind.name.lower(): ids.Generator(node, kind, first) for kind in ids.Kind}
        core.epoch = self.journal.epoch = epoch
        beginning = {
            "epoch": epoch,
            "store": self.journal.store_id.hex(),
            "software": VERSION,
            "ms": core.now_ms,
            "start": node.start,
            "group": core.group,
        }
        core.append(records.START, encode_json(beginning))
        recovery.start = node.start
        recovery.finish()
        core.create_well_known()

    def keep(self, collect: Callable[[], None], reserve: Callable[[], int | None] = lambda: None) -> None:
        """Upkeep from now on, and the commands of administration that need the disk."""
        self.upkeep = Upkeep(self.core, self.journal, self.recovery, collect, reserve)
        Offers(self.core, self.journal, self.upkeep, self._events, self.large.folder)
        Traces(self.core, self.home / "journal", self._events.path)

    def report(self, found: Found) -> None:
        """Say what the journal has lost, with its place, and what a power failure cut off (CLU-114)."""
        for finding in found.damage:
            self.say("error", f"journal: {finding}")
            self.core.event("error", "journal-damage", str(finding), segment=finding.segment, offset=finding.offset)
        if found.torn is not None:
            self.say("warning", f"journal: {found.torn}")
            self.core.event("warning", "journal-torn", str(found.torn))

    # --- World: what only an edge can do ----------------------------------------------------------------------------
    def work(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        core = self.core

        def arrived(result: Any) -> None:
            if self.core is core:  # else the core that asked is no more
                core.carry_out(lambda: then(result))

        self._workers.work(job, arrived)

    def token(self) -> bytes:
        return secrets.token_bytes(32)

    def new_id(self, kind: str) -> bytes:
        return self._generators[kind].next(self.core.now_ms / 1000)

    def log(self, record: dict[str, Any]) -> None:
        self._events.write(record)

    # --- Parts of a turn ------------------------------------------------------------------------------------------
    def submit(self, now_s: float) -> None:
        """One batch to the disk. What nobody waits for lingers for a moment."""
        journal = self.journal
        if not journal.lingers:
            self._linger_s = 0.0
        elif not self._linger_s:
            self._linger_s = now_s + LINGER_S
        journal.submit(patiently=now_s < self._linger_s)
        if journal.full:
            self.core.flow.store_full(journal.full)
        else:
            self.core.flow.store_room()

    def patience_s(self, most_s: float, now_s: float) -> float:
        """How long the loop may wait for something to happen, as far as time is concerned."""
        if self.core.bulk.scans.has_more:
            return 0.0
        left_s = self._linger_s - now_s
        if left_s > 0:  # else nothing lingers, or a write is under way, and its end will wake us
            most_s = min(most_s, left_s)
        next_ms = self.core.timers.next_ms
        if next_ms is not None:
            most_s = max(0.0, min(most_s, (next_ms - now_ms()) / 1000))
        return most_s

    def close(self) -> None:
        if hasattr(self, "journal"):
            self.journal.close()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def faults_of(text: str) -> Faults | None:
    """The test switch: `name=value` pairs of the journal's `Faults`, joined by commas."""
    if not text:
        return None
    faults = Faults()
    for pair in text.split(","):
        name, _, value = pair.partition("=")
        try:
            setattr(faults, name.strip(), type(getattr(faults, name.strip()))(value))
        except (AttributeError, ValueError):
            raise ConfigError(f"[messages] faults: {pair!r} is not a fault of the journal.") from None
    return faults
