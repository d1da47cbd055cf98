"""Durable topics over a link: none lost, none twice, whoever is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import AsyncMock, MagicMock

import pytest

import fairlead
from fairlead.sites.edge.bridge import lasting_name
from fairlead.sites.edge.durable import DurableLink
from fairlead.sites.trail import Trail, Way
from tests.sites.tools import clients, started

UP, DOWN = Way.both("bridge", "root:7400")


def test_a_message_does_not_go_back_the_way_it_came() -> None:
    trail = Trail.of("id-1", {"colour": "blue"})
    assert trail.may_go(UP)
    there = trail.properties({"colour": "blue"}, UP)
    back = Trail.of("id-2", there)
    assert (back.id, there["colour"]) == ("id-1", "blue")
    assert not back.may_go(DOWN)
    assert back.may_go(Way.both("bridge", "hub-2:7400")[0])


def test_a_bridge_keeps_its_name(tmp_path: Path) -> None:
    first = lasting_name(tmp_path / "name")
    assert first == lasting_name(tmp_path / "name")
    assert len(first) == 16


async def test_a_message_keeps_its_topic_when_the_line_it_came_by_is_lost() -> None:
    async def read() -> bytes:
        message.destination = "orders.>"  # what a consumer by pattern says of a line that is gone
        return b"body"

    message = MagicMock(destination="orders.eu", is_large=True, body_kind="bytes", properties={}, read=read)
    message.id = "id-1"
    here, there = MagicMock(), MagicMock()
    consumer = here.topic.return_value.subscribe.return_value.__aenter__.return_value
    consumer.take_batch = AsyncMock(side_effect=[[message], []])
    there.topic.return_value.send = AsyncMock()
    await DurableLink("bridge", "", "", [], lambda level, text: None)._carry(here, there, "orders.>", UP)
    there.topic.assert_called_once_with("orders.eu")
    message.ack.assert_called_once_with()


@pytest.mark.processes
async def test_a_stored_message_crosses_once_through_a_killed_bridge_and_a_killed_server() -> None:
    settings = {"messages.enabled": "true", "links.durable": "orders.>"}
    with started({"root": [], "leaf": ["root"]}, settings=settings) as servers:
        async with clients(servers["leaf"], servers["root"]) as [below, above]:
            for client in (below, above):
                await client.topic("orders.eu").send("first")  # so that the topic is there
            up = above.topic("orders.eu").subscribe("reader")
            down = below.topic("orders.eu").subscribe("reader")
            async with up, down:
                for server in servers.values():  # a link's subscription begins with what is sent after it was made
                    await asyncio.to_thread(server.wait_until, links_attached)
                sending = asyncio.create_task(send(below, "up", 200))
                await send(above, "down", 50)
                servers["leaf"].kill("bridge")
                await send(above, "more", 50)
                await sending
                await asyncio.to_thread(servers["root"].kill_everything)
                again = asyncio.create_task(send(below, "again", 50))
                await asyncio.to_thread(servers["root"].start)
                await again
                wanted = {"up": 200, "down": 50, "more": 50, "again": 50}
                for consumer in (up, down):
                    got = await read(consumer, sum(wanted.values()))
                    for word, count in wanted.items():
                        assert [n for w, n in got if w == word] == list(range(count)), word


def links_attached(report: dict[str, object]) -> bool:
    """The test's own reader and the link's."""
    messages = report["messages"]
    assert isinstance(messages, dict)
    return int(messages["consumers"]) >= 2


async def send(client: fairlead.Connection, word: str, count: int) -> None:
    topic = client.topic("orders.eu")
    for at in range(0, count, 10):
        await asyncio.gather(*(topic.send(f"{word} {at + n}", properties={"n": at + n}) for n in range(10)))


async def read(consumer: fairlead.Consumer, count: int) -> list[tuple[str, int]]:
    got: list[tuple[str, int]] = []
    while len(got) < count:
        for message in await asyncio.wait_for(consumer.take_batch(100), 30):
            word, _, number = message.text().partition(" ")
            if number:
                got.append((word, int(number)))
            message.ack()
    return got
