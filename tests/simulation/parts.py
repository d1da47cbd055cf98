"""The edges of the simulation: what a process does around a member and around a vote."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import msgspec

from fairlead.cluster.replication import events as ev
from fairlead.cluster.replication.events import Send
from fairlead.cluster.replication.member import Member
from fairlead.cluster.replication.messages import decode, encode
from fairlead.cluster.replication.notes import MemberNotes, VoterNotes
from fairlead.cluster.replication.record import ControlRecord
from fairlead.cluster.replication.settings import Settings
from fairlead.cluster.replication.voter import Voter
from tests.simulation.disk import SimLog
from tests.simulation.laws import Laws
from tests.simulation.plants import EdgeRules
from tests.simulation.service import LIFE, SEND, START, Entry, State, packed
from tests.simulation.world import Node, World


class Offer(NamedTuple):
    session: str
    life: int
    number: int


class Confirm(NamedTuple):
    session: str
    number: int


class StateAsk(NamedTuple):
    epoch: int


class WholeState(NamedTuple):
    epoch: int
    log: SimLog


class Dead(NamedTuple):
    """A keeper's notice."""

    node: str
    start: int


class Group(NamedTuple):
    """What all parts of a group share."""

    name: str
    world: World
    laws: Laws
    settings: Settings
    rules: EdgeRules
    founding: ControlRecord
    peers: set[str]
    wishes: dict[str, Any]  # copies, strict


class Desk:
    """Notes to the disk, then messages to the network."""

    def __init__(self, group: Group, node: Node, port: str) -> None:
        self.group, self.node, self.port = group, node, port
        self.name, self.world, self.laws, self.rules = group.name, group.world, group.laws, group.rules

    def write(self, key: str, notes: MemberNotes | VoterNotes) -> None:
        data = msgspec.msgpack.encode(notes)
        if self.rules.notes_first:
            self.node.disk[key] = data
        else:
            self.node.after(self.world.rng.uniform(0, 1.5), self.port, lambda _: self.node.disk.update({key: data}))

    def send_all(self, out: list[Send]) -> None:
        for send in out:
            self.world.send(self.node.name, send.node, send.port, encode(send.message))
        out.clear()


class VoterPart(Desk):
    def __init__(self, group: Group, node: Node) -> None:
        super().__init__(group, node, f"voter:{group.name}")
        kept = node.disk.get(self.port)
        notes = msgspec.msgpack.decode(kept, type=VoterNotes) if kept else VoterNotes.fresh(group.founding)
        identity = node.disk.setdefault(f"vote:{group.name}", self._new_identity())
        now_s = node.clock()
        self.voter = Voter(
            group.name, identity, notes, group.settings, now_s, founding=group.founding, rules=group.rules
        )
        self.write(self.port, notes)

    def _new_identity(self) -> str:
        lost = self.laws.disks_lost(self.node.name) if self.rules.vote_identity else 0
        return f"{self.node.name}.{lost}"

    def receive(self, sender: str, payload: Any, now_s: float) -> None:
        if isinstance(payload, Dead):
            start = payload.start if self.rules.certain_death else 1 << 62
            self.voter.on_dead(payload.node, start, now_s)
        else:
            self.voter.on_message(sender, decode(payload), now_s)
        if self.voter.notes_dirty:
            self.voter.notes_dirty = False
            self.write(self.port, self.voter.notes)
        self.send_all(self.voter.out)

    def tick(self, now_s: float) -> None: ...

    def due_s(self) -> float:
        return 1e18

    def ends(self, orderly: bool) -> None: ...


