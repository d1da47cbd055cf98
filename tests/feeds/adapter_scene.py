"""Adapter machines joined by links on a virtual clock: words arrive encoded, in order, when the test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from fairlead.feeds import speech
from fairlead.feeds.adapter import Adapter, Limits
from fairlead.feeds.adapter.actions import Action, Renumbered, RoleChanged, StopLines, ToAdministration, ToLink
from fairlead.feeds.block_codec import Block
from fairlead.feeds.made import Made
from fairlead.feeds.records import ADMIN, MESSAGE, VOID, Record
from fairlead.feeds.words import Admin, Role, Source, Word

SOURCE = "S"


def body_of(sequence: int, part: int = 1) -> bytes:
    return b"%d/%d" % (sequence, part)


def batch(
    sequences: Iterable[int],
    *,
    source: str = SOURCE,
    parts: dict[int, int] | None = None,
    voids: Collection[int] = (),
    first: int | None = None,
    through: int | None = None,
    keys: list[bytes] | None = None,
) -> Made:
    """What a converter would make of these source messages; `parts`: how many of which (1 if not said)."""
    rows: list[tuple[int, int, int, int]] = []
    for sequence in sequences:
        count = (parts or {}).get(sequence, 1)
        kind = VOID if sequence in voids else MESSAGE
        rows += [(kind, sequence, part, count) for part in range(1, count + 1)]
    bodies = [b"" if kind == VOID else body_of(sequence, part) for kind, sequence, part, _ in rows]
    return Made(
        source,
        np.array([row[0] for row in rows], np.uint8),
        np.array([row[1] for row in rows], np.uint64),
        np.array([row[2] for row in rows], np.uint16),
        np.array([row[3] for row in rows], np.uint16),
        b"".join(bodies),
        np.cumsum([len(body) for body in bodies], dtype=np.uint64),
        rows[0][1] if first is None else first,
        rows[-1][1] if through is None else through,
        keys,
    )


def records_of(blocks: Sequence[bytes]) -> list[Record]:
    return [block.record(i) for block in map(Block.parse, blocks) for i in range(block.count)]


def stream_of(adapter: Adapter) -> list[Record]:
    """All that is retained."""
    return records_of(adapter.read(0, 1 << 60).blocks)


def admin_of(record: Record) -> Admin:
    return speech.decode_admin(record.body)


def essence(record: Record) -> tuple[object, ...]:
    """What must be equal at equal numbers: the stream-specific note of an intended place is not looked at."""
    if record.kind == ADMIN:
        admin = admin_of(record)
        return record.kind, admin.id, admin.kind, admin.body
    return record.kind, record.source, record.sequence, record.part, record.parts, record.body


class Group:
    """Adapters of one group. The test is the administration and the network."""

    def __init__(self, *names: str, limits: Limits | None = None, sources: tuple[Source, ...] = ()) -> None:
        self.now_s = 100.0
        self.limits = limits or Limits()
        self.sources = sources or (Source(id=SOURCE),)
        self.epoch = 0
        self.adapters: dict[str, Adapter] = {}
        self.queues: dict[tuple[str, str], deque[bytes]] = {}
        self.links: set[frozenset[str]] = set()
        self.told: list[tuple[str, Word]] = []  # to the administration
        self.done: list[tuple[str, Action]] = []
        self.seen: dict[str, list[Word]] = {}  # what each adapter heard on links
        for name in names:
            self.start(name)

    def __getitem__(self, name: str) -> Adapter:
        return self.adapters[name]

    def start(self, name: str, incarnation: int = 1) -> Adapter:
        self.adapters[name] = Adapter(
            name=name, stream="prices", incarnation=incarnation, sources=self.sources, limits=self.limits
        )
        return self.adapters[name]

    def kill(self, name: str) -> None:
        """It is gone, with what was on its way to it. What it had sent still arrives, then the link is seen down."""
        del self.adapters[name]
        for link in [link for link in self.links if name in link]:
            (other,) = link - {name}
            self.queues[name, other] = deque(self.queues.get((name, other), ()))
            self.deliver(name, other)
            self.cut(name, other)

    def perform(self, name: str, actions: list[Action]) -> None:
        for action in actions:
            self.done.append((name, action))
            if isinstance(action, ToLink):
                if frozenset((name, action.peer)) in self.links:
                    self.queues.setdefault((name, action.peer), deque()).append(speech.encode(action.word))
            elif isinstance(action, ToAdministration):
                self.told.append((name, action.word))

    def role(self, active: str, *others: str, link: bool = True) -> None:
        """A new epoch with this active; the others are backups (all that run, if none is named)."""
        self.epoch = max(self.epoch, *(adapter.epoch for adapter in self.adapters.values())) + 1
        for name in others or self.adapters:
            if name != active:
                self.cut(name, active)
                role = Role(epoch=self.epoch, role="backup", active=active, active_address="x:1")
                self.perform(name, self[name].on_role(role, self.now_s))
        self.perform(active, self[active].on_role(Role(epoch=self.epoch, role="active", active=active), self.now_s))
        for name in others or self.adapters:
            if name != active and link:
                self.link(name, active)

    def link(self, backup: str, active: str) -> None:
        self.links.add(frozenset((backup, active)))
        self.perform(active, self[active].on_link_up(backup, self.now_s, is_dialled=False))
        self.perform(backup, self[backup].on_link_up(active, self.now_s, is_dialled=True))

    def cut(self, one: str, other: str) -> None:
        if frozenset((one, other)) not in self.links:
            return
        self.links.discard(frozenset((one, other)))
        for name, peer in ((one, other), (other, one)):
            self.queues.pop((name, peer), None)
            if name in self.adapters:
                for is_dialled in (True, False):  # the one that there was
                    self.perform(name, self[name].on_link_down(peer, self.now_s, is_dialled=is_dialled))

    def deliver(self, sender: str, receiver: str, count: int = 1 << 30) -> None:
        queue = self.queues.get((sender, receiver), deque())
        for _ in range(min(count, len(queue))):
            data = queue.popleft()
            if receiver in self.adapters:
                word = speech.ANY_LINK.decode(data)
                self.seen.setdefault(receiver, []).append(word)
                self.perform(receiver, self[receiver].on_link_word(sender, word, self.now_s))

    def talk(self) -> None:
        """Deliver all words, until nobody says anything more."""
        for _ in range(100):
            waiting = [key for key, queue in self.queues.items() if queue]
            if not waiting:
                return
            for key in waiting:
                self.deliver(*key)
        raise AssertionError("they do not stop talking")

    def feed(self, name: str, sequences: Sequence[int], **options: object) -> None:
        if not sequences:
            return
        self.perform(name, self[name].on_made(batch(sequences, **options), self.now_s))  # type: ignore[arg-type]

    def send(self, name: str, admin_id: str, kind: str = "text", **fields: object) -> None:
        admin = Admin(id=admin_id, kind=kind, **fields)  # type: ignore[arg-type]
        self.perform(name, self[name].on_send_admin(admin, self.now_s))

    def tick(self, seconds: float = 0.0, *, talk: bool = True) -> None:
        self.now_s += seconds
        for name in list(self.adapters):
            self.perform(name, self[name].on_tick(self.now_s))
            if talk:
                self.talk()

    def quiet(self) -> None:
        """Let heartbeats, checks and revisions run their course."""
        for _ in range(8):
            self.tick(0.21)

    def actions(self, name: str, kind: type[Action]) -> list[Action]:
        return [action for who, action in self.done if who == name and isinstance(action, kind)]


def differences(
    one: Adapter, other: Adapter, first: int = 0
) -> list[tuple[int, tuple[object, ...], tuple[object, ...]]]:
    """Numbers from `first` on, retained by both, whose contents differ."""
    left = {record.number: essence(record) for record in stream_of(one)}
    right = {record.number: essence(record) for record in stream_of(other)}
    both = sorted(number for number in left.keys() & right.keys() if number >= first)
    return [(number, left[number], right[number]) for number in both if left[number] != right[number]]


__all__ = [
    "SOURCE",
    "Group",
    "Renumbered",
    "RoleChanged",
    "StopLines",
    "admin_of",
    "batch",
    "body_of",
    "differences",
    "essence",
    "records_of",
    "stream_of",
]
