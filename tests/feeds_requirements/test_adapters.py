"""Sections 4.2 and 4.3: both adapters make the same of the same source, and every message says what it is."""

from __future__ import annotations

import threading

import pytest

from fairlead.feeds import words
from fairlead.feeds.block_codec import Block, pack
from fairlead.testing.feed_numbers import FILTERED, MALFORMED, body
from fairlead.testing.feed_paths import BLOCK, Seen
from fairlead.testing.feeds import FeedWorld
from tests.feeds_requirements.tools import Reader, aligned, line_to, other, records_of


@pytest.mark.requirement("STR-9", "STR-13", "STR-27")
async def test_two_clients_get_the_same_and_nothing_from_the_backup(world: FeedWorld) -> None:
    active = await world.active()
    async with Reader(world) as one, Reader(world) as two:
        world.source.run(3000)
        await one.reached(world.source.sent + 1000)
        world.source.pause()
        for reader in (one, two):
            await reader.reached(world.source.sent)
            reader.check(world.source.sent)
            assert set(reader.lines) == {active}
            assert reader.counters["duplicates"] == 0
        assert [m.body for m in one.messages][-500:] == [m.body for m in two.messages][-500:]
        assert [m.number for m in one.messages][-500:] == [m.number for m in two.messages][-500:]


@pytest.mark.requirement("STR-10", "STR-16", "STR-17", "STR-18")
@pytest.mark.requirement("STR-11", scaled="some thousand messages")
async def test_both_streams_are_equal_number_by_number(world: FeedWorld) -> None:
    source = world.source
    for turn in range(20):
        numbers = range(source.sent + 1, source.sent + 101)
        source.send_bodies([body(n, fault=MALFORMED if n % 37 == 0 else 0, parts=1 + n % 3) for n in numbers])
        assert source.sent == numbers[-1], turn
    first, last = await aligned(world)
    async with line_to(world, "a") as line:
        records = await records_of(line, max(first, last - 3000), last)
    assert all(one.source and one.sequence for one in records)
    assert {one.kind for one in records} >= {1, 3}


@pytest.mark.requirement("STR-19", scaled="one restart of the backup")
async def test_numbers_are_equal_after_a_restart_of_the_backup(world: FeedWorld) -> None:
    await _restarts(world, 1)


@pytest.mark.long
@pytest.mark.requirement("STR-19")
async def test_numbers_are_equal_after_ten_restarts_of_the_backup(world: FeedWorld) -> None:
    await _restarts(world, 10)


async def _restarts(world: FeedWorld, times: int) -> None:
    backup = other(world, await world.active())
    world.source.run(2000)
    for _ in range(times):
        world.adapters[backup].kill()
        world.adapters[backup].start()
        await world.until_ready()
    world.source.pause()
    await aligned(world)


@pytest.mark.requirement("STR-14")
async def test_an_old_range_is_repeated_and_a_too_old_one_refused(world: FeedWorld) -> None:
    world.source.send(300)
    _, last = await aligned(world)
    async with line_to(world, "a") as line:
        once = await records_of(line, last - 200, last - 100)
        assert [one.number for one in once] == list(range(last - 200, last - 99))
        assert await records_of(line, last - 200, last - 100) == once
        line.say(words.Fill(id=7, first=last + 10_000, last=last + 10_001))
        answer = await line.word(words.Unavailable)
        assert answer.id == 7
        assert answer.why


@pytest.mark.requirement("STR-15")
async def test_what_the_source_itself_has_again_is_no_gap(world: FeedWorld) -> None:
    active, sent = await world.active(), world.source.sent
    async with Reader(world) as reader:
        world.source.drop(active, sent + 21, sent + 40, lines="A", rewind=False)  # line B has them
        world.source.drop(active, sent + 61, sent + 80, rewind=False)  # the rewind server has them
        world.source.send(200)
        await reader.reached(sent + 200)
        reader.check(sent + 200)
        assert reader.counters["gaps_found"] == 0
        assert set(reader.lines) == {active}

        async def recovered() -> bool:
            return bool((await world.adapter_facts(active))["counters"]["source_recovered"] >= 20)

        await world.until(recovered, "the adapter has counted them")


