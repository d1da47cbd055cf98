"""Section 4.7: holes are filled, or told with their exact range; a snapshot brings somebody who joins up to date."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead.feeds import words
from fairlead.testing.feed_numbers import KEYS
from fairlead.testing.feeds import FeedWorld
from tests.feeds_requirements.tools import Reader, line_to


@pytest.fixture(scope="module")
def tiny() -> Iterator[FeedWorld]:
    with FeedWorld("ab", adapter={"retain.messages": 200, "retain.seconds": 0.1}) as made:
        yield made


@pytest.mark.requirement("STR-14", "STR-35", "STR-52")
async def test_a_long_outage_is_told_with_its_range(tiny: FeedWorld) -> None:
    await tiny.restore()
    async with Reader(tiny) as reader:
        tiny.source.send(100)
        await reader.reached(tiny.source.sent)
        last = tiny.source.sent
        for path in tiny.lines.values():
            path.cut(reader.stream.client)
        await reader.told("Down")
        tiny.source.send(5000, rate=10_000)
        tiny.heal()
        tiny.source.run(500)
        await reader.told("Lost")
        await reader.until(lambda: reader.messages[-1].sequence > last + 5000, "it goes on")
        tiny.source.pause()
        await reader.reached(tiny.source.sent)
        lost = [n for event in reader.of("Lost") for n in range(event.first, event.last + 1)]
        assert lost[0] == last + 1
        assert len(lost) == len(set(lost)) > 1000
        reader.check(tiny.source.sent, without=lost)
        async with line_to(tiny, "a") as line:
            assert line.welcome.first > 1
            line.say(words.Fill(id=1, first=1, last=10))
            answer = await line.word(words.Unavailable)
            assert answer.why
            assert answer.first >= line.welcome.first


@pytest.mark.requirement("STR-53")
async def test_both_policies_under_the_same_loss(tiny: FeedWorld) -> None:
    await tiny.restore()
    sent, active = tiny.source.sent, await tiny.active()
    async with Reader(tiny, gaps="hold") as hold, Reader(tiny, gaps="mark") as mark:
        tiny.source.drop(active, sent + 51, sent + 60)
        for name in tiny.names:
            tiny.source.drop(name, sent + 101, sent + 110)
        tiny.source.send(150)
        for reader in (hold, mark):
            await reader.until(lambda: reader.of("Lost"), "the loss is told")  # noqa: B023
            await reader.reached(sent + 150)
            (lost,) = reader.of("Lost")
            assert (lost.first, lost.last) == (sent + 101, sent + 110)
        hold.check(sent + 150, without=range(sent + 101, sent + 111))
        await mark.until(lambda: len(mark.messages) == 140, "the fill comes late")
        assert sorted(one.sequence for one in mark.messages) == [one.sequence for one in hold.messages]
        late = [one.sequence for one in mark.messages if one.late]
        in_order = [one.sequence for one in mark.messages if not one.late]
        assert in_order == sorted(in_order)
        assert set(late) <= set(range(sent + 51, sent + 61))


@pytest.fixture(scope="module")
def keyed() -> Iterator[FeedWorld]:
    with FeedWorld("ab", adapter={"feed.snapshots": True, "convert.keys": ["key"]}) as made:
        yield made


@pytest.mark.requirement("STR-54", "STR-74", scaled="10 joins")
async def test_joining_a_running_feed(keyed: FeedWorld) -> None:
    await _joins(keyed, 10)


@pytest.mark.long
@pytest.mark.requirement("STR-54")
async def test_joining_a_running_feed_a_thousand_times(keyed: FeedWorld) -> None:
    await _joins(keyed, 1000)


async def _joins(keyed: FeedWorld, times: int) -> None:
    await keyed.restore()
    keyed.source.send(100)
    keyed.source.run(1000)
    for turn in range(times):
        async with Reader(keyed, start="snapshot") as reader:
            if turn == times - 1:
                keyed.adapters[await keyed.active()].kill()
                await reader.reached(keyed.source.sent + 100)
            begun = await reader.told("SnapshotBegun")
            await reader.told("SnapshotEnded")
            await reader.until(lambda: len(reader.from_source()) >= 20, "what follows")
            (place,) = begun.positions.values()
            follows = [one.sequence for one in reader.from_source()]
            assert follows == list(range(place.sequence + 1, place.sequence + 1 + len(follows)))
            state = {one.record()["key"]: one.record()["number"] for one in reader.messages}
            assert state == {number % KEYS: number for number in range(1, follows[-1] + 1)}
    keyed.source.pause()
