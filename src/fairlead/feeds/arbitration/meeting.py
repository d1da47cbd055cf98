"""Rows 5 to 8 of table 5.1: where to begin in a source stream that this client has no position in.

A source nobody has told of yet is held for a moment, since the administration's notice may be on its way.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.feeds.arbitration.judging import Judge
from fairlead.feeds.arbitration.tracks import KNOWN, NOTICE, PREDECESSOR, Piece, Track, is_passed, moved
from fairlead.feeds.arbitration.tracks import SNAPSHOT as FOR_SNAPSHOT
from fairlead.feeds.block_codec import SNAPSHOT, Block, StreamMessage
from fairlead.feeds.blocks import SEQUENCE_MAX
from fairlead.feeds.events import Discontinuity, SnapshotBegun, SnapshotEnded, Succeeded
from fairlead.feeds.records import ADMIN, ADMIN_VOID, PART_MAX, START, Place
from fairlead.feeds.words import Placed, Source

__all__ = ["Meeting"]

TRACKS_MAX = 1024
CHAIN_MAX = 64
OF_ADAPTERS = 1 << ADMIN | 1 << ADMIN_VOID


class Meeting:
    """All source streams of one stream; blocks come in here."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.takes_oldest = False  # a source's first record is where it begins
        self.snapshots_of: set[str] = set()  # adapters that have snapshots
        self.wants_notice = False
        self.told: dict[str, Place] = {}  # how far each source was, by heartbeats of any adapter
        self._is_settling = False

    def begin(self, positions: dict[str, Placed]) -> None:
        """Row 8: the start positions, by whatever name of their source."""
        for source, (sequence, part, parts) in positions.items():
            root, offset = self.judge.relations.root(source)
            if root not in self.judge.tracks:
                self.judge.tracks[root] = Track(root, Place(max(sequence + offset, 0), part, parts))
        self._close_ancestors()

    def _close_ancestors(self) -> None:
        """Whoever begins in a source wants nothing of those it has succeeded."""
        tracks = self.judge.tracks
        for track in [track for track in tracks.values() if not track.wait]:
            for name, _start in self._ancestors(track.id):
                if name not in tracks:
                    tracks[name] = Track(name, Place(SEQUENCE_MAX, PART_MAX, PART_MAX))
                    tracks[name].is_over = True

    def learn(self, sources: Iterable[Source], now_s: float) -> None:
        """Relations may have changed: whoever waited for them can go on."""
        judge = self.judge
        judge.relations.learn(sources)
        for name in list(judge.tracks):
            root, offset = judge.relations.root(name)
            if root != name and root not in judge.tracks:
                track = judge.tracks.pop(name)
                if track.wait == KNOWN and not track.held:
                    position = track.position
                    place = Place(max(position.sequence + offset, 0), position.part, position.parts)
                    judge.tracks[root] = Track(root, place)
        self._close_ancestors()
        for track in [track for track in judge.tracks.values() if track.wait == NOTICE]:
            self._begin(track, now_s, patient=judge.relations.knows(track.held[0][2].block.source) is False)
        self.settle(now_s)

    def hear(self, positions: dict[str, Placed]) -> None:
        """An adapter's heartbeat."""
        for source, placed in positions.items():
            root, offset = self.judge.relations.root(source)
            place = moved(placed, offset)
            is_ours = root in self.judge.tracks or self.judge.relations.knows(source)
            if is_ours and place.reach > self.told.get(root, START).reach:
                self.told[root] = place
        for name in list(self.told)[:-TRACKS_MAX]:
            del self.told[name]

    def take(self, block: Block, adapter: str, now_s: float, is_fill: bool = False) -> None:
        judge = self.judge
        root, offset = judge.relations.root(block.source)
        track = judge.tracks.get(root)
        if track is None and not block.mask & ~OF_ADAPTERS and not block.place(block.count - 1).sequence:
            # Made before there was any message: it is of no source, and not to be compared with any.
            judge.take(Track(root, START), block, offset, adapter, now_s, is_fill)
            return
        if track is None:
            if is_fill:
                return
            track = judge.tracks[root] = Track(root, START)
            track.hold(Piece(block, 0, block.count, offset, adapter), block.count)
            self._begin(track, now_s, patient=True)
            self.settle(now_s)
            self._forget_old()
            return
        judge.take(track, block, offset, adapter, now_s, is_fill)
        if judge.is_troubled:
            self.settle(now_s)

    def _begin(self, track: Track, now_s: float, patient: bool) -> None:
        judge, piece = self.judge, track.held[0][2]
        chain = self._ancestors(track.id)
        old = self._nearest(chain, now_s)
        if chain and (old is not None or not self.takes_oldest):
            self._succeed(track, old, chain[0], now_s)
        elif self.takes_oldest or len(judge.tracks) == 1:
            track.set_position(piece.first_position if self._is_unlisted(piece) or self.takes_oldest else START)
        elif patient and self._is_unlisted(piece):
            if track.wait != NOTICE:
                track.wait, track.wait_until_s = NOTICE, now_s + judge.hold_s
            self.wants_notice = judge.is_troubled = True
            return
        elif any(judge.relations.are_siblings(track.id, name) for name in judge.tracks if name != track.id):
            track.set_position(START)  # row 6: nothing of it was sent before this client's start
        else:
            self._break(track, piece, now_s)
        if not track.wait:
            judge.drain(track, now_s)

    def _nearest(self, chain: list[tuple[str, int]], now_s: float) -> Track | None:
        """The nearest predecessor this client has been in, or has to go through: an adapter has told of it."""
        tracks = self.judge.tracks
        while True:
            index = next((i for i, (name, _start) in enumerate(chain) if name in tracks), None)
            old = None if index is None else tracks[chain[index][0]]
            if not index or old is None or chain[index - 1][0] not in self.told or not self._has_ended(old, now_s):
                return old
            between = Track(chain[index - 1][0], START)
            tracks[between.id] = between
            self._announce(between, old, chain[index][1])

    def _has_ended(self, old: Track, now_s: float) -> bool:
        """Has all come that any adapter has told of? Otherwise it is asked for."""
        end = self.told.get(old.id)
        if old.end is None and end is not None and old.is_settled and not is_passed(end, old.position):
            old.end = end
            self.judge.drain(old, now_s)
        return old.is_settled

    def _announce(self, track: Track, old: Track, start: int) -> None:
        track.set_position(Place(max(start - 1, 0)))
        old.is_over = True
        self.judge.out.append(Succeeded(old=old.id, new=track.id, start=start))

    def _is_unlisted(self, piece: Piece) -> bool:
        return not self.judge.relations.knows(piece.block.source)

    def _ancestors(self, root: str) -> list[tuple[str, int]]:
        """The sources it succeeds, nearest first: each one's id, and where its successor starts."""
        found: list[tuple[str, int]] = []
        while (before := self.judge.relations.predecessor(root)) is not None and len(found) < CHAIN_MAX:
            if before[0] == root or any(before[0] == name for name, _start in found):
                break
            found.append(before)
            root = before[0]
        return found

    def _succeed(self, track: Track, old: Track | None, before: tuple[str, int], now_s: float) -> None:
        """Row 5: what is left of the old source comes first, as far as any adapter has told of it."""
        start, is_direct = before[1], old is not None and old.id == before[0]
        if old is not None and not old.is_over:
            if not track.wait_until_s:
                track.wait_until_s = now_s + self.judge.hold_s
            if not self._has_ended(old, now_s) or (not is_direct and now_s < track.wait_until_s):
                track.wait = PREDECESSOR
                self.judge.is_troubled = True
                return
        if old is None:
            track.set_position(Place(max(start - 1, 0)))
            self._close_ancestors()
            return
        self._announce(track, old, start)
        if not is_direct:  # a source between the two came and went: nobody can say what was in it
            self.judge.counts["discontinuities"] += 1
            self.judge.out.append(Discontinuity(source=track.id, sequence=start))

    def _break(self, track: Track, piece: Piece, now_s: float) -> None:
        """Row 7."""
        self.judge.counts["discontinuities"] += 1
        self.judge.out.append(Discontinuity(source=track.id, sequence=piece.key[0]))
        if piece.adapter in self.snapshots_of:
            track.wait, track.wait_until_s = FOR_SNAPSHOT, now_s + self.judge.hold_s
            self.judge.is_troubled = True
        else:
            track.set_position(piece.first_position)

    def settle(self, now_s: float) -> None:
        """Let those go on whose waiting is over; asks nobody."""
        if self._is_settling:
            return
        self._is_settling = True
        for track in list(self.judge.tracks.values()):
            if track.wait == PREDECESSOR:
                track.wait = KNOWN
                self._begin(track, now_s, patient=False)
            elif track.wait and now_s >= track.wait_until_s:
                if track.wait == NOTICE:
                    track.wait = KNOWN
                    self._begin(track, now_s, patient=False)
                else:
                    track.set_position(track.held[0][2].first_position)
                    self.judge.drain(track, now_s)
        self._is_settling = False

    @property
    def waits_for_snapshot(self) -> bool:
        return any(track.wait == FOR_SNAPSHOT for track in self.judge.tracks.values())

    def no_snapshot(self, now_s: float) -> None:
        """Nobody has one: go on without."""
        for track in self.judge.tracks.values():
            if track.wait == FOR_SNAPSHOT:
                track.wait_until_s = now_s
        self.settle(now_s)

    def apply_snapshot(self, positions: dict[str, Placed], bodies: list[bytes], now_s: float) -> None:
        """The state, and for each source the position it includes; what is held continues it (STR-54)."""
        judge, places = self.judge, {}
        for source, (sequence, part, parts) in positions.items():
            root, offset = judge.relations.root(source)
            places[root] = Place(max(sequence + offset, 0), part, parts)
        judge.out.append(SnapshotBegun(positions=places))
        judge.out.append([StreamMessage(0, SNAPSHOT, "", 0, 1, 1, body, False, None, judge.schema) for body in bodies])
        judge.out.append(SnapshotEnded(positions=places))
        for root, place in places.items():
            track = judge.tracks.get(root)
            if track is None:
                judge.tracks[root] = Track(root, place)
            elif track.wait == FOR_SNAPSHOT:
                track.set_position(place)
                judge.drain(track, now_s)
        self.no_snapshot(now_s)  # for a source that the snapshot does not name

    def _forget_old(self) -> None:
        tracks = self.judge.tracks
        if len(tracks) > TRACKS_MAX:
            for name in [name for name, track in tracks.items() if track.is_over and track.is_settled][:1]:
                del tracks[name]
