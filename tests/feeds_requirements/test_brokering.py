"""Section 4.1: the administration introduces, decides who is active, and is not in the way of the messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from fairlead.errors import FairleadError
from fairlead.testing.feeds import FeedWorld
from tests.feeds_requirements.tools import Reader, other, subscribed


@pytest.mark.requirement("STR-1", "STR-23")
async def test_a_client_that_knows_only_the_administration_gets_the_active_adapter(world: FeedWorld) -> None:
    active = await world.active()
    async with Reader(world) as reader:
        world.source.send(500)
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)
        assert set(reader.lines) == {active}


@pytest.mark.requirement("STR-2", "STR-81")
async def test_without_the_administration_the_backup_still_takes_over(world: FeedWorld) -> None:
    active = await world.active()
    async with Reader(world) as reader:
        world.source.send(200)
        await reader.reached(world.source.sent)
        world.server.kill_everything()
        world.source.run(2000)
        await reader.reached(world.source.sent + 300)
        world.adapters[active].kill()
        await reader.told("FailedOver")
        await reader.reached(world.source.sent + 500)
        world.source.pause()
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)
        assert reader.lines[-1] != active


@pytest.mark.requirement("STR-3")
async def test_the_administration_is_not_in_the_path(world: FeedWorld) -> None:
    async with Reader(world) as reader:
        world.source.run(2000)
        await reader.reached(world.source.sent + 200)
        world.server.kill_everything()
        before = len(reader.messages)
        await reader.reached(world.source.sent + 2000)
        assert len(reader.messages) - before >= 2000
        with pytest.raises((FairleadError, OSError, TimeoutError)):
            async with asyncio.timeout(1.5), Reader(world, timeout=1.0):
                pass
        world.source.pause()
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)
        assert not reader.of("FailedOver", "NoBackup", "Down", "Stale")
        assert reader.counters["failovers"] == reader.counters["gaps_found"] == 0


@pytest.mark.requirement("STR-4")
async def test_the_exchange_names_everything_of_both_streams(world: FeedWorld) -> None:
    active = await world.active()
    backup = other(world, active)
    async with subscribed(world) as (_, answer):
        assert [(one.adapter, one.role) for one in answer.lines] == [(active, "active"), (backup, "backup")]
        assert all(one.address == world.lines[one.adapter].address and one.token for one in answer.lines)
        assert answer.epoch == await world.epoch()
        assert [one.id for one in answer.sources]
        assert answer.threshold == 8
        assert answer.schema
        assert {id_: place[0] for id_, place in answer.positions.items()}.keys() == {one.id for one in answer.sources}


@pytest.mark.requirement("STR-4", "STR-76", "STR-79")
async def test_without_a_backup_the_client_is_served_and_told(world: FeedWorld) -> None:
    active = await world.active()
    backup = other(world, active)
    world.adapters[backup].kill()
    async with Reader(world) as reader:
        await reader.is_("no-backup")
        world.source.send(100)
        await reader.reached(world.source.sent)
        world.adapters[backup].start()
        await reader.is_("normal")
        world.source.send(100)
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)


@pytest.mark.requirement("STR-5")
async def test_an_active_that_is_cut_off_from_the_administration_becomes_a_backup(world: FeedWorld) -> None:
    active, epoch = await world.active(), await world.epoch()
    backup = other(world, active)
    async with Reader(world) as one, Reader(world, mode="both") as two:
        world.source.run(2000)
        await one.reached(world.source.sent + 200)
        world.desks[active].cut()
        await world.until(lambda: _is(world, backup), f"{backup} is promoted")
        assert await world.epoch() == epoch + 1
        world.desks[active].heal()
        await world.until_ready()
        facts = {row["name"]: row["role"] for row in (await world.facts())["adapters"]}
        assert facts == {active: "backup", backup: "active"}
        world.source.pause()
        for reader in (one, two):
            await reader.reached(world.source.sent)
            reader.check(world.source.sent)
        assert one.lines[-1] == backup
        assert await world.epoch() == epoch + 1


@pytest.mark.requirement("STR-7")
async def test_a_restarted_administration_knows_its_groups(world: FeedWorld) -> None:
    active, epoch = await world.active(), await world.epoch()
    async with Reader(world) as reader:
        world.source.run(2000)
        await reader.reached(world.source.sent + 200)
        await asyncio.to_thread(world.restart_administration)
        await world.until_ready()
        assert (await world.active(), await world.epoch()) == (active, epoch)
        assert not reader.of("FailedOver")
        world.adapters[active].kill()
        await reader.told("FailedOver")
        await world.until(lambda: _is_not(world, active), "a backup is promoted")
        assert await world.epoch() == epoch + 1
        world.source.pause()
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)


@pytest.mark.requirement("STR-8", half="one transport, TCP straight from adapters")
async def test_pulling_one_path_stops_one_of_the_streams(world: FeedWorld) -> None:
    active = await world.active()
    async with Reader(world, mode="both") as reader:
        world.source.run(2000)
        await reader.reached(world.source.sent + 200)
        for name in world.names:  # one after the other: the stream never stops
            world.lines[name].cut(reader.stream.client)
            await reader.reached(world.source.sent + 500)
            world.lines[name].heal()
            await reader.is_("normal")
        world.source.pause()
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)
        assert await world.active() == active


async def _is(world: FeedWorld, name: str) -> bool:
    return await world.active() == name


async def _is_not(world: FeedWorld, name: str) -> bool:
    return await world.active() not in ("", name)


@pytest.fixture(scope="module")
def three() -> Iterator[FeedWorld]:
    with FeedWorld("abc", adapter={"feed.lag_max": 500}) as made:
        yield made


@pytest.mark.requirement("STR-6", "STR-37", scaled="one stream, three adapters")
async def test_the_second_backup_takes_over_from_the_first(three: FeedWorld) -> None:
    async with Reader(three) as reader:
        three.source.run(2000)
        await reader.reached(three.source.sent + 200)
        three.adapters["a"].kill()
        await three.until(lambda: _is(three, "b"), "b, the first in order of preference, is active")
        await reader.reached(three.source.sent + 200)
        three.adapters["b"].kill()
        await three.until(lambda: _is(three, "c"), "c is active")
        await reader.reached(three.source.sent + 200)
        three.source.pause()
        await reader.reached(three.source.sent)
        reader.check(three.source.sent)
        assert reader.counters["failovers"] == 2
        assert reader.lines[-1] == "c"


@pytest.mark.requirement("STR-73", scaled="a limit of 500 messages instead of 10,000")
async def test_a_backup_that_lags_is_not_promoted_before_one_that_does_not(three: FeedWorld) -> None:
    await three.restore()
    active, *backups = sorted(three.names, key=(await three.active()).__ne__)  # in order of preference
    async with Reader(three) as reader:
        three.source.delay(backups[0], 0.5)
        three.source.run(4000)

        async def lags() -> bool:
            return not (await three.adapter_facts(backups[0]))["synchronised"]

        await three.until(lags, f"{backups[0]} is marked")
        three.adapters[active].kill()
        await three.until(lambda: _is(three, backups[1]), f"{backups[1]} is promoted")
        three.source.pause()
        three.source.heal()
        await reader.reached(three.source.sent)
        reader.check(three.source.sent)