class MemberPart(Desk):
    """A member, its log, and a small service behind it that takes sends one by one."""

    def __init__(self, group: Group, node: Node) -> None:
        super().__init__(group, node, f"member:{group.name}")
        self.rng = Random(self.world.rng.getrandbits(64))
        kept = node.disk.get(self.port)
        loaded = not node.disk.pop(f"damaged:{self.name}", False)
        store = node.disk.setdefault(f"store:{self.name}", self._new_identity())
        if not kept:
            node.disk[f"log:{self.name}"] = SimLog(self.rng)
        self.log: SimLog = node.disk[f"log:{self.name}"]
        self.log.rng, self.log.on_settled = self.rng, self.on_settled
        notes = (
            msgspec.msgpack.decode(kept, type=MemberNotes) if kept else MemberNotes.fresh(group.founding, loaded=True)
        )
        self.member = Member(
            self.name,
            node.name,
            store,
            self.log,
            notes,
            group.settings,
            self.rng,
            node.clock(),
            founding=group.founding,
            peers=frozenset(group.peers),
            loaded=loaded and notes.loaded,
            start=node.start_number,
            rules=group.rules,
        )
        self.member.rank = sorted(group.peers | {node.name}).index(node.name)
        self.state = State()
        self.seen_safe = self.member.safe
        self.proposed: ControlRecord | None = None
        self.waiting: list[tuple[int, str, Confirm]] = []
        self.is_flushing = False
        self.wants_state: tuple[int, tuple[str, ...]] | None = None
        self.configure(node.clock())
        self.write(self.port, notes)
        if not self.rules.restart_new_epoch:
            node.after(0.001, self.port, self.go_on)

    def _new_identity(self) -> str:
        lost = self.laws.disks_lost(self.node.name) if self.rules.store_identity else 0
        return f"{self.node.name}.{lost}"

    def go_on(self, now_s: float) -> None:
        """The bug of a primary that leads again as if it had never been away."""
        notes, lease_s = self.member.notes, self.group.settings.lease_s
        if notes.leading == notes.fence == notes.known.epoch > 0:
            self.member.lead(notes.known, now_s - lease_s, frozenset())
        self.after_call(now_s)

    # --- what comes in

    def receive(self, sender: str, payload: Any, now_s: float) -> None:
        match payload:
            case Offer():
                self.on_offer(sender, payload, now_s)
            case Dead(node, start):
                self.member.on_dead(node, start, now_s)
            case StateAsk(epoch):
                self.on_state_ask(sender, epoch)
            case WholeState(epoch, log):
                self.on_whole_state(epoch, log, now_s)
            case _:
                self.member.on_message(sender, decode(payload), now_s)
        self.after_call(now_s)

    def tick(self, now_s: float) -> None:
        self.member.tick(now_s)
        if self.member.may_serve(now_s):
            self.laws.serves(self.name, self.node.name, self.member.epoch)
        self.after_call(now_s)

    def due_s(self) -> float:
        return self.member.next_s()

    def ends(self, orderly: bool) -> None:
        if orderly:
            self.member.give_up("the process ends", self.node.clock())
            self.log.durable = self.log.last
            self.after_call(self.node.clock())
        self.log.crash()

    def configure(self, now_s: float) -> None:
        wishes = self.group.wishes
        self.member.configure(frozenset(self.group.peers), wishes["copies"], wishes["strict"], now_s)
        self.after_call(now_s)

    # --- what goes out

    def after_call(self, now_s: float) -> None:
        member = self.member
        while member.events:
            events, member.events = member.events, []
            for event in events:
                self.on_event(event, now_s)
        pending = member.leading.pending if member.leading else None
        if pending is not self.proposed:
            self.proposed = pending
            if pending is not None:
                self.laws.strike(self.node.name, "proposed")
        if member.safe > self.seen_safe:
            self.on_safe(now_s)
        if member.notes_dirty:
            member.notes_dirty = False
            self.write(self.port, member.notes)
        if member.notes.loaded:  # what a damaged disk has left is no copy
            self.laws.keeps(self.name, member.store, self.log)
        self.send_all(member.out)
        self.flush_soon()

    def on_event(self, event: ev.Event, now_s: float) -> None:
        member = self.member
        self.world.say(self.node.name, event)
        self.world.tally(type(event).__name__)
        match event:
            case ev.Led(epoch):
                self.laws.leads(self.name, self.node.name, epoch, self.log)
                self.laws.records(self.name, member.record)
                self.state.apply(self.log.entries, self.log.last)
                if not self.rules.keep_keys:
                    self.state.place.clear()
                self.append(Entry(epoch, START), now_s)
            case ev.SteppedDown():
                self.state, self.waiting = State(), []
            case ev.SetChanged(record):
                self.laws.records(self.name, record)
            case ev.NeedsState(_, hosts, epoch):
                if not self.rules.keep_until_swapped:
                    self.log.first, self.log.settled, self.member.safe = 1, 0, 0
                    self.log.keep(0)
                self.world.send(self.node.name, self.rng.choice(hosts), self.port, StateAsk(epoch))
            case _:
                pass
        self.laws.strike(self.node.name, event)

    def append(self, entry: Entry, now_s: float) -> int:
        index = self.log.push(entry.epoch, packed(entry))
        self.state.apply(self.log.entries, index)
        self.member.on_appended(now_s)
        return index

    def flush_soon(self) -> None:
        log = self.log
        if not self.is_flushing and log.last > log.durable:
            self.is_flushing = True
            log.begin_flush()
            takes_s = 0.001 + 0.03 * self.rng.random() ** 2
            if self.rng.random() < self.world.stalls:
                takes_s = 3 * self.rng.random()
            self.node.after(takes_s, self.port, self.on_flushed)

    def on_flushed(self, now_s: float) -> None:
        self.is_flushing = False
        if self.log.end_flush():
            self.member.on_durable(now_s)
        self.after_call(now_s)

    def on_settled(self, safe: int) -> None:
        if self.member.leading:
            self.laws.is_safe(self.name, self.node.name, self.member.epoch, self.log, safe)
        else:
            self.laws.settles(self.name, self.member.store, self.log, safe)

    def on_safe(self, now_s: float) -> None:
        member = self.member
        self.seen_safe = member.safe
        waiting, self.waiting = self.waiting, []
        for place, to, confirm in waiting:
            self.tell(place, to, confirm, now_s)
        if self.rng.random() < 0.05:
            self.log.shorten()

    # --- the service

    def on_offer(self, sender: str, offer: Offer, now_s: float) -> None:
        member, state = self.member, self.state
        may = member.may_serve(now_s) if self.rules.serve_by_lease else member.leading is not None
        if not may or offer.life < state.life.get(offer.session, 0):
            return
        self.laws.serves(self.name, self.node.name, member.epoch)
        key = offer.session, offer.number
        confirm = Confirm(offer.session, offer.number)
        if key in state.place:
            if offer.life > state.life.get(offer.session, 0):
                self.append(Entry(member.epoch, LIFE, offer.session, offer.life), now_s)
            place = max(state.place[key], state.life_at.get(offer.session, 0))
            self.tell(place if self.rules.repeat_waits else 0, sender, confirm, now_s)
        elif self.is_next(offer):
            place = self.append(Entry(member.epoch, SEND, offer.session, offer.life, offer.number), now_s)
            self.tell(place, sender, confirm, now_s)

    def is_next(self, offer: Offer) -> bool:
        following = self.state.accepted.get(offer.session, 0) + 1
        if offer.number == following or not self.rules.gapless:
            return True
        return offer.number < following and not self.rules.keep_keys

    def tell(self, place: int, to: str, confirm: Confirm, now_s: float) -> None:
        if place > self.member.safe:
            self.waiting.append((place, to, confirm))
        elif self.member.leading and self.member.leading.is_leased:
            self.world.send(self.node.name, to, "client", confirm)
            self.laws.tells(self.node.name)

    # --- whole states

    def on_state_ask(self, sender: str, epoch: int) -> None:
        """Only a state known to be the current primary's may be handed on, and of it only what is safe."""
        member = self.member
        follows = member.leading or (member.following.verified and member.following.primary)
        if epoch == member.notes.fence and follows and not member.candidacy:
            state = self.log.copy_to(member.safe, self.rng)
            self.world.send(self.node.name, sender, self.port, WholeState(epoch, state))

    def on_whole_state(self, epoch: int, given: SimLog, now_s: float) -> None:
        member = self.member
        last_epoch = given.epoch_at(given.last) if given.last else 0
        if not member.accepts_state(given.last, last_epoch, epoch):
            return
        self.world.tally("swapped")
        self.log = given.copy_to(given.last, self.rng)  # the packet may come twice
        self.node.disk[f"log:{self.name}"] = self.log
        self.is_flushing = False
        self.log.on_settled = self.on_settled
        member.on_state(given.last, last_epoch, epoch, now_s, self.log)
        self.seen_safe = member.safe
