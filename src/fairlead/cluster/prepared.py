"""Transactions across groups that are prepared here: everything in them is checked and kept, only the word is missing.

From the PREPARE record on, their messages stay hidden and locked whatever happens to session, connection, node or
primary (CLU-166). How they end is not decided here but by the group that is their decider (decisions.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlead.cluster import records
from fairlead.cluster.parties import Session

if TYPE_CHECKING:
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.host import Host
    from fairlead.cluster.port import Bytes
    from fairlead.cluster.requests import Prepare
    from fairlead.cluster.transactions import Open

Key = tuple[bytes, int]
"""Session id and transaction number: by what this group knows it."""
ID_BYTES: Final = 20


def id_of(session: bytes, number: int) -> str:
    """By what all groups know a transaction, if session and number are the decider's."""
    return f"{session.hex()}{number:016x}"


def key_of(identity: str) -> Key:
    """… and back."""
    whole = bytes.fromhex(identity)
    return whole[:ID_BYTES], int.from_bytes(whole[ID_BYTES:])


@dataclass(slots=True, eq=False)
class Prepared:
    """One transaction that is ready."""

    id: str
    session: Session  # a stand-in, for its id
    number: int
    decider: str
    groups: list[str]
    destinations: list[int]
    index: int  # of its PREPARE record
    ms: int  # when it became ready
    since_ms: int  # from when doubt is counted: another life begins it anew
    in_doubt: bool = False  # whoever coordinated it is gone, or has taken too long
    asked_ms: int = 0  # when the decider was asked last

    @property
    def key(self) -> Key:
        return self.session.id, self.number