@pytest.mark.requirement("STR-15", "STR-51")
async def test_what_one_adapter_never_got_comes_from_the_other(world: FeedWorld) -> None:
    active, sent = await world.active(), world.source.sent
    async with Reader(world) as reader:
        world.source.drop(active, sent + 101, sent + 150)
        world.source.send(400)
        await reader.reached(sent + 400)
        reader.check(sent + 400)
        counters = reader.counters
        assert counters["gaps_found"] >= 1
        assert counters["gaps_filled"] >= 1
        assert counters["gaps_lost"] == 0
        assert not reader.of("Lost")


@pytest.mark.requirement("STR-15", "STR-52")
async def test_what_both_never_got_is_reported_with_its_range(world: FeedWorld) -> None:
    sent = world.source.sent
    async with Reader(world) as reader:
        for name in world.names:
            world.source.drop(name, sent + 101, sent + 150)
        world.source.send(400)
        await reader.reached(sent + 400)
        reader.check(sent + 400, without=range(sent + 101, sent + 151))
        (lost,) = reader.of("Lost")
        assert (lost.first, lost.last) == (sent + 101, sent + 150)
        before = reader.everything[reader.everything.index(lost) - 1 :]
        assert next(one.sequence for one in before if hasattr(one, "body")) in (sent + 100, sent + 151)
        after = reader.everything[reader.everything.index(lost) :]
        assert next(one.sequence for one in after if hasattr(one, "body")) == sent + 151


@pytest.mark.requirement("STR-20", "STR-41")
async def test_parts_are_told_apart_when_the_active_dies_between_them(world: FeedWorld) -> None:
    active, sent = await world.active(), world.source.sent
    is_torn = threading.Event()

    def tear(seen: Seen) -> bytes | None:
        """Blocks end behind the first part; nothing follows."""
        if seen.kind != BLOCK:
            return seen.content
        if is_torn.is_set():
            return None
        block = Block.parse(seen.content[8:])
        records = [block.record(index) for index in range(block.count)]
        if records[-1].sequence <= sent:
            return seen.content  # a little more than was asked for
        is_torn.set()
        kept = [one for one in records if (one.sequence, one.part) <= (sent + 1, 1)]
        return seen.content[:8] + pack(block.source, block.first, kept)

    async with Reader(world) as reader:
        world.lines[active].rewrite = tear
        world.source.send_bodies([body(sent + 1, parts=3)])
        await reader.until(lambda: reader.messages, "part 1 is there")
        assert is_torn.is_set()
        assert [one.part for one in reader.messages] == [1]
        world.adapters[active].kill()
        world.source.send_bodies([body(sent + 2, parts=3)])
        await reader.reached(sent + 2)
        reader.check(sent + 2, parts=3)
        assert [(one.part, one.parts) for one in reader.messages] == [(1, 3), (2, 3), (3, 3)] * 2


@pytest.mark.requirement("STR-21")
async def test_what_is_filtered_or_malformed_is_no_gap(world: FeedWorld) -> None:
    sent = world.source.sent
    silent = {3: FILTERED, 4: FILTERED, 6: MALFORMED, 9: FILTERED}
    async with Reader(world) as reader:
        world.source.send_bodies([body(sent + n, fault=silent.get(n, 0)) for n in range(1, 12)])
        await reader.reached(sent + 11)
        assert [one.sequence - sent for one in reader.messages] == [1, 2, 5, 7, 8, 10, 11]
        assert reader.counters["gaps_found"] == reader.counters["lost"] == 0
        assert not reader.of("Lost", "GapOpened")


@pytest.mark.requirement("STR-22", "STR-46")
async def test_a_source_that_counts_afresh_is_a_successor(world: FeedWorld) -> None:
    sent = world.source.sent
    async with Reader(world) as reader:
        world.source.send(50)
        await reader.reached(sent + 50)
        old = reader.messages[-1].source
        world.source.reset(f"DAY{world.source.sent:07}")
        world.source.send(30)
        await reader.until(lambda: reader.messages[-1].source != old, "messages of the new source")
        new = reader.messages[-1].source
        await reader.reached(30, new)
        assert [one.sequence for one in reader.from_source(old)] == list(range(sent + 1, sent + 51))
        assert [one.sequence for one in reader.from_source(new)] == list(range(1, 31))
        (change,) = reader.of("Succeeded")
        at = reader.everything.index(change)
        assert reader.everything[at - 1].sequence == sent + 50
        assert reader.everything[at + 1].sequence == 1
        assert reader.counters["lost"] == 0
        active = await world.active()
        world.adapters[active].kill()  # and a failover in the new one
        world.source.send(30)
        await reader.reached(60, new)
        assert [one.sequence for one in reader.from_source(new)] == list(range(1, 61))
