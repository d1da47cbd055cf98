"""Each kind of quota on a real server: a clear error, or being read slower; and what others have is untouched."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

import fairlead
from fairlead import errors
from fairlead.security import users
from fairlead.security.quotas import Quota
from fairlead.security.users import User, Users
from fairlead.testing import Server
from tests.processes.access.conftest import HASH, PATIENCE_S, Guarded, eventually

pytestmark = pytest.mark.processes

LIMITED = Users(
    {
        "root": User(hash=HASH, admin=["_ADMIN"], consume=[">", "_LOG"]),
        "few": User(hash=HASH, tenant="few"),
        "slow": User(hash=HASH, tenant="slow"),
        "small": User(hash=HASH, quota=Quota(message_bytes=1000, subscriptions=2)),
        "free": User(hash=HASH),
    },
    {},
    {
        "few": Quota(connections=2, subscriptions=3, destinations=2, storage_bytes=50_000, message_bytes=20_000),
        "slow": Quota(messages_per_s=200),
    },
)


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data = tmp_path_factory.mktemp("quotas")
    users.write(data / "users.toml", LIMITED)
    with Server(data=data, managers=2) as server:
        guarded = Guarded(server)
        guarded.users = LIMITED
        yield guarded
        assert server.stop() == 0


async def test_connections(limited: Guarded) -> None:
    async with limited.connect("few"), limited.connect("few"):
        with pytest.raises(errors.QuotaExceeded, match="2 connections"):
            await limited.connect("few")
        async with limited.connect("free"):
            pass

    async def again() -> bool:
        try:
            async with limited.connect("few"):
                return True
        except errors.QuotaExceeded:
            return False

    await eventually(again)

    async def told() -> bool:
        return bool(await limited.events("quota-exceeded", whose="few", quota="connections"))

    await eventually(told)
    assert any(one.get("QUOTAS_MET") or one.get("quotas_met") for one in counted(limited.server.status()))


def counted(report: Any) -> list[dict[str, Any]]:
    """Every table of counters in a report."""
    found = []
    if isinstance(report, dict):
        found.append(report)
        for value in report.values():
            found += counted(value)
    elif isinstance(report, list):
        for value in report:
            found += counted(value)
    return found


async def test_subscriptions_of_a_tenant_and_of_a_user(limited: Guarded) -> None:
    for user, most in (("few", 3), ("small", 2)):
        async with limited.connect(user) as client:
            for number in range(most):
                await client.subscribe(f"topic.{number}").start()
            with pytest.raises(errors.QuotaExceeded, match=f"{most} subscriptions"):
                await client.subscribe("one.more").start()


async def test_the_length_of_a_message(limited: Guarded) -> None:
    events: list[fairlead.Event] = []
    async with limited.connect("small") as small, small.subscribe("x") as inbox:
        small.on_event(events.append)
        await small.publish("x", bytes(1001))
        await small.publish("x", bytes(40_000))
        await small.publish("x", bytes(1000))
        assert len((await inbox.next(timeout=PATIENCE_S)).body) == 1000
        assert [type(event.error) for event in events] == [errors.QuotaExceeded, errors.QuotaExceeded]
        await small.queue("box").send(bytes(900))
        with pytest.raises(errors.QuotaExceeded, match="longer than 1000"):
            await small.queue("box").send(bytes(1001))
        await small.queue("box").send(bytes(900))


async def test_storage_and_destinations_of_a_tenant(limited: Guarded) -> None:
    async with limited.connect("few") as few:
        box = few.queue("box")
        stored = 0
        with pytest.raises(errors.QuotaExceeded, match="storage"):
            while stored < 100:
                await box.send(bytes(10_000))
                stored += 1
        assert 3 <= stored <= 5
        async with box.consume() as consumer:
            for _ in range(stored):
                message = await consumer.receive(timeout=PATIENCE_S)
                assert message is not None
                message.ack()

        async def room() -> bool:
            try:
                await box.send(bytes(10_000))
            except errors.QuotaExceeded:
                return False
            return True

        await eventually(room)
        await few.queue("second").send("x")
        with pytest.raises(errors.QuotaExceeded, match="2 queues"):
            await few.queue("third").send("x")
    async with limited.connect("root") as root:
        met = (await root.admin.status())["quotas_exceeded"]
        assert {(one["whose"], one["quota"]) for one in met} >= {("few", "storage_bytes"), ("few", "destinations")}


async def test_who_sends_too_fast_is_read_slower_and_nothing_is_lost(limited: Guarded) -> None:
    async with limited.connect("slow") as one, limited.connect("slow") as other, other.subscribe("tick") as ticks:
        begun_s = time.monotonic()
        for number in range(600):  # 200 at once, the rest in two seconds
            await one.publish("tick", str(number))
        got = [int((await ticks.next(timeout=PATIENCE_S)).body) for _ in range(600)]
        took_s = time.monotonic() - begun_s
        assert got == list(range(600))
        assert took_s > 1.5
        async with limited.connect("free") as free, free.subscribe("tick") as own:
            for number in range(2000):
                await free.publish("tick", str(number))
            async with asyncio.timeout(PATIENCE_S):
                assert [int((await own.next(timeout=PATIENCE_S)).body) for _ in range(2000)] == list(range(2000))
        receipts = await one.queue("ticks").send_many([b"x"] * 300)
        assert len(list(receipts)) == 300
    assert any(one.get("SLOWED") or one.get("slowed") for one in counted(limited.server.status()))
