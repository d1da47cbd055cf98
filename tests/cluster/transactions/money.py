"""Coins that wander between groups while everything that can die does: a schedule by its seed."""

from __future__ import annotations

from pathlib import Path
from random import Random

from fairlead.cluster.client_manager.coordinator import COMMIT_UNKNOWN
from tests.cluster.manager_rig import Refused
from tests.cluster.transactions.world import World, verify

GROUPS = ("a", "b", "c")
WEIGHTS = (90, 2, 2, 1, 2, 2, 1)
COINS = tuple(b"coin %d" % number for number in range(4))


def play(folder: Path, seed: int, kind_of_world: type[World] = World) -> World:
    """One schedule: transfers side by side, deliveries in any order, crashes anywhere. Raises AssertionError."""
    random = Random(seed)
    world = kind_of_world(folder, GROUPS, seed=seed)
    for coin in COINS:
        world.fill(random.choice(GROUPS), coin)
    for _ in range(random.randint(1, 3)):
        movers = [coin for coin in COINS if random.random() < 0.7]
        begun = []
        for coin in movers:
            (source,) = world.where(coin)
            target = random.choice([name for name in GROUPS if name != source])
            others = tuple(name for name in GROUPS if name not in (source, target) and random.random() < 0.3)
            begun.append(world.begin(source, target, coin, others=others))
        for one in begun:
            world.commit(one)
            disturb(world, random, random.randint(0, 8))
        disturb(world, random, random.randint(0, 40))
        for group in world.groups.values():
            if group.is_down:
                world.start(group.name)
            group.is_frozen = False
        world.settle_down()
        check(world)
    return world


def disturb(world: World, random: Random, steps: int) -> None:
    for _ in range(steps):
        group = world.groups[random.choice(GROUPS)]
        match random.choices(("step", "stop", "crash", "agent", "freeze", "checkpoint", "time"), WEIGHTS)[0]:
            case "step":
                world.step()
            case "stop":
                world.start(group.name) if group.is_down else world.stop(group.name)
            case "crash" if not group.is_down:
                world.crash(group.name)
            case "agent":
                world.kill_agent()
            case "freeze":
                group.is_frozen = not group.is_frozen
            case "checkpoint" if not group.is_down and group.core.safe == group.core.last_index:
                group.checkpoint()
            case "time":
                world.later(random.choice((0.5, 3.0, 11.0, 31.0)))


def check(world: World) -> None:
    """Nothing is open: every coin is somewhere, once, and where its client was told it is."""
    for one in world.transfers[world.verified :]:
        if world.told.get(one.number, COMMIT_UNKNOWN) == COMMIT_UNKNOWN:
            try:
                outcome = world.ask(one, by_id=one.number % 2 == 0)
            except Refused as refused:  # it came back too late: nobody tells it
                assert refused.code == "session-lost"
                continue
            world.told[one.number] = "committed" if outcome == "committed" else "transaction-aborted"
    world.run()
    verify(world)
