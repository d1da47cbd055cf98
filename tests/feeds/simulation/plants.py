"""Bugs to plant in the production machines, each a mistake somebody could make; a storm must notice every one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from fairlead.feeds.adapter import Adapter, numbering
from fairlead.feeds.adapter.numbering import Numbering
from fairlead.feeds.adapter.synchronising import Synchroniser
from fairlead.feeds.arbitration import Arbiter
from fairlead.feeds.arbitration.admin_ids import AdminIds, Fetch
from fairlead.feeds.arbitration.judging import Judge
from fairlead.feeds.arbitration.meeting import Meeting
from fairlead.feeds.arbitration.relations import Relations
from fairlead.feeds.arbitration.tracks import Track
from fairlead.feeds.block_codec import Block
from fairlead.feeds.events import Lost
from fairlead.feeds.records import SOURCE_GAP, Place
from fairlead.feeds.words import Admin

__all__ = ["NAMES", "planted"]


def silent_loss() -> Any:
    """A gap nobody fills is passed over without a word (STR-52)."""
    real = Judge.lose

    def lose(self: Judge, track: Track, why: str, now_s: float) -> None:
        real(self, track, why, now_s)
        self.out[:] = [item for item in self.out if not isinstance(item, Lost)]

    return patch.object(Judge, "lose", lose)


def short_range() -> Any:
    """The range of a loss is one too short."""
    real = Judge.lose

    def lose(self: Judge, track: Track, why: str, now_s: float) -> None:
        real(self, track, why, now_s)
        for i, item in enumerate(self.out):
            if isinstance(item, Lost) and item.last > item.first:
                self.out[i] = Lost(source=item.source, first=item.first, last=item.last - 1)
                self.counts["lost"] -= 1

    return patch.object(Judge, "lose", lose)


def gap_is_next() -> Any:
    """Row 3 of table 5.1 is taken for row 2."""

    def jump(self: Judge, track: Track, now_s: float) -> None:
        track.position = track.missing()[2]
        self.drain(track, now_s)

    return patch.object(Judge, "_open", jump)


def admin_not_remembered() -> Any:
    """Repeats of administrative messages are not known by their id (STR-68)."""
    return patch.object(AdminIds, "is_known", lambda self, name: False)


def admin_by_position() -> Any:
    """By its source position an administrative message looks like a repeat (STR-68)."""
    return patch.object(Judge, "_administrative", lambda self, track, block, i, offset, now_s: True)


def void_passed_over() -> Any:
    """What a void stands for is not fetched (STR-67)."""
    return patch.object(AdminIds, "want", lambda self, fetch: True)


def fetched_too_often() -> Any:
    """What was fetched is delivered, though it has come by itself in the meantime."""

    def want(self: AdminIds, fetch: Fetch) -> bool:
        self.fetches.setdefault(fetch.id, fetch)
        return True

    def fetched(self: Judge, admin: Admin) -> None:
        self._deliver_admin(admin, 0, "feed:1", Place(1), True)

    real = AdminIds.is_known

    class Both:
        def __enter__(self) -> None:
            self.all = [
                patch.object(AdminIds, "want", want),
                patch.object(Judge, "fetched", fetched),
                patch.object(AdminIds, "is_known", lambda ids, name: real(ids, name) and name in ids.fetches),
            ]
            for each in self.all:
                each.start()

        def __exit__(self, *why: object) -> None:
            for each in self.all:
                each.stop()

    return Both()


def position_forgotten() -> Any:
    """After a failover the position is a little before what was delivered (STR-24)."""
    real = Arbiter._take_from

    def take_from(self: Arbiter, line: Any, why: str, now_s: float) -> None:
        for track in self._judge.tracks.values():
            if track.position.sequence > track.start.sequence + 3:
                track.position = Place(track.position.sequence - 3)
        real(self, line, why, now_s)

    return patch.object(Arbiter, "_take_from", take_from)


def source_gap_overlooked() -> Any:
    """A source gap moves the position as a void does (STR-15)."""
    real = Meeting.take

    def take(self: Meeting, block: Block, adapter: str, now_s: float, is_fill: bool = False) -> None:
        track = self.judge.tracks.get(block.source)
        if track is not None and block.mask & 1 << SOURCE_GAP:
            for i in range(block.count):
                record = block.record(i)
                if record.kind == SOURCE_GAP and record.previous <= track.position.sequence < record.sequence:
                    track.position = Place(record.sequence)
        real(self, block, adapter, now_s, is_fill)

    return patch.object(Meeting, "take", take)


def successor_unknown() -> Any:
    """A source that begins afresh is not recognised (STR-46)."""
    return patch.object(Relations, "predecessor", lambda self, root: None)


def sibling_unknown() -> Any:
    """A merged source is not recognised (STR-47)."""
    return patch.object(Relations, "are_siblings", lambda self, root, other: False)


def snapshot_misplaced() -> Any:
    """What follows a snapshot begins one source message too late (STR-54)."""
    real = Meeting.apply_snapshot

    def apply(self: Meeting, positions: Any, bodies: list[bytes], now_s: float) -> None:
        real(self, positions, bodies, now_s)
        for track in self.judge.tracks.values():
            if not track.wait:
                track.position = Place(track.position.sequence + 1)

    return patch.object(Meeting, "apply_snapshot", apply)


def repeats_delivered() -> Any:
    """Row 1 of table 5.1 is taken for row 2."""
    real = Judge._repeated

    def repeated(self: Judge, track: Track, block: Block, i: int, end: int, offset: int, *rest: Any) -> None:
        real(self, track, block, i, end, offset, *rest)
        if made := block.messages(i, end):
            self.out.append(made)
            self.counts["delivered"] += len(made)

    return patch.object(Judge, "_repeated", repeated)


def epoch_not_raised() -> Any:
    """Who is promoted goes on in the epoch of the one before (STR-5)."""
    real = Adapter._promote

    def promote(self: Adapter, epoch: int, changed: Any, now_s: float) -> Any:
        return real(self, max(epoch - 1, 1), changed, now_s)

    def set_epoch(self: Adapter, epoch: int) -> None:
        held = self.epoch if self.role == "active" and self.epoch else epoch
        self.epoch = self._announcer.epoch = held

    class Both:
        def __enter__(self) -> None:
            self.all = [patch.object(Adapter, "_promote", promote), patch.object(Adapter, "_set_epoch", set_epoch)]
            for each in self.all:
                each.start()

        def __exit__(self, *why: object) -> None:
            for each in self.all:
                each.stop()

    return Both()


def numbers_not_aligned() -> Any:
    """A backup that finds itself shifted stays so (STR-19)."""
    return patch.object(Numbering, "renumber", lambda self, shift, now_s: None)


def void_not_sent() -> Any:
    """After a final refusal the backup does not use up a number (STR-66)."""
    return patch.object(Synchroniser, "final", lambda self, word, now_s: None)


def links_by_counting() -> Any:
    """The previous link is the sequence before, whether or not that one gave output (STR-21)."""

    def links(sequences: Any, link: int) -> Any:
        return sequences - np.uint64(1)

    return patch.object(numbering, "_previous_links", links)


PLANTS: dict[str, Callable[[], Any]] = {
    plant.__name__: plant
    for plant in (
        *(silent_loss, short_range, gap_is_next, repeats_delivered, position_forgotten, source_gap_overlooked),
        *(admin_not_remembered, admin_by_position, void_passed_over, fetched_too_often),
        *(successor_unknown, sibling_unknown, snapshot_misplaced),
        *(epoch_not_raised, numbers_not_aligned, void_not_sent, links_by_counting),
    )
}
NAMES = list(PLANTS)


@contextmanager
def planted(*names: str) -> Iterator[None]:
    """With these bugs in it."""
    if not names:
        yield
        return
    with PLANTS[names[0]](), planted(*names[1:]):
        yield
