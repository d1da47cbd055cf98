"""Section 4.9: joining a running stream, coming back, and losing the backup."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.testing.feeds import FeedWorld
from tests.feeds_requirements.tools import Reader, other

RATE = 2000


@pytest.mark.requirement("STR-74", "STR-49")
@pytest.mark.parametrize("start", ["new", "oldest", "position"])
async def test_joining_and_at_once_a_failover(world: FeedWorld, start: str) -> None:
    active = await world.active()
    async with Reader(world) as before:
        world.source.run(RATE)
        await before.reached(world.source.sent + 300)
        wanted = before.stream.position if start == "position" else start
        async with Reader(world, start=wanted) as reader:
            world.adapters[active].kill()
            await reader.reached(world.source.sent + 500)
            world.source.pause()
            for one in (before, reader):
                await one.reached(world.source.sent)
            before.check(world.source.sent)
            first = reader.messages[0].sequence
            if start == "position":
                assert isinstance(wanted, dict)
                assert [place.sequence for place in wanted.values()] == [first - 1]
            if start == "oldest":
                assert first <= before.messages[0].sequence
            reader.check(world.source.sent, first)


@pytest.mark.requirement("STR-49")
async def test_killed_right_after_subscribing(world: FeedWorld) -> None:
    active = await world.active()
    async with Reader(world) as reader:
        world.adapters[active].kill()
        world.source.send(300)
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)


@pytest.mark.requirement("STR-75", "STR-76", "STR-77")
async def test_a_killed_active_comes_back_as_backup(world: FeedWorld) -> None:
    active, epoch = await world.active(), await world.epoch()
    async with Reader(world) as reader:
        world.source.run(RATE)
        await reader.reached(world.source.sent + 200)
        old = (await world.adapter_facts(active))["incarnation"]
        world.adapters[active].kill()
        await reader.told("NoBackup")
        await reader.is_("no-backup")
        world.adapters[active].start()
        await world.until_ready()
        await reader.is_("normal")
        facts = await world.adapter_facts(active)
        assert facts["role"] == "backup"
        assert facts["incarnation"] != old
        events = len(reader.events)
        await asyncio.sleep(2.0)  # five heartbeats: nothing switches back by itself
        assert (await world.active(), await world.epoch()) == (other(world, active), epoch + 1)
        assert reader.events[events:] == []
        world.source.pause()
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)
        assert reader.counters["failovers"] == 1


@pytest.mark.requirement("STR-79")
async def test_the_loss_of_the_backup_disturbs_nobody(world: FeedWorld) -> None:
    active = await world.active()
    async with Reader(world) as reader:
        world.source.run(RATE)
        await reader.reached(world.source.sent + 200)
        world.adapters[other(world, active)].kill()
        await reader.told("NoBackup")
        await reader.reached(world.source.sent + 500)
        world.source.pause()
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)
        assert {type(event).__name__ for event in reader.events} == {"NoBackup"}
        assert set(reader.lines) == {active}
        rows = {row["name"]: row for row in (await world.facts())["adapters"]}
        assert not rows[other(world, active)]["alive"]
