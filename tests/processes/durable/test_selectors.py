"""Selectors at the server: which messages they choose, what is not chosen does not travel, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.errors import BadSelector
from tests.processes.durable.conftest import Join
from tests.processes.durable.steps import depth, drained, facts, is_silent, one, take, texts

pytestmark = pytest.mark.processes

MESSAGES: list[tuple[str, dict[str, Any]]] = [
    ("a", {"properties": {"n": 1, "text": "a_b", "flag": True, "real": 1.5}}),
    ("b", {"properties": {"n": 2, "text": "axb", "flag": False, "real": 2.0}, "priority": 9, "type": "order"}),
    ("c", {"properties": {"n": 3, "text": "it's", "big": 2**53 + 1}, "correlation_id": "7", "key": "k"}),
    ("d", {"properties": {"text": ""}, "persistent": False}),
]

CASES = [
    ("", "abcd"),
    (" \n ", "abcd"),
    ("n = 1", "a"),
    ("n <> 1", "bc"),  # not the one without an n
    ("NOT n = 1", "bc"),
    ("n = 1 OR n <> 1", "abc"),
    ("n = 1 OR n IS NULL", "ad"),
    ("n = 1 AND absent = 1", ""),
    ("NOT (n = 1 AND absent = 1)", "bc"),  # of d nothing is known at all
    ("n > 1 OR absent = 1", "bc"),
    ("NOT (n > 1 OR absent = 1)", ""),
    ("absent IS NULL", "abcd"),
    ("n IS NOT NULL", "abc"),
    ("n BETWEEN 2 AND 3", "bc"),
    ("n NOT BETWEEN 2 AND 3", "a"),
    ("text IN ('axb', 'it''s')", "bc"),
    ("text NOT IN ('axb', 'it''s')", "ad"),
    ("text LIKE 'a_b'", "ab"),
    ("text LIKE 'a\\_%' ESCAPE '\\'", "a"),
    ("text NOT LIKE 'a%'", "cd"),
    ("text LIKE ''", "d"),
    ("flag", "a"),
    ("NOT flag", "b"),
    ("flag = FALSE", "b"),
    ("real * 2 = 3", "a"),
    ("n + 1 = 3 AND -n < 0", "b"),
    ("n / 2 = 1", "bc"),
    ("n / 0 = 1", ""),
    ("real = n", "b"),  # 2.0 and 2
    ("big = 9007199254740993", "c"),
    ("big = 9007199254740992.0", ""),
    ("text = 1", ""),
    ("n = '1'", ""),
    ("JMSPriority > 4", "b"),
    ("priority = 4", "acd"),
    ("JMSType = 'order'", "b"),
    ("JMSCorrelationID = '7'", "c"),
    ("JMSXGroupID = 'k' OR key = 'j'", "c"),
    ("JMSDeliveryMode = 'NON_PERSISTENT'", "d"),
    ("JMSTimestamp > 1000000000000", "abcd"),
    ("JMSMessageID LIKE 'ID:%'", "abcd"),
    ("JMSXDeliveryCount = 1", "abcd"),
]


@pytest.mark.requirement("CLU-19")
async def test_what_is_chosen(join: Join, name: str) -> None:
    """All cases on one queue, by browsing, and on one topic, by replay."""
    async with join() as connection:
        queue = connection.queue(name)
        topic = connection.topic(f"{name}.topic", parameters={"retain_messages": -1})
        for text, options in MESSAGES:
            await queue.send(text, **options)
            await topic.send(text, **options)
        wrong = []
        for selector, expected in CASES:
            browsed = "".join(sorted([message.text() async for message in queue.browse(selector)]))
            replayed = "".join(sorted([message.text() async for message in topic.replay(selector=selector)]))
            if not browsed == replayed == expected:
                wrong.append((selector, expected, browsed, replayed))
        assert wrong == []


@pytest.mark.requirement("CLU-19")
@pytest.mark.parametrize(
    "selector", ["n = 2", "text LIKE 'a\\_%' ESCAPE '\\'", "absent = 1 OR flag", "n > 1 AND NOT n = 3"]
)
async def test_consuming_and_subscribing_choose_the_same_as_browsing(join: Join, name: str, selector: str) -> None:
    expected = next((chosen for text, chosen in CASES if text == selector), None)
    async with join("reader") as connection:
        queue, topic = connection.queue(name), connection.topic(f"{name}.topic")
        async with topic.subscribe(selector=selector) as subscriber, topic.subscribe("s", selector=selector) as durable:
            for text, options in MESSAGES:
                await queue.send(text, **options)
                await topic.send(text, **options)
            browsed = sorted([message.text() async for message in queue.browse(selector)])
            assert expected is None or browsed == sorted(expected)
            async with queue.consume(selector) as consumer:
                for one_of_them in (consumer, subscriber, durable):
                    assert sorted(await texts(one_of_them, len(browsed))) == browsed
                    assert await is_silent(one_of_them)
        assert await depth(connection, name) == 4 - len(browsed)


@pytest.mark.requirement("CLU-19")
@pytest.mark.parametrize(
    "selector", ["n >", "n = 'open", "text > 'a'", "JMSFoo = 1", "1", "n IN ()", "LIKE", "n = 1 n = 2", "(" * 5000]
)
async def test_what_is_refused(join: Join, name: str, selector: str) -> None:
    async with join() as connection:
        queue, topic = connection.queue(name), connection.topic(f"{name}.topic")
        await queue.send("x")
        for attempt in (
            queue.consume(selector),
            topic.subscribe(selector=selector),
            topic.subscribe("d", selector=selector),
        ):
            with pytest.raises(BadSelector):
                await attempt.start()
        assert (await facts(connection, name))["consumers"] == 0
        assert [message.text() for message in await drained(queue, 1)] == ["x"]


@pytest.mark.requirement("CLU-19")
async def test_what_is_not_chosen_does_not_travel(join: Join, name: str) -> None:
    async with join() as connection, join("boss") as boss:
        queue = connection.queue(name)
        async with queue.consume("n = 7", prefetch=1000, prefetch_bytes=1 << 24) as consumer:
            before = connection._carrier.session.link.credit  # type: ignore[union-attr]
            assert before is not None
            async with queue.sender() as sender:
                for number in range(500):
                    await sender.send(bytes(1000), properties={"n": number % 100})
            assert len(await take(consumer, 5)) == 5
            figures = await facts(boss, name)
            assert (figures["locked"], figures["depth"]) == (0, 495)  # none of them was ever handed out


@pytest.mark.requirement("CLU-19", "CLU-15")
async def test_consumers_with_different_selectors_share_a_queue(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        async with queue.consume("n < 10") as low, queue.consume("n >= 10") as high:
            for number in range(20):
                await queue.send(str(number), properties={"n": number})
            await queue.send("without")
            assert await texts(low, 10) == [str(number) for number in range(10)]
            assert await texts(high, 10) == [str(number) for number in range(10, 20)]
            async with queue.consume("n IS NULL") as rest:
                assert await texts(rest, 1) == ["without"]
            first = await queue.send("5", properties={"n": 5})
            message = await one(low)
            assert message.order == first.order
            message.retry()
            again = await one(low)
            assert again.delivery_count == 2
            await again.ack(confirm=True)
