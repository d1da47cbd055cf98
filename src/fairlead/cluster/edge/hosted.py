"""One member of a group on this node: the machine that decides who leads, its store, and what goes over the bus.

It is turned by the member node's loop. While another member leads, records come from there. When this one leads, the
core of a message manager writes them, and is told what is safe by the machine, never by the disk (CLU-116). What the
machine wants remembered is on disk before anything it says is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from random import SystemRandom
from typing import Any, Final

import msgspec

from fairlead.bus.port import View
from fairlead.cluster.client_manager.directory_road import port_of as directory_port
from fairlead.cluster.core import Core
from fairlead.cluster.draining import Draining
from fairlead.cluster.edge.bus_links import BusLinks
from fairlead.cluster.edge.directory_copy import DirectoryCopy
from fairlead.cluster.edge.engine import Engine, now_ms
from fairlead.cluster.edge.member_home import MemberHome
from fairlead.cluster.edge.member_store import MemberStore, Prepared
from fairlead.cluster.edge.member_words import sentence
from fairlead.cluster.edge.scrub import Scrub, StateDigest
from fairlead.cluster.edge.side_feed import SideFeed
from fairlead.cluster.edge.spreading import Spreading
from fairlead.cluster.edge.state_files import StateRoad
from fairlead.cluster.edge.surroundings import Surroundings
from fairlead.cluster.replication import events as told
from fairlead.cluster.replication.member import Member
from fairlead.cluster.replication.messages import (
    Append,
    FetchAsk,
    Fetched,
    JoinAsk,
    Joined,
    Stored,
    TakeOver,
    decode,
    encode,
)
from fairlead.cluster.replication.record import node_of, nodes_of
from fairlead.errors import FairleadError, NoDirectory, RemoteProtocolError, StoreFull, Unavailable
from fairlead.journal.faults import JournalDamaged, JournalFailed

UPKEEP_S: Final = 0.2
TIDY_S: Final = 1.0
FEED_S: Final = 0.02
DRAIN_S: Final = 1.0  # for consumers to finish what they have, before a role is handed over
RESERVE_RECORDS: Final = 1_000_000  # behind the newest; who is further behind takes over a whole state
STUCK_S: Final = 5.0  # whoever has taken nothing for so long, and is not in the set, is not waited for
IDLE_S: Final = 0.25
STRANGE_S: Final = 10.0
OF_MEMBERS: Final = Append | Stored | JoinAsk | Joined | FetchAsk | Fetched | TakeOver
GIVERS: Final = (told.Role.IN_SYNC, told.Role.PRIMARY, told.Role.SUSPENDED)  # roles that may give their state


class StaleRead(msgspec.Struct, frozen=True):
    """What comes on `directory:GROUP`: a read of the directory, asked of whoever has a copy."""

    number: int
    request: dict[str, Any]


class Hosted:
    """One member."""

    def __init__(
        self, around: Surroundings, home: MemberHome, engine: Engine, ready: Prepared, peers: frozenset[str]
    ) -> None:
        self.around = around
        group, self.index = engine.group, engine.index
        self.group = group
        self.failed = ""  # why this member is no more
        self.handing_to = ""  # a node
        self.strange = 0  # messages that were none
        self._strange_s = -STRANGE_S  # when that was last said
        self.scrubbing: Scrub | None = None
        self.is_damaged = False  # a scrub has found what a start might not; see `wants_repair`
        self._forced: told.Forced | None = None
        self._lame: dict[str, float] = {}  # nodes without a bus that we have, and since when
        self._draining: Draining | None = None
        self._drained_s = 0.0  # then it is over, whatever they hold
        self._port, self._ballot_port, self._settle_port = f"member:{group}", f"ballot:{group}", f"settle:{group}"
        self._directory_port = directory_port(group)
        self._copy = DirectoryCopy(lambda: (self.store.core, self.store.log.inner))
        self._stepped_down = False  # the core still has what may be undone
        self._away = False  # its state is being built in a thread; for the group it is as if frozen
        self._later: list[Callable[[], None]] = []  # what happened meanwhile and must not be missed
        self._appended = 0
        self._reached: dict[str, tuple[int, float]] = {}  # how far each store was, and since when
        self._tick_s = self._kept_s = self._tidied_s = self._fed_s = 0.0
        self._more = self._is_full = False
        bus, work, clock_s = around.bus, around.workers.work, around.clock_s
        self.links = BusLinks(bus, group)
        self._spreading = Spreading(bus, group, lambda: self.member.leading.match if self.member.leading else {})
        self._side = SideFeed(bus, group, work, home.path / "large", clock_s, self._on_durable)
        self._road = StateRoad(
            bus, group, work, home, lambda: self.store.journal, engine.journal_options(), clock_s, around.start
        )
        self.store = MemberStore(
            home,
            engine,
            ready,
            self._side,
            watch=around.watch,
            forget=around.forget,
            on_journal=self._on_journal,
            on_core=self._on_core,
            before_following=self._stop_serving,
            reserve=self._reserve,
        )
        notes = home.notes(around.founding, loaded=not self.store.damaged)
        self.member = Member(
            group,
            around.node,
            home.store,
            self.store.log,
            notes,
            around.settings,
            SystemRandom(),
            clock_s(),
            founding=around.founding,
            peers=peers,
            loaded=notes.loaded,
            start=around.start,
        )
        bus.listen(self._port, self._on_message)
        bus.listen(self._ballot_port, self._on_message)
        bus.listen(self._settle_port, self._on_settle)
        bus.listen(self._directory_port, self._on_directory)
        self._after()

    @property
    def leads(self) -> bool:
        return self.store.leads

    # --- The store ------------------------------------------------------------------------------------------------
    def _on_journal(self) -> None:
        if self._away:
            return
        try:
            grown = self.store.collect(patiently=True)
        except (JournalFailed, JournalDamaged) as error:
            self.fail(error.text)
            return
        if grown:
            self._on_durable()

    def _on_durable(self) -> None:
        self.guard(lambda: self.member.on_durable(self.around.clock_s()))

    def _on_core(self, core: Core) -> None:
        core.settle_send = self._settle_send
        core.copies = lambda: len(self.member.record.members)
        core.holders = self._holders

    def _holders(self) -> dict[str, tuple[int, bool]]:
        """How far each copy is on stable storage, and whether what is confirmed waits for it."""
        member = self.member
        if member.leading is None:
            return {}
        match, members = {**member.leading.match, member.store: member.log.durable}, member.record.members
        return {node_of(store): (upto, store in members) for store, upto in match.items()}

    def _reserve(self) -> int | None:
        """The oldest record that a backup which is only a little behind still has to get."""
        if not self.leads or self.member.leading is None:
            return None
        there = self.around.bus.view.peers
        least = self.store.journal.last - RESERVE_RECORDS
        behind = [
            upto
            for store, upto in self.member.leading.match.items()
            if node_of(store) in there and not self._is_stuck(store, upto)
        ]
        return min((upto + 1 for upto in behind if upto >= least), default=None)

    def _is_stuck(self, store: str, upto: int) -> bool:
        """Is it out of the set, and takes nothing? Our disk must not fill up because its own is full."""
        now_s = self.around.clock_s()
        reached, since_s = self._reached.get(store, (-1, now_s))
        if upto > reached or store in self.member.record.members:
            self._reached[store] = upto, now_s
            return False
        return now_s - since_s > STUCK_S

    def _stop_serving(self) -> None:
        self.links.stop()
        self._road.on_epoch(0)
        self._stepped_down = False
        self._draining = None

    # --- What comes over the bus ----------------------------------------------------------------------------------
    def _on_message(self, sender: str, data: memoryview) -> None:
        if self.failed or self._away:
            return  # it comes again
        try:
            message = decode(data)
        except RemoteProtocolError as error:
            self._is_strange(sender, error.text)
            return
        if isinstance(message, OF_MEMBERS) and not self._is_member(sender):
            self._is_strange(sender, f"{type(message).__name__} from a node that has no member of the group")
            return
        if isinstance(message, Append):
            self._look_at_room()
        self.guard(lambda: self.member.on_message(sender, message, self.around.clock_s()))

    def _is_member(self, node: str) -> bool:
        return node in self.member.peers or node in nodes_of(self.member.record.members)

    def _is_strange(self, sender: str, why: str) -> None:
        """A node that works says no such thing: it is counted, and said once in a while."""
        self.strange += 1
        now_s = self.around.clock_s()
        if now_s - self._strange_s >= STRANGE_S:
            self._strange_s = now_s
            self._say("error", f"{sender} sends what is dropped: {why} ({self.strange} so far)")

    def _look_at_room(self) -> None:
        """Is the disk of a backup full? Then it takes no messages, and whoever leads goes on without it (CLU-113)."""
        full = "" if self.leads else self.store.journal.full
        if bool(full) != self._is_full:
            self._is_full = bool(full)
            self._say("error" if full else "info", f"takes no messages: {full}" if full else "has room again")

    def _on_settle(self, sender: str, data: memoryview) -> None:
        """Another group about a transaction that touched both (docs/cluster.md, 7)."""
        if self.failed or not self.leads or not self.member.may_serve(self.around.clock_s()):
            return  # it asks again
        try:
            message = msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._is_strange(sender, f"about a transaction: {error}")
            return
        self.guard(lambda: self.store.core.decisions.on_settle(str(message.pop("group", "")), message))

    def _on_directory(self, sender: str, data: memoryview) -> None:
        """A client manager that sees no primary: what we know is told, and marked as stale (DIR-38)."""
        if self.failed or self._away:
            return  # it has given up soon
        try:
            question = msgspec.json.decode(data, type=StaleRead)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._is_strange(sender, f"about the directory: {error}")
            return
        said: dict[str, Any] = {"number": question.number}
        self.store.core.now_ms = now_ms()
        try:
            said["answer"] = self._copy.answer(question.request)
        except FairleadError as error:  # a journal that cannot be read is one too, and found out about elsewhere
            said |= {"code": error.code, "text": error.text}
        except Exception as error:  # a read for somebody else is no reason to end
            self._say("error", f"a stale read of the directory failed: {error!r}")
            said |= {"code": NoDirectory.code, "text": "This server cannot read its copy of the directory."}
        self.around.bus.send(sender, self._directory_port, msgspec.json.encode(said))

    def _settle_send(self, group: str, message: dict[str, Any]) -> None:
        """To whoever serves that group now; it need not arrive."""
        data = msgspec.json.encode({**message, "group": self.group})
        for peer in self.around.bus.view.peers.values():
            if peer.tag.get("groups", {}).get(group, {}).get("serving"):
                self.around.bus.send(peer.name, f"settle:{group}", data)

    def on_view(self, view: View) -> None:
        """Who is the first to stand when the primary is lost; only speed hangs on it."""
        mine = [peer for peer in view.peers.values() if self.group in peer.tag.get("groups", {})]
        mine.sort(key=lambda peer: peer.rank)
        names = [peer.name for peer in mine if peer.name != self.member.primary]
        self.member.rank = names.index(self.around.node) if self.around.node in names else 0
        lame = lame_of(view, self.around.node)
        self._lame = {node: self._lame.get(node, self.around.clock_s()) for node in lame}
        self._spreading.on_view(view)

    def on_gone(self, node: str, start: int) -> None:
        """That process is dead, or gone from the view."""
        if node == self.handing_to:
            self._stay()  # it will not take over
        self.on_broken(node)
        self.guard(lambda: self.member.on_dead(node, start, self.around.clock_s()))

    def on_broken(self, node: str) -> None:
        """Order from and to that node begins anew."""
        if not self.failed:
            self.links.node_lost(node)
            self._road.lost(node)
            self._side.lost(node)

    def configure(self, peers: frozenset[str]) -> None:
        """The settings of our surroundings have changed."""

        def configured() -> None:
            settings, member = self.around.settings, self.member
            self.store.engine.configure(self.around.options_of(self.group))
            member.settings = settings
            member.configure(peers, settings.min_copies, settings.strict_copies, self.around.clock_s())

        self.guard(configured)

    # --- What the machine says ------------------------------------------------------------------------------------
    def guard(self, action: Callable[[], None]) -> None:
        """Have the machine do something and do what it says; a failed disk is this member's end (CLU-140)."""
        if self.failed:
            return
        if self._away:
            self._later.append(action)
            return
        try:
            try:
                action()
            except StoreFull:
                pass  # what was taken is in the log; the rest is asked for again
            except RemoteProtocolError as error:
                self._is_strange(self.member.primary or "somebody", error.text)
            self._after()
        except (JournalFailed, JournalDamaged) as error:
            self.fail(error.text)

    def _after(self) -> None:
        member, bus = self.member, self.around.bus
        while member.events:
            happened, member.events = member.events, []
            for event in happened:
                self._on_event(event)
        if member.notes_dirty:
            self.store.home.write_notes(member.notes)
            member.notes_dirty = False
        out, member.out = member.out, []
        if out:
            self._spreading.send(out)
        if self._stepped_down and self.around.is_stopping:
            self.retire()
        elif self._stepped_down:
            bus.flush()  # others wait for what was said
            self._away = True
            self.store.fold(self.around.workers.work, lambda error: self._came_back(error, lambda: None))

    def _came_back(self, error: Exception | None, then: Callable[[], None]) -> None:
        """The state is built."""
        self._away = False
        self.member.following.contact_s = self.around.clock_s()  # nobody was heard, since nobody listened
        later, self._later = self._later, []
        if isinstance(error, JournalFailed | JournalDamaged):
            self.fail(error.text)
        elif error is not None:
            raise error
        for action in (then, *later):
            self.guard(action)

    def _on_event(self, event: told.Event) -> None:
        match event:
            case told.Led(epoch):
                self._lead(epoch)
            case told.SteppedDown(epoch, why):
                self._say("warning", f"leads no more in epoch {epoch}: {why}")
                self.links.stop()
                self._stepped_down = self.leads
            case told.Serving(serving):
                if serving:
                    self.links.serve(self.store.core, self.member.epoch)
                else:
                    self.links.stop()
                self._say("info", f"{'serves' if serving else 'does not serve'} in epoch {self.member.epoch}")
            case told.HandedOver(_, done):
                if not done:
                    self._stay()
                self.handing_to = ""
                self._say(*sentence(event))
            case told.NeedsState(_, hosts, epoch):
                self._say(*sentence(event))
                self._road.take_over(list(hosts), epoch, lambda last, of: self._take_state(last, of, epoch))
            case told.Forced():
                self._forced = event
                self._say(*sentence(event))
            case _:
                self._say(*sentence(event))

    def _lead(self, epoch: int) -> None:
        began_s = self.around.clock_s()
        self.store.follow()
        self._appended = 0
        last = self.store.journal.last
        of = self.store.journal.epoch_at(last)
        try:
            self.store.lead(epoch)
        except StoreFull as full:
            self.member.give_up(full.text, self.around.clock_s())
            return
        self._say("info", f"leads in epoch {epoch}, after {(self.around.clock_s() - began_s) * 1000:.1f} ms")
        if self._forced is not None and self._forced.epoch == epoch:
            self._log_forced(self._forced, last, of)
        self._notice_appended()
        for node in nodes_of(self.member.record.members) - self.around.bus.view.peers.keys():
            self.member.on_dead(node, 0, self.around.clock_s())  # nobody has to wait for who is not there

    def _log_forced(self, forced: told.Forced, last: int, of: int) -> None:
        """What may be missing, in the group's own log (CLU-151)."""
        who = ", ".join(forced.missing) or "nobody else"
        text = (
            f"{self.member.store} leads group {self.group} in epoch {forced.epoch} by force, with records up to {last} "
            f"of epoch {of}; whatever was confirmed behind that by {who} is possibly missing."
        )
        facts = {"group": self.group, "epoch": forced.epoch, "last": last, "missing": list(forced.missing)}
        self.store.core.event("error", "forced-primary", text, **facts)

    def _notice_appended(self) -> bool:
        last = self.store.journal.last
        if last <= self._appended:
            return False
        self._appended = last
        self.member.on_appended(self.around.clock_s())
        return True

    def _take_state(self, last: int, last_epoch: int, epoch: int) -> None:
        """A state is here, whole and checked: it takes the place of ours, if it is not older (CLU-139)."""
        member = self.member
        if self.failed:
            return
        if self.leads or not member.accepts_state(last, last_epoch, epoch):
            self._say("warning", "a state that came is not taken over: ours is as good, or the epoch is another")
            self.store.home.drop_incoming()
            return

        def swapped() -> None:
            self._say("info", f"took over a whole state of {last} records")
            member.on_state(last, last_epoch, epoch, self.around.clock_s())

        self._road.on_epoch(0)
        self._away = True
        self.store.swap(
            self.around.workers.work, lambda error: self._came_back(error, swapped), loaded=member.notes.loaded
        )

    # --- The turn -------------------------------------------------------------------------------------------------
    def turn(self, now_s: float) -> None:
        if self.failed or self._away:
            return
        try:
            self._turn(now_s)
        except (JournalFailed, JournalDamaged) as error:
            self.fail(error.text)

    def _turn(self, now_s: float) -> None:
        member, store = self.member, self.store
        if now_s >= self._tick_s:
            member.tick(now_s)
            self._after()
            if self._away:
                return
        self._more = False
        if store.leads:
            core = store.core
            if member.may_serve(now_s):
                core.on_time(now_ms())
                self._more = core.run()
            core.finish()
            appended = self._notice_appended()
            self._after()
            if self._away:
                return
            if appended:
                self.around.bus.flush()  # backups write while we do
        elif now_s - self._tidied_s >= TIDY_S:
            self._tidied_s = now_s
            store.replica.tidy(now_ms())
        if now_s - self._fed_s >= FEED_S:
            self._fed_s = now_s
            self._feed()
            if self._draining is not None:
                self.guard(lambda: self._go_on_draining(now_s))
                if self._away:
                    return
        store.submit(now_s)
        self.links.send()
        upkeep = store.engine.upkeep
        if now_s - self._kept_s >= UPKEEP_S or upkeep.is_busy:
            self._kept_s = now_s
            upkeep.step(now_s)
        self._tick_s = (member.leading or member.candidacy or member.following).next_s()

    def _feed(self) -> None:
        """What goes between members besides records."""
        member = self.member
        long_s = self.around.clock_s() - self.around.settings.absence_s  # at a start one bus is there before the other
        member.lame = frozenset(node for node, since_s in self._lame.items() if since_s < long_s)
        others = sorted(nodes_of(member.record.members) - {self.around.node, member.primary or ""})
        self._road.on_epoch(member.epoch if member.role in GIVERS else 0)
        self._road.tick()
        self._side.sources = [node for node in (member.primary, *others) if node and node != self.around.node]
        self._side.tick()
        if not self.leads:
            before = self.store.log.durable
            self._side.settled(min(member.following.told_safe, member.following.verified))
            if self.store.log.durable > before:
                self._on_durable()

    def patience_s(self, now_s: float) -> float:
        """How long the loop may wait, as far as this member is concerned."""
        if self.failed or self._away:
            return IDLE_S
        if self._more:
            return 0.0
        most_s = min(IDLE_S, max(0.0, self._tick_s - now_s), self._side.patience_s)
        if self.store.engine.upkeep.is_busy or self._draining is not None:
            most_s = min(most_s, FEED_S)
        return self.store.engine.patience_s(most_s, now_s) if self.leads else most_s

    # --- Its end --------------------------------------------------------------------------------------------------
    def fail(self, why: str) -> None:
        """The disk failed: give up the role at once, say so, and be no more (CLU-140, CLU-113)."""
        if self.failed:
            return
        self.failed = why or "the journal failed"
        self._say("error", f"this member ends, nothing more is confirmed by it: {self.failed}")
        self._close_ports()
        self.store.leads = False
        member = self.member
        member.give_up(self.failed, self.around.clock_s())
        if not member.notes_dirty:
            for send in member.out:
                self.around.bus.send(send.node, send.port, encode(send.message))
        self.store.abort()

    def hand_over(self, to: str = "") -> str:
        """Begin to hand the role over to that node, or to any that is in sync; to whom, empty: there is nobody."""
        if not self.leads or self.failed:
            return ""
        others = sorted(nodes_of(self.member.record.members) - {self.around.node})
        present = [name for name in others if name in self.around.bus.view.peers]
        target = to or next(iter(present), "")
        if not target or self.handing_to:
            return target and self.handing_to
        self.handing_to = target
        if target in present:
            self._draining, self._drained_s = Draining(self.store.core), self.around.clock_s() + DRAIN_S
        else:  # the machine says what is wrong with it
            self.guard(lambda: self.member.hand_over(target, self.around.clock_s()))
        return target

    def _go_on_draining(self, now_s: float) -> None:
        draining = self._draining
        if draining is not None and (now_s >= self._drained_s or draining.is_done):
            self._draining = None
            draining.settle()
            self.store.core.finish()
            self._notice_appended()
            self.member.hand_over(self.handing_to, now_s)

    def _stay(self) -> None:
        """The role is not handed over after all."""
        self.handing_to, self._draining = "", None
        if self.leads:
            Draining(self.store.core).abandon()

    def close(self) -> None:
        """In order, with the node."""
        if self.failed:
            return
        if self.leads:
            self.guard(lambda: self.member.give_up("the node ends", self.around.clock_s()))
        self.retire()

    def retire(self) -> None:
        """This member is no more, in this process."""
        if self.failed:
            return
        self.failed = "the node ends"
        self._close_ports()
        self.store.leads = self._stepped_down = False
        self.store.shut()

    def _close_ports(self) -> None:
        if self.scrubbing is not None:
            self.scrubbing.stop()
        self.links.close()
        self._spreading.close()
        self._road.close()
        self._side.close()
        self.around.bus.deaf(self._port)
        self.around.bus.deaf(self._ballot_port)
        self.around.bus.deaf(self._settle_port)
        self.around.bus.deaf(self._directory_port)

    # --- What can be asked ----------------------------------------------------------------------------------------
    def tag(self) -> dict[str, Any]:
        """What this node says about itself on the bus."""
        if self.failed:
            word = "leaving" if self.around.is_stopping else "failed"
            return {"role": word, "epoch": 0, "serving": False, "store": self.store.home.store, "sync": word}
        member = self.member
        return {
            "role": "primary" if self.leads else "backup",
            "epoch": member.epoch,
            "serving": self.leads and member.serving,
            "store": member.store,
            "sync": member.role.value,
        }

    def facts(self) -> dict[str, Any]:
        """For `status`."""
        if self.failed:
            return {"group": self.group, "role": "failed", "why": self.failed}
        if self._away:
            return {"group": self.group, "index": self.index, **self.member.facts(), "why": "builds its state again"}
        store = self.store
        core = store.core
        return {
            "group": self.group,
            "index": self.index,
            **self.member.facts(),
            "applied": store.applied,
            "first": store.log.first,
            "destinations": len(core.names),
            "depth": sum(one.depth for one in core.destinations.values()),
            "sessions": len(core.sessions.by_id),
            "links": len(self.links),
            "folds": store.folds,
            "removal_s": self.member.settings.removal_s,
            "quota_bytes": store.journal.options.quota_bytes,
            "strange": self.strange + self.links.refused,
            "state": self._road.facts(),
            "journal": store.engine.upkeep.facts(),
            "stored": core.tally.stored,
            "delivered": core.tally.delivered,
            "settled": core.tally.settled,
        }

    def admin(self, name: str, args: dict[str, Any], then: Callable[[dict[str, Any]], None]) -> None:
        """An administration command of the message manager, answered by whoever leads."""
        if not self.leads or self.failed:
            raise Unavailable(f"{self.around.node} does not lead group {self.group}.")
        self.store.core.admin.execute(name, args, then, user="local")

    def scrub(self, then: Callable[[dict[str, Any]], None]) -> None:
        """Read everything on disk again, at a bounded rate; then what is damaged, and digests of the state."""
        if self.scrubbing is not None:
            raise Unavailable(f"Group {self.group} is being scrubbed here already.")
        if self._away:
            raise Unavailable(f"{self.around.node} builds its state of group {self.group} again; try in a moment.")
        store, work = self.store, self.around.workers.work

        def read(report: dict[str, Any]) -> None:
            self.scrubbing = None
            if self.failed or store.journal is not journal:
                then({**report, "error": "the store changed while it was read"})
            elif report["damage"]:
                then({**report, "repair": self._found_damage(report["damage"])})
            else:
                StateDigest(store.core, journal, work, lambda digests: then({**report, **digests}))

        journal = store.journal
        self.scrubbing = Scrub(journal, work, read)

    def _found_damage(self, damage: list[dict[str, Any]]) -> str:
        """Say where, and what follows: another store of the group gives us everything anew (CLU-114)."""
        for one in damage:
            place = {"segment": one["segment"], "offset": one["offset"]}
            self._say("error", f"journal: {one}")
            self.store.core.event("error", "journal-damage", f"{self.member.store}: {one}", group=self.group, **place)
        self.is_damaged = True
        if not self.leads:
            return "it begins anew with the state of another member"
        to = self.hand_over()
        if to:
            return f"it hands over to {to}, then begins anew with the state of another member"
        return "nobody else is in sync: it leads on with what it has, and repairs itself when somebody is"

    @property
    def wants_repair(self) -> bool:
        """Is it damaged, and is there somebody who leads and can give us everything?"""
        if not self.is_damaged or self.failed or self._away or self.scrubbing is not None:
            return False
        if self.leads:
            if not self.handing_to and len(self.member.record.members) > 1:
                self.hand_over()
            return False
        return bool(self.member.primary)

    def distrust(self) -> None:
        """End; who begins in this place is another store, and nothing in it counts until a whole state has come."""
        notes = self.member.notes
        self.retire()
        self.store.home.distrust(notes)

    def _say(self, level: str, text: str) -> None:
        self.around.say(level, f"group {self.group}: {text}")


def lame_of(view: View, node: str) -> list[str]:
    """Who has lost a bus that this node still has, since others can be reached there (CLU-49)."""
    others = [peer for peer in view.peers.values() if peer.name != node and peer.buses]
    mine = {bus for peer in others for bus in peer.buses if node in view.peers and bus in view.peers[node].buses}
    return sorted(peer.name for peer in others if not mine <= set(peer.buses))
