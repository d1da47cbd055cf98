"""The programs around the production machines, on virtual connections: adapter, administration, client."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from msgspec import structs

from fairlead.errors import RemoteProtocolError
from fairlead.feeds import words
from fairlead.feeds.adapter import Limits, actions
from fairlead.feeds.administration import Administration, Keep, Options, Tell
from fairlead.feeds.arbitration import Arbiter, asks
from fairlead.feeds.block_codec import StreamMessage
from fairlead.feeds.events import Discontinuity, Event, Lost, Succeeded
from fairlead.feeds.words import Word
from tests.feeds.simulation.feed import made
from tests.feeds.simulation.world import Connection, Process

if TYPE_CHECKING:
    from tests.feeds.simulation.group import Group

STREAM = "prices"
TICK_S = 0.05
REDIAL_S = 0.15


class LineEnd:
    """An adapter's side of a client's line."""

    def __init__(self, connection: Connection, client: ClientProgram, key: int) -> None:
        self.connection, self.client, self.key = connection, client, key
        self.cursor: int | None = None
        self.stop_after: int | None = None
        self.sent_s = 0.0


class AdapterProgram(Process):
    def __init__(self, group: Group, name: str, limits: Limits) -> None:
        super().__init__(group.world, name)
        self.group = group
        self.limits = limits
        self.incarnation = 0
        self.source_delay_s = 0.0
        self.tokens: set[str] = set()

    def start(self) -> None:
        self.begin()
        self.incarnation += 1000
        self.machine = self.group.make_adapter(
            name=self.name, stream=STREAM, incarnation=self.incarnation, limits=self.limits
        )
        self.lines: list[LineEnd] = []
        self.links: dict[str, Connection] = {}  # other adapters that have dialled us
        self.link: Connection | None = None
        self.link_heard_s = 0.0
        self.target: actions.RoleChanged | None = None
        self.desk: Connection | None = None
        self.talk, self.admitted = 0, ""
        self.tokens.clear()
        self.inbox: deque[tuple[Any, ...]] = deque()
        self.reported_s = 0.0
        for feed in self.group.feeds:
            self.do(self.machine.on_source(feed.declared, self.world.now_s))
        self.every(TICK_S, self._tick)
        self._call_desk()

    # The source.

    def feed(self, item: tuple[Any, ...]) -> None:
        """A batch (source, first, last), a gap, or a declaration; each after a delay, in order."""
        self.inbox.append(item)
        self.world.after(self.source_delay_s + self.world.random.uniform(0.0, 0.003), self.hand, self.life, self._take)

    def _take(self) -> None:
        what, *item = self.inbox.popleft()
        now_s = self.world.now_s
        if what == "made":
            self.do(self.machine.on_made(made(*item, self.limits.has_snapshots), now_s))
        elif what == "gap":
            self.do(self.machine.on_source_gap(*item, now_s))
        elif what == "alive":
            self.do(self.machine.on_source_alive(*item, now_s))
        else:
            self.do(self.machine.on_source(*item, now_s))

    # What the machine wants.

    def do(self, wanted: list[actions.Action]) -> None:
        for action in wanted:
            match action:
                case actions.Wake():
                    self._supply()
                case actions.ToLink():
                    self._to_link(action.peer, action.word)
                case actions.ToAdministration():
                    self._to_desk(action.word)
                case actions.RoleChanged():
                    self._take_role(action)
                case actions.StopLines():
                    for line in self.lines:
                        line.stop_after = action.last if line.cursor is not None else None
                case actions.Renumbered() | actions.BeatLines():
                    self._beat_all()
                case _:
                    self.world.tell(f"{self.name}: {action.text}")
        self.group.watch_roles(self)

    def _take_role(self, role: actions.RoleChanged) -> None:
        self.world.tell(f"{self.name} is {role.role} in epoch {role.epoch}")
        if role.role == "active":
            self.target = None
            self._hang_up()
        else:
            for peer, connection in list(self.links.items()):
                connection.close(self)
                self._linked_over(connection, peer)
            self.target = role if role.active_address else None
            self._hang_up()
        self._beat_all()
        self._report()

    def _tick(self) -> None:
        now_s = self.world.now_s
        self.do(self.machine.on_tick(now_s))
        for line in self.lines:
            if now_s - line.sent_s >= self.limits.heartbeat_s:
                self._say(line, self.machine.beat())
        if now_s - self.reported_s >= self.limits.heartbeat_s:
            self._report()
        if self.link is not None and now_s - self.link_heard_s > 5 * self.limits.heartbeat_s:
            self._hang_up()
        if self.target is not None and self.link is None:
            self._dial_link(self.target)
        if self.desk is None:
            self._call_desk()

    # The link.

    def _dial_link(self, target: actions.RoleChanged) -> None:
        other = self.group.adapters.get(target.active)
        if other is None or not other.is_up or (self.name, other.name) in self.group.cut_links:
            return
        connection = self.link = Connection(self.world, self, other)
        self.link_heard_s = self.world.now_s
        connection.on_closed[0] = lambda: self._link_over(connection, other.name)
        connection.send(self, other.link_dialled, connection, self.name, self.machine.epoch)

    def link_dialled(self, connection: Connection, peer: str, epoch: int) -> None:
        if self.machine.role != "active" and epoch >= self.machine.epoch and peer == self.name:
            return
        before = self.links.pop(peer, None)
        if before is not None:
            before.on_closed[1] = None
            before.close(self)
            self.do(self.machine.on_link_down(peer, self.world.now_s, is_dialled=False))
        self.links[peer] = connection
        connection.on_closed[1] = lambda: self._linked_over(connection, peer)
        other = connection.ends[0]
        assert isinstance(other, AdapterProgram)
        connection.send(self, other.link_accepted, connection, self.name)
        self.do(self.machine.on_epoch(epoch, self.world.now_s))
        self.do(self.machine.on_link_up(peer, self.world.now_s, is_dialled=False))

    def link_accepted(self, connection: Connection, peer: str) -> None:
        if connection is self.link:
            self.do(self.machine.on_link_up(peer, self.world.now_s, is_dialled=True))

    def _link_over(self, connection: Connection, peer: str) -> None:
        if connection is self.link:
            self.link = None
            self.do(self.machine.on_link_down(peer, self.world.now_s, is_dialled=True))

    def _linked_over(self, connection: Connection, peer: str) -> None:
        if self.links.get(peer) is connection:
            del self.links[peer]
            self.do(self.machine.on_link_down(peer, self.world.now_s, is_dialled=False))

    def _hang_up(self) -> None:
        if self.link is not None:
            connection, self.link = self.link, None
            peer = connection.ends[1].name
            connection.close(self)
            self.do(self.machine.on_link_down(peer, self.world.now_s, is_dialled=True))

    def _to_link(self, peer: str, word: Word) -> None:
        connection = self.links.get(peer)
        if self.link is not None and self.link.ends[1].name == peer:
            connection = self.link
        if connection is not None:
            other = connection.ends[1] if connection.ends[0] is self else connection.ends[0]
            assert isinstance(other, AdapterProgram)
            connection.send(self, other.link_heard, self.name, word)

    def link_heard(self, peer: str, word: Word) -> None:
        self.link_heard_s = self.world.now_s
        self.do(self.machine.on_link_word(peer, word, self.world.now_s))

    # Lines.

    def line_dialled(self, connection: Connection, client: ClientProgram, key: int, hello: words.Hello) -> None:
        if hello.token not in self.tokens:
            connection.send(self, client.line_refused, key)
            connection.close(self)
            return
        line = LineEnd(connection, client, key)
        self.lines.append(line)
        connection.on_closed[1] = lambda: self.lines.remove(line) if line in self.lines else None
        self._hear_epoch(hello.epoch)
        connection.send(self, client.line_up, key, self.machine.welcome())

    def line_heard(self, key: int, client: ClientProgram, word: Word) -> None:
        line = next((one for one in self.lines if one.client is client and one.key == key), None)
        if line is None:
            return
        match word:
            case words.Start():
                self._hear_epoch(word.epoch)
                line.cursor, line.stop_after = self.machine.cursor(word), None
                self._supply_line(line)
            case words.Stop():
                line.cursor = None
            case words.Fill():
                filled = self.machine.fill(word)
                for block in filled.blocks:
                    line.connection.send(self, client.line_fill, key, word.id, False, block)
                if filled.is_complete:
                    line.connection.send(self, client.line_fill, key, word.id, True, b"")
                else:
                    self._say(line, words.Unavailable(id=word.id, why=filled.why, first=filled.oldest))
            case words.FetchAdmin():
                self._say(line, self.machine.fetch(word))
            case words.SnapshotAsk():
                found = self.machine.snapshot(word)
                for part in [found] if isinstance(found, words.Unavailable) else found:
                    self._say(line, part)
            case _:
                raise AssertionError(word)

    def _hear_epoch(self, epoch: int) -> None:
        if epoch > self.machine.epoch and self.desk is None:
            self.do(self.machine.on_epoch(epoch, self.world.now_s))

    def _say(self, line: LineEnd, word: Word) -> None:
        line.sent_s = self.world.now_s
        line.connection.send(self, line.client.line_word, line.key, word)

    def _beat_all(self) -> None:
        for line in self.lines:
            self._say(line, self.machine.beat())

    def _supply(self) -> None:
        for line in self.lines:
            self._supply_line(line)

    def _supply_line(self, line: LineEnd) -> None:
        while line.cursor is not None:
            found = self.machine.read(line.cursor, 1 << 16)
            line.cursor = found.cursor
            if found.missed is not None:
                self._say(line, words.Missed(first=found.missed[0], last=found.missed[1]))
            for block in found.blocks:
                if line.stop_after is not None and int.from_bytes(block[16:24], "little") > line.stop_after:
                    line.cursor = line.stop_after = None
                    return
                line.sent_s = self.world.now_s
                for spoilt in self.group.spoil(line.connection, block):
                    line.connection.send(self, line.client.line_block, line.key, self.machine.epoch, spoilt)
            if not found.blocks:
                return

    # The administration.

    def _call_desk(self) -> None:
        desk = self.group.desk
        if not desk.is_up or (self.name, desk.name) in self.group.cut_links:
            return
        connection = self.desk = Connection(self.world, self, desk)
        connection.on_closed[0] = lambda: self._desk_over(connection)
        self.talk, self.admitted = desk.next_talk(), ""
        machine = self.machine
        self._to_desk(
            words.Register(
                stream=STREAM,
                adapter=self.name,
                incarnation=machine.incarnation,
                address=self.name,
                epoch=machine.epoch,
                role=machine.role,
                last=machine.last,
                preference=self.group.preference[self.name],
                threshold=self.limits.threshold,
                heartbeat_s=self.limits.heartbeat_s,
                sources=tuple(machine.sources.values()),
                tokens=tuple(sorted(self.tokens)),
            )
        )

    def _desk_over(self, connection: Connection) -> None:
        if connection is self.desk:
            self.desk = None

    def _to_desk(self, word: Word) -> None:
        if getattr(self, "desk", None) is not None:
            assert self.desk is not None
            self.desk.send(self, self.group.desk.heard, self.desk, self.talk, self, word)

    def _report(self) -> None:
        self.reported_s = self.world.now_s
        self._to_desk(structs.replace(self.machine.report(), admitted=self.admitted))

    def told(self, word: Word) -> None:
        now_s = self.world.now_s
        match word:
            case words.Role():
                self.do(self.machine.on_role(word, now_s))
            case words.Admit():
                self.tokens.add(word.token)
                if not word.link:
                    self.admitted = word.token
                    self._report()
            case words.Revoke():
                self.tokens.discard(word.token)
            case words.SendAdmin():
                if word.admin.kind == "switch":
                    self.group.switches[word.admin.id] = word.admin.epoch
                if max(self.group.actives, default=0) > self.machine.epoch or not self.links:
                    self.group.stale_admins.add(word.admin.id)
                self.do(self.machine.on_send_admin(word.admin, now_s))
            case _:
                pass


class Desk(Process):
    """The stream administration; what it keeps outlives it."""

    def __init__(self, group: Group, options: Options) -> None:
        super().__init__(group.world, "desk")
        self.group = group
        self.options = options
        self.kept: Any = None
        self._talks = 0

    def next_talk(self) -> int:
        self._talks += 1
        return self._talks

    def start(self) -> None:
        self.begin()
        self.talks: dict[int, tuple[Connection, Any]] = {}
        self.machine = Administration(
            lambda user, action, what: True,
            kept=self.kept,
            now_s=self.world.now_s,
            random=self.world.random.randbytes,
            options=self.options,
        )
        self.every(0.1, lambda: self.do(self.machine.on_tick(self.world.now_s)))

    def heard(self, connection: Connection, talk: int, who: Any, word: Word) -> None:
        if talk not in self.talks:
            self.talks[talk] = connection, who
            connection.on_closed[1] = lambda: self.lost(talk)
        self.do(self.machine.on_word(talk, "user", word, self.world.now_s))

    def lost(self, talk: int) -> None:
        if self.talks.pop(talk, None) is not None:
            self.do(self.machine.on_lost(talk, self.world.now_s))

    def order(self, order: words.Order) -> None:
        """From an operator, who is not part of the simulation."""
        if self.is_up and self.world.now_s >= self.paused_until_s:
            self.do(self.machine.on_word(self.next_talk(), "operator", order, self.world.now_s))

    def do(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Keep):
                self.kept = self.machine.kept(self.world.now_s)
            elif isinstance(effect, Tell) and effect.talk in self.talks:
                connection, who = self.talks[effect.talk]
                connection.send(self, who.told, effect.word)
                if effect.last:
                    self.talks.pop(effect.talk)
                    connection.close(self)


class ClientProgram(Process):
    def __init__(self, group: Group, name: str, arbiter: Arbiter, start: str, positions: dict[str, Any]) -> None:
        super().__init__(group.world, name)
        self.group = group
        self.arbiter = arbiter
        self.start_kind, self.positions = start, positions
        self.gap_policy = "hold"
        self.got: list[StreamMessage | Event] = []
        self.brokered: words.Brokered | None = None
        self.wanted: dict[str, words.LineOffer] = {}
        self.lines: dict[str, tuple[int, Connection]] = {}
        self.keys: dict[int, str] = {}
        self.up_since_s: dict[str, float] = {}
        self.desk: Connection | None = None
        self._keys = 0
        self.begin()
        self.every(0.1, self._tick)
        self._subscribe()

    def _tick(self) -> None:
        self.arbiter.on_tick(self.world.now_s)
        self.settle()
        if self.desk is None:
            self._subscribe()

    # The administration.

    def _subscribe(self) -> None:
        desk = self.group.desk
        if not desk.is_up or (self.name, desk.name) in self.group.cut_links:
            return
        connection = self.desk = Connection(self.world, self, desk)
        connection.on_closed[0] = lambda: self._desk_over(connection)
        self.talk = desk.next_talk()
        self._to_desk(
            words.Subscribe(stream=STREAM, client=self.name, start=self.start_kind, positions=self.positions)  # type: ignore[arg-type]
        )

    def _desk_over(self, connection: Connection) -> None:
        if connection is self.desk:
            self.desk = None

    def _to_desk(self, word: Word) -> None:
        if self.desk is not None:
            self.desk.send(self, self.group.desk.heard, self.desk, self.talk, self, word)

    def told(self, word: Word) -> None:
        now_s = self.world.now_s
        match word:
            case words.Brokered():
                if self.brokered is None:
                    self.brokered = word
                    self.group.began(self, word)
                self.arbiter.on_brokered(word, now_s)
            case words.Notice():
                self.arbiter.on_notice(word, now_s)
            case words.Refusal():
                if self.desk is not None:
                    self.desk.close(self)
                    self.desk = None
            case _:
                pass
        self.settle()

    # Lines.

    def settle(self) -> None:
        out, wanted = self.arbiter.take()
        for item in out:
            if isinstance(item, list):
                self.got += item
            else:
                self.world.tell(f"{self.name}: {item}")
                if isinstance(item, Succeeded):
                    self.group.check_end(self, item)
                if isinstance(item, Discontinuity) and item.source:
                    self.group.check_break(self, item)
                if isinstance(item, Lost):
                    self.group.check_loss(self, item)
                self.got.append(item)
        for ask in wanted:
            match ask:
                case asks.Dial():
                    self.wanted[ask.offer.adapter] = ask.offer
                    self._dial(ask.offer.adapter)
                case asks.Drop():
                    self.wanted.pop(ask.adapter, None)
                    self._drop(ask.adapter)
                case asks.Say():
                    self._say(ask.adapter, ask.word)
                case asks.RenewNow():
                    self._to_desk(words.Renew())
                case asks.ReportNow():
                    self._to_desk(words.ClientReport(line=self.arbiter.line, local=ask.local))

    def _dial(self, name: str) -> None:
        offer, other = self.wanted.get(name), self.group.adapters.get(name)
        if offer is None or other is None or name in self.lines:
            return
        if not other.is_up or (self.name, name) in self.group.cut_links:
            self.world.after(0.001, self.hand, self.life, self._failed, name)
            return
        self._keys += 1
        key, connection = self._keys, Connection(self.world, self, other)
        self.lines[name], self.keys[key] = (key, connection), name
        connection.on_closed[0] = lambda: self._over(key)
        connection.send(
            self,
            other.line_dialled,
            connection,
            self,
            key,
            words.Hello(stream=STREAM, token=offer.token, client=self.name, epoch=self.arbiter.epoch),
        )

    def _failed(self, name: str) -> None:
        if name in self.wanted and name not in self.lines:
            self.arbiter.on_line_down(name, "it cannot be reached", self.world.now_s)
            self.world.after(REDIAL_S, self.hand, self.life, self._dial, name)
            self.settle()

    def _drop(self, name: str) -> None:
        if name in self.lines:
            key, connection = self.lines.pop(name)
            self.keys.pop(key, None)
            self.up_since_s.pop(name, None)
            connection.close(self)

    def _over(self, key: int) -> None:
        name = self.keys.get(key)
        if name is not None:
            self._drop(name)
            self.arbiter.on_line_down(name, "the line has ended", self.world.now_s)
            self.world.after(REDIAL_S, self.hand, self.life, self._dial, name)
            self.settle()

    def _say(self, name: str, word: Any) -> None:
        other = self.group.adapters[name]
        if name in self.lines:
            key, connection = self.lines[name]
            connection.send(self, other.line_heard, key, self, word)

    def line_refused(self, key: int) -> None:
        self.world.tell(f"{self.name}: {self.keys.get(key)} refuses the line")
        self._over(key)

    def line_up(self, key: int, welcome: words.Welcome) -> None:
        if (name := self.keys.get(key)) is not None:
            self.up_since_s[name] = self.world.now_s
            self.arbiter.on_line_up(name, welcome, self.world.now_s)
            self.settle()

    def line_word(self, key: int, word: Any) -> None:
        if (name := self.keys.get(key)) is not None:
            self.arbiter.on_word(name, word, self.world.now_s)
            self.settle()

    def line_block(self, key: int, epoch: int, block: bytes) -> None:
        if (name := self.keys.get(key)) is not None:
            try:
                self.arbiter.on_block(name, epoch, block, self.world.now_s)
            except RemoteProtocolError as error:
                self.world.tell(f"{self.name}: {error}")
                self._over(key)
            self.settle()

    def line_fill(self, key: int, question: int, is_last: bool, block: bytes) -> None:
        if (name := self.keys.get(key)) is not None:
            self.arbiter.on_fill(name, question, is_last, block, self.world.now_s)
            self.settle()
