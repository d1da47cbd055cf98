"""The backup's side of administrative messages: can it send them at the place the active announced? (table 5.2)

`can = (B - N + 1) <= T`. Finding B, deciding and reserving are one call of `decide`, so nothing can come between
(STR-59). What cannot be decided yet, because this adapter does not know its place in the active's numbering, waits for
the anchor. Entries stay known after they are settled, since the active tells of them again when a link comes back.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from fairlead.feeds.adapter import alignment
from fairlead.feeds.adapter.numbering import Landed, Numbering, Slot
from fairlead.feeds.records import ADMIN, ADMIN_VOID
from fairlead.feeds.words import EXACT_KINDS, Admin, Announce, Decided, Final

__all__ = ["Decision", "Entry", "Synchroniser", "admin_slot"]

SETTLED_MAX = 4096
WAITING_MAX = 1024
DECISIONS_MAX = 1024

Result = Literal["kept", "exact", "displaced", "refused"]


class Decision(NamedTuple):
    """One line of the log that STR-58 asks for."""

    admin: str
    revision: int
    n: int
    b: int
    t: int
    p: int
    result: Result
    number: int  # where it was sent; 0: not yet, or not at all


class Entry:
    """An administrative message this backup was told of."""

    __slots__ = ("admin", "is_final", "link", "n", "number", "result", "revision", "state")

    def __init__(self, admin: Admin, n: int, revision: int, link: int) -> None:
        self.admin = admin
        self.n = n  # its number at the active
        self.link = link  # on which link we were last told of it
        self.number: int | None = None  # its number, or that of its void, here
        self.revision = revision
        self.state: Literal["waiting", "kept", "refused", "void", "settled"] = "waiting"
        self.result: Result = "refused"
        self.is_final = False  # the active has sent it


class Synchroniser:
    """Decides about announcements, and keeps alignment with the active over what it decided."""

    def __init__(self, numbering: Numbering, *, threshold: int, on_decision: Callable[[Decision], None]) -> None:
        self._numbering = numbering
        self._threshold = threshold
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._open = 0  # entries that are not settled
        self._moved: dict[str, Entry] = {}  # those that are at another number here than at the active
        self._on_decision = on_decision
        self._link = 0  # counts links
        numbering.on_landed = self._on_landed
        self.is_anchored = False
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_MAX)

    @property
    def has_unresolved(self) -> bool:
        """Is there a refusal that is not final, or an announcement not decided yet?"""
        return any(entry.state in ("refused", "waiting") for entry in self._open_entries())

    def find(self, admin: str) -> Entry | None:
        return self._entries.get(admin)

    def is_older(self, admin: str) -> bool:
        """Did the active send it before our oldest record, so that it has no place here?"""
        entry = self._entries.get(admin)
        return entry is not None and entry.state == "settled" and entry.number is None

    def there(self, number: int) -> int:
        """The active's number for our record `number`."""
        return alignment.there(number, self._moved.values())

    def begin(self) -> None:
        """A new link, perhaps to another active with other numbers: what is settled is taken as aligned until told."""
        self._link += 1
        self.is_anchored = False
        self._moved = {id_: entry for id_, entry in self._moved.items() if entry.state != "settled"}
        for entry in self._entries.values():
            if entry.state == "settled" and entry.number is not None:
                entry.n = entry.number

    # Told by the active.

    def announced(self, word: Announce, now_s: float) -> Decided | None:
        """An announcement, or the revision of one. None: it waits for the anchor, or it says nothing new."""
        entry = self._entries.get(word.admin.id)
        if entry is None:
            if self._open >= WAITING_MAX:
                return None  # an active never has so many outstanding
            entry = self._remember(word.admin, word.n, word.revision)
        elif self._is_of_another_active(entry, word):
            self._withdraw(entry)
            entry.link, entry.n, entry.is_final = self._link, word.n, False
            entry.revision, entry.admin = word.revision, word.admin
            self._note_moved(entry)
        elif word.revision <= entry.revision or entry.is_final:
            entry.link = self._link
            return None
        else:
            entry.link = self._link
            entry.revision, entry.admin = word.revision, word.admin
            if entry.state in ("kept", "refused") and not (entry.n == word.n and not self.is_anchored):
                self._withdraw(entry)
            entry.n = word.n
            self._note_moved(entry)
        if entry.state == "settled":
            number = entry.number or 0
            return self._decided(entry, number - 1, entry.result, number)  # it is out already, where it is
        return self.decide(entry, now_s) if self.is_anchored else None

    def _is_of_another_active(self, entry: Entry, word: Announce) -> bool:
        """Who takes over may have missed a revision, or even the Final, that we know: now its own place counts."""
        return entry.link != self._link and entry.state != "settled" and entry.n != word.n

    def final(self, word: Final, now_s: float) -> None:
        """The active has sent it at `n`. A refusal is final with that, and is made up for by a void (STR-66)."""
        entry = self._entries.get(word.admin)
        if entry is not None:
            self._sent_there(entry, entry.admin, word.n, now_s)

    def sent_before(self, n: int, admin: Admin, now_s: float) -> None:
        """While there was no link the active has sent this one at `n` (STR-70)."""
        entry = self._entries.get(admin.id)
        if entry is None:
            if self._open >= WAITING_MAX:
                return
            entry = self._remember(admin, n, 0)
        self._sent_there(entry, admin, n, now_s)

    def sent_here(self, admin: Admin, number: int) -> None:
        """This adapter has sent it as the active."""
        entry = self._remember(admin, number, 0)
        entry.number, entry.is_final = number, True
        self._settle(entry)

    def _sent_there(self, entry: Entry, admin: Admin, n: int, now_s: float) -> None:
        entry.is_final, entry.link = True, self._link
        if (entry.n, entry.admin) != (n, admin) and entry.state in ("kept", "void"):
            # Its last revision did not reach us, or another adapter is active since.
            state = entry.state
            self._withdraw(entry)
            entry.n, entry.admin = n, admin
            self._send(entry, now_s) if state == "kept" else self._put_void(entry, now_s)
        entry.n, entry.admin = n, admin
        if entry.state == "refused":
            self._put_void(entry, now_s)
        elif self.is_anchored and entry.number is not None and entry.number < n:
            # Ours stands too early: a client that comes over from between the two places would never meet it. The void
            # is one record too many; the next check of the numbers will find that.
            self._numbering.put(_void_slot(entry.admin), now_s)
        self._note_moved(entry)

    def _withdraw(self, entry: Entry) -> None:
        if entry.state in ("kept", "void"):
            self._numbering.release(entry.n)
        entry.state = "waiting"

    def _on_landed(self, landed: Landed) -> None:
        entry = self._entries.get(landed.slot.id)
        if entry is not None:
            entry.number = landed.number
            self._settle(entry)
            self._note_moved(entry)

    # Deciding.

    def decide(self, entry: Entry, now_s: float) -> Decided:
        """One row of table 5.2; and if it can, the place is taken before anything else can take it."""
        b, n = self._numbering.last, entry.n
        threshold = self._threshold_of(entry.admin)
        p = b - n + 1
        if p > threshold or (p < 0 and self._numbering.is_reserved(n)):
            entry.state = "refused"
            self._note_moved(entry)
            return self._decided(entry, b, "refused", 0)
        self._send(entry, now_s)
        if p < 0:
            return self._decided(entry, b, "kept", 0)
        return self._decided(entry, b, "exact" if p == 0 else "displaced", b + 1)

    def _threshold_of(self, admin: Admin) -> int:
        return min(self._threshold, 0) if admin.kind in EXACT_KINDS else self._threshold

    def _send(self, entry: Entry, now_s: float) -> None:
        """At its place if that is free, at the next number otherwise."""
        entry.state = "kept"
        if entry.n > self._numbering.last and not self._numbering.is_reserved(entry.n):
            self._numbering.reserve(entry.n, admin_slot(entry.admin), now_s)
        else:
            self._numbering.put(admin_slot(entry.admin, intended=entry.n), now_s)

    def _put_void(self, entry: Entry, now_s: float) -> None:
        """At number N if that is still free, otherwise at the next one."""
        slot = _void_slot(entry.admin)
        entry.state = "void"
        if entry.n > self._numbering.last and not self._numbering.is_reserved(entry.n):
            self._note_moved(entry)
            self._numbering.reserve(entry.n, slot, now_s)
        else:
            self._numbering.put(slot, now_s)

    def _decided(self, entry: Entry, b: int, result: Result, number: int) -> Decided:
        entry.result = result
        threshold = self._threshold_of(entry.admin)
        decision = Decision(entry.admin.id, entry.revision, entry.n, b, threshold, b - entry.n + 1, result, number)
        self.decisions.append(decision)
        self._on_decision(decision)
        return Decided(
            admin=entry.admin.id, revision=entry.revision, n=entry.n, b=b, t=threshold, result=result, number=number
        )

    # Alignment.

    def orphans(self) -> list[Entry]:
        """Give up what is open here, but not known to the active that we have found: its numbers have no place for it.

        All it knows it has told by now, since that comes before any anchor.
        """
        orphans = [entry for entry in self._open_entries() if entry.link != self._link]
        for entry in orphans:
            self._withdraw(entry)
            self.forget(entry)
        return orphans

    def align(self, number: int, anchor: int, now_s: float) -> tuple[int, list[Decided]]:
        """Our record `number` has the number `anchor` at the active: move all numbers, then decide what waits."""
        waiting = sorted(self._open_entries("waiting"), key=lambda entry: entry.n)
        self._forget_uncovered(waiting, number, anchor)
        waiting = [entry for entry in waiting if entry.state == "waiting"]
        absent = {entry.admin.id: entry for entry in self._open_entries() if entry.link == self._link}
        shift = alignment.shift_for(number, anchor, (self._moved | absent).values())
        shift = max(shift, -self._numbering.last)
        if shift:
            for entry in self._open_entries("kept", "void"):
                if entry.n <= self._numbering.last + shift:  # its place is used up by the move
                    self._withdraw(entry)
                    waiting.append(entry)
            for entry in self._entries.values():
                if entry.number is not None:
                    entry.number += shift
                    entry.n = entry.n if entry.link == self._link else entry.number
                    self._note_moved(entry)
            self._numbering.renumber(shift, now_s)
            waiting.sort(key=lambda entry: entry.n)
        self.is_anchored = True
        decided = [decided for entry in waiting if (decided := self._decide_waiting(entry, now_s))]
        return shift, decided

    def _decide_waiting(self, entry: Entry, now_s: float) -> Decided | None:
        decided = self.decide(entry, now_s)
        if entry.is_final and entry.state == "refused":
            self._put_void(entry, now_s)
        return decided

    def _forget_uncovered(self, waiting: list[Entry], number: int, anchor: int) -> None:
        """What was sent before our oldest record has no place here: nobody can come upon it by reading this stream."""
        low = anchor - (number - self._numbering.retained.first)
        for entry in reversed(waiting):
            if entry.n < anchor:
                if entry.n >= low:
                    low -= 1
                else:
                    self._settle(entry)

    # Being promoted.

    def promoted(self, now_s: float) -> list[Entry]:
        """Send what was refused or not decided, as our own (STR-69). Returned: those kept, at their places."""
        for entry in list(self._open_entries("refused", "waiting")):
            self._send(entry, now_s)
        self.is_anchored = True
        return list(self._open_entries("kept"))

    def adopt(self, admin: Admin, n: int, revision: int) -> None:
        """An announcement of our own that is reserved at `n`, now that somebody else is active."""
        entry = self._remember(admin, n, revision)
        entry.state = "kept"

    def forget(self, entry: Entry) -> None:
        """The entry is somebody else's business now."""
        if self._entries.pop(entry.admin.id, None) is not None and entry.state != "settled":
            self._open -= 1
        self._moved.pop(entry.admin.id, None)

    # Keeping entries.

    def _remember(self, admin: Admin, n: int, revision: int) -> Entry:
        entry = self._entries[admin.id] = Entry(admin, n, revision, self._link)
        self._open += 1
        return entry

    def _settle(self, entry: Entry) -> None:
        if entry.state == "settled":
            return
        entry.state = "settled"
        self._open -= 1
        self._note_moved(entry)
        if len(self._entries) - self._open > SETTLED_MAX:
            oldest = next(key for key, one in self._entries.items() if one.state == "settled")
            del self._entries[oldest]
            self._moved.pop(oldest, None)

    def _open_entries(self, *states: str) -> list[Entry]:
        if not self._open:
            return []
        return [
            entry
            for entry in self._entries.values()
            if entry.state != "settled" and (not states or entry.state in states)
        ]

    def _note_moved(self, entry: Entry) -> None:
        """Keep the short list of those whose two numbers differ. One far behind counts on both sides, so not at all."""
        is_moved = entry.state == "refused" or (entry.number is not None and entry.number != entry.n)
        if is_moved:
            self._moved[entry.admin.id] = entry
        else:
            self._moved.pop(entry.admin.id, None)


def _void_slot(admin: Admin) -> Slot:
    return Slot(admin.id, ADMIN_VOID, admin.id.encode())


def admin_slot(admin: Admin, *, intended: int = 0) -> Slot:
    """The record of an administrative message; `intended`: the place it does not have (STR-64)."""
    if admin.intended != intended:
        admin = msgspec.structs.replace(admin, intended=intended)
    return Slot(admin.id, ADMIN, msgspec.msgpack.encode(admin))
