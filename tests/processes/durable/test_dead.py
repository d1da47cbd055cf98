"""Dead messages: why they die, what they say about it, and the safe way back (CLU-199…202)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import fairlead
from fairlead.errors import FairleadError, NotAllowed
from fairlead.testing import Server
from tests.processes.tools import NEVER_FROZEN

pytestmark = pytest.mark.processes

PATIENCE_S = 20.0
MM = "message-manager"
MANY = 1000


@pytest.fixture(scope="module")
def mortuary() -> Iterator[Server]:
    with Server(managers=2, **NEVER_FROZEN) as server:
        yield server
        assert server.stop() == 0


async def depth(connection: Any, name: str) -> int:
    found: int = (await connection.admin.destination(destination=name))["depth"]
    return found


async def reaches(connection: Any, name: str, wanted: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await depth(connection, name) != wanted:
            await asyncio.sleep(0.02)


async def rejected(connection: Any, name: str, count: int) -> None:
    """So many messages of this queue are sent to the dead."""
    async with connection.queue(name).consume(prefetch=500) as consumer:
        for _ in range(count):
            message = await consumer.receive(timeout=PATIENCE_S)
            assert message is not None
            await message.reject()


async def restarted(server: Server) -> None:
    old = server.kill(MM)
    await asyncio.to_thread(server.wait_until, lambda _: server.pids(MM) not in ([], [old]))


async def dead_one(connection: Any, selector: str) -> Any:
    async with connection.queue("_DMQ", create=False).consume(selector) as consumer:
        message = await consumer.receive(timeout=PATIENCE_S)
        assert message is not None
        await message.ack(confirm=True)
        return message


SELECTOR = "colour = 'red' AND dead_reason = '{}'"
REASONS = {
    "rejected": {},
    "delivery-limit": {"delivery_limit": 2},
    "expired": {"expired": "dead"},
}


@pytest.mark.requirement("CLU-199", state="half", note="not: undeliverable for too long, left in a deleted destination")
@pytest.mark.requirement("CLU-200", "CLU-201")
@pytest.mark.parametrize("reason", list(REASONS))
async def test_each_reason_with_origin_time_count_and_id(mortuary: Server, reason: str) -> None:
    name = f"dying.{reason}"
    async with fairlead.connect(mortuary.url) as connection:
        queue = connection.queue(name, create=True, parameters=REASONS[reason])
        properties = {"colour": "red", "weight": 2.5}
        sent = await queue.send(
            "the body", key="k", priority=7, properties=properties, correlation_id="c", type="t",
            ttl=0.1 if reason == "expired" else None,
        )  # fmt: skip
        deliveries = 0
        async with queue.consume() as consumer:
            while reason != "expired" and (message := await consumer.receive(timeout=0.5)) is not None:
                deliveries += 1
                await (message.reject(confirm=True) if reason == "rejected" else message.retry(confirm=True))
        await reaches(connection, "_DMQ", 1)
        assert await depth(connection, name) == 0
        message = await dead_one(connection, SELECTOR.format(reason))
        assert message.dead["destination"] == name
        assert message.dead["reason"] == reason
        assert message.dead["count"] == deliveries
        assert message.dead["id"] == sent.id
        assert abs(int(message.dead["ms"]) - message.arrival.timestamp() * 1000) < 5000
        assert (message.text(), message.key, message.priority) == ("the body", "k", 7)
        assert dict(message.properties) == properties
        assert (message.correlation_id, message.type) == ("c", "t")


@pytest.mark.requirement("CLU-201")
async def test_nobody_sends_to_the_dead_and_they_do_not_die_again(mortuary: Server) -> None:
    async with fairlead.connect(mortuary.url) as connection:
        with pytest.raises(NotAllowed):
            await connection.queue("_DMQ", create=False).send("no")
        with pytest.raises(FairleadError):
            async with connection.transaction() as transaction:
                await transaction.send("_DMQ", "no")
        assert await depth(connection, "_DMQ") == 0
        await connection.queue("once", create=True, parameters={"ttl_s": 3600}).send("x", ttl=3600)
        await rejected(connection, "once", 1)
        await reaches(connection, "_DMQ", 1)
        async with connection.queue("_DMQ", create=False).consume() as consumer:
            for number in range(15):
                message = await consumer.receive(timeout=PATIENCE_S)
                assert message is not None
                assert message.expiration is None
                await (message.reject(confirm=True) if number % 2 else message.retry(confirm=True))
        assert await depth(connection, "_DMQ") == 1
        async with connection.transaction() as transaction:  # a normal queue in all else
            message = await transaction.receive("_DMQ", timeout=PATIENCE_S)
            await transaction.send("once", message.body)
        assert await depth(connection, "_DMQ") == 0
        assert await depth(connection, "once") == 1


async def test_a_dead_queue_of_its_own(mortuary: Server) -> None:
    async with fairlead.connect(mortuary.url) as connection:
        await connection.queue("own.dead", create=True).send("already there")
        await connection.queue("own", create=True, parameters={"dead_queue": "own.dead"}).send("x")
        await rejected(connection, "own", 1)
        await reaches(connection, "own.dead", 2)
        assert await depth(connection, "_DMQ") == 0
        found = await connection.admin.redrive(destination="own.dead")
        assert (found["moved"], found["to"]) == (1, {"own": 1})
        assert await depth(connection, "own") == 1
        assert await depth(connection, "own.dead") == 1  # nobody knows where that one came from


async def test_redrive_singly_in_bulk_by_reason_and_as_a_dry_run(mortuary: Server) -> None:
    async with fairlead.connect(mortuary.url) as connection:
        admin = connection.admin
        for name in ("re.a", "re.b"):
            await connection.queue(name, create=True, parameters={"delivery_limit": 1}).send_many(["x"] * 20)
            await rejected(connection, name, 10)
            async with connection.queue(name).consume() as consumer:
                for _ in range(10):
                    message = await consumer.receive(timeout=PATIENCE_S)
                    assert message is not None
                    await message.retry()
        await reaches(connection, "_DMQ", 40)
        dry = await admin.redrive(dry_run=True, reason="rejected")
        assert (dry["moved"], dry["to"]) == (20, {"re.a": 10, "re.b": 10})
        assert await depth(connection, "_DMQ") == 40
        order = (await admin.browse(destination="_DMQ", count=1))["messages"][0]["order"]
        assert (await admin.redrive(orders=[order]))["to"] == {"re.a": 1}
        assert (await admin.redrive(origin="re.a", reason="rejected"))["moved"] == 9
        assert (await admin.redrive(reason="delivery-limit", count=5))["moved"] == 5
        await connection.queue("re.c", create=True).send("x")
        assert (await admin.redrive(reason="rejected", to="re.c"))["to"] == {"re.c": 10}
        await admin.delete(destination="re.b")
        rest = await admin.redrive()
        assert (rest["moved"], rest["failed"]) == (5, {"no destination 're.b'": 10})
        assert await depth(connection, "re.a") == 20
        assert await depth(connection, "_DMQ") == 10
        async with connection.queue("re.a").consume() as consumer:
            message = await consumer.receive(timeout=PATIENCE_S)
            assert message is not None
            assert not message.dead
            await message.ack()
        shown = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "fairlead", "admin", "redrive", "--dry-run", "--json", "--server", mortuary.url],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert shown.returncode == 0, shown.stderr
        assert json.loads(shown.stdout)["failed"]
        await admin.purge(destination="_DMQ")


@pytest.mark.requirement("CLU-202", state="half", note="one message manager, killed while they move")
async def test_a_kill_in_the_middle_of_dying_and_of_coming_back_loses_and_doubles_nothing(mortuary: Server) -> None:
    async with fairlead.connect(mortuary.url) as connection, fairlead.connect(mortuary.url) as other:
        expected = {f"{number}" for number in range(MANY)}
        await connection.queue("crash", create=True).send_many(sorted(expected, key=int))

        async def reject_all() -> None:
            async with connection.queue("crash").consume(prefetch=50) as consumer:
                while await depth(other, "_DMQ") < MANY:
                    for message in await consumer.receive_many(50, timeout=0.1):
                        await message.reject()

        working = asyncio.create_task(reject_all())
        for at in (200, 600):
            async with asyncio.timeout(PATIENCE_S):
                while await depth(other, "_DMQ") < at:
                    await asyncio.sleep(0)
            await restarted(mortuary)
        await working
        await reaches(connection, "_DMQ", MANY)
        assert await depth(connection, "crash") == 0
        assert await bodies(connection, "_DMQ") == expected
        for count in (100, MANY):
            moving = asyncio.create_task(connection.admin.execute("redrive", count=count, origin="crash"))
            await asyncio.sleep(0.01)
            await restarted(mortuary)
            await moving
            here, there = await bodies(connection, "_DMQ"), await bodies(connection, "crash")
            assert not here & there
            assert here | there == expected
        while (await connection.admin.redrive(origin="crash"))["moved"]:
            pass
        assert await bodies(connection, "crash") == expected
        assert (await depth(connection, "crash"), await depth(connection, "_DMQ")) == (MANY, 0)


async def bodies(connection: Any, name: str) -> set[str]:
    """What is in a queue; each once."""
    found: list[str] = []
    start: int | None = 0
    while start is not None:
        page = await connection.admin.browse(destination=name, start=start, count=1000)
        found += [one["body"] for one in page["messages"]]
        if page["waits"]:
            await asyncio.sleep(0.02)
        start = page["next"]
    assert len(found) == len(set(found))
    return set(found)
