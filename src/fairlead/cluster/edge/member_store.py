"""What a member has on its disk, and the state behind it: a journal as the group's log, and a core.

While it follows, the core is told what is safe, in order. When it leads, the core writes, and may be ahead of what is
safe; so whoever stops leading throws the core away and builds it again from the journal. What was written stays in the
log: some of it may be safe, and the next primary knows what is. Building takes its time and is done in a thread: the
other groups of the node go on meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Any

from fairlead.cluster import records
from fairlead.cluster.core import Core
from fairlead.cluster.edge.engine import Engine
from fairlead.cluster.edge.group_log import GroupLog
from fairlead.cluster.edge.member_home import MemberHome
from fairlead.cluster.edge.member_log import MemberLog
from fairlead.cluster.edge.side_feed import SideFeed
from fairlead.cluster.replica import Replica
from fairlead.journal.edge.journal import Journal
from fairlead.journal.edge.opening import Recovery as Found

Work = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""What has a job done in a thread, and its result, or its exception, told in the loop."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A state that could follow, as far as the newest checkpoint goes."""

    found: Found
    replica: Replica
    transfers: list[tuple[int, bytes]]  # TRANSFER records behind it


def prepare(engine: Engine) -> Prepared:
    """Open the journal and read it; takes its time, and may do so in a thread as long as nobody else has the engine."""
    found = engine.open()
    engine.build()
    replica = Replica(engine.core, engine.recovery)
    replica.restore(found.blobs(), found.entries(), found.covers)
    transfers = []
    for one in found.records():  # everything is looked at, so that damage is known before the log is relied on
        if one.kind == records.TRANSFER:
            transfers.append((one.index, bytes(one.body)))
    return Prepared(found, replica, transfers)


class MemberStore:
    """One member's. `on_journal` is called when the journal's threads have done something."""

    def __init__(
        self,
        home: MemberHome,
        engine: Engine,
        ready: Prepared,
        side: SideFeed,
        *,
        watch: Callable[[int, Callable[[], None]], None],
        forget: Callable[[int], None],
        on_journal: Callable[[], None],
        on_core: Callable[[Core], None],
        before_following: Callable[[], None],
        reserve: Callable[[], int | None],
    ) -> None:
        self.home = home
        self.engine = engine
        self.leads = False
        self.folds = 0  # how often it stopped leading
        self._side = side
        self._watch, self._forget, self._on_journal = watch, forget, on_journal
        self._on_core = on_core
        self._before_following = before_following
        self._reserve = reserve
        self._read: Event | None = None  # set when the thread has built what is to follow
        self.replica = ready.replica
        self.log = MemberLog(self._attend(ready), self.follow)
        engine.report(ready.found)
        self.damaged = bool(ready.found.damage)

    @property
    def journal(self) -> Journal:
        return self.engine.journal

    @property
    def core(self) -> Core:
        return self.engine.core

    @property
    def applied(self) -> int:
        """The newest record the state knows of."""
        return self.core.last_index if self.leads else self.replica.applied

    def _attend(self, ready: Prepared) -> GroupLog:
        """Follow with that state from now on."""
        engine = self.engine
        for index, body in ready.transfers:
            self._side.recall(index, memoryview(body))
        log = GroupLog(
            engine.journal,
            applied=ready.found.covers,
            apply=ready.replica.apply,
            on_safe=engine.core.on_safe,
            aside=self.home.path,
        )
        log.gate = self._side  # it was told above; what a damaged disk has left cannot be read once more
        engine.keep(self._on_journal, self._reserve)
        self._on_core(engine.core)
        self._watch(engine.journal.fd, self._on_journal)
        return log

    def _adopt(self, ready: Prepared) -> None:
        self.replica, self.log.inner = ready.replica, self._attend(ready)
        gc.unfreeze()  # the core that was
        gc.collect()
        gc.freeze()

    def lead(self, epoch: int) -> None:
        """What is in the log counts, all of it, and the core writes on."""
        self.log.inner.lead()
        transfers = self.core.transfers
        transfers.coming = self._side.lead(transfers.known, lambda number: self.core.transfers.missing(number))
        if not transfers.coming:
            self.log.inner.gate = None  # what we write we have
        self.replica.lead()
        self.leads = True
        self.engine.begin(epoch)

    def follow(self) -> None:
        """If this store led: no more, at once. `fold` does it without making others wait."""
        if self.leads:
            self._lead_no_more()
            self.shut()
            self._adopt(prepare(self.engine))

    def fold(self, work: Work, then: Callable[[Exception | None], None]) -> None:
        """This store led, and follows when `then` is called; until then nobody may touch it."""
        self._lead_no_more()
        self._rebuild(work, lambda: None, then)

    def swap(self, work: Work, then: Callable[[Exception | None], None], *, loaded: bool) -> None:
        """A whole state that is complete takes the place of ours, which it must not fall behind if ours is `loaded`.

        It is so when `then` is called; until then nobody may touch the store.
        """
        ours = (self.log.last, self.log.epoch_at(self.log.last)) if loaded else (0, 0)
        self._rebuild(work, lambda: self.home.swap(*ours), then)

    def _lead_no_more(self) -> None:
        self.leads = False
        self._side.follow()
        self.folds += 1
        self._before_following()

    def _rebuild(self, work: Work, change: Callable[[], None], then: Callable[[Exception | None], None]) -> None:
        """Close everything, have the files changed, and read them again, in a thread."""
        engine, read = self.engine, Event()
        self._read = read
        self._forget(engine.journal.fd)

        def build() -> Prepared:
            try:
                engine.close()
                change()
                return prepare(engine)
            finally:
                read.set()

        def built(ready: Prepared | Exception) -> None:
            if self._read is not read:
                return  # shut meanwhile
            self._read = None
            if isinstance(ready, Prepared):
                self._adopt(ready)
                then(None)
            else:
                then(ready)

        work(build, built)

    def collect(self, *, patiently: bool) -> bool:
        """Take in what the disk has done. Is more on it than before?"""
        before, journal = self.log.synced, self.engine.journal
        journal.collect(patiently=patiently)
        self.log.inner.on_collected()
        loaded = journal.loaded()
        if loaded:
            self.core.on_loaded(loaded)
        return self.log.synced > before

    def submit(self, now_s: float) -> None:
        """One batch to the disk."""
        if self.leads:
            self.engine.submit(now_s)
        else:
            self.engine.journal.submit()

    def shut(self) -> None:
        """Everything on disk, and the files closed."""
        if self._read is not None:
            self._read.wait()
            self._read = None
        self._forget(self.engine.journal.fd)
        self.engine.close()

    def abort(self) -> None:
        """The disk failed: nothing more is written."""
        self._forget(self.engine.journal.fd)
        self.engine.journal.abort()
