"""The message manager's row of counters, which `fairlead status` reads (runtime/counters.py).

Cheap ones are written with every count; what needs a look at every destination, now and then, the more seldom the more
destinations there are.
"""

from __future__ import annotations

from typing import Final

from fairlead.cluster.books import Books
from fairlead.cluster.core import Core
from fairlead.cluster.edge.eventlog import EventLog
from fairlead.cluster.edge.upkeep import Upkeep
from fairlead.journal.edge.journal import Journal
from fairlead.journal.sync_times import SyncTimes
from fairlead.runtime.counters import Counters, MessageManagerCounter

GROWING: Final = (
    (MessageManagerCounter.STORED, "stored"),
    (MessageManagerCounter.STORED_BYTES, "stored_bytes"),
    (MessageManagerCounter.DELIVERED, "delivered"),
    (MessageManagerCounter.DELIVERED_BYTES, "delivered_bytes"),
    (MessageManagerCounter.SETTLED, "settled"),
    (MessageManagerCounter.REPEATS, "repeats"),
    (MessageManagerCounter.REFUSED, "refused"),
)
SYNCS_AT_MOST: Final = tuple(one for one in MessageManagerCounter if one.name.startswith("SYNC_LE_"))
LOOK_S: Final = 0.02  # between looks at all destinations, for each thousand of them


class Figures:
    """Writes the row. What grows goes on from where the process before us left it."""

    def __init__(self, counters: Counters) -> None:
        self._words = counters.words
        self._before = {number: self._words[number] for number in MessageManagerCounter}
        self._gap_max_s = 0.0
        self._looked_s = 0.0
        self._words[MessageManagerCounter.TICK_GAP_MAX_NS] = 0

    def recovered(self, took_ns: int) -> None:
        self._words[MessageManagerCounter.RECOVERY_NS] = took_ns

    def turn(self, took_s: float) -> None:
        """A turn with work took so long."""
        if took_s > self._gap_max_s:
            self._gap_max_s = took_s

    def count(self, now_s: float, core: Core, journal: Journal, upkeep: Upkeep, events: EventLog) -> None:
        words, before, counter = self._words, self._before, MessageManagerCounter
        words[counter.LOOP_PROGRESS] += 1
        for number, name in GROWING:
            words[number] = before[number] + getattr(core.tally, name)
        words[counter.COMMANDS] = before[counter.COMMANDS] + core.dispatchers.dispatched.total()
        words[counter.DROPPED] = before[counter.DROPPED] + core.dispatchers.dropped.total()
        words[counter.COMMITS] = before[counter.COMMITS] + core.transactions.committed
        words[counter.ROLLBACKS] = before[counter.ROLLBACKS] + core.transactions.rolled_back
        words[counter.DESTINATIONS] = len(core.names)
        words[counter.SESSIONS] = len(core.sessions.by_id)
        words[counter.LINKS] = len(core.links)
        words[counter.SAFE_INDEX] = journal.safe
        words[counter.PENDING_RECORDS] = journal.last - journal.safe
        words[counter.SYNCS] = before[counter.SYNCS] + journal.syncs
        words[counter.WRITTEN_BYTES] = before[counter.WRITTEN_BYTES] + core.written_bytes
        self._count_syncs(journal.sync_times)
        words[counter.JOURNAL_BYTES] = journal.disk_bytes
        words[counter.SEGMENTS] = journal.disk_bytes // journal.options.segment_bytes
        words[counter.CHECKPOINTS] = before[counter.CHECKPOINTS] + upkeep.checkpoints
        words[counter.TICK_GAP_MAX_NS] = int(self._gap_max_s * 1e9)
        words[counter.STORE_FULL] = bool(journal.full)
        words[counter.WORK_WAITING] = not core.tasks.idle
        words[counter.EVENTS_DROPPED] = before[counter.EVENTS_DROPPED] + events.dropped
        if now_s - self._looked_s >= LOOK_S * (len(core.names) // 1000):
            self._looked_s = now_s
            self._look(core)

    def _count_syncs(self, times: SyncTimes) -> None:
        words, before, counter = self._words, self._before, MessageManagerCounter
        words[counter.LAST_SYNC_NS] = times.last_ns
        words[counter.SYNCS_TIMED] = before[counter.SYNCS_TIMED] + times.count
        words[counter.SYNC_TIME_NS] = before[counter.SYNC_TIME_NS] + times.total_ns
        for number, count in zip(SYNCS_AT_MOST, times.at_most(), strict=True):
            words[number] = before[number] + count

    def _look(self, core: Core) -> None:
        words, before, counter = self._words, self._before, MessageManagerCounter
        books = Books()
        books.add(core.showcase.gone)
        depth = bytes_ = blocked = 0
        for destination in core.destinations.values():
            depth += destination.depth
            bytes_ += destination.bytes
            blocked += core.is_blocked(destination)
            books.add(destination.books)
        words[counter.DEPTH], words[counter.DEPTH_BYTES], words[counter.BLOCKED] = depth, bytes_, blocked
        words[counter.EXPIRED] = before[counter.EXPIRED] + books.expired
        words[counter.DEAD] = before[counter.DEAD] + books.dead
        words[counter.REDELIVERED] = before[counter.REDELIVERED] + books.redelivered
        words[counter.TASKS_WAITING] = sum(task.depth for task in core.tasks)
        producers = consumers = 0
        for session in core.sessions.by_id.values():
            producers += len(session.producers)
            consumers += len(session.consumers)
        words[counter.PRODUCERS], words[counter.CONSUMERS] = producers, consumers
