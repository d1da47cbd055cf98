"""Filling stages: the command `stage`, and the STORE frames that follow it.

Rows of a stage are numbered from 1 for each destination, so what is sent again after a lost connection is known by its
numbers. A frame is taken whole or refused whole, and a refusal leaves the stage as it was. While a destination has as
many messages as it may, rows for it are stored but not confirmed: whoever fills a stage sends on until its window is
full, and waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlead.cluster import intake, records, requests, stored
from fairlead.cluster.opening import new_handle
from fairlead.cluster.parties import Line, Session, Stager
from fairlead.cluster.staged import Stage, row_of
from fairlead.errors import (
    BadEntries,
    DestinationDeleted,
    FairleadError,
    NotAllowed,
    OutOfOrder,
    StageMissing,
    TooLarge,
)
from fairlead.security.spaces import is_servers
from fairlead.wire.durable import ENTRY_CRON, ENTRY_LARGE, STORED_AGAIN, STORED_NEW
from fairlead.wire.entry_codec import details, forged

if TYPE_CHECKING:
    from fairlead.cluster.core import Core
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.stages import Stages

BLOCKED_MS: Final = 20
"""How often it is looked whether a full destination has room again."""
ID_BLOCK: Final = 1 << 24
"""Message id numbers taken at once; the journal hears of each block."""


Confirm = tuple[Stager, int, int, int, int]
"""stager, first row, count, status, time of arrival."""


class Staging:
    """Who fills which stage."""

    def __init__(self, core: Core, stages: Stages) -> None:
        self._core = core
        self._stages = stages
        self._stagers: dict[Line, dict[int, Stager]] = {}
        self._confirms: dict[Destination, list[Confirm]] = {}  # for which there is no room yet
        self._id_prefix = b""
        self._id_next = self._id_beyond = 0

    # ------------------------------------------------------------------ the command

    def on_stage(self, line: Line, number: int, request: dict[str, Any]) -> None:
        core, asked = self._core, requests.read(request, requests.OpenStage)
        if is_servers(asked.destination):
            raise NotAllowed(f"Nobody sends to {asked.destination!r}: its messages come from the server itself.")
        destination = core.sessions.opening.resolve(asked, request)
        stage = self._stages.claim(asked.query, asked.batch, asked.stage, line.user)
        stager = self._stager(line, stage, destination)

        def ready() -> None:
            facts = {
                "stage": stager.handle,
                "accepted": stage.accepted(destination.number),
                "window_bytes": core.settings.window_bytes,
                "blocked": destination.blocked,
                "published": self._stages.is_published(asked.query, asked.batch),
            }
            core.after(core.last_index, lambda: core.answer(line, number, facts))

        core.post(destination, ready)  # behind what an earlier connection has there

    def _stager(self, line: Line, stage: Stage, destination: Destination) -> Stager:
        mine = self._stagers.setdefault(line, {})
        for handle, known in list(mine.items()):
            if handle not in line.handles or not self._stages.is_open(known.stage):
                del mine[handle]  # ended by its client, or its stage is over
                line.handles.pop(handle, None)
            elif known.stage is stage and known.destination is destination:
                return known
        session = Session(stage.id, -1, 1, "auto", line, user=line.user)
        stager = Stager(new_handle(line), session, destination, stage=stage)
        mine[stager.handle] = line.handles[stager.handle] = stager
        return stager

    def stagers(self, destination: Destination) -> Iterator[Stager]:
        """Who fills stages for it."""
        return (one for mine in self._stagers.values() for one in mine.values() if one.destination is destination)

    def on_gone(self, line: Line) -> None:
        gone = self._stagers.pop(line, {})
        for stager in gone.values():
            stager.session.line = None
        if gone:
            for destination, waiting in self._confirms.items():
                self._confirms[destination] = [one for one in waiting if one[0].session.line is not None]

    def on_deleted(self, destination: Destination, reason: str) -> None:
        self._confirms.pop(destination, None)
        for stager in list(self.stagers(destination)):
            line = stager.session.line
            assert line is not None
            del self._stagers[line][stager.handle]
            line.handles.pop(stager.handle, None)
            facts = {"handle": stager.handle, "code": DestinationDeleted.code, "text": reason}
            self._core.notice(stager.session, event="ended", **facts)

    # ------------------------------------------------------------------ STORE frames

    def on_store(self, line: Line, handle: int, first: int, sent_ms: int, entries: memoryview, cost: int) -> bool:
        """False: the connection has no stage of this number."""
        stager = self._stagers.get(line, {}).get(handle)
        if stager is None or handle not in line.handles:
            return False
        core = self._core
        place = core.names.by_number.get(stager.destination.number)
        if place is None:
            return False
        core.tally.stored_bytes += len(entries)
        core.tasks.put(place.task, cost, line, self._store, stager, first, sent_ms, entries)
        return True

    def _store(self, stager: Stager, first: int, sent_ms: int, entries: memoryview) -> None:
        """In the destination's task. Where a producer's frame would wait for room on the disk, a stage's is refused."""
        try:
            self._take(stager, first, sent_ms, entries)
        except FairleadError as refusal:
            facts = {"producer": stager.handle, "first": first, "code": refusal.code, "text": refusal.text}
            self._core.notice(stager.session, event="refused", **facts)

    def _take(self, stager: Stager, first: int, sent_ms: int, entries: memoryview) -> None:
        core, stage, home = self._core, stager.stage, stager.destination
        if not self._stages.is_open(stage):
            raise StageMissing(f"The stage {stage.name!r:.80} is gone: published, abandoned, or dropped.")
        batch = intake.Batch(stager, first, sent_ms, 0, entries, -1)
        expected = stage.accepted(home.number) + 1
        if not 0 < first <= expected:
            raise OutOfOrder(f"Row {first} came where {expected} was expected.")
        now_ms = stage.active_ms = core.now_ms
        known = min(expected - first, batch.count)
        if known:
            core.after(core.last_index, lambda: self._confirm((stager, first, known, STORED_AGAIN, now_ms)))
            batch = batch.part(known, batch.count - known) if known < batch.count else batch
        if known == batch.count and batch.first == first:
            return
        self._check(batch)
        head = stored.Head(
            home.number, batch.flags, 0, batch.count, stage.id, batch.first, records.STAGED, batch.low, batch.high,
            sent_ms, now_ms, self._identity(batch.count), len(batch.entries),
        )  # fmt: skip
        packed = head.pack()
        index, place = core.append(records.HIDDEN, packed, batch.entries)
        stage.add(home.number, row_of(index, place, len(packed) + len(batch.entries), head))
        core.after(index, lambda: self._confirm((stager, batch.first, batch.count, STORED_NEW, now_ms)))

    def _confirm(self, confirm: Confirm) -> None:
        """Tell that rows are safe, now or when the destination has room."""
        home = confirm[0].destination
        waiting = self._confirms.get(home)
        if waiting is not None:
            waiting.append(confirm)
        elif home.blocked:
            self._confirms[home] = [confirm]
            self._core.call_at(self._core.now_ms + BLOCKED_MS, lambda: self._look_for_room(home))
        else:
            self._stored(confirm)

    def _look_for_room(self, home: Destination) -> None:
        if home.blocked and self._confirms.get(home):
            self._core.call_at(self._core.now_ms + BLOCKED_MS, lambda: self._look_for_room(home))
            return
        for confirm in self._confirms.pop(home, ()):
            self._stored(confirm)

    def _stored(self, confirm: Confirm) -> None:
        stager, first, count, status, now_ms = confirm
        self._core.stored(stager, first, count, status, 0, now_ms)

    def _check(self, batch: intake.Batch) -> None:
        entries = batch.entries
        if forged(entries, 0, len(entries)):
            raise BadEntries("A message brings a header that only the server may set.")
        if batch.flags & ENTRY_LARGE:
            raise TooLarge("Very large messages, those in pieces, cannot be staged.")
        if batch.flags & ENTRY_CRON:
            for entry in details(entries, 0, len(entries)):
                fault = intake.bad_schedule(entry, self._core.now_ms) if entry.flags & ENTRY_CRON else None
                if fault is not None:
                    raise fault

    def _identity(self, count: int) -> bytes:
        """The id of the first of so many messages."""
        core = self._core
        if self._id_next + count > self._id_beyond:
            self._id_prefix = core.new_session_id()[:12] + intake.MESSAGE
            self._id_next = core.id_block(ID_BLOCK)
            self._id_beyond = self._id_next + ID_BLOCK
            self._stages.gave_ids(self._id_beyond)
            core.append(records.STAGE, msgspec.json.encode({"do": "ids", "beyond": self._id_beyond}))
        number = self._id_next
        self._id_next += count
        return self._id_prefix + number.to_bytes(7)
