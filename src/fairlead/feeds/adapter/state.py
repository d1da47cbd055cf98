"""What an adapter is, and what it says of itself: its parts, its settings, heartbeats, reports, answers to lines."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from fairlead.feeds.adapter import answering
from fairlead.feeds.adapter.actions import RoleChanged
from fairlead.feeds.adapter.anchoring import AnchorDesk, Anchoring
from fairlead.feeds.adapter.announcing import Announcer
from fairlead.feeds.adapter.numbering import Numbering
from fairlead.feeds.adapter.retained import BYTES_MAX, MESSAGES_MAX, SECONDS_MAX, Filled, Read, Retained
from fairlead.feeds.adapter.sent_admins import SentAdmins
from fairlead.feeds.adapter.snapshot_state import SnapshotState
from fairlead.feeds.adapter.synchronising import Decision, Synchroniser
from fairlead.feeds.records import Place
from fairlead.feeds.words import (
    Beat,
    FetchAdmin,
    Fetched,
    Fill,
    Placed,
    Report,
    RoleName,
    SnapshotAsk,
    SnapshotPart,
    Source,
    Start,
    Unavailable,
    Welcome,
)

__all__ = ["AdapterState", "Limits"]

SNAPSHOT_PAUSE_S = 0.01
BEAT_SOURCES_MAX = 4  # a heartbeat names this many of the newest sources
BEAT_ADMINS_MAX = 8  # and this many of the newest administrative messages
_COUNTED = (
    *("records", "repeated", "source_gaps", "admins", "voids", "announced", "admins_made"),
    *("kept", "exact", "displaced", "refused", "anchored", "renumbered", "promotions"),
)


class Limits(Struct, frozen=True, kw_only=True):
    """The settings of an adapter; the defaults are those of the specification."""

    threshold: int = 8
    lead: int = 16
    revise_s: float = 0.05
    heartbeat_s: float = 0.2
    lag_max: int = 10_000
    retained_messages: int = MESSAGES_MAX
    retained_s: float = SECONDS_MAX
    retained_bytes: int = BYTES_MAX
    has_snapshots: bool = False
    is_merged: bool = False  # several sources at once


class AdapterState:
    """One adapter of a group. It begins as a backup without a role; the administration says what it is."""

    def __init__(
        self,
        *,
        name: str,
        stream: str,
        incarnation: int,
        sources: tuple[Source, ...] = (),
        limits: Limits | None = None,
    ) -> None:
        self.name = name
        self.stream = stream
        self.incarnation = incarnation
        self.limits = limits = limits or Limits()
        self.sources = {source.id: source for source in sources}
        self.epoch = 0
        self.role: RoleName = "backup"
        self.source_alive = True
        self._retained = Retained(
            messages_max=limits.retained_messages, seconds_max=limits.retained_s, bytes_max=limits.retained_bytes
        )
        self._numbering = Numbering(self._retained, default_source=next(iter(self.sources), stream))
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._synchroniser = Synchroniser(self._numbering, threshold=limits.threshold, on_decision=self._on_decision)
        self._announcer = Announcer(self._numbering, name=name, lead=limits.lead, revise_s=limits.revise_s)
        self._desk = AnchorDesk(self._numbering)
        self._anchoring = Anchoring(self._numbering, self._synchroniser, is_merged=limits.is_merged)
        self._admins = SentAdmins()
        self._snapshot = SnapshotState()
        self._snapshots_going: dict[str, Iterator[SnapshotPart]] = {}
        self._wants_snapshot = False
        self._is_state_to_be_had = True  # the active has a snapshot for us
        self._had_role = False
        self._has_place = False  # our numbers are those of the group
        self._told_role: RoleChanged | None = None
        self._link = ""  # of a backup: the active it is linked to
        self._guests: set[str] = set()  # adapters that have dialled us
        self._heard_s = 0.0
        self._is_link_alive = False
        self._lag = 0
        self._switch = ""  # id of a planned switch that makes us active
        self._beat_due_s: float | None = None
        self._active_admins: tuple[tuple[str, str, Placed], ...] = ()  # in the newest heartbeat of the active
        self._told_sources = 0
        self._end = 0  # what lines were woken for

    # What can be read off.

    @property
    def first(self) -> int:
        return self._retained.first

    @property
    def last(self) -> int:
        return self._numbering.last

    @property
    def positions(self) -> dict[str, Place]:
        return self._numbering.positions

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """N, B, T, p and the result of the newest announcements (STR-58)."""
        return tuple(self._synchroniser.decisions)

    @property
    def synchronised(self) -> bool:
        """Could this adapter go on in the active's place without anybody noticing? (STR-73)"""
        if self.role == "active":
            return True
        return (
            self._synchroniser.is_anchored
            and bool(self._link)
            and self._is_link_alive
            and self.source_alive
            and self._lag < self.limits.lag_max
            and not self._synchroniser.has_unresolved
            and (self._snapshot.is_complete or not (self.limits.has_snapshots and self._is_state_to_be_had))
        )

    @property
    def next_s(self) -> float | None:
        """When `on_tick` is wanted at the latest."""
        due = [self._beat_due_s, self._announcer.next_s if self.role == "active" else None]
        if self._snapshots_going:
            due.append((self._beat_due_s or 0.0) - self.limits.heartbeat_s + SNAPSHOT_PAUSE_S)
        return min((one for one in due if one is not None), default=None)

    # What lines and the administration are told.

    def beat(self) -> Beat:
        return Beat(
            epoch=self.epoch,
            incarnation=self.incarnation,
            role=self.role,
            last=self.last,
            positions=self._placed(),
            source_alive=self.source_alive,
            synchronised=self.synchronised,
            sources=tuple(self.sources.values())[-BEAT_SOURCES_MAX:],
            admins=self._admins.newest(BEAT_ADMINS_MAX) + self._older_admins(),
        )

    def _older_admins(self) -> tuple[tuple[str, str, Placed], ...]:
        """Those before our oldest record, at their places in the active's stream.

        A client that came to us from just before such a place has passed it without knowing.
        """
        return tuple(one for one in self._active_admins if self._synchroniser.is_older(one[0]))

    def welcome(self) -> Welcome:
        return Welcome(
            adapter=self.name,
            stream=self.stream,
            incarnation=self.incarnation,
            epoch=self.epoch,
            role=self.role,
            first=self.first,
            last=self.last,
            heartbeat_s=self.limits.heartbeat_s,
            has_snapshots=self.limits.has_snapshots and self._snapshot.is_complete,
        )

    def report(self) -> Report:
        """With the sources whenever they have changed since the last one."""
        told, self._told_sources = self._told_sources, len(self.sources)
        return Report(
            epoch=self.epoch,
            role=self.role,
            incarnation=self.incarnation,
            last=self.last,
            positions=self._placed(),
            sources=tuple(self.sources.values()) if told != len(self.sources) else None,
            source_alive=self.source_alive,
            synchronised=self.synchronised,
            counters=self.counters(),
        )

    def _placed(self) -> dict[str, Placed]:
        return dict(self._numbering.positions)

    def counters(self) -> dict[str, int]:
        """For people and tests (STR-83)."""
        return self._counts | {
            "epoch": self.epoch,
            "first": self.first,
            "last": self.last,
            "lag": self._lag,
            "retained_bytes": self._retained.bytes,
        }

    # What a line may ask.

    def cursor(self, start: Start) -> int:
        return answering.cursor(start, self._numbering)

    def read(self, cursor: int, bytes_max: int) -> Read:
        return self._retained.read(cursor, bytes_max)

    def fill(self, word: Fill) -> Filled:
        return answering.fill(word, self._numbering)

    def fetch(self, word: FetchAdmin) -> Fetched | Unavailable:
        return answering.fetch(word, self._admins, self.first)

    def snapshot(self, word: SnapshotAsk) -> Iterator[SnapshotPart] | Unavailable:
        return answering.snapshot(word, self._snapshot, self._numbering)

    def _on_decision(self, decision: Decision) -> None:
        self._counts[decision.result] += 1
