"""Live update with real processes: every message has its number, and every connection is watched."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.errors import Unavailable
from fairlead.runtime import extensions
from fairlead.security import users
from fairlead.security.passwords import hash_password
from fairlead.testing import Server
from tests.processes.numbered import (
    Exchanges,
    Load,
    Party,
    books_balance,
    close_parties,
    holds,
    kill,
    open_parties,
    states,
    until,
    update,
)
from tests.processes.raw import Raw
from tests.processes.soak import update_under_load
from tests.processes.tools import NEVER_FROZEN, placed, suspended

pytestmark = pytest.mark.processes

SETTINGS: dict[str, Any] = {**NEVER_FROZEN, "limits.parked_s": 0.5}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(managers=2, **SETTINGS) as one:
        yield one
        assert one.stop() == 0


async def replace(server: Server, role: str, number: int) -> None:
    """By turns planned and by kill -9."""
    if number % 2:
        await kill(server, role, standby=True)
    else:
        await update(server, role)


def pids(status: dict[str, Any], role: str) -> list[int]:
    return sorted(pid for one, _, pid in states(status) if one == role)


def has(found: list[Any], count: int) -> bool:
    return len(found) >= count


class Newcomers:
    """Fifty a second at most, one after the other; what goes wrong with one is told at once."""

    def __init__(self, come: Callable[[], Awaitable[None]]) -> None:
        self._come = come
        self.going = True
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self.going:
            began_s = time.monotonic()
            await self._come()
            await asyncio.sleep(max(0.0, 0.02 - (time.monotonic() - began_s)))

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(lambda: self.task.done() or condition(), 30)
        if self.task.done():
            await self.task


@contextlib.asynccontextmanager
async def coming(come: Callable[[], Awaitable[None]]) -> AsyncIterator[Newcomers]:
    newcomers = Newcomers(come)
    try:
        yield newcomers
    finally:
        newcomers.going = False
        await newcomers.task


async def take(subscription: fairlead.Subscription, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += [message.body for message in await subscription.take(timeout=15)]
    return found


# --- Under load -------------------------------------------------------------------------------------------------
@pytest.mark.requirement(
    "SRV-81", "SRV-82", "SRV-86", "SRV-87", "SRV-88", "SRV-89",
    state="scaled", note="100 connections, 10,000 msg/s, 4 + 4 replacements; `make soak` has the full size",
)  # fmt: skip
@pytest.mark.requirement("SRV-3", "SRV-80")
async def test_nothing_is_lost_doubled_reordered_or_dropped_while_both_are_replaced(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    before = server.status(brief=True)
    async with Exchanges(server.url) as exchanges:
        rate = 1000 if extensions.is_pure() else 10_000
        report = await update_under_load(server, connections=100, rate=rate, replacements=4)
        await exchanges.settle()
    with capsys.disabled():
        result = report.result
        print(f"\n  {result.sent:,} messages, worst delay {report.worst_before_ms:.0f} ms before, ", end="")
        print(f"{result.worst_ms:.0f} ms across 8 replacements, away {report.pauses_ms}")
    assert report.result.faults == (0, 0, 0, 0)
    assert report.faults == []
    assert report.result.arrived == report.result.sent > rate
    assert (exchanges.faults, exchanges.errors) == ([], {})
    assert min(exchanges.done[mode] for mode in ("request", "fan-out", "conversation", "one-way")) > 0
    assert (exchanges.inbox.count, exchanges.inbox.missing) == (exchanges.said, 0)
    after = await books_balance(server)
    assert pids(before, "manager") == pids(after, "manager")
    assert not set(pids(before, "router")) & set(pids(after, "router"))
    assert not set(pids(before, "dispatcher")) & set(pids(after, "dispatcher"))
    assert after["messages_given_up"] == 0


@pytest.mark.requirement("SRV-93")
@pytest.mark.requirement(
    "SRV-4", state="half", note="the managers' clients are moved; waiting for their end is tested elsewhere"
)
async def test_the_clients_of_managers_move_and_lose_nothing_in_either_direction(server: Server) -> None:
    before = server.status(brief=True)
    async with (
        Load(server.url, publishers=15, subscribers=15, rate=3000) as load,
        Exchanges(server.url) as exchanges,
    ):
        parties = [*load.publishers, *load.subscribers, *exchanges.parties]
        uids = [party.connection.uid for party in parties]
        answer = await update(server, "managers")
        assert [record["outcome"] for record in answer["updates"]] == ["moved", "moved"]
        await exchanges.settle()
        result = await load.settle()
        assert [party.connection.uid for party in parties] == uids
        assert result.faults == (0, 0, 0, 0)
        assert result.moved >= 30  # both managers were emptied: all moved, some of them twice
        assert (exchanges.faults, exchanges.errors) == ([], {})
        assert (exchanges.inbox.count, exchanges.inbox.missing) == (exchanges.said, 0)
    after = await books_balance(server)
    assert not set(pids(before, "manager")) & set(pids(after, "manager"))
    assert pids(before, "router") == pids(after, "router")


# --- What is kept -----------------------------------------------------------------------------------------------
@pytest.mark.requirement("SRV-7", "SRV-19", "SRV-57", "SRV-86")
async def test_what_is_stored_while_the_router_is_stopped_outlives_it(server: Server) -> None:
    async with placed(server, 0, 1) as (sender, receiver), receiver.subscribe("kept.>") as kept:
        await receiver.respond("kept.question", lambda request: request.body)
        known = server.status()
        await holds(server, lambda status: ("router", "standby") in {one[:2] for one in states(status)})
        victim = server.pids("router")[0]
        os.kill(victim, signal.SIGSTOP)
        for number in range(5):
            await sender.publish("kept.x", str(number))
        await sender.flush()  # the manager has taken them in
        report = server.status()
        assert report["stored"] == 5
        assert report["attachments"] == known["attachments"]  # SRV-127: read from the store
        os.kill(victim, signal.SIGKILL)
        assert await take(kept, 5) == [b"0", b"1", b"2", b"3", b"4"]
        await update(server, "dispatcher")
        after = server.status()
        assert after["attachments"] == known["attachments"]
        assert after["connections"] == known["connections"]
        assert (await sender.request("kept.question", b"?")).body == b"?"
    await books_balance(server)


@pytest.mark.requirement("SRV-19")
async def test_instructions_for_a_suspended_manager_outlive_the_router_that_wrote_them(server: Server) -> None:
    async with placed(server, 0, 1) as (sender, receiver), receiver.subscribe("behind") as behind:
        routed = server.status()["router"]["messages_routed"]
        with suspended(server.pids("manager")[1]):
            await sender.publish_many("behind", [str(number) for number in range(100)])
            await holds(server, lambda status: status["router"]["messages_routed"] >= routed + 100)
            await kill(server, "router")
        assert await take(behind, 100) == [str(number).encode() for number in range(100)]
    await books_balance(server)


@pytest.mark.requirement("SRV-49")
async def test_shares_stay_even_when_the_router_is_replaced_half_way(server: Server) -> None:
    parties = await open_parties(server.url, 4, "balance")
    asker, *receivers = [party.connection for party in parties]
    for receiver in receivers:
        await receiver.respond("balance.work", lambda request: request.body)
    served: dict[int, int] = {}
    for number in range(300):
        if number in (100, 200):
            await replace(server, "router", number // 100)
        answer = await asker.request("balance.work", str(number), timeout=10)
        assert answer.body == str(number).encode()
        served[answer.sender] = served.get(answer.sender, 0) + 1
    assert sorted(served.values()) == [100, 100, 100]
    await close_parties(parties)


@pytest.mark.requirement("SRV-52")
async def test_a_conversation_stays_with_its_receiver_across_updates(server: Server) -> None:
    parties = await open_parties(server.url, 4, "talk")
    asker, *receivers = [party.connection for party in parties]

    async def serve(receiver: fairlead.Connection) -> None:
        async with receiver.accept("talk.here") as talks:
            async for talk in talks:
                with contextlib.suppress(fairlead.FairleadError):
                    async for message in talk:
                        await talk.send(f"{receiver.instance} {message.body.decode()}")

    tasks = [asyncio.create_task(serve(receiver)) for receiver in receivers]
    await holds(server, lambda status: server.status()["registrations"] == 3)
    said = []
    async with asker.converse("talk.here") as talk:
        for number in range(50):
            if number in (15, 30):
                await replace(server, "router", number // 15)
            await talk.send(str(number))
            said.append((await talk.receive(10)).body.decode().split())
    assert len({name for name, _ in said}) == 1
    assert [int(number) for _, number in said] == list(range(50))
    await close_parties(parties)
    await asyncio.gather(*tasks)


@pytest.mark.requirement("SRV-124")
async def test_nobody_authenticates_again_after_an_update(tmp_path: Path) -> None:
    users.write(
        tmp_path / "users.toml",
        users.Users({"anna": users.User(hash=hash_password("secret"), publish=["news.>"], subscribe=["news.>"])}),
    )
    settings = SETTINGS | {"security.users": str(tmp_path / "users.toml")}
    with Server(managers=2, **settings) as server:
        async with fairlead.connect(server.url, user="anna", password="secret") as anna:
            party = Party(anna)
            async with anna.subscribe("news.>") as news:
                for number in range(4):
                    await anna.publish("news.today", str(number))
                    message = await news.next(10)
                    assert (message.body, message.user) == (str(number).encode(), "anna")
                    await replace(server, "router" if number < 2 else "dispatcher", number)
                assert {one["user"] for one in server.status()["connections"]} == {"anna"}
                with pytest.raises(fairlead.Refused):
                    await anna.subscribe("secrets.>").start()
            assert not party.events


# --- The router is away -----------------------------------------------------------------------------------------
@pytest.mark.requirement("SRV-83")
@pytest.mark.requirement(
    "SRV-84", "SRV-85", state="scaled", note="stopped for 3.5 s, keep-alive 1 s, in place of 30 s and 5 s"
)
@pytest.mark.requirement("SRV-127", state="half", note="the report while the router is stopped")
async def test_a_stopped_router_slows_senders_and_disconnects_nobody(server: Server) -> None:
    options = {"keep_alive_s": 1}
    async with placed(server, 0, 1, 0, options=options) as (flooding, receiving, quiet):
        parties = [Party(one) for one in (flooding, receiving, quiet)]
        async with receiving.subscribe("flood", buffer=1 << 20) as flood, receiving.subscribe("drop") as drop:
            bodies = [number.to_bytes(4, "little") + bytes(996) for number in range(20_000)]
            with suspended(server.pids("router")[0]):
                began_s = time.monotonic()
                await quiet.publish("drop", b"sent while the router was away")
                await quiet.flush()
                task = asyncio.create_task(flooding.publish_many("flood", bodies))
                report = await holds(server, lambda status: not status["managers"][0]["reading"])
                limit = 1000 + report["managers"][0]["connections"]
                while time.monotonic() < began_s + 3.5:
                    report = await asyncio.to_thread(server.status)
                    assert report["managers"][0]["counted"] <= limit
                    assert len(report["attachments"]) >= 3
                    assert not task.done()
                    await asyncio.sleep(0.25)
            await task
            found = await take(flood, len(bodies))
            assert found == bodies
            assert [message.body for message in await drop.take(10)] == [b"sent while the router was away"]
        assert [dict(party.events) for party in parties] == [{}, {}, {}]
    await books_balance(server)


# --- Updates that fail, and others ------------------------------------------------------------------------------
@pytest.mark.requirement("SRV-92")
@pytest.mark.parametrize("component", ["router", "dispatcher"])
async def test_an_update_to_code_that_fails_at_start_leaves_the_old_one_serving(
    server: Server, component: str, tmp_path: Path
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    before = server.pids(component)
    async with Load(server.url, publishers=4, subscribers=4, rate=500) as load:
        with pytest.raises(Unavailable, match=f"update of the {component} failed, the old version goes on"):
            await update(server, component, python=str(broken))
        assert server.pids(component) == before
        await update(server, component)  # and the next one works
        result = await load.settle()
    assert result.faults == (0, 0, 0, 0)
    outcomes = [record["outcome"] for record in server.status()["updates"] if record["component"] == component]
    assert outcomes[-2:] == ["failed", "done"]


@pytest.mark.requirement("SRV-80")
async def test_a_successor_may_come_from_another_environment(server: Server, tmp_path: Path) -> None:
    environment = Path(sys.executable).parents[1]
    (tmp_path / "bin").mkdir()
    other = tmp_path / "bin" / "python"
    other.symlink_to(sys.executable)
    (tmp_path / "lib").symlink_to(environment / "lib")
    shutil.copy(environment / "pyvenv.cfg", tmp_path)
    before = server.pids("router")
    async with Load(server.url, publishers=4, subscribers=4, rate=500) as load:
        await update(server, "router", python=str(other))
        active = [one for one in server.status()["components"] if (one["role"], one["state"]) == ("router", "active")]
        assert (active[0]["python"], active[0]["pid"] in before) == (str(other), False)
        await update(server, "router")  # and back: the directory will be gone
        assert (await load.settle()).faults == (0, 0, 0, 0)


# --- New connections --------------------------------------------------------------------------------------------
@pytest.mark.requirement(
    "SRV-89", "SRV-27", state="scaled", note="6 replacements and some hundred connections, in place of 20 and 10,000"
)
@pytest.mark.requirement("SRV-91")
async def test_no_new_connection_is_refused_while_dispatchers_are_replaced(server: Server) -> None:
    managers = server.pids("manager")
    opened: list[Raw] = []
    parties: list[Party] = []

    async def arrive() -> None:
        """By a bare socket while updates are planned: nothing tries again behind the scenes."""
        opened.append(await asyncio.to_thread(Raw, server.port))

    async def connect() -> None:
        parties.extend(await open_parties(server.url, 1, "newcomer"))

    try:
        async with coming(arrive) as newcomers:
            for count in (10, 20, 30):
                await update(server, "dispatcher")
                await newcomers.until(partial(has, opened, count))
        async with coming(connect) as newcomers:
            for count in (10, 20, 30):
                await kill(server, "dispatcher")
                await newcomers.until(partial(has, parties, count))
        uids = [raw.uid for raw in opened] + [party.connection.uid for party in parties]
        assert len(set(uids)) == len(uids) >= 60
        report = server.status()
        loads = [one["connections"] for one in report["managers"]]
        assert max(loads) - min(loads) <= 1
        assert {one["uid"] for one in report["connections"]} >= set(uids)
        assert server.pids("manager") == managers
        assert [raw.echo() < 10 for raw in opened] == [True] * len(opened)
        # A dispatcher killed between its entry in the table and the hand-over leaves the entry, until it is swept.
        await until(lambda: {one["uid"] for one in server.status()["connections"]} == set(uids), 30)
    finally:
        for raw in opened:
            raw.close()
        await close_parties(parties)
    await holds(server, lambda status: not any(one["connections"] for one in status["managers"]))


@pytest.mark.requirement("SRV-90")
async def test_hand_overs_to_suspended_managers_outlive_the_dispatcher(server: Server) -> None:
    victims = server.pids("manager")
    before = server.status()["dispatcher"]["handed_over"]
    with contextlib.ExitStack() as stack:
        with suspended(*victims):
            opened = [stack.enter_context(Raw(server.port, attach=False)) for _ in range(20)]
            await holds(server, lambda status: status["dispatcher"]["handed_over"] >= before + 20)
            await update(server, "dispatcher")
            await kill(server, "dispatcher")
        assert len({raw.attach().uid for raw in opened}) == 20
        assert server.pids("manager") == victims
    await until(lambda: not server.status()["connections"], 30)