class Preparations:
    """All that are prepared in this group."""

    def __init__(self, core: Host) -> None:
        self._core = core
        self.by_id: dict[str, Prepared] = {}
        self.by_key: dict[Key, Prepared] = {}
        self._by_session: dict[bytes, list[Prepared]] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def destinations(self, one: Prepared) -> list[Destination]:
        """Those it touched, without what is deleted."""
        found = (self._core.destinations.get(number) for number in one.destinations)
        return [destination for destination in found if destination is not None]

    def of(self, session_id: bytes) -> list[Prepared]:
        return list(self._by_session.get(session_id, ()))

    def needs(self, first: int, last: int) -> bool:
        """Is any record with an index from the first to the last hidden by one of them?"""
        return any(
            destination.parts.needs(first, last)
            for number in {number for one in self.by_id.values() for number in one.destinations}
            if (destination := self._core.destinations.get(number)) is not None
        )

    # ------------------------------------------------------------------ beginning and end

    def write(self, open_: Open, asked: Prepare) -> Prepared:
        """Everything was checked: make it last."""
        session, number = open_.session.id, open_.number
        hidden: list[bytes] = []
        settled: list[bytes] = []
        for destination in open_.touched.values():
            new, gone = destination.parts.prepare(session, number)
            hidden += [records.PREPARE_HIDDEN.pack(*item) for item in new]
            settled += [records.COMMIT_SETTLED.pack(*item) for item in gone]
        about = {"id": asked.id, "decider": asked.decider, "groups": asked.groups, "ms": self._core.now_ms}
        tail = msgspec.json.encode({**about, "destinations": list(open_.touched)})
        head = records.PREPARE_RECORD.pack(session, number, len(hidden), len(settled), len(tail))
        index, _ = self._core.append(records.PREPARE, b"".join((head, *hidden, *settled, tail)))
        return self._add(index, session, number, {**about, "destinations": list(open_.touched)})

    def commit(self, one: Prepared) -> int:
        """The word came: COMMIT, as PREPARE noted it. The index of the record."""
        stored: list[bytes] = []
        settled: list[bytes] = []
        touched = self.destinations(one)
        for destination in touched:
            new, gone = destination.commit_parts(one.session, one.number)
            stored += [records.COMMIT_STORED.pack(*item) for item in new]
            settled += [records.COMMIT_SETTLED.pack(*item) for item in gone]
        head = records.COMMIT_RECORD.pack(one.session.id, one.number, len(stored), len(settled))
        body = b"".join((head, *stored, *settled))
        index, place = self._core.append(records.COMMIT, body)
        for destination in touched:
            destination.apply(records.COMMIT, index, place, memoryview(body))
        self.ended(one)
        return index

    def roll_back(self, one: Prepared) -> int:
        """The word came: OUTCOME, and only then what it took comes again. The index of the record."""
        facts = {"session": one.session.id.hex(), "transaction": one.number, "outcome": "rolled-back"}
        index, _ = self._core.append(records.OUTCOME, msgspec.json.encode(facts))
        self.ended(one)
        for destination in self.destinations(one):
            destination.abort(one.session, one.number)
        return index

    def ended(self, one: Prepared) -> None:
        if self.by_id.pop(one.id, None) is None:
            return
        del self.by_key[one.key]
        of = self._by_session[one.session.id]
        of.remove(one)
        if not of:
            del self._by_session[one.session.id]

    def _add(self, index: int, session: bytes, number: int, facts: dict[str, Any]) -> Prepared:
        one = Prepared(
            facts["id"],
            Session(id=session, number=0, incarnation=0, ack="transacted", line=None),
            number,
            facts["decider"],
            list(facts["groups"]),
            list(facts["destinations"]),
            index,
            facts["ms"],
            facts["ms"],
        )
        self.by_id[one.id] = self.by_key[one.key] = one
        self._by_session.setdefault(session, []).append(one)
        return one

    # ------------------------------------------------------------------ the journal

    def apply(self, index: int, body: Bytes, wants: Callable[[int], bool]) -> None:
        """A PREPARE record, read again."""
        session, number, hidden, settled, size = records.PREPARE_RECORD.unpack_from(body)
        at = records.PREPARE_RECORD.size + hidden * records.PREPARE_HIDDEN.size
        beyond = at + settled * records.COMMIT_SETTLED.size
        facts = msgspec.json.decode(bytes(body[beyond : beyond + size]))
        taken: dict[int, list[tuple[int, int, int]]] = {destination: [] for destination in facts["destinations"]}
        for destination, *what in records.COMMIT_SETTLED.iter_unpack(bytes(body[at:beyond])):
            taken.setdefault(destination, []).append((what[0], what[1], what[2]))
        self._add(index, session, number, facts)
        for destination, ranges in taken.items():
            if wants(destination):
                self._core.destinations[destination].parts.apply_prepare(session, number, ranges)

    def apply_rollback(self, one: Prepared, wants: Callable[[int], bool]) -> None:
        """An OUTCOME record of it, read again: what it took is anybody's."""
        self.ended(one)
        for destination in self.destinations(one):
            if wants(destination.number):
                destination.parts.release(one.session, one.number)

    def snapshot(self) -> list[dict[str, Any]]:
        return [
            {
                "session": one.session.id,
                "number": one.number,
                "id": one.id,
                "decider": one.decider,
                "groups": one.groups,
                "destinations": one.destinations,
                "ms": one.ms,
            }
            for one in self.by_id.values()
        ]

    def restore(self, state: Iterable[dict[str, Any]]) -> None:
        for facts in state:
            self._add(1, bytes(facts["session"]), facts["number"], facts)  # what a checkpoint tells is safe

    def recovered(self) -> None:
        """Whoever coordinates them may still be there: doubt begins anew."""
        for one in self.by_id.values():
            one.since_ms = self._core.now_ms

    # ------------------------------------------------------------------ administration

    def listed(self) -> list[dict[str, Any]]:
        return [
            {
                "state": "in-doubt" if one.in_doubt else "prepared",
                "session": one.session.id.hex(),
                "transaction": one.number,
                "id": one.id,
                "decider": one.decider,
                "groups": one.groups,
                "prepared_ms": one.ms,
                "destinations": [destination.name for destination in self.destinations(one)],
                "messages": sum(d.hidden(one.session, one.number) for d in self.destinations(one)),
            }
            for one in self.by_id.values()
        ]
