"""Section 4.8: messages that the active adapter makes itself have the same place on both streams, and come once."""

from __future__ import annotations

import asyncio
import time

import pytest

from fairlead.feeds import words
from fairlead.feeds.records import ADMIN
from fairlead.testing.feeds import FeedWorld
from tests.feeds_requirements.tools import Reader, aligned, line_to, order, other, records_of, send_admin

RATE = 3000


async def has(reader: Reader, id_: str) -> None:
    await reader.until(lambda: any(one.admin.id == id_ for one in reader.admins()), f"{reader.name} has {id_}")


def ids(reader: Reader, first: str) -> list[str]:
    """Of all from this one on; one that was sent before, right behind the position it began at, may come too."""
    found = [one.admin.id for one in reader.admins()]
    return found[found.index(first) :]


@pytest.mark.requirement("STR-55", "STR-63")
@pytest.mark.requirement("STR-57", scaled="within 5 s, on a machine with others on it")
async def test_a_message_of_the_operator_between_ten_and_eleven(world: FeedWorld) -> None:
    sent = world.source.sent
    async with Reader(world) as one, Reader(world, mode="both") as two:
        world.source.send(10)
        await one.reached(sent + 10)
        began = time.monotonic()
        id_ = await send_admin(world, text="trading is open")
        await has(one, id_)
        took_s = time.monotonic() - began
        await has(two, id_)
        world.source.send(10)
        for reader in (one, two):
            await reader.reached(sent + 20)
            reader.check(sent + 20)
            assert [m.sequence - sent for m in reader.messages if m.kind != ADMIN] == list(range(1, 21))
            assert reader.messages[10].admin.body == b"trading is open"
            assert reader.messages[10].sequence == sent + 10
        assert took_s < 5  # 50 ms until it is revised; this machine may be slow
    first, last = await aligned(world)
    numbers = []
    for name in world.names:
        async with line_to(world, name) as line:
            found = await records_of(line, max(first, last - 30), last)
            numbers.append([record.number for record in found if record.kind == ADMIN])
    assert numbers[0] == numbers[1]
    assert len(numbers[0]) >= 1


@pytest.mark.requirement("STR-56", "STR-58")
async def test_it_is_announced_before_it_is_sent(world: FeedWorld) -> None:
    active = await world.active()
    async with Reader(world) as reader:
        seen = world.lines[active].seen = []
        world.source.run(RATE)
        await reader.reached(world.source.sent + 200)
        id_ = await send_admin(world)
        await has(reader, id_)
        await world.until(lambda: any(one.word.get("say") == "decided" for one in list(seen)), "the backup decides")
        world.source.pause()
        world.lines[active].seen = None
        number = next(one.number for one in reader.admins() if one.admin.id == id_)
    announced = [one for one in seen if one.word.get("say") == "announce" and one.word["admin"]["id"] == id_]
    decided = [one for one in seen if one.word.get("say") == "decided" and one.word["admin"] == id_]
    carried = next(one for one in seen if number in one.numbers)
    assert announced[-1].word["n"] == number
    assert announced[-1].at_s <= carried.at_s
    assert {"n", "b", "t", "result"} <= decided[-1].word.keys()


@pytest.mark.requirement("STR-71", "STR-62")
async def test_several_at_once_have_the_same_places(world: FeedWorld) -> None:
    async with Reader(world) as reader:
        world.source.run(RATE)
        sent = [await send_admin(world, text=str(turn)) for turn in range(5)]
        for id_ in sent:
            await has(reader, id_)
        await reader.reached(world.source.sent + 300)
        world.source.pause()
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)
        found = [one.admin.id for one in reader.admins() if one.admin.id in sent]
        rows = [row for row in (await world.facts())["decisions"] if row["admin"] in sent]
        moved = {row["admin"] for row in rows if row["result"] == "refused"}  # to a later place, perhaps behind others
        assert sorted(found) == sorted(sent)
        assert [id_ for id_ in found if id_ not in moved] == [id_ for id_ in sent if id_ not in moved]
    await aligned(world)


@pytest.mark.requirement("STR-64", "STR-66")
@pytest.mark.requirement("STR-65", half="the refusal is reported; an accepted revision is in the tests of the machine")
async def test_after_a_refusal_both_streams_are_equal_again(world: FeedWorld) -> None:
    active = await world.active()
    backup = other(world, active)
    async with Reader(world) as reader:
        world.lines[active].slow(0.15, backup)  # the announcement comes when its place is long taken
        world.source.run(RATE)
        await reader.reached(world.source.sent + 300)
        sent = [await send_admin(world) for _ in range(3)]
        for id_ in sent:
            await has(reader, id_)
        await refused(world, sent)
        await reader.reached(world.source.sent + 1000)
        world.lines[active].heal()
        await world.until_ready()
        await reader.reached(world.source.sent + 300)
        world.source.pause()
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)
        assert ids(reader, sent[0]) == sent
    await aligned(world)


async def refused(world: FeedWorld, wanted: list[str]) -> None:
    """Until the administration has been told by the backup that it refused one of these, with N, B and T."""

    async def told() -> bool:
        rows = [row for row in (await world.facts())["decisions"] if row["admin"] in wanted]
        return any(row["result"] == "refused" and row["b"] - row["n"] + 1 == row["p"] > row["t"] for row in rows)

    await world.until(told, "the refusal is reported")


