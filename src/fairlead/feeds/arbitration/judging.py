"""Table 5.1: what becomes of a record, by its source stream id and source sequence against the position (STR-39).

Message numbers are not looked at, nor does it matter which line a block came by, or whether it is live or the answer to
a Fill: rows 1 to 3 and 9 are here, over whole blocks. How a source that is new is taken is in `meeting.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from fairlead.errors import RemoteProtocolError
from fairlead.feeds.arbitration.admin_ids import AdminIds, Fetch
from fairlead.feeds.arbitration.relations import Relations
from fairlead.feeds.arbitration.tracks import Gap, Piece, Track, is_passed, moved
from fairlead.feeds.block_codec import Block, StreamMessage
from fairlead.feeds.blocks import SEQUENCE_MAX, RowReader
from fairlead.feeds.events import AdminLost, Divergence, Event, GapFilled, GapOpened, Lost
from fairlead.feeds.records import ADMIN, ADMIN_VOID, PART_MAX, SOURCE_GAP, START, Place
from fairlead.feeds.speech import decode_admin
from fairlead.feeds.words import Admin, Placed

__all__ = ["Judge"]

LATE_TRACKS_MAX = 64
TRIES = 8  # of held parts, when the first one cannot go on
DIVERGENCE_S = 1.0  # between two events of one adapter; the counter has all


class Judge:
    def __init__(self, *, gaps: Literal["hold", "mark"], hold_messages: int, hold_s: float) -> None:
        self.relations = Relations()
        self.tracks: dict[str, Track] = {}
        self.admins = AdminIds()
        self.schema: RowReader | None = None
        self.out: list[list[StreamMessage] | Event] = []
        self.counts: Counter[str] = Counter()
        self.switches: list[Admin] = []  # planned switches that were met and not yet followed
        self.is_troubled = False  # some track has a gap or waits: somebody has to look
        self._marks = gaps == "mark"
        self._hold_messages = hold_messages
        self.hold_s = hold_s
        self._diverged_s: dict[str, float] = {}

    @property
    def positions(self) -> dict[str, Place]:
        """What was last delivered of each source, or where this client began in it."""
        return {
            name: track.position
            for name, track in self.tracks.items()
            if not track.wait and track.position.sequence < SEQUENCE_MAX
        }

    @property
    def reached(self) -> dict[str, Place]:
        """The positions, for an adapter: of a source that was succeeded nothing is wanted again, not even the last."""
        return {
            name: Place(track.position.sequence, PART_MAX, PART_MAX) if track.is_over else track.position
            for name, track in self.tracks.items()
            if not track.wait
        }

    @property
    def gaps(self) -> Iterator[tuple[Track, Gap]]:
        """All that are open, with the tracks they are in."""
        for track in [late for main in self.tracks.values() for late in (main, *main.late)]:
            if track.gap is not None:
                yield track, track.gap

    def take(self, track: Track, block: Block, offset: int, adapter: str, now_s: float, is_fill: bool = False) -> None:
        """Rows 1 to 3 for all records of a block."""
        if track.wait:
            if not is_fill:
                track.hold(Piece(block, 0, block.count, offset, adapter), self._hold_messages)
            return
        i = 0 if track.held else self._judge(track, block, 0, block.count, offset, adapter, now_s)
        if i < block.count and (track.gap is not None or not is_fill):
            track.hold(Piece(block, i, block.count, offset, adapter), self._hold_messages)
        if track.held or track.gap:
            self.drain(track, now_s)

    def _judge(self, track: Track, block: Block, i: int, end: int, offset: int, adapter: str, now_s: float) -> int:
        """The first record that has to wait; `end` if there is none."""
        while True:
            sequence, part = track.position.reach  # behind a whole message all of its parts are repeats
            parts = max(part, track.position.parts)
            begin, following, dropped, sequence, part, parts = block.scan(i, end, sequence, part, parts, offset)
            if begin > i:
                self._repeated(track, block, i, begin, offset, adapter, dropped, now_s)
            if following > begin:
                self._deliver(track, block, begin, following, offset, Place(sequence, part, parts))
            i = following
            if i == end:
                return end
            kind = block.kind(i)
            if kind in (ADMIN, ADMIN_VOID):
                if self._administrative(track, block, i, offset, now_s):
                    i += 1
                    continue
            elif kind == SOURCE_GAP:
                if is_passed(moved(block.place(i), offset), track.position):
                    i += 1
                    continue
            elif moved(block.place(i), offset)[:2] <= track.position.reach:
                continue
            if not self._marks or track.is_late:
                return i
            self._pass_over(track, Piece(block, i, end, offset, adapter), now_s)

    def _deliver(self, track: Track, block: Block, begin: int, end: int, offset: int, position: Place) -> None:
        """Row 2."""
        name = None if block.source == track.id else track.id
        made = block.messages(begin, end, self.schema, name, offset, track.is_late or track.is_over)
        if made:
            self.out.append(made)
            self.counts["delivered"] += len(made)
        track.recent.add(block, begin, end, offset, position.sequence)
        track.position = position

    def _repeated(
        self, track: Track, block: Block, i: int, end: int, offset: int, adapter: str, dropped: int, now_s: float
    ) -> None:
        """Row 1, and what a track that follows a hole can still use of it."""
        if track.is_late:
            return
        if track.late:
            before = self.counts["delivered"]
            for late in list(track.late):
                self._fill_late(track, late, block, i, end, offset, adapter, now_s)
            dropped -= self.counts["delivered"] - before
        self.counts["duplicates"] += dropped
        count, index = track.recent.diverging(block, i, end, offset)
        if count:
            self.counts["divergences"] += count
            if now_s >= self._diverged_s.get(adapter, -DIVERGENCE_S) + DIVERGENCE_S:
                self._diverged_s[adapter] = now_s
                place = block.place(index)
                self.out.append(
                    Divergence(source=track.id, sequence=place.sequence + offset, part=place.part, adapter=adapter)
                )

    def _administrative(self, track: Track, block: Block, i: int, offset: int, now_s: float) -> bool:
        """Row 9. False: it has to wait for the end of a gap."""
        record = block.record(i)
        place = Place(record.sequence + offset, record.part, record.parts)
        if record.kind == ADMIN:
            admin = decode_admin(record.body)
            name = admin.id
        else:
            try:
                name = record.body.decode()
            except UnicodeDecodeError:
                raise RemoteProtocolError("An administrative void must name an id. Close the line") from None
        if self.admins.is_known(name):
            self.counts["duplicates"] += record.kind == ADMIN
            return True
        if place.reach < track.start.reach and not track.is_late:
            return True  # of before this client's start
        if not is_passed(place, track.position):
            return False
        if record.kind == ADMIN:
            late = track.is_late or place.reach < track.position.reach
            self._deliver_admin(admin, record.number, track.id, place, late)
        elif not self.admins.want(Fetch(name, track.id, place, now_s)):
            self.out.append(AdminLost(id=name))
        else:
            self.is_troubled = True
        return True

    def _deliver_admin(self, admin: Admin, number: int, source: str, place: Place, late: bool) -> None:
        self.admins.add(admin.id)
        self.counts["admins"] += 1
        self.out.append(
            [StreamMessage(number, ADMIN, source, place.sequence, place.part, place.parts, admin.body, late, admin)]
        )
        if admin.kind == "switch":
            self.switches.append(admin)

    def passed_admins(self, admins: tuple[tuple[str, str, Placed], ...], now_s: float) -> None:
        """Those of a line at places this client had already passed on another one: they will not come by themselves."""
        for name, source, placed in admins:
            root, offset = self.relations.root(source)
            track, place = self.tracks.get(root), moved(placed, offset)
            if track is None or track.wait or self.admins.is_known(name):
                continue
            is_behind = place.reach < track.position.reach or (track.is_over and is_passed(place, track.position))
            if track.start.reach < place.reach and is_behind:
                self.is_troubled |= self.admins.want(Fetch(name, root, place, now_s))

    def fetched(self, admin: Admin) -> None:
        """What a void stood for has come (STR-67)."""
        if (fetch := self.admins.fetches.get(admin.id)) is not None:
            self.counts["fetched"] += 1
            self._deliver_admin(admin, 0, fetch.source, fetch.place, True)

    def drain(self, track: Track, now_s: float) -> None:
        """Deliver what is held as far as it goes; what is missing then is a gap (row 3)."""
        while track.held and not track.wait:
            if not self._try_held(track, now_s):
                return self._open(track, now_s)
        if track.lacks_end and not track.wait:
            return self._open(track, now_s)
        if track.gap is not None and not track.is_late:
            self._close(track)
        if track.is_late and track.gap is not None and is_passed(track.limit or START, track.position):
            self._close(track)
        return None

    def _try_held(self, track: Track, now_s: float) -> bool:
        """One step with one of the first that are held; False: none of them can go on."""
        for index, (_key, _arrival, piece) in enumerate(track.held[:TRIES]):
            end = self._clip(track, piece)
            i = self._judge(track, piece.block, piece.i, end, piece.offset, piece.adapter, now_s)
            if i > piece.i:
                track.unhold(index)
                piece.i = i
                if i < piece.end:
                    track.hold(piece, self._hold_messages)
                return True
        return False

    def _clip(self, track: Track, piece: Piece) -> int:
        """Where to pause, since an administrative message is held that belongs there."""
        place = track.next_admin
        if place is None or place.sequence < piece.offset:
            return piece.end
        return min(max(piece.block.find(place.sequence - piece.offset, place.reach[1]), piece.i), piece.end)

    def _open(self, track: Track, now_s: float) -> None:
        first, part, to = track.missing()
        if track.gap is not None and first > track.gap.last:
            self._close(track)
        if track.gap is None:
            track.gap = Gap(first, part, to.sequence, now_s)
            self.is_troubled = True
            self.counts["gaps_found"] += 1
            self.out.append(GapOpened(source=track.id, first=first, last=to.sequence))

    def _close(self, track: Track) -> None:
        gap, track.gap = track.gap, None
        assert gap is not None
        self.counts["gaps_filled"] += 1
        self.out.append(GapFilled(source=track.id, first=gap.first, last=gap.last))
        self._remove_late(track)

    def _remove_late(self, track: Track) -> None:
        main = self.tracks.get(track.id)
        if main is not None and track in main.late:
            main.late.remove(track)

    def lose(self, track: Track, why: str, now_s: float) -> None:
        """The gap will not be filled: say exactly what is missing, and go on behind it (STR-52)."""
        if track.gap is None:
            return
        first, part, to = track.missing()
        track.gap = None
        self.counts["gaps_lost"] += 1
        self.counts["lost"] += to.sequence - first + 1
        last_part = 0 if to.is_whole else to.part
        self.out.append(
            Lost(source=track.id, first=first, last=to.sequence, first_part=part, last_part=last_part, why=why)
        )
        track.position = to
        if track.held:
            self.drain(track, now_s)
        if track.is_late and track.gap is None:
            if is_passed(track.limit or START, track.position):
                self._remove_late(track)
            else:
                first, part, to = track.missing()
                track.gap = Gap(first, part, to.sequence, now_s)
                self.lose(track, why, now_s)

    def _pass_over(self, track: Track, piece: Piece, now_s: float) -> None:
        """`gaps="mark"`: go on at once; a track of its own follows the hole (STR-53)."""
        late = Track(track.id, track.position, limit=piece.missing_to, ask_to=piece.ask_to)
        first, part, to = late.missing()
        late.gap = Gap(first, part, to.sequence, now_s)
        late.limit = track.position = to
        track.late.append(late)
        self.is_troubled = True
        self.counts["gaps_found"] += 1
        self.out.append(GapOpened(source=track.id, first=first, last=to.sequence))
        if len(track.late) > LATE_TRACKS_MAX:
            self.lose(track.late[0], "too many gaps are open", now_s)

    def _fill_late(
        self, track: Track, late: Track, block: Block, i: int, end: int, offset: int, adapter: str, now_s: float
    ) -> None:
        limit = late.limit or START
        if limit.sequence < offset:
            return
        clip = min(max(block.find(limit.sequence - offset, limit.reach[1]), i), end)
        if clip > i:
            stop = self._judge(late, block, i, clip, offset, adapter, now_s)
            if stop < clip:
                late.hold(Piece(block, stop, clip, offset, adapter), self._hold_messages)
            if late.held:
                self.drain(late, now_s)
        if late in track.late and not late.held and self._ends_hole(late, block, clip, offset):
            self._close(late)

    def _ends_hole(self, late: Track, block: Block, i: int, offset: int) -> bool:
        """Has all of the hole come, or does the next message's previous link say that nothing else was in it?"""
        if is_passed(late.limit or START, late.position):
            return True
        if not late.position.is_whole or i >= block.count:
            return False
        record = block.record(i)
        is_next = record.kind not in (ADMIN, ADMIN_VOID, SOURCE_GAP) and record.part == 1
        back = record.previous + offset if record.previous else 0
        return is_next and record.sequence + offset > late.position.sequence >= back
