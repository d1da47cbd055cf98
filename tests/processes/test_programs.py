"""Programs, the state store and the channels between them (sections 4.1 to 4.3 of docs/spec/server.md)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

import fairlead
from fairlead import errors
from fairlead.testing import Server
from tests.processes.tools import (
    NEVER_FROZEN,
    Dial,
    RawDial,
    Report,
    at_rest,
    frame,
    manager_of,
    placed,
    reported,
    suspend,
    suspended,
    until,
)
from tests.protocol.second_client import CONFIRM, PUBLISH

pytestmark = pytest.mark.processes


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


# --- 4.1 Programs


@pytest.mark.requirement("SRV-1")
def test_killing_one_component_ends_no_other() -> None:
    with Server(managers=2) as server:
        for role in ("router", "dispatcher", "manager"):
            before = {c["pid"]: c["role"] for c in server.status(brief=True)["components"]}
            assert [len(server.pids(each)) for each in ("dispatcher", "router", "manager")] == [1, 1, 2]
            victim = server.kill(role)
            server.wait_until(lambda _, role=role, victim=victim: victim not in (server.pids(role) or [victim]))
            server.wait_until(lambda _: len(server.pids("manager")) == 2)
            assert all(is_alive(pid) for pid, what in before.items() if pid != victim and what != role)


@pytest.mark.requirement("SRV-2")
@pytest.mark.requirement("SRV-6", state="half", note="one placement is offered: all on one host")
@pytest.mark.parametrize("managers", [1, 2, 8])
def test_any_number_of_managers_does_the_same(managers: int) -> None:
    async def story(server: Server) -> None:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(fairlead.connect(server.url)) for _ in range(2 * managers)]
            for client in clients:
                await client.respond("who", lambda request, uid=client.uid: str(uid))
            spread = Counter(one["manager"] for one in server.status()["connections"])
            assert spread == dict.fromkeys(range(managers), 2)
            replies = await asyncio.gather(*(clients[0].request("who", timeout=10) for _ in range(8 * managers)))
            assert {int(reply.body) for reply in replies} == {client.uid for client in clients}

    with Server(managers=managers) as server:
        asyncio.run(story(server))
        server.wait_until(at_rest)


@pytest.mark.requirement("SRV-3", state="scaled", note="stopped for a second each")
async def test_connections_stay_while_router_and_dispatcher_stand_still(shared: Server) -> None:
    events: list[str] = []
    async with placed(shared, 0, 1, options={"keep_alive_s": 0.5}) as (one, other):
        for client in (one, other):
            client.on_event(lambda event: events.append(event.name))
        async with other.subscribe("still") as still:
            for role in ("router", "dispatcher"):
                with suspended(*shared.pids(role)):
                    await one.publish("still", role)
                    await asyncio.sleep(1)
                    await one.flush()
                assert (await still.next(timeout=5)).body == role.encode()
        assert events == []


@pytest.mark.requirement("SRV-4")
def test_a_drained_manager_gets_nothing_new_and_ends_after_its_last_connection() -> None:
    async def story(server: Server) -> None:
        async with placed(server, 0, 1) as (leaving, staying):
            pid = server.pids("manager")[0]
            server.ask("drain", manager=0)
            await reported(server, lambda report: report["managers"][0]["draining"])
            async with fairlead.connect(server.url) as new, fairlead.connect(server.url) as newer:
                report = server.status()
                assert {manager_of(report, new.uid), manager_of(report, newer.uid)} == {1}
                await staying.respond("x", lambda request: b"y")
                assert (await leaving.request("x", timeout=5)).body == b"y"
            await leaving.close()
            await until(lambda: not is_alive(pid))
            assert staying.connected

    with Server() as server:
        asyncio.run(story(server))


@pytest.mark.requirement("SRV-5", state="half", note="two programs, two instances of one; not two devices")
def test_two_programs_and_two_instances_of_one_talk_on_one_device(shared: Server, dial: Dial) -> None:
    program = (
        "import sys, fairlead.sync\n"
        "with fairlead.sync.connect(sys.argv[1], type='twin') as c:\n"
        "    with c.subscribe('twins') as twins:\n"
        "        print('ready', flush=True)\n"
        "        sys.stdin.readline()\n"
        "        c.publish('twins', str(c.uid))\n"
        "        print({twins.next(timeout=10).body for _ in range(3)} >= {str(c.uid).encode()}, flush=True)\n"
    )
    twins = [
        subprocess.Popen(
            [sys.executable, "-c", program, shared.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for twin in twins:
        assert twin.stdout is not None
        assert twin.stdout.readline() == "ready\n"
    other = dial(shared)
    other.subscribe("twins")
    other.publish("twins", b"third")
    for twin in twins:
        assert twin.stdin is not None
        twin.stdin.write("go\n")
        twin.stdin.flush()
    assert [twin.communicate(timeout=20)[0] for twin in twins] == ["True\n", "True\n"]
    assert len({other.next_message().body for _ in range(3)}) == 3


# --- 4.2 State store


@pytest.mark.requirement("SRV-7", "SRV-57")
async def test_the_store_keeps_everything_while_router_and_dispatcher_are_replaced() -> None:
    with Server(managers=2) as server:
        async with placed(server, 0, 1) as (sender, receiver), receiver.subscribe("kept.*") as kept:
            await receiver.respond("asked", lambda request: request.body)
            with suspended(*server.pids("router")):
                for number in range(100):
                    await sender.publish("kept.x", str(number))
                await sender.flush()
                before = await reported(server, lambda report: report["stored"] == 100)
                server.kill("router", number=signal.SIGKILL)
            assert server.update("dispatcher")["ok"]
            assert server.update("router")["ok"]
            got = [int((await kept.next(timeout=5)).body) for _ in range(100)]
            assert got == list(range(100))
            after = server.status()
            for report in (before, after):
                for one in report["attachments"]:
                    one.pop("outstanding", None)
            assert after["attachments"] == before["attachments"]
            assert (after["subscriptions"], after["registrations"]) == (1, 1)
            assert (await sender.request("asked", b"still", timeout=5)).body == b"still"
        await reported(server, at_rest)


@pytest.mark.requirement("SRV-8")
def test_a_body_for_a_hundred_slow_readers_is_stored_once(shared: Server, dial: Dial) -> None:
    slow = [dial(shared, credit=1) for _ in range(100)]
    for client in slow:
        client.subscribe("slow")
    assert Counter(one["manager"] for one in shared.status()["connections"]) == dict.fromkeys(range(4), 25)
    sender = dial(shared)
    sender.publish("slow", b"the only one they are ready to take")
    shared.wait_until(lambda report: report["router"]["deliveries"] and not report["stored"])
    used = store_bytes(shared)
    body = os.urandom(1_000_000)
    sender.publish("slow", body)
    report = shared.wait_until(lambda report: report["stored"] and not waiting_instructions(report))
    assert (report["stored"], report["stored_bytes"]) == (1, len(body))
    assert store_bytes(shared) - used <= 5 << 20  # arenas grow in steps of 4 MiB
    for client in slow:
        client.next_message()
    for client in slow:
        assert client.next_message().body == body


def waiting_instructions(report: Report) -> int:
    return sum(one["down"]["entries"] for one in report["managers"])


def store_bytes(server: Server) -> int:
    """Memory the store really takes."""
    return sum(file.stat().st_blocks * 512 for file in Path(server.status()["store"]).iterdir())


@pytest.mark.requirement("SRV-9", "SRV-12")
def test_nobody_maps_a_segment_it_has_no_right_to(shared: Server) -> None:
    store = shared.status()["store"]

    def mapped(pid: int) -> set[str]:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        names = [line.split(maxsplit=5)[5] for line in lines if store in line]
        return {name.removeprefix(f"{store}/").rpartition("-")[0] or Path(name).name for name in names}

    for pid in shared.pids("router", None):
        assert mapped(pid) <= {"up", "down", "routing", "counters"}
    for pid in shared.pids("dispatcher", None):
        assert mapped(pid) <= {"connections", "counters"}
    for pid in shared.pids("manager", None):
        assert mapped(pid) == {"arena", "connections", "counters-manager", "down", "meters", "outstanding", "up"}
    assert "routing" in mapped(shared.pids("router")[0])


@pytest.mark.requirement("SRV-10", "SRV-72")
async def test_the_router_counts_on_while_every_manager_stands_still(shared: Server) -> None:
    async with (
        placed(shared, 0, 1, 2) as (sender, one, other),
        one.subscribe("ahead") as first,
        other.subscribe("ahead") as second,
    ):
        with suspended(*shared.pids("router")):
            for number in range(50):
                await sender.publish("ahead", str(number))
            await sender.flush()
            before = await reported(shared, lambda report: report["stored"] == 50)
            for pid in shared.pids("manager"):
                suspend(pid)
        try:
            routed = before["router"]["deliveries"] + 100
            report = await reported(shared, lambda report: report["router"]["deliveries"] == routed)
            assert (report["stored"], waiting_instructions(report)) == (50, 100)
            for manager in report["managers"]:
                for handle in manager["handles"]:
                    message = shared.status(handle=handle)["message"]
                    assert (message["relinquish_count"], message["relinquish_limit"]) == (0, -1)
        finally:
            for pid in shared.pids("manager"):
                os.kill(pid, signal.SIGCONT)
        for subscription in (first, second):
            assert [int((await subscription.next(timeout=5)).body) for _ in range(50)] == list(range(50))


@pytest.mark.requirement("SRV-11", "SRV-34")
async def test_the_table_shows_a_connection_while_it_lives(shared: Server) -> None:
    async with fairlead.connect(shared.url, type="shop", name="shop-7", org="north") as client:
        await reported(shared, lambda report: any(one["state"] == "live" for one in report["connections"]))
        entry = next(one for one in shared.status()["connections"] if one["uid"] == client.uid)
        assert (entry["type"], entry["instance"], entry["org"], entry["user"]) == ("shop", "shop-7", "north", "")
        assert entry["peer"].startswith("127.0.0.1:")
        assert entry["state"] == "live"
        pid = shared.pids("manager")[entry["manager"]]
        assert os.readlink(f"/proc/{pid}/fd/{entry['descriptor']}").startswith("socket:")
    await reported(shared, lambda report: not report["connections"])


TINY: dict[str, Any] = {
    "store.arena_bytes": 4 << 20,
    "store.arena_step_bytes": 1 << 20,
    "limits.body_max": 1 << 20,
    "limits.slow_client_messages": 100_000,
}


@pytest.mark.requirement("SRV-13", state="scaled", note="1,500 messages through 128 slots")
@pytest.mark.requirement("SRV-14")
async def test_a_tiny_store_is_reused_without_a_mistake_and_stalls_senders_when_full(dial: Dial) -> None:
    with Server(managers=2, **TINY) as server:
        async with placed(server, 0, 1) as (sender, _):
            blocked = dial(server)
            blocked.subscribe("full")
            sent = 0

            async def send() -> None:
                nonlocal sent
                for number in range(1500):
                    body = os.urandom(20_000)
                    digest = hashlib.sha256(body).digest()
                    await sender.publish("full", body, headers={"sum": digest, "number": str(number)})
                    sent += 1
                await sender.flush()

            sending = asyncio.create_task(send())
            await reported(server, lambda report: any(not one["reading"] for one in report["managers"]))
            await until_still(lambda: sent)
            assert not sending.done()
            assert server.status()["stored_bytes"] > 2 << 20
            for number in range(1500):
                message = await asyncio.to_thread(blocked.next_message)
                headers = dict(message.headers)
                assert int(headers["number"]) == number
                assert hashlib.sha256(message.body).digest() == headers["sum"]
            await sending
            blocked.close()
        await reported(server, at_rest)


async def until_still(value: Callable[[], int]) -> None:
    """Until a number stays what it is."""
    before, since_s = value(), time.monotonic()
    while time.monotonic() - since_s < 0.3:
        await asyncio.sleep(0.02)
        if value() != before:
            before, since_s = value(), time.monotonic()


@pytest.mark.requirement("SRV-15")
def test_a_router_that_does_not_know_the_layout_refuses_and_the_old_one_goes_on(tmp_path: Path) -> None:
    newer = tmp_path / "python"
    newer.write_text(
        f"#!{sys.executable}\n"
        "import runpy, sys\n"
        "from fairlead.store import layout\n"
        "layout.LAYOUT_VERSION = 99\n"
        "sys.argv = sys.argv[3:]  # after -P -m\n"
        "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
    )
    newer.chmod(0o700)

    async def story(server: Server) -> None:
        before = server.pids("router")
        async with fairlead.connect(server.url) as client, client.subscribe("on") as on:
            with pytest.raises(errors.FairleadError, match="old version goes on"):
                server.update("router", python=str(newer))
            assert "layout" in server.output()
            await client.publish("on", b"and on")
            assert (await on.next(timeout=5)).body == b"and on"
        assert server.pids("router") == before

    with Server() as server:
        asyncio.run(story(server))
        server.wait_until(at_rest)


# --- 4.3 Channels


def sockets_of(pid: int) -> set[str]:
    names = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    return {name[8:-1] for name in names if name.startswith("socket:")}


@pytest.mark.requirement("SRV-16", state="half", note="dispatcher and router meet in the supervisor, decision 0010")
@pytest.mark.requirement("SRV-29")
def test_the_chosen_manager_alone_holds_the_connection(shared: Server, dial: Dial) -> None:
    client = dial(shared)
    ends = client._socket.getsockname(), client._socket.getpeername()
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inode = next(line[9] for line in lines if line[2].endswith(f":{ends[0][1]:04X}"))
    report = shared.status()
    holders = [c["pid"] for c in report["components"] if inode in sockets_of(c["pid"])]
    assert holders == [shared.pids("manager")[manager_of(report, client.uid)]]
    client.ping()
    assert (client._socket.getsockname(), client._socket.getpeername()) == ends


@pytest.mark.requirement("SRV-29")
@pytest.mark.requirement(
    "SRV-33", state="half", note="the dispatcher is stopped or killed; the listening socket itself stays open"
)
async def test_connections_work_on_after_the_dispatcher_was_killed() -> None:
    with Server() as server:
        async with fairlead.connect(server.url) as client, client.subscribe("mine") as mine:
            before = server.kill("dispatcher")
            await reported(server, lambda _: server.pids("dispatcher") not in ([], [before]))
            await client.publish("mine", b"here")
            assert (await mine.next(timeout=5)).body == b"here"


@pytest.mark.requirement("SRV-17", state="scaled", note="1,000 connections")
def test_a_thousand_connections_at_once_each_get_their_own_uid(shared: Server, dial_raw: RawDial) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[0]),) * 2)
    clients = []
    for _ in range(1000):
        client = dial_raw(shared, timeout_s=20)
        client.say(b"FLD\n", struct.pack("<HH", 1, 0))
        clients.append(client)
    uids = {client.sock.getsockname()[1]: client.expect(CONFIRM).body for client in clients}
    by_port = {port: json.loads(body)["uid"] for port, body in uids.items()}
    assert len(set(by_port.values())) == 1000
    report = shared.status()
    assert {one["uid"]: int(one["peer"].rpartition(":")[2]) for one in report["connections"]} == {
        uid: port for port, uid in by_port.items()
    }
    assert max(one["connections"] for one in report["managers"]) == 250


@pytest.mark.requirement("SRV-18")
async def test_a_suspended_manager_holds_up_only_its_own_clients(shared: Server) -> None:
    async with (
        placed(shared, 0, 1, 2) as (sender, receiver, cut_off),
        receiver.subscribe("live") as live,
        cut_off.subscribe("live") as late,
    ):
        with suspended(shared.pids("manager")[2]):
            for number in range(200):
                await sender.publish("live", str(number))
            assert [int((await live.next(timeout=5)).body) for _ in range(200)] == list(range(200))
        assert [int((await late.next(timeout=5)).body) for _ in range(200)] == list(range(200))


@pytest.mark.requirement("SRV-19")
async def test_queues_outlive_the_router_with_what_they_hold() -> None:
    with Server(managers=2, **NEVER_FROZEN) as server:
        async with placed(server, 0, 1) as (sender, receiver), receiver.subscribe("five") as five:
            with suspended(*server.pids("router")):
                for number in range(5):
                    await sender.publish("five", str(number))
                await sender.flush()
                server.kill("router")
            assert [int((await five.next(timeout=5)).body) for _ in range(5)] == list(range(5))
            with suspended(server.pids("manager")[1]):
                for number in range(5, 10):
                    await sender.publish("five", str(number))
                await reported(server, lambda report: report["managers"][1]["down"]["entries"] == 5)
                before = server.kill("router")
                await reported(server, lambda _: server.pids("router") not in ([], [before]))
            assert [int((await five.next(timeout=5)).body) for _ in range(5)] == list(range(5, 10))


@pytest.mark.requirement("SRV-20")
async def test_control_and_messages_of_one_client_keep_their_order(shared: Server) -> None:
    async with placed(shared, 0, 1) as (sender, listener):
        for turn in range(50):
            topic = f"turn.{turn}"
            async with listener.subscribe("order") as order:
                own = sender.subscribe(topic)
                await sender.publish(topic, b"too early")
                await own.start()  # behind the publication
                await sender.publish(topic, b"in time")
                await sender.publish("order", str(turn))
                assert (await own.next(timeout=5)).body == b"in time"
                assert (await order.next(timeout=5)).body == str(turn).encode()
                await own.close()


@pytest.mark.requirement("SRV-21")
def test_an_idle_server_uses_almost_no_processor_time(shared: Server, dial: Dial) -> None:
    for _ in range(20):
        dial(shared)
    processes = [psutil.Process(one["pid"]) for one in shared.status(brief=True)["components"]]
    time.sleep(0.3)
    before = [sum(process.cpu_times()[:2]) for process in processes]
    time.sleep(2)
    used = sum(sum(process.cpu_times()[:2]) for process in processes) - sum(before)
    assert used < 0.15, f"{used:.2f} s of processor time in 2 s"


@pytest.mark.requirement("SRV-22")
async def test_large_headers_pass_and_larger_ones_are_refused(shared: Server, dial: Dial) -> None:
    async with placed(shared, 0, 1) as (sender, receiver), receiver.subscribe("heads") as heads:
        for size in (100, 10_000, 60_000):
            value = os.urandom(size)
            await sender.publish("heads", b"body", headers={"big": value})
            assert (await heads.next(timeout=5)).headers == {"big": value}
    raw = dial(shared)
    raw._socket.sendall(frame(PUBLISH, topic=b"heads", headers=bytes(1_000_000), number=5, body=b"x"))
    refused = raw.receive()
    assert (dict(refused.headers)["code"], refused.number) == (b"header-too-large", 5)
    raw.ping()


@pytest.mark.requirement("SRV-23")
def test_a_client_that_floods_itself_through_queues_of_two_never_halts(dial: Dial) -> None:
    settings: dict[str, Any] = {"fairness.queue_entries": 2, "fairness.limit": 2, "fairness.resume_below": 1}
    with Server(managers=1, **settings) as server:
        client = dial(server, credit=100_000)
        client.subscribe("self")
        client._socket.settimeout(1)  # longer than this nothing may halt
        for batch in range(50):
            client._socket.sendall(frame(PUBLISH, topic=b"self", body=str(batch).encode()) * 100)
            assert {client.next_message().body for _ in range(100)} == {str(batch).encode()}
        client.close()
        server.wait_until(at_rest)