@pytest.mark.requirement("STR-67")
async def test_whoever_missed_a_refused_one_fetches_it(world: FeedWorld) -> None:
    active = await world.active()
    backup = other(world, active)
    async with Reader(world) as cut_off, Reader(world) as luckier:
        world.lines[active].slow(0.15, backup)
        world.source.run(RATE)
        await cut_off.reached(world.source.sent + 300)
        world.lines[active].hold(cut_off.stream.client)
        id_ = await send_admin(world)
        await has(luckier, id_)
        await refused(world, [id_])
        await luckier.reached(world.source.sent + 1000)  # the void is there too
        world.adapters[active].kill()
        await has(cut_off, id_)
        world.source.pause()
        for reader in (cut_off, luckier):
            await reader.reached(world.source.sent)
            reader.check(world.source.sent)
            assert ids(reader, id_) == [id_]
        assert next(one.late for one in cut_off.admins())
        assert not next(one.late for one in luckier.admins())


@pytest.mark.requirement("STR-68")
async def test_sent_and_dead_or_dead_and_not_sent(world: FeedWorld) -> None:
    active = await world.active()
    async with Reader(world) as one, Reader(world) as two:
        world.source.send(50)
        await one.reached(world.source.sent)
        world.lines[active].hold(two.stream.client)  # two will not get it from the active one
        id_ = await send_admin(world)
        await has(one, id_)
        world.adapters[active].kill()
        world.source.send(50)
        for reader in (one, two):
            await reader.reached(world.source.sent)
            await has(reader, id_)
            reader.check(world.source.sent)
            assert ids(reader, id_) == [id_]


@pytest.mark.requirement("STR-69", scaled="2 kills, one with an accepted and one with a late announcement")
async def test_an_active_that_dies_after_its_announcement(world: FeedWorld) -> None:
    await _deaths(world, 2)


@pytest.mark.long
@pytest.mark.requirement("STR-69", scaled="30 kills")
async def test_thirty_that_die_after_their_announcement(world: FeedWorld) -> None:
    await _deaths(world, 30)


async def _deaths(world: FeedWorld, times: int) -> None:
    async with Reader(world) as reader:
        told = []
        for turn in range(times):
            await world.restore()
            await reader.is_("normal")
            active = await world.active()
            world.source.run(RATE)
            await reader.reached(world.source.sent + 100)
            if turn % 2:
                world.lines[active].slow(0.05, other(world, active))
            path, path.seen = world.lines[active], []
            id_ = await send_admin(world)
            seen = path.seen
            while not any(one.word.get("say") == "announce" for one in list(seen)):
                await asyncio.sleep(0.001)
            world.adapters[active].kill()
            path.seen = None
            if any(one.word.get("say") == "decided" for one in seen) or not turn % 2:
                told.append(id_)
                await has(reader, id_)
        world.source.pause()
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)
        found = [one.admin.id for one in reader.admins()]
        assert len(found) == len(set(found))
        assert set(told) <= set(found)


@pytest.mark.requirement("STR-70")
async def test_the_active_does_not_wait_for_a_lost_link(world: FeedWorld) -> None:
    active = await world.active()
    backup = other(world, active)
    async with Reader(world) as reader:
        world.source.run(RATE)
        await reader.reached(world.source.sent + 100)
        world.lines[active].cut(backup)
        sent = [await send_admin(world) for _ in range(3)]
        for id_ in sent:
            await has(reader, id_)

        async def is_marked() -> bool:
            return not (await world.adapter_facts(backup))["synchronised"]

        await world.until(is_marked, "the backup is marked")
        world.lines[active].heal()
        await world.until_ready()
        async with line_to(world, backup) as line:
            for turn, id_ in enumerate(sent):
                line.say(words.FetchAdmin(id=turn, admin=id_))
                assert (await line.word(words.Fetched, words.Unavailable)).admin.id == id_
        await reader.reached(world.source.sent + 300)
        world.source.pause()
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)
        assert ids(reader, sent[0]) == sent
    await aligned(world)


@pytest.mark.requirement("STR-78", "STR-61", scaled="3 planned switches")
async def test_planned_switches(world: FeedWorld) -> None:
    await _switches(world, 3)


@pytest.mark.long
@pytest.mark.requirement("STR-78")
async def test_a_hundred_planned_switches(world: FeedWorld) -> None:
    await _switches(world, 100)


async def _switches(world: FeedWorld, times: int) -> None:
    async with Reader(world) as reader:
        world.source.run(RATE)
        for turn in range(times):
            active, epoch = await world.active(), await world.epoch()
            await reader.reached(world.source.sent + 50)
            answer = await order(world, "switch", adapter=other(world, active))
            assert isinstance(answer, words.StreamFacts), answer

            async def switched() -> bool:
                return (await world.active(), await world.epoch()) == (other(world, active), epoch + 1)  # noqa: B023

            await world.until(switched, f"switch {turn}")
            await reader.until(lambda: reader.lines[-1] != active, f"the client follows switch {turn}")  # noqa: B023
            await world.until_ready()
        world.source.pause()
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)
        assert reader.counters["gaps_found"] == 0
        assert reader.counters["duplicates"] <= 100 * times  # the rest of the block that the switch is in
    await aligned(world)
