"""Sections 4.4 and 4.5: whatever happens to the active adapter, the application gets all, once, in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

import fairlead
from fairlead.feeds import words
from fairlead.testing.feed_paths import BLOCK, Seen
from fairlead.testing.feeds import FeedWorld
from tests.feeds_requirements.tools import Reader, aligned, line_to, order, other

RATE = 2000


async def finished(world: FeedWorld, *readers: Reader) -> None:
    """The source rests, everybody has all of it."""
    world.source.pause()
    for reader in readers:
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)


@pytest.mark.requirement("STR-28", "STR-83")
async def test_a_killed_active_under_load(world: FeedWorld) -> None:
    active = await world.active()
    async with Reader(world) as one, Reader(world, mode="both") as both:
        world.source.run(RATE)
        await one.reached(world.source.sent + 500)
        world.adapters[active].kill()
        await one.told("FailedOver")
        await one.reached(world.source.sent + 1000)
        await finished(world, one, both)
        assert one.counters["failovers"] == 1
        assert one.lines[-1] == other(world, active)
        assert one.counters["gaps_lost"] == one.counters["divergences"] == 0
        reported = await world.until(lambda: _counters_of(world, one, "failovers"), "it has reported its counters")
        assert reported == 1


async def _counters_of(world: FeedWorld, reader: Reader, name: str) -> int:
    rows = (await world.facts())["clients"]
    return next((int(row["counters"].get(name, 0)) for row in rows if row["client"] == reader.stream.client), 0)


@pytest.mark.requirement("STR-24")
async def test_what_waits_for_a_slow_application_is_neither_lost_nor_repeated(world: FeedWorld) -> None:
    active = await world.active()
    async with Reader(world) as reader:
        world.source.send(100)
        await reader.reached(world.source.sent)
        reader.reading.clear()
        world.source.send(3000)
        await asyncio.sleep(0.3)  # they wait in the client
        taken = len(reader.messages)
        world.adapters[active].kill()
        world.source.send(3000)
        await world.until(lambda: reader.stream.line != active, "it has failed over")
        reader.reading.set()
        await finished(world, reader)
        assert taken < 3100


@pytest.mark.requirement("STR-25")
async def test_loss_within_a_stream_is_repaired(world: FeedWorld) -> None:
    active = await world.active()
    blocks = 0

    def lose(seen: Seen) -> bytes | None:
        nonlocal blocks
        blocks += seen.kind == BLOCK
        return None if seen.kind == BLOCK and blocks % 5 == 0 else seen.content

    async with Reader(world) as reader:
        world.lines[active].rewrite = lose
        world.source.run(RATE)
        await reader.reached(world.source.sent + 2000)
        await finished(world, reader)
        assert blocks > 5
        assert reader.counters["gaps_lost"] == 0


@pytest.mark.requirement("STR-25")
async def test_a_damaged_block_does_not_reach_the_application(world: FeedWorld) -> None:
    active = await world.active()
    blocks = 0

    def damage(seen: Seen) -> bytes | None:
        nonlocal blocks
        blocks += seen.kind == BLOCK
        broken = seen.kind == BLOCK and blocks == 5
        return seen.content[:-1] + bytes([seen.content[-1] ^ 0x40]) if broken else seen.content

    async with Reader(world) as reader:
        world.lines[active].rewrite = damage
        world.source.run(RATE)
        await reader.told("FailedOver")
        await reader.reached(world.source.sent + 500)
        await finished(world, reader)
        assert reader.counters["gaps_lost"] == 0


@pytest.mark.requirement("STR-26")
async def test_a_backup_whose_numbers_are_shifted_by_seven(world: FeedWorld) -> None:
    active = await world.active()
    backup = other(world, active)
    async with Reader(world) as reader:
        world.source.run(RATE)
        await reader.reached(world.source.sent + 200)
        world.adapters[backup].fault("link", up=False)  # or it would find out
        world.adapters[backup].fault("shift", by=7)
        await reader.reached(world.source.sent + 200)
        world.adapters[active].kill()
        await reader.told("FailedOver")
        await reader.reached(world.source.sent + 500)
        await finished(world, reader)
        at = reader.lines.index(backup)
        steps = {b.number - a.number for a, b in zip(reader.messages, reader.messages[1:], strict=False)}
        assert steps == {1, 8}, f"numbers were not shifted at {at}"


@pytest.mark.requirement("STR-27")
async def test_a_plain_application_notices_nothing(world: FeedWorld) -> None:
    active, sent = await world.active(), world.source.sent
    async with fairlead.connect(world.url, name="plain") as connection, connection.stream(world.stream) as stream:
        world.source.run(RATE)
        got = []
        async for message in stream:
            got.append(message.sequence)
            if len(got) == 500:
                world.adapters[active].kill()
            if len(got) == 2000:
                break
        assert got == list(range(sent + 1, sent + 2001))


@pytest.mark.requirement("STR-29")
async def test_heartbeats_of_an_idle_source_on_both_streams(world: FeedWorld) -> None:
    world.source.send(10)
    await aligned(world)
    for name in world.names:
        async with line_to(world, name) as line:
            began = time.monotonic()
            beats = [await line.word(words.Beat) for _ in range(6)]
            assert time.monotonic() - began >= 1.6  # five intervals of 400 ms, and no flood
            assert all(one.positions and one.source_alive and one.last for one in beats)
            assert {one.epoch for one in beats} == {await world.epoch()}
            assert {one.role for one in beats} == {"active" if name == await world.active() else "backup"}


async def closed(world: FeedWorld, active: str, reader: Reader) -> None:
    world.lines[active].cut(reader.stream.client)


async def silent(world: FeedWorld, active: str, reader: Reader) -> None:
    world.lines[active].hold(reader.stream.client)


async def frozen(world: FeedWorld, active: str, reader: Reader) -> None:
    world.adapters[active].freeze()


async def without_source(world: FeedWorld, active: str, reader: Reader) -> None:
    world.source.cut(active)


async def promoted(world: FeedWorld, active: str, reader: Reader) -> None:
    world.desks[active].cut()


async def switched(world: FeedWorld, active: str, reader: Reader) -> None:
    answer = await order(world, "switch")
    assert isinstance(answer, words.StreamFacts), answer


Cause = Callable[[FeedWorld, str, Reader], Awaitable[None]]


@pytest.mark.requirement("STR-30", scaled="within 5 s, since this machine may be slow; benchmarks/feeds has the times")
@pytest.mark.parametrize("cause", [closed, silent, frozen, without_source, promoted, switched])
async def test_every_cause_leads_to_a_failover(world: FeedWorld, cause: Cause) -> None:
    active = await world.active()
    async with Reader(world) as reader:
        world.source.run(RATE)
        await reader.reached(world.source.sent + 200)
        began_s = time.monotonic()
        await cause(world, active, reader)
        await reader.until(lambda: reader.lines[-1] != active, "it takes messages from the other one")
        assert time.monotonic() - began_s < 5
        await reader.reached(world.source.sent + 200)
        world.heal()
        world.source.heal()
        await finished(world, reader)
        assert reader.counters["failovers"] >= 1


@pytest.mark.requirement("STR-31")
async def test_one_client_fails_over_for_itself(world: FeedWorld) -> None:
    active, epoch = await world.active(), await world.epoch()
    async with Reader(world) as one, Reader(world) as two:
        world.source.run(RATE)
        await one.reached(world.source.sent + 200)
        world.lines[active].cut(one.stream.client)
        await one.told("FailedOver")
        await one.reached(world.source.sent + 500)

        async def local() -> bool:
            rows = {row["client"]: row for row in (await world.facts())["clients"]}
            return rows[one.stream.client]["local"] and not rows[two.stream.client]["local"]

        await world.until(local, "the administration knows of it")
        assert (await world.active(), await world.epoch()) == (active, epoch)
        await finished(world, one, two)
        assert one.lines[-1] == other(world, active)
        assert set(two.lines) == {active}


@pytest.mark.requirement("STR-32")
async def test_what_was_received_is_used_before_the_backup_is(world: FeedWorld) -> None:
    active = await world.active()
    async with Reader(world) as reader:
        world.source.send(100)
        await reader.reached(world.source.sent)
        world.source.run(20_000)
        await reader.until(lambda: len(reader.messages) > 1000, "the burst has begun")
        world.adapters[active].kill()
        await reader.told("FailedOver")
        await finished(world, reader)
        assert reader.counters["duplicates"] < 1000  # the rest of the block that the position is in


@pytest.mark.requirement("STR-33")
async def test_late_messages_of_a_suspended_active_have_no_effect(world: FeedWorld) -> None:
    active = await world.active()
    async with Reader(world) as reader:
        world.source.run(RATE)
        await reader.reached(world.source.sent + 200)
        world.adapters[active].freeze()
        await reader.told("FailedOver")
        await asyncio.sleep(0.8)  # and some 1.2 s before: two seconds of its messages come late
        world.adapters[active].thaw()
        await reader.reached(world.source.sent + 2000)
        await world.until_ready()
        await finished(world, reader)
        assert reader.lines[-1] == other(world, active)


@pytest.mark.requirement("STR-34")
async def test_a_backup_that_is_ahead_starts_at_the_position(world: FeedWorld) -> None:
    active = await world.active()
    async with Reader(world) as reader:
        world.source.send(100)
        await reader.reached(world.source.sent)
        world.lines[active].hold(reader.stream.client)
        world.source.send(500)
        await world.until(lambda: _has(world, other(world, active), world.source.sent), "the backup has them")
        world.adapters[active].kill()
        await finished(world, reader)
        assert reader.counters["duplicates"] < 300  # no more than a block or two before the position


async def _has(world: FeedWorld, name: str, sequence: int) -> bool:
    return any(place[0] >= sequence for place in (await world.adapter_facts(name))["positions"].values())


@pytest.mark.requirement("STR-36", scaled="1 s behind")
async def test_a_backup_that_is_behind_catches_up_in_silence(world: FeedWorld) -> None:
    active = await world.active()
    async with Reader(world) as reader:
        world.source.delay(other(world, active), 1.0)
        world.source.run(500)
        await reader.reached(world.source.sent + 700)
        world.adapters[active].kill()
        await reader.told("Stale")
        await reader.reached(world.source.sent)
        world.source.delay(other(world, active), 0.0)
        await finished(world, reader)
        assert not reader.of("Lost", "Discontinuity", "Succeeded")
        assert reader.counters["duplicates"] > 0


@pytest.mark.requirement("STR-37", scaled="2 alternating kills")
async def test_kills_in_turn(world: FeedWorld) -> None:
    await _kills(world, 2)


@pytest.mark.long
@pytest.mark.requirement("STR-37")
async def test_fifty_kills_in_turn(world: FeedWorld) -> None:
    await _kills(world, 50)


async def _kills(world: FeedWorld, times: int) -> None:
    async with Reader(world) as reader:
        world.source.run(RATE)
        for turn in range(times):
            active = await world.active()
            await reader.reached(world.source.sent + 100)
            world.adapters[active].kill()
            await reader.until(lambda: reader.lines[-1] != active, f"failover {turn}")  # noqa: B023
            world.adapters[active].start()
            await world.until_ready()
            await reader.is_("normal")
        await finished(world, reader)
        assert reader.counters["failovers"] == times


@pytest.mark.requirement("STR-38")
async def test_without_any_adapter_the_stream_is_down_and_resumes(world: FeedWorld) -> None:
    async with Reader(world) as reader:
        world.source.send(200)
        await reader.reached(world.source.sent)
        for adapter in world.adapters.values():
            adapter.kill()
        await reader.told("Down")
        await reader.is_("down")
        position = dict(reader.stream.position)
        last = world.source.sent
        world.source.send(300)
        assert dict(reader.stream.position) == position
        world.adapters["b"].start()
        await reader.is_("no-backup")
        world.source.send(300)  # it tells of what came before it by its previous link
        await reader.reached(world.source.sent)
        (lost,) = reader.of("Lost")
        assert (lost.first, lost.last) == (last + 1, last + 300)
        reader.check(world.source.sent, without=range(last + 1, last + 301))
