"""A stream under a storm: two or three adapters, the administration, clients; then calm, and the laws are checked."""

from __future__ import annotations

from random import Random
from typing import Any

from fairlead.feeds import words
from fairlead.feeds.adapter import Adapter, Limits
from fairlead.feeds.administration import Options
from fairlead.feeds.arbitration import Arbiter
from fairlead.feeds.block_codec import Block, StreamMessage
from fairlead.feeds.events import Discontinuity, Lost, Succeeded
from fairlead.feeds.records import MESSAGE, SOURCE_GAP, Place
from tests.feeds.simulation import laws
from tests.feeds.simulation.feed import Feed, shape_of
from tests.feeds.simulation.parts import STREAM, AdapterProgram, ClientProgram, Desk
from tests.feeds.simulation.world import Connection, Process, World

STORM_S = 3.0
CALM_S = 4.0
LONG_S = 3.0  # a path that was good for so long is no excuse for a loss


class Group:
    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.world = World(seed, trace)
        random = self.world.random
        self.is_simple = random.random() < 0.8  # one source at a time
        self.feeds = [Feed(self.world, "feed")]
        if not self.is_simple:
            self.feeds.append(Feed(self.world, "other", sibling_of="feed:1"))
        self.actives: dict[int, set[str]] = {}
        self.starts: dict[str, dict[str, tuple[int, int, int]]] = {}
        self.cut_links: set[tuple[str, str]] = set()
        self.spoils: dict[Connection, str] = {}
        self.held_block: dict[Connection, bytes] = {}
        self.gaps: dict[str, list[tuple[str, int, int]]] = {}
        self.troubled_s = 0.0
        self.is_calm = False
        self._is_feeding = True
        self.calm_from: dict[str, int] = {}
        self.count: dict[str, int] = {}
        self.buried: list[tuple[str, str, tuple[int, int]]] = []  # administrative messages of adapters that died
        self.switches: dict[str, int] = {}  # planned ones, and the epoch each was to begin
        self.stale_admins: set[str] = set()  # sent by one that was not active any more and did not know, or alone
        self._sent_admins = 0
        limits = Limits(
            threshold=random.choice([8, 8, 3, 0, -2]),
            lead=random.choice([16, 4, 1]),
            has_snapshots=random.random() < 0.5,
            is_merged=not self.is_simple,
        )
        names = ["a", "b", "c"][: 3 if random.random() < 0.2 else 2]
        self.preference = {name: index for index, name in enumerate(names)}
        self.desk = Desk(self, Options())
        self.adapters = {name: AdapterProgram(self, name, limits) for name in names}
        self.clients: list[ClientProgram] = []
        self.rate = random.choice([20, 60, 150])

    def make_adapter(self, **options: Any) -> Adapter:
        return Adapter(**options)

    def make_arbiter(self, **options: Any) -> Arbiter:
        return Arbiter(**options)

    # Its course.

    def run(self) -> None:
        world, random = self.world, self.world.random
        self.desk.start()
        for adapter in self.adapters.values():
            world.after(random.uniform(0.0, 0.05), adapter.start)
        world.run_until(world.now_s + 0.8)
        for feed in self.feeds:
            world.after(random.uniform(0, 0.1), self._emit, feed)
        for _ in range(2):
            world.after(random.uniform(0, 0.5), self.join)
        end_s = world.now_s + STORM_S
        while world.now_s < end_s:
            world.run_until(world.now_s + random.expovariate(4.0))
            self.trouble(random)
        self.heal()
        world.run_until(world.now_s + CALM_S / 2)
        for adapter in self.living:
            self.calm_from[adapter.name] = adapter.machine.last
        world.run_until(world.now_s + CALM_S / 2)
        self._is_feeding = False
        world.run_until(world.now_s + 1.5)

    def _emit(self, feed: Feed) -> None:
        if not self._is_feeding:
            return
        random = self.world.random
        batch = feed.emit(random.choice([1, 1, 2, 5, 12]))
        for adapter in self.adapters.values():
            self.supply(adapter, batch)
        self.world.after(random.expovariate((10 if self.is_calm else self.rate) / 4), self._emit, feed)

    def supply(self, adapter: AdapterProgram, batch: tuple[str, int, int]) -> None:
        """To an adapter that runs; a part may have been lost on the way to it."""
        if not adapter.is_up:
            return
        for kind, first, last in self.gaps.pop(adapter.name, []):
            assert kind == "gap"
            lost_first, lost_last = max(first, batch[1]), min(last, batch[2])
            if lost_first <= lost_last:
                if batch[1] < lost_first:
                    adapter.feed(("made", batch[0], batch[1], lost_first - 1))
                adapter.feed(("gap", batch[0], lost_first, lost_last))
                if lost_last < batch[2]:
                    adapter.feed(("made", batch[0], lost_last + 1, batch[2]))
                return
        adapter.feed(("made", *batch))

    def join(self) -> None:
        random = self.world.random
        start = random.choice(["new", "new", "new", "oldest", "snapshot", "positions"])
        positions: dict[str, Place] = {}
        if start == "positions":
            feed = self.feeds[0]
            sequence = max(feed.sent[feed.id] - random.randint(0, 40), 0)
            parts = max(shape_of(sequence), 1)
            positions = {feed.id: Place(sequence, parts, parts)}
        policy = random.choice(["hold", "hold", "hold", "mark"])
        mode = random.choice(["single", "single", "both"])
        arbiter = self.make_arbiter(stream=STREAM, start=start, positions=positions, mode=mode, gaps=policy)
        name = f"client{len(self.clients) + 1}"
        self.world.tell(f"{name} joins: {start} {mode} {policy}")
        client = ClientProgram(self, name, arbiter, start, {key: tuple(place) for key, place in positions.items()})
        client.gap_policy = policy
        self.clients.append(client)

    def began(self, client: ClientProgram, word: words.Brokered) -> None:
        """Where its stream starts."""
        start = dict(word.positions) if client.start_kind in ("new", "positions") else {}
        self.starts[client.name] = start | {key: (p[0], p[1], p[2]) for key, p in client.positions.items()}

    # Trouble.

    def trouble(self, random: Random) -> None:
        kinds = [
            *("kill", "kill", "pause", "pause", "cut", "dark", "link", "slow", "desk", "desk_pause", "client_pause"),
            *("corrupt", "drop", "reorder", "gap_one", "gap_both", "delay", "source_line", "reset"),
            *("admin", "admin", "admin", "admin", "switch", "switch", "join", "desk_cut"),
        ]
        kind = random.choice(kinds)
        self.count[kind] = self.count.get(kind, 0) + 1
        adapter = self.adapters[random.choice(list(self.adapters))]
        getattr(self, f"_{kind}")(random, adapter)

    def _kill(self, random: Random, adapter: AdapterProgram) -> None:
        if len(self.living) > 1 and adapter.is_up:
            self.hurt()
            self.buried += laws.admins_of(adapter)
            adapter.kill()
            self.world.after(random.uniform(0.2, 1.5), self._revive, adapter)

    def _revive(self, adapter: AdapterProgram) -> None:
        if not adapter.is_up:
            adapter.start()

    def _pause(self, random: Random, adapter: AdapterProgram) -> None:
        self.hurt()
        adapter.pause(random.uniform(0.1, 1.5))

    def _cut(self, random: Random, adapter: AdapterProgram) -> None:
        for connection in self.some_line(random):
            connection.close()

    def _dark(self, random: Random, adapter: AdapterProgram) -> None:
        self.hurt()
        for connection in self.some_line(random):
            self.world.tell("a line goes dark")
            connection.is_dark = True
            self.world.after(random.uniform(0.5, 1.5), connection.close)

    def _link(self, random: Random, adapter: AdapterProgram) -> None:
        if adapter.is_up and adapter.link is not None:
            self.world.tell(f"the link of {adapter.name} is cut")
            pair = adapter.name, adapter.link.ends[1].name
            self.cut_links.add(pair)
            adapter.link.close()
            self.world.after(random.uniform(0.0, 1.0), self.cut_links.discard, pair)

    def _slow(self, random: Random, adapter: AdapterProgram) -> None:
        self.hurt()
        for connection in self.some_line(random):
            connection.slow_s = random.uniform(0.01, 0.3)

    def _desk(self, random: Random, adapter: AdapterProgram) -> None:
        if self.desk.is_up:
            self.desk.kill()
            self.world.after(random.uniform(0.1, 2.0), self._revive_desk)

    def _revive_desk(self) -> None:
        if not self.desk.is_up:
            self.desk.start()

    def _desk_pause(self, random: Random, adapter: AdapterProgram) -> None:
        self.desk.pause(random.uniform(0.1, 1.5))

    def _desk_cut(self, random: Random, adapter: AdapterProgram) -> None:
        """An adapter is cut off from the administration."""
        pair = adapter.name, self.desk.name
        self.world.tell(f"{adapter.name} is cut off from the administration")
        self.cut_links.add(pair)
        if adapter.is_up and adapter.desk is not None:
            adapter.desk.close()
        self.world.after(random.uniform(0.3, 2.0), self.cut_links.discard, pair)

    def _client_pause(self, random: Random, adapter: AdapterProgram) -> None:
        if self.clients:
            self.hurt()
            random.choice(self.clients).pause(random.uniform(0.1, 1.0))

    def _corrupt(self, random: Random, adapter: AdapterProgram) -> None:
        for connection in self.some_line(random):
            self.spoils[connection] = "corrupt"

    def _drop(self, random: Random, adapter: AdapterProgram) -> None:
        for connection in self.some_line(random):
            self.spoils[connection] = "drop"

    def _reorder(self, random: Random, adapter: AdapterProgram) -> None:
        for connection in self.some_line(random):
            self.spoils[connection] = "reorder"

    def spoil(self, connection: Connection, block: bytes) -> list[bytes]:
        """What becomes of a block on a bad line."""
        if connection in self.held_block:
            return [block, self.held_block.pop(connection)]
        match self.spoils.pop(connection, ""):
            case "corrupt":
                at = self.world.random.randrange(len(block))
                self.world.tell("a block is corrupted")
                return [block[:at] + bytes([block[at] ^ 1 << self.world.random.randrange(8)]) + block[at + 1 :]]
            case "drop":
                self.world.tell(f"block {int.from_bytes(block[16:24], 'little')} is dropped")
                return []
            case "reorder":
                self.held_block[connection] = block
                return []
        return [block]

    def _gap_one(self, random: Random, adapter: AdapterProgram) -> None:
        self._lose_source(random, [adapter])

    def _gap_both(self, random: Random, adapter: AdapterProgram) -> None:
        self._lose_source(random, list(self.adapters.values()))

    def _lose_source(self, random: Random, adapters: list[AdapterProgram]) -> None:
        feed = self.feeds[0]
        first = feed.sent[feed.id] + 1
        last = first + random.randint(0, 4)
        self.world.tell(f"source {feed.id} loses {first} to {last} at {[one.name for one in adapters]}")
        for adapter in adapters:
            self.gaps.setdefault(adapter.name, []).append(("gap", first, last))

    def _delay(self, random: Random, adapter: AdapterProgram) -> None:
        adapter.source_delay_s = random.choice([0.0, 0.01, 0.1, 0.5])

    def _source_line(self, random: Random, adapter: AdapterProgram) -> None:
        if adapter.is_up:
            adapter.feed(("alive", False))
            self.world.after(random.uniform(0.1, 1.0), self._source_back, adapter, adapter.life)

    def _source_back(self, adapter: AdapterProgram, life: int) -> None:
        if adapter.is_up and adapter.life == life:
            adapter.feed(("alive", True))

    def _reset(self, random: Random, adapter: AdapterProgram) -> None:
        feed = self.feeds[0]
        if feed.session < 3 and feed.sent[feed.id]:
            feed.reset()
            self.gaps.clear()
            for each in self.adapters.values():
                if each.is_up:
                    each.feed(("declared", feed.declared))

    def _admin(self, random: Random, adapter: AdapterProgram) -> None:
        self._sent_admins += 1
        admin = words.Admin(id=f"admin{self._sent_admins}", kind=random.choice(["text", "phase", "format"]))
        self.world.tell(f"{admin.id} ({admin.kind}) is ordered")
        self.desk.order(words.Order(do="send", stream=STREAM, admin=admin))

    def _switch(self, random: Random, adapter: AdapterProgram) -> None:
        self.world.tell("a switch is ordered")
        self.desk.order(words.Order(do="switch", stream=STREAM))

    def _join(self, random: Random, adapter: AdapterProgram) -> None:
        if len(self.clients) < 4:
            self.join()

    def some_line(self, random: Random) -> list[Connection]:
        lines = [connection for client in self.clients for _key, connection in client.lines.values()]
        return [random.choice(lines)] if lines else []

    def hurt(self) -> None:
        self.troubled_s = self.world.now_s

    def heal(self) -> None:
        self.world.tell("calm")
        self.is_calm = True
        self.spoils.clear()
        self.cut_links.clear()
        self._revive_desk()
        for process in (self.desk, *self.adapters.values(), *self.clients):
            process.paused_until_s = min(process.paused_until_s, self.world.now_s)
        for adapter in self.adapters.values():
            adapter.source_delay_s = 0.0
            self._revive(adapter)
            self.world.after(1.0, self._source_back, adapter, adapter.life)
        for client in self.clients:
            for _key, connection in client.lines.values():
                connection.slow_s = 0.0

    # What is watched all the time.

    @property
    def living(self) -> list[AdapterProgram]:
        return [adapter for adapter in self.adapters.values() if adapter.is_up]

    def healed_at(self, adapter: AdapterProgram) -> int:
        return self.calm_from.get(adapter.name, adapter.machine.last)

    def watch_roles(self, adapter: AdapterProgram) -> None:
        if adapter.machine.role == "active":
            self.actives.setdefault(adapter.machine.epoch, set()).add(adapter.name)

    def check_end(self, client: ClientProgram, item: Succeeded) -> None:
        """Nobody may leave a source before its end, if an adapter that could be reached all the time knows of more."""
        now_s, seen = self.world.now_s, (0, 0)
        for got in client.got:
            if isinstance(got, StreamMessage) and got.source == item.old and got.kind == MESSAGE:
                seen = max(seen, (got.sequence, got.part))
            elif isinstance(got, Lost) and got.source == item.old:
                seen = max(seen, (got.last, 65_535))
        seen = max(seen, laws.whole(self.starts[client.name].get(item.old, (0, 1, 1))))
        for name, since_s in client.up_since_s.items():
            if now_s - max(since_s, self.troubled_s) > LONG_S and seen[0]:
                ends = laws.outputs(item.old, 1, self.adapters[name].machine.positions.get(item.old, (0,))[0])
                if ends and ends[-1] > seen:
                    raise laws.Broken(f"{client.name}: {item} after {seen}, though {name} knows of {ends[-1]}")

    def check_break(self, client: ClientProgram, item: Discontinuity) -> None:
        """All sources have relations; but a whole session may have come and gone, so that nobody can tell of it."""
        name, _, session = item.source.rpartition(":")
        between, before = f"{name}:{int(session) - 1}", client.got[-1] if client.got else None
        if not isinstance(before, Succeeded) or before.new != item.source or before.old == between:
            raise laws.Broken(f"{client.name}: {item}, though all sources have relations")
        for adapter, since_s in client.up_since_s.items():
            steady = self.world.now_s - max(since_s, self.troubled_s) > LONG_S
            if steady and between in self.adapters[adapter].machine.positions:
                raise laws.Broken(f"{client.name}: {item}, though {adapter} knows of {between}")

    def check_loss(self, client: ClientProgram, lost: Lost) -> None:
        """Nobody may lose what an adapter has that could be reached all the time."""
        now_s = self.world.now_s
        for name, since_s in client.up_since_s.items():
            adapter = self.adapters[name]
            steady = now_s - max(since_s, self.troubled_s) > LONG_S and adapter.is_up
            if steady and now_s >= adapter.paused_until_s:
                fill = words.Fill(id=1, source=lost.source, after=(lost.first - 1, 1, 1), to=lost.last)
                found = adapter.machine.fill(fill)
                blocks = [Block.parse(block) for block in found.blocks]
                if found.is_complete and not any(block.mask & 1 << SOURCE_GAP for block in blocks):
                    raise laws.Broken(f"{client.name}: {lost}, though {name} has it")


def try_seed(seed: int, *, trace: bool = False) -> tuple[str, Group]:
    """The law that is broken, or nothing."""
    group = Group(seed, trace=trace)
    try:
        group.run()
        laws.check(group)
    except laws.Broken as broken:
        return str(broken), group
    return "", group


__all__ = ["Group", "Process", "try_seed"]
