"""Loss and recovery with real processes: clients, managers, the supervisor, everything at once."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import pytest

import fairlead
from fairlead.testing import Server
from tests.processes.numbered import (
    LINES_MAX,
    Exchanges,
    Load,
    Party,
    books_balance,
    close_parties,
    holds,
    kill,
    open_parties,
    states,
    update,
)
from tests.processes.raw import Raw, publish
from tests.processes.soak import kill_and_wait, kill_supervisor, reexec
from tests.processes.tools import NEVER_FROZEN, placed, reported, suspended, until

pytestmark = pytest.mark.processes


SOON_FROZEN: dict[str, Any] = {"limits.frozen_s": 1}


def log_of(server: Server) -> str:
    return (server.data / "log" / "fairlead.log").read_text()


def managers_of(server: Server) -> dict[int, int]:
    """Which manager each connection is at, by uid."""
    return {one["uid"]: one["manager"] for one in server.status()["connections"]}


async def everybody_is_back(server: Server, load: Load, gone: set[int], timeout_s: float = 20.0) -> None:
    """The router knows the load's clients by uids that are not among `gone`, and their subscriptions.

    A client alone cannot tell: it is `connected` until it hears of the loss, and again before its subscription counts.
    What is published meanwhile does not reach it.
    """
    wanted = [*((party, 0) for party in load.publishers), *((party, 1) for party in load.subscribers)]

    def away(report: dict[str, Any]) -> list[str]:
        known = {one["uid"]: len(one["subscriptions"]) for one in report["attachments"] or () if one["uid"] not in gone}
        return [
            f"{party.connection.address} {party}: {known.get(party.connection.uid)} of {count} subscriptions"
            for party, count in wanted
            if not party.connection.connected or known.get(party.connection.uid) != count
        ]

    deadline_s = time.monotonic() + timeout_s
    while missing := away(await asyncio.to_thread(server.status)):
        assert time.monotonic() < deadline_s, "not back in time:\n" + "\n".join(missing[:LINES_MAX])
        await asyncio.sleep(0.02)


def complete(status: dict[str, Any]) -> bool:
    """Supervisor, two managers, message manager, router and dispatcher with their standbys, all ready."""
    found = Counter(one[:2] for one in states(status))
    return found == {
        ("supervisor", "serving"): 1,
        ("manager", "active"): 2,
        ("message-manager", "active"): 1,
        **{(role, state): 1 for role in ("router", "dispatcher") for state in ("active", "standby")},
    }


# --- A client is lost -------------------------------------------------------------------------------------------
@pytest.mark.requirement("SRV-111")
async def test_what_a_client_sent_before_it_vanished_is_delivered(shared: Server) -> None:
    async with fairlead.connect(shared.url) as other, other.subscribe("last.words") as words:
        for number in range(20):
            raw = Raw(shared.port)
            raw.send(b"".join(publish("last.words", f"{number}.{i}".encode()) for i in range(10)))
            raw.close()  # without a word
        found: list[str] = []
        while len(found) < 200:
            found += [message.body.decode() for message in await words.take(10)]
    for number in range(20):
        assert [one for one in found if one.startswith(f"{number}.")] == [f"{number}.{i}" for i in range(10)]


@pytest.mark.requirement("SRV-112")
async def test_nothing_is_routed_to_a_lost_client_any_more(shared: Server) -> None:
    parties = await open_parties(shared.url, 3, "receiver")
    asker, staying, leaving = (party.connection for party in parties)
    for receiver in (staying, leaving):
        await receiver.respond("lost.work", lambda request: request.body)
    raw = Raw(shared.port)
    raw.subscribe("lost.>")
    before = shared.status()
    assert (len(before["attachments"]), before["subscriptions"], before["registrations"]) == (4, 1, 2)
    raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    raw.close()  # a reset
    await leaving.close()
    after = await reported(shared, lambda report: len(report["attachments"]) == 2)
    assert (after["subscriptions"], after["registrations"]) == (0, 1)
    deliveries = after["router"]["deliveries"]
    answers = [await asker.request("lost.work", str(number)) for number in range(20)]
    assert {answer.sender for answer in answers} == {staying.uid}
    await asker.publish("lost.nobody", b"")
    await asker.flush()
    assert (await reported(shared, lambda report: not report["stored"]))["router"]["deliveries"] == deliveries + 40
    await close_parties(parties)


@pytest.mark.requirement("SRV-113")
async def test_every_request_to_a_killed_receiver_ends_in_a_response_or_an_error(shared: Server) -> None:
    command = [sys.executable, "-m", "fairlead", "respond", "window", "--echo", "--server", shared.url]
    receivers = [await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL) for _ in range(2)]
    outcomes: Counter[str] = Counter()
    async with fairlead.connect(shared.url) as asker:
        await reported(shared, lambda report: report["registrations"] == 2)

        async def ask(lane: int) -> None:
            for number in range(100):
                try:
                    answer = await asker.request("window", f"{lane}.{number}", timeout=20)
                    assert answer.body == f"{lane}.{number}".encode()
                    outcomes["answered"] += 1
                except fairlead.ReceiverLost:
                    outcomes["lost"] += 1

        lanes = [asyncio.create_task(ask(lane)) for lane in range(20)]
        await until(lambda: outcomes["answered"] > 200)
        receivers[0].kill()
        await asyncio.gather(*lanes)
        assert outcomes["answered"] + outcomes["lost"] == 2000
        assert outcomes["answered"] > 1000
        for receiver in receivers:
            if receiver.returncode is None:
                receiver.kill()
            await receiver.wait()


# --- A manager is lost ------------------------------------------------------------------------------------------
@pytest.mark.requirement("SRV-114", "SRV-115")
async def test_a_killed_manager_costs_its_own_clients_a_reconnect_and_others_nothing() -> None:
    with Server(managers=3, **NEVER_FROZEN) as server:
        async with Load(server.url, publishers=30, subscribers=30, rate=4000) as load:
            parties = [*load.publishers, *load.subscribers]
            at = managers_of(server)
            uids = {id(party): party.connection.uid for party in parties}
            hit = [party for party in parties if at[party.connection.uid] == 1]
            for _ in range(2):
                await asyncio.sleep(0.3)
                gone = {uid for uid, manager in managers_of(server).items() if manager == 1}
                await kill_and_wait(server, "manager", 0.5)  # the second of three
                await everybody_is_back(server, load, gone)
            await load.sent_again()
            result = await load.settle()
            spared = [party for party in parties if party not in hit]
            assert not any(party.events for party in spared)
            assert len(hit) == 20
            for party in hit:
                assert party.events["lost"] == party.events["reconnected"] >= 1
                assert party.connection.uid != uids[id(party)]
            assert load.unexplained() == []
            assert (result.duplicated, result.reordered) == (0, 0)
            for group, book in enumerate(load.books):  # where neither end was hit, nothing is missing
                if not load.subscribers[group].events:
                    assert not [gap for gap in book.gaps if not load.publishers[gap.sender].events]
        await books_balance(server)
        assert server.status()["attachments"] == []
        assert "manager 1 follows a dead one" in log_of(server)


@pytest.mark.requirement("SRV-115", "SRV-19")
@pytest.mark.requirement(
    "SRV-129", state="half", note="the sum is right; a message given up is logged without its topic, which died with it"
)
async def test_what_a_dead_manager_had_taken_in_is_delivered_or_counted_as_given_up() -> None:
    # Without durable messages, whose manager announces its destinations when it starts: only our own are counted.
    with Server(managers=2, **{**NEVER_FROZEN, "messages.enabled": "false"}) as server:
        async with placed(server, 0, 1) as (receiver, sender), receiver.subscribe("dying") as dying:
            with suspended(server.pids("router")[0]):
                task = asyncio.create_task(sender.publish_many("dying", [str(number) for number in range(50_000)]))
                report = await holds(  # counters of several processes: one may be a moment behind
                    server,
                    lambda status: (
                        not status["managers"][1]["reading"]
                        and status["stored"] == status["managers"][1]["counters"]["messages_in"] > 100
                    ),
                )
                taken = report["managers"][1]["counters"]["messages_in"]
                victim = server.kill("manager", 1)
                await holds(
                    server, lambda status: any(s[:2] == ("manager", "active") and s[2] > victim for s in states(status))
                )
            found: list[bytes] = []
            given_up = server.status()["messages_given_up"]
            while len(found) < taken - given_up:
                found += [message.body for message in await dying.take(10)]
            assert found[: taken - given_up] == [str(number).encode() for number in range(taken - given_up)]
            task.cancel()
            await asyncio.wait([task])
        await books_balance(server)
        lines = [line for line in log_of(server).splitlines() if "gave up message" in line]
        assert len(lines) == min(100, given_up)


# --- The supervisor is lost -------------------------------------------------------------------------------------
@pytest.mark.requirement("SRV-1", state="half", note="the end of the supervisor ends no other process")
@pytest.mark.requirement("SRV-91")
async def test_the_next_supervisor_adopts_everybody_while_traffic_goes_on() -> None:
    with Server(managers=2, **NEVER_FROZEN) as server:
        url = server.url
        async with Load(url, publishers=10, subscribers=10, rate=2000) as load, Exchanges(url) as exchanges:
            before = await holds(server, complete)
            children = {one for one in states(before) if one[0] != "supervisor"}
            assert server.process is not None
            server.process.kill()
            await asyncio.to_thread(server.process.wait)
            arrived = load.result().arrived
            await until(lambda: load.result().arrived > arrived + 500)  # nobody above, and all goes on
            await asyncio.to_thread(server.start)
            assert server.url == url
            after = await holds(server, complete)
            assert children == {one for one in states(after) if one[0] != "supervisor"}
            pid = server.process.pid
            await reexec(server)
            again = await holds(server, complete)
            assert children == {one for one in states(again) if one[0] != "supervisor"}
            assert ("supervisor", "serving", pid) in states(again)
            for role in ("router", "dispatcher"):
                await update(server, role)
                await kill(server, role)
            await update(server, "managers")
            await kill_supervisor(server)
            await exchanges.settle()
            assert (await load.settle()).faults == (0, 0, 0, 0)
            assert (exchanges.faults, exchanges.errors) == ([], {})
        await books_balance(server)
        assert server.stop() == 0


@pytest.mark.requirement("SRV-88", state="half", note="the supervisor dies beside the router")
async def test_beginners_of_a_dead_supervisor_do_not_serve_beside_those_who_do() -> None:
    """The router dies, and the supervisor while it starts the next standby: never two routers, never none."""
    with Server(managers=2, **NEVER_FROZEN) as server:
        async with Load(server.url, publishers=10, subscribers=10, rate=1000) as load:
            for _ in range(3):
                await holds(server, complete)
                await asyncio.to_thread(server.kill, "router")
                await holds(server, lambda status: ("router", "starting") in {one[:2] for one in states(status)})
                await kill_supervisor(server)
            await holds(server, complete)
            assert (await load.settle()).faults == (0, 0, 0, 0)
        await books_balance(server)
        lines = server.status()["components"]
        assert sum(one["role"] == "router" for one in lines) == 2


async def test_of_three_routers_that_report_to_a_new_supervisor_one_serves() -> None:
    """Active, parked and standby come in any order; the parked one must not be sent to work before the active one
    was heard."""
    with Server(managers=2, **NEVER_FROZEN) as server:
        async with Load(server.url, publishers=10, subscribers=10, rate=2000) as load:
            for _ in range(3):
                await update(server, "router")
                pid = server.pids("router")[0]
                await reexec(server)
                status = await holds(server, lambda found: sum(one[0] == "router" for one in states(found)) == 2)
                assert [one[2] for one in states(status) if one[:2] == ("router", "active")] == [pid]
            assert (await load.settle()).faults == (0, 0, 0, 0)
        await books_balance(server)
        assert "Traceback" not in log_of(server)


# --- Everything is lost -----------------------------------------------------------------------------------------
@pytest.mark.requirement("SRV-116", state="half", note="the restart; which losses remain is in docs/architecture.md")
async def test_after_the_death_of_everything_the_next_server_says_what_was_lost() -> None:
    with Server(managers=2, **NEVER_FROZEN) as server:
        port = server.port
        async with fairlead.connect(server.url) as connection:
            party = Party(connection)
            async with connection.subscribe("kept.>") as kept:
                os.kill(server.pids("router")[0], signal.SIGSTOP)
                await connection.publish_many("kept.not", [b"x"] * 7)
                await connection.flush()
                server.kill_everything()
                server._arguments[server._arguments.index("--listen") + 1] = f"127.0.0.1:{port}"
                await asyncio.to_thread(server.start)
                assert "gave up 7 messages in it" in log_of(server)
                await until(lambda: party.events["reconnected"] == 1, 20)
                await reported(server, lambda report: report["subscriptions"] == 1)
                await connection.publish("kept.again", b"y")
                assert (await kept.next(10)).body == b"y"
                assert (party.events["lost"], kept.interruptions) == (1, 1)
        await books_balance(server)


# --- Signals ----------------------------------------------------------------------------------------------------
@pytest.mark.requirement("SRV-128")
@pytest.mark.requirement("SRV-127", state="half", note="the report while any one process is stopped")
async def test_suspending_and_resuming_any_process_has_no_lasting_effect(shared: Server) -> None:
    before = states(await holds(shared, lambda status: len(states(status)) == 10))
    async with Load(shared.url, publishers=8, subscribers=8, rate=1000) as load, Exchanges(shared.url) as exchanges:
        for role, _, pid in before:
            with suspended(pid):
                if role != "supervisor":
                    report = await asyncio.to_thread(shared.status)
                    assert len(report["connections"]) == len(report["attachments"]) == 20
                await asyncio.sleep(0.15)
        await exchanges.settle()
        assert (await load.settle()).faults == (0, 0, 0, 0)
        assert (exchanges.faults, exchanges.errors) == ([], {})
    assert states(shared.status(brief=True)) == before


@pytest.mark.requirement("SRV-88", state="half", note="a router that stops for good instead of dying")
async def test_a_router_that_does_not_go_on_is_killed_and_followed() -> None:
    with Server(managers=2, **SOON_FROZEN) as server:
        async with Load(server.url, publishers=5, subscribers=5, rate=500) as load:
            victim: int = await asyncio.to_thread(server.kill, "router", 0, signal.SIGSTOP)
            began_s = time.monotonic()
            await holds(server, lambda status: victim not in {pid for _, _, pid in states(status)})
            assert time.monotonic() - began_s < 8
            assert (await load.settle()).faults == (0, 0, 0, 0)
        found: dict[str, Any] = await books_balance(server)
        assert found["updates"][-1]["outcome"] == "took over"
