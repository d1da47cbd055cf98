"""The event log of a real server: file, topic, `fairlead log`; and it slows nobody (CLU-78, CLU-195…198)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import fairlead
from fairlead.errors import FairleadError, NotAllowed
from fairlead.testing import Server
from tests.processes.tools import NEVER_FROZEN, until

pytestmark = pytest.mark.processes

PATIENCE_S = 20.0
MM = "message-manager"


@pytest.fixture(scope="module")
def told() -> Iterator[Server]:
    settings: dict[str, Any] = {"messages.segment_bytes": 1 << 20, "messages.quota_bytes": 8 << 20}
    with Server(managers=1, **settings, **NEVER_FROZEN) as server:
        yield server
        assert server.stop() == 0


def written(server: Server) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (server.data / "log" / "events.jsonl").read_text().splitlines()]


def shell(*arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.requirement("CLU-195", state="half", note="file and topic; no further place is set online")
@pytest.mark.requirement("CLU-196", state="half", note="one node")
async def test_an_event_is_in_the_file_on_the_topic_and_shown_by_the_command(told: Server) -> None:
    async with fairlead.connect(told.url) as connection, fairlead.connect(told.url) as plain:
        async with connection.topic("_LOG").subscribe(ack="auto") as durable, plain.subscribe("_LOG") as transient:
            await connection.queue("seen", create=True).send("x")
            await connection.admin.delete(destination="seen")
            found: list[dict[str, Any]] = []
            while not any(one["code"] == "destination-deleted" for one in found):
                message = await durable.receive(timeout=PATIENCE_S)
                assert message is not None, found
                found.append(json.loads(message.body))
            assert [one["code"] for one in found] == ["destination-created", "admin", "destination-deleted"]
            live = [json.loads((await transient.next(timeout=PATIENCE_S)).body) for _ in found]
        assert live == found
        for one in found:
            assert {"ms", "node", "module", "level", "code", "text"} <= set(one)
            assert (one["node"], one["level"]) == ("mm-0", "info")
        assert [one["ms"] for one in found] == sorted(one["ms"] for one in found)
        assert found[0]["destination"] == "seen"
        await until(lambda: all(one in written(told) for one in found))
        by_file = await asyncio.to_thread(
            shell, "log", "--json", "--data", str(told.data), "--code", "destination-deleted"
        )
        by_network = await asyncio.to_thread(
            shell, "log", "--json", "--server", told.url, "--code", "destination-deleted", "--since", "1h"
        )
        assert found[2] in by_file
        assert found[2] in by_network
        assert found[2] in (await connection.admin.log(code="destination-deleted"))["lines"]
        with pytest.raises(NotAllowed):
            await connection.topic("_LOG", create=False).send("a lie")


@pytest.mark.requirement("CLU-196", state="half", note="a restart in place of a failover")
async def test_the_log_goes_on_after_a_kill_and_a_durable_follower_misses_nothing(told: Server) -> None:
    async with fairlead.connect(told.url, name="follower") as connection:
        async with connection.topic("_LOG").subscribe(durable="all"):
            pass
        await connection.queue("before", create=True).send("x")
        old = told.kill(MM)
        await asyncio.to_thread(told.wait_until, lambda _: told.pids(MM) not in ([], [old]))
        await connection.queue("after", create=True).send("x")
        async with connection.topic("_LOG").subscribe(durable="all", ack="auto") as follower:
            names = []
            while "after" not in names:
                message = await follower.receive(timeout=PATIENCE_S)
                assert message is not None, names
                names.append(json.loads(message.body).get("destination"))
        assert names.count("before") == names.count("after") == 1
        await connection.topic("_LOG").unsubscribe("all")


@pytest.mark.requirement("CLU-198", state="half", note="the store is full; there is no group to stop")
async def test_a_full_store_is_told_in_the_file_and_does_not_feed_itself(told: Server) -> None:
    async with fairlead.connect(told.url) as connection:
        queue = connection.queue("fills", create=True)
        with pytest.raises(FairleadError):
            for _ in range(2000):
                await queue.send(b"x" * 20_000, on_blocked="raise", timeout=5)
        await until(lambda: any(one["code"] == "store-full" for one in written(told)))
        count = len(written(told))
        await asyncio.sleep(0.5)
        assert len(written(told)) - count <= 2  # no loop
        await connection.admin.purge(destination="fills")
        await until(lambda: any(one["code"] == "store-room" for one in written(told)), PATIENCE_S)
        await queue.send("again", timeout=PATIENCE_S)


@pytest.mark.requirement("CLU-78", "CLU-198", state="half", note="a log medium that takes nothing at all")
async def test_a_log_that_cannot_be_written_stops_nothing(told: Server) -> None:
    path = told.data / "log" / "events.jsonl"
    path.unlink()
    os.mkfifo(path)  # nobody reads it: the log's thread stands still for good when it opens the file
    old = told.kill(MM)
    try:
        await asyncio.to_thread(told.wait_until, lambda _: told.pids(MM) not in ([], [old]))
        async with fairlead.connect(told.url) as connection:
            for number in range(50):
                await connection.admin.create(destination=f"quiet.{number}")
            queue = connection.queue("quiet.0")
            await queue.send_many([b"x"] * 2000)
            async with queue.consume() as consumer:
                for _ in range(2000):
                    message = await consumer.receive(timeout=PATIENCE_S)
                    assert message is not None
                    await message.ack()
            found = (await connection.admin.destinations(pattern="_LOG"))["destinations"][0]
            assert found["name"] == "_LOG"
    finally:
        path.unlink()
        told.kill(MM)
