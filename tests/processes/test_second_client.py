"""A client written from docs/protocol.md alone exchanges messages with ours."""

from __future__ import annotations

import asyncio
import os

import pytest

import fairlead
from fairlead.testing import Server
from tests.processes.tools import Dial
from tests.protocol.second_client import (
    ASKED,
    CONVERSE,
    FANOUT,
    LAST,
    NAMED,
    REQUEST,
    RESPONSE,
    SEND,
    ServerError,
)

pytestmark = [pytest.mark.processes, pytest.mark.requirement("SRV-41")]


async def test_broadcast_both_ways_with_headers_and_large_bodies(shared: Server, dial: Dial) -> None:
    second = dial(shared)
    second.subscribe("two.>")
    async with fairlead.connect(shared.url) as first, first.subscribe("one.*") as one:
        for body in (b"", b"hello", os.urandom(5_000_000)):
            await first.publish("two.a.b", body, headers={"key": b"\0value"}, reply_to="one.back")
            message = await asyncio.to_thread(second.next_message)
            assert (message.topic, message.body, message.peer) == ("two.a.b", body, first.uid)
            assert dict(message.headers) == {"key": b"\0value", ":reply": b"one.back"}
            await asyncio.to_thread(second.publish, "one.back", body, reply_to="two.more")
            answer = await one.next(timeout=10)
            assert (answer.body, answer.sender, answer.reply_to) == (body, second.uid, "two.more")


async def test_requests_both_ways(shared: Server, dial: Dial) -> None:
    second = dial(shared)
    second.register("second.serves")
    async with fairlead.connect(shared.url) as first:
        await first.respond("first.serves", lambda request: iter([request.body, b"and more"]))
        answers = await asyncio.to_thread(second.request, "first.serves", b"question")
        assert [answer.body for answer in answers] == [b"question", b"and more"]
        asking = asyncio.create_task(first.request("second.serves", b"and you?", timeout=10))
        request = await asyncio.to_thread(second.next_message)
        assert (request.kind, request.body) == (REQUEST, b"and you?")
        second.respond(request, b"me too")
        assert (await asking).body == b"me too"
        with pytest.raises(ServerError, match="no-receiver"):
            await asyncio.to_thread(second.request, "nobody", b"")


async def test_conversation_fan_out_and_ipc(shared: Server, dial: Dial) -> None:
    second = dial(shared, name="second", instance="two")
    second.register("talk")
    async with fairlead.connect(shared.url, type="first", name="one") as first:
        async with first.converse("talk") as talk:
            await talk.send(b"1")
            await talk.send(b"2")
            said = [await asyncio.to_thread(second.next_message) for _ in range(2)]
            assert [(frame.kind, frame.body, frame.number) for frame in said] == [
                (CONVERSE, b"1", 1),
                (CONVERSE, b"2", 2),
            ]
            second.send(CONVERSE, correlation=said[0].correlation, body=b"3", flags=LAST)
            assert (await talk.receive(timeout=5)).body == b"3"
        inbox = first.inbox()
        second.send(SEND, topic="first/one", flags=NAMED, body=b"by name")
        second.send_to(first.uid, b"by uid")
        assert [(await inbox.next(timeout=5)).body for _ in range(2)] == [b"by name", b"by uid"]
        await first.send_to("second/two", b"back")
        assert (await asyncio.to_thread(second.next_message)).body == b"back"
        await first.respond("poll", lambda request: b"here")
        second.send(FANOUT, topic="poll", correlation=77)
        asked, answer = await asyncio.to_thread(second.receive), await asyncio.to_thread(second.receive)
        assert (asked.kind, asked.number, asked.correlation) == (ASKED, 1, 77)
        assert (answer.kind, answer.body, answer.correlation) == (RESPONSE, b"here", 77)
