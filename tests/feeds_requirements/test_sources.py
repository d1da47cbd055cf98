"""Sections 4.6 and 4.7 with sources that differ: equivalent lines, siblings, strangers; and adapters that disagree."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fairlead.testing.feed_numbers import NumberedSource
from fairlead.testing.feeds import FeedWorld
from tests.feeds_requirements.tools import Reader, other


def numbers(reader: Reader) -> list[int]:
    """What the messages say themselves, whatever their source calls them."""
    return [one.record()["number"] for one in reader.from_source()]


@asynccontextmanager
async def opened(world: FeedWorld) -> AsyncIterator[FeedWorld]:
    """A world that takes its time to start, and must not stop this loop."""
    await asyncio.to_thread(world.__enter__)
    try:
        yield world
    finally:
        await asyncio.to_thread(world.__exit__, None, None, None)


@asynccontextmanager
async def two_lines(offset: int, relations: Callable[[str, int], list[dict[str, Any]]]) -> AsyncIterator[FeedWorld]:
    """Adapter a reads the source "left", adapter b the source "right", which is `offset` higher."""
    with NumberedSource() as left, NumberedSource(offset=offset) as right:

        def tables(name: str) -> list[dict[str, Any]]:
            source, id_ = (left, "left") if name == "a" else (right, "right")
            return [source.add(name).table(id=id_, relations=relations(name, offset))]

        async with opened(FeedWorld("ab", source=left, tables=tables, aligned=False)) as world:
            world.right = right  # type: ignore[attr-defined]
            yield world


def send(world: FeedWorld, count: int) -> None:
    """On both lines."""
    world.source.send(count)
    world.right.send(count)  # type: ignore[attr-defined]


def equivalent(name: str, offset: int) -> list[dict[str, Any]]:
    return [{"kind": "equivalent", "of": "left", "offset": -offset}] if name == "b" else []


def unrelated(name: str, offset: int) -> list[dict[str, Any]]:
    return []


@pytest.mark.requirement("STR-43", "STR-44", "STR-45")
async def test_equivalent_lines_with_an_offset() -> None:
    async with two_lines(1000, equivalent) as world:
        await _fail_over(world)


@pytest.mark.long
@pytest.mark.requirement("STR-45")
async def test_equivalent_lines_without_an_offset() -> None:
    async with two_lines(0, equivalent) as world:
        await _fail_over(world)


async def _fail_over(world: FeedWorld) -> None:
    async with Reader(world) as reader:
        send(world, 300)
        await reader.until(lambda: len(reader.messages) == 300, "all of the left line")
        world.adapters["a"].kill()
        await reader.told("FailedOver")
        send(world, 300)
        await reader.until(lambda: len(reader.messages) >= 600, "all of the right line")
        assert numbers(reader) == list(range(1, 601))
        assert [one.sequence for one in reader.messages] == list(range(1, 601))  # as the left line calls them
        assert set(reader.lines) == {"a", "b"}
        assert reader.counters["lost"] == reader.counters["discontinuities"] == 0


@pytest.mark.requirement("STR-48", "STR-43")
async def test_a_stranger_is_announced_as_a_discontinuity() -> None:
    async with two_lines(100, unrelated) as world, Reader(world) as reader:  # sequences overlap by chance
        send(world, 300)
        await reader.until(lambda: len(reader.messages) == 300, "all of the left line")
        world.adapters["a"].kill()
        await reader.told("FailedOver")
        send(world, 100)
        (event,) = [await reader.told("Discontinuity")]
        await reader.until(lambda: numbers(reader)[-1] == 400, "the right line goes on")
        at = reader.everything.index(event)
        after = [one for one in reader.everything[at:] if hasattr(one, "body")]
        assert {one.source.partition(":")[0] for one in after} == {"right"}
        assert [one.record()["number"] for one in after][-100:] == list(range(301, 401))
        assert reader.counters["discontinuities"] == 1


@pytest.mark.requirement("STR-12", "STR-47")
async def test_two_merged_sources_each_with_its_own_position() -> None:
    with NumberedSource() as left, NumberedSource() as right:

        def tables(name: str) -> list[dict[str, Any]]:
            sibling = [{"kind": "sibling", "of": "left"}]
            return [left.add(name).table(id="left"), right.add(name).table(id="right", relations=sibling)]

        world = FeedWorld("ab", source=left, tables=tables, aligned=False)
        async with opened(world), Reader(world) as reader:
            left.delay("a", 0.01)
            right.delay("b", 0.02)
            left.run(1500)
            right.run(1000)
            await reader.until(lambda: len(reader.messages) > 1000, "some of both")
            active = await world.active()
            world.adapters[active].kill()
            await reader.told("FailedOver")
            await reader.until(lambda: len(reader.messages) > 4000, "more of both")
            left.pause()
            right.pause()
            sent = {"left": left.sent, "right": right.sent}
            for name, source in (("left", left), ("right", right)):
                await reader.until(
                    lambda: len(_of(reader, name)) >= source.sent,  # noqa: B023
                    f"all of {name}",
                )
            assert {name: _of(reader, name) for name in sent} == {
                name: list(range(1, last + 1)) for name, last in sent.items()
            }
            assert reader.counters["lost"] == 0
            assert reader.lines[-1] == other(world, active)


def _of(reader: Reader, name: str) -> list[int]:
    return [one.sequence for one in reader.messages if one.source.partition(":")[0] == name]


@pytest.mark.requirement("STR-50")
async def test_a_backup_that_converts_wrongly_is_found_out(world: FeedWorld) -> None:
    active = await world.active()
    world.adapters[other(world, active)].fault("mangle", on=True)
    try:
        async with Reader(world, mode="both") as reader, Reader(world) as plain:
            world.source.run(1000)
            await plain.reached(world.source.sent + 500)
            await reader.until(lambda: reader.counters["divergences"] > 0, "a divergence is counted")
            world.source.pause()
            await plain.reached(world.source.sent)
            plain.check(world.source.sent)
            assert reader.of("Divergence")
    finally:
        adapter = world.adapters[other(world, active)]
        adapter.kill()  # what it has retained is wrong too
        adapter.start()
