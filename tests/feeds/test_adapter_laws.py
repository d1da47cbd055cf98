"""Adapter machines under arbitrary delays, cuts, kills, switches: after it is quiet, equal content at equal numbers."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from fairlead.feeds.adapter import Adapter, Limits
from fairlead.feeds.records import ADMIN, ADMIN_VOID
from tests.feeds.adapter_scene import Group, admin_of, differences, stream_of


class Storm:
    """A group of two or three, and a seeded run of bad luck."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = ["a", "b", "c"][: self.random.choice((2, 2, 3))]
        limits = Limits(threshold=self.random.choice((-3, 0, 2, 8)), lead=self.random.choice((1, 2, 16)))
        self.group = Group(*self.names, limits=limits)
        self.at = dict.fromkeys(self.names, 1)  # next source sequence of each
        self.newest = 1
        self.admins = 0
        self.incarnation = 1
        self.group.role("a")
        self.active = "a"

    def run(self, steps: int) -> None:
        chances = {
            self.feed: 40,
            self.deliver: 30,
            self.send: 10,
            self.tick: 12,
            self.cut: 2,
            self.relink: 4,
            self.kill: 1,
            self.switch: 1,
            self.lose: 1,
        }
        for step in self.random.choices(list(chances), weights=list(chances.values()), k=steps):
            step()
            self.settle_roles()
            for name, adapter in self.group.adapters.items():
                assert adapter.role == "backup" or name == self.active, "one active"

    def feed(self) -> None:
        name = self.random.choice(list(self.group.adapters))
        count = self.random.choice((1, 1, 2, 5, 30))
        # Only now and then one runs far ahead of the others.
        count = min(count, min(self.at[one] for one in self.group.adapters) + 200 - self.at[name])
        parts = {sequence: 3 for sequence in range(self.at[name], self.at[name] + count) if sequence % 11 == 0}
        voids = [sequence for sequence in range(self.at[name], self.at[name] + count) if sequence % 17 == 0]
        wanted = [sequence for sequence in range(self.at[name], self.at[name] + count) if sequence % 7]
        through = self.at[name] + count - 1
        self.group.feed(name, wanted, parts=parts, voids=voids, first=self.at[name], through=through)
        self.at[name] += max(count, 0)

    def deliver(self) -> None:
        queues = [key for key, queue in self.group.queues.items() if queue]
        if queues:
            self.group.deliver(*self.random.choice(queues), self.random.choice((1, 1, 3)))

    def send(self) -> None:
        self.admins += 1
        self.group.send(self.active, f"m{self.admins}", self.random.choice(("text", "text", "phase", "format")))

    def tick(self) -> None:
        self.group.tick(self.random.choice((0.01, 0.03, 0.06, 0.2)), talk=False)

    def cut(self) -> None:
        if self.group.links:
            self.group.cut(*sorted(self.random.choice(sorted(self.group.links, key=sorted))))

    def relink(self) -> None:
        for name, adapter in self.group.adapters.items():
            if adapter.role == "backup" and frozenset((name, self.active)) not in self.group.links:
                self.group.link(name, self.active)

    def kill(self) -> None:
        """And come back empty, as a backup, with a new incarnation."""
        victim = self.random.choice(list(self.group.adapters))
        others = [name for name in self.group.adapters if name != victim]
        self.group.kill(victim)
        if victim == self.active:
            synchronised = [name for name in others if self.group[name].synchronised]
            self.active = self.random.choice(synchronised or others)
        self.incarnation += 1_000_000
        self.group.start(victim, self.incarnation)
        self.group.role(self.active)

    def switch(self) -> None:
        target = self.random.choice(list(self.group.adapters))
        self.admins += 1
        epoch = self.group[self.active].epoch + 1
        self.group.send(self.active, f"m{self.admins}", "switch", to=target, epoch=epoch)

    def lose(self) -> None:
        name = self.random.choice(list(self.group.adapters))
        first = self.at[name]
        last = first + self.random.choice((0, 3))
        self.group.perform(name, self.group[name].on_source_gap("S", first, last, self.group.now_s))
        self.at[name] = last + 1

    def settle_roles(self) -> None:
        """What the administration does after a planned switch, or when it finds that there is no active."""
        if self.group[self.active].role == "active":
            return
        active = [name for name, adapter in self.group.adapters.items() if adapter.role == "active"]
        if active:
            self.active = active[0]
            self.group.role(self.active)
        elif not self.group.queues or not any(self.group.queues.values()):
            self.active = self.random.choice(list(self.group.adapters))
            self.group.role(self.active)
        else:  # the Final may be on its way
            self.group.talk()
            self.settle_roles()

    def calm(self) -> None:
        """All get the same again, links are up, everything is said."""
        newest = max(self.at.values())
        for name in self.group.adapters:
            self.group.feed(name, range(self.at[name], newest + 1))
            self.at[name] = newest + 1
        for _ in range(20):
            self.relink()
            self.group.talk()
            self.group.tick(0.21)
            self.settle_roles()


@pytest.mark.requirement("STR-19", half="the machine, without processes")
@pytest.mark.requirement("STR-66", half="the machine, without processes")
@pytest.mark.requirement("STR-18", half="the machine, without processes")
@pytest.mark.parametrize("seed", range(150))
def test_after_it_is_quiet_numbers_are_aligned(seed: int) -> None:
    storm = Storm(seed)
    storm.run(300)
    storm.calm()
    group, active = storm.group, storm.group[storm.active]
    check_streams(group)
    check_aligned(storm, active)
    group.send(storm.active, "last one")
    group.talk()
    check_aligned(storm, active)
    check_streams(group)


def check_streams(group: Group) -> None:
    for name, adapter in group.adapters.items():
        records = stream_of(adapter)
        numbers = [record.number for record in records]
        assert numbers == list(range(adapter.first, adapter.first + len(numbers)))
        places = [(r.sequence, r.part) for r in records if r.kind not in (ADMIN, ADMIN_VOID)]
        assert places == sorted(set(places)), "in order and once"
        # One place each; but a void repeats one that stands too early, compared with the active of the time.
        sent = Counter(admin_of(r).id for r in records if r.kind == ADMIN)
        assert not [id_ for id_, count in sent.items() if count > 1]
        assert adapter.synchronised, name


def check_aligned(storm: Storm, active: Adapter) -> None:
    """Whatever is outstanding has come to its place; from then on all streams have the same at the same numbers."""
    group, newest = storm.group, storm.at[storm.active]
    for name in group.adapters:
        group.feed(name, range(newest, newest + 30))
    group.quiet()
    first = active.last + 1
    for name in group.adapters:
        group.feed(name, range(newest + 30, newest + 60))
        storm.at[name] = newest + 60
    for adapter in group.adapters.values():
        assert adapter.last == active.last
        assert differences(active, adapter, first) == []
