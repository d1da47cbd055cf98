"""Establishing a connection, step by step (section 4.4 of docs/spec/server.md)."""

from __future__ import annotations

import asyncio
import json
import signal
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import fairlead
from fairlead import errors
from fairlead.testing import Server
from tests.processes.tools import (
    NEVER_FROZEN,
    PREFACE,
    Dial,
    RawClient,
    RawDial,
    at_rest,
    frame,
    manager_of,
    reported,
    suspended,
)
from tests.protocol.second_client import (
    CONFIRM,
    CONNECT,
    ERROR,
    OK,
    PING,
    PONG,
    PUBLISH,
    SEND,
    SUBSCRIBE,
    UNSUBSCRIBE,
    WELCOME,
)

pytestmark = pytest.mark.processes

HURRIED: dict[str, Any] = {
    "limits.preface_s": 0.3,
    "limits.handshake_s": 0.5,
    "security.duplicate_instance": "refuse",
}


@pytest.fixture(scope="module")
def hurried() -> Iterator[Server]:
    """Short limits, and names that are unique."""
    with Server(managers=2, **HURRIED, **NEVER_FROZEN) as server:
        yield server


def hello(**facts: Any) -> bytes:
    said = {"version": 1, "type": "raw", "instance": "raw-1", "credit": 1000, "keep_alive_s": 30} | facts
    return frame(CONNECT, body=json.dumps(said).encode())


def code_of(client: RawClient) -> str:
    return dict(client.expect(ERROR).headers)["code"].decode()


@pytest.mark.requirement("SRV-24")
async def test_host_and_port_are_all_a_client_needs(shared: Server) -> None:
    async with fairlead.connect(f"fairlead://127.0.0.1:{shared.port}") as client, client.subscribe("x") as x:
        await client.publish("x", b"y")
        assert (await x.next(timeout=5)).body == b"y"


@pytest.mark.requirement("SRV-25", "SRV-31")
def test_what_is_said_without_waiting_is_taken_in_after_the_confirmation(shared: Server, dial_raw: RawDial) -> None:
    hasty = dial_raw(shared)
    hasty.say(PREFACE, hello(), frame(SUBSCRIBE, topic=b"haste", number=1))
    hasty.say(*(frame(PUBLISH, topic=b"haste", body=str(number).encode()) for number in range(100)))
    confirm = json.loads(hasty.expect(CONFIRM).body)
    assert json.loads(hasty.expect(WELCOME).body)["uid"] == confirm["uid"] > 0
    hasty.expect(OK)
    assert [int(hasty.expect(PUBLISH).body) for _ in range(100)] == list(range(100))


@pytest.mark.requirement("SRV-26")
def test_connections_are_spread_evenly_and_go_where_there_are_fewest(shared: Server, dial: Dial) -> None:
    clients = {client.uid: client for client in (dial(shared) for _ in range(100))}
    report = shared.status()
    assert Counter(one["manager"] for one in report["connections"]) == dict.fromkeys(range(4), 25)
    for uid, client in clients.items():
        if manager_of(report, uid) == 2:
            client.close()
    shared.wait_until(lambda report: report["managers"][2]["connections"] == 0)
    new = [dial(shared).uid for _ in range(5)]
    report = shared.status()
    assert {manager_of(report, uid) for uid in new} == {2}


@pytest.mark.requirement("SRV-27", "SRV-32", state="scaled", note="1,000 connections, one update and two deaths")
def test_uids_do_not_repeat_over_dispatchers_and_nothing_stays_behind() -> None:
    with Server(managers=2) as server:
        uids: list[int] = []
        used = server.wait_until(at_rest)

        def connect_often() -> None:
            for _ in range(250):
                client = RawClient(server)
                client.say(PREFACE)
                frame = client.read()  # None: accepted by a dispatcher that was killed before it could hand it over
                client.close()
                if frame is not None:
                    uids.append(json.loads(frame.body)["uid"])

        threads = [threading.Thread(target=connect_often) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert server.update("dispatcher")["ok"]
        for _ in range(2):
            victim = server.pids("dispatcher")[0]
            with suspended(victim):  # at rest: what a process killed between accept and hand-over held is lost with it
                server.kill("dispatcher", number=signal.SIGKILL)
            server.wait_until(lambda _, victim=victim: server.pids("dispatcher") not in ([], [victim]))
        for thread in threads:
            thread.join()
        assert len(uids) > 950
        assert len(set(uids)) == len(uids)
        after = server.wait_until(at_rest, 30)  # an entry of a killed dispatcher is swept after a while
        assert after["stored_bytes"] == used["stored_bytes"] == 0
        assert not any(one["queue"] or one["down"]["entries"] for one in after["managers"])


@pytest.mark.requirement("SRV-28", "SRV-31")
def test_the_uid_is_in_the_table_when_the_client_hears_of_it(shared: Server, dial_raw: RawDial) -> None:
    client = dial_raw(shared)
    client.say(PREFACE)
    uid = json.loads(client.expect(CONFIRM).body)["uid"]
    entry = next(one for one in shared.status()["connections"] if one["uid"] == uid)
    host, port = client.sock.getsockname()
    assert entry["peer"] == f"{host}:{port}"
    assert entry["state"] == "adopted"


@pytest.mark.requirement("SRV-30")
def test_a_connection_waits_for_the_router_and_then_gets_its_confirmation(shared: Server, dial_raw: RawDial) -> None:
    with suspended(*shared.pids("router")):
        client = dial_raw(shared)
        client.say(PREFACE)
        assert client.is_silent(0.5)
    client.expect(CONFIRM)


@pytest.mark.requirement(
    "SRV-33", state="half", note="the dispatcher is stopped or killed; the listening socket itself stays open"
)
def test_established_connections_do_not_need_the_listening_socket(dial: Dial) -> None:
    with Server(managers=1, **NEVER_FROZEN) as server:
        client = dial(server)
        client.subscribe("on")
        # A stopped dispatcher accepts nothing: whoever is there is served from another socket.
        with suspended(*server.pids("dispatcher")):
            client.publish("on", b"and on")
            assert client.next_message().body == b"and on"


@pytest.mark.requirement("SRV-35")
async def test_nothing_is_routed_to_a_client_before_its_response(shared: Server, dial_raw: RawDial) -> None:
    shy = dial_raw(shared)
    shy.say(PREFACE)
    uid = json.loads(shy.expect(CONFIRM).body)["uid"]
    async with fairlead.connect(shared.url) as sender:
        with pytest.raises(errors.NoReceiver):
            await sender.call(uid, b"hello?", timeout=5)
        with pytest.raises(errors.NoReceiver):
            await sender.call("raw/raw-1", b"hello?", timeout=5)
        assert shy.is_silent(0.2)
        shy.say(hello(instance="raw-1"))
        shy.expect(WELCOME)
        await sender.send_to(uid, b"hello")
        await sender.send_to("raw/raw-1", b"hello again")
        await sender.flush()
        assert [(await asyncio.to_thread(shy.expect, SEND)).body for _ in range(2)] == [b"hello", b"hello again"]


@pytest.mark.requirement("SRV-36", state="scaled", note="2,000 pairs; they are not stored at all, decision 0011")
def test_subscribing_and_unsubscribing_leaves_nothing(shared: Server, dial: Dial) -> None:
    client = dial(shared)
    for start in range(1, 2001, 500):
        numbers = range(start, start + 500)
        client._socket.sendall(
            b"".join(
                frame(SUBSCRIBE, topic=f"pair.{number}".encode(), number=number) + frame(UNSUBSCRIBE, number=number)
                for number in numbers
            )
        )
        assert {client.receive().kind for _ in range(1000)} == {OK}
    report = shared.status()
    assert (report["stored"], report["subscriptions"]) == (0, 0)


@pytest.mark.requirement("SRV-37", state="scaled", note="limits of 0.3 and 0.5 s instead of 5 and 30")
def test_whoever_breaks_off_half_way_leaves_no_trace(hurried: Server, dial_raw: RawDial) -> None:
    for said in (b"", PREFACE[:5], PREFACE, PREFACE + hello()[:20]):
        gone = dial_raw(hurried)
        gone.say(said)
        if said.startswith(PREFACE):
            gone.expect(CONFIRM)
        gone.close()
    hurried.wait_until(at_rest, 3)
    waiting = [dial_raw(hurried) for _ in range(3)]
    for client, said in zip(waiting, (b"", PREFACE, PREFACE + hello()[:20]), strict=True):
        client.say(said)
    assert waiting[0].read() is None
    for client in waiting[1:]:
        client.expect(CONFIRM)
        assert code_of(client) == "handshake-timeout"
        assert client.read() is None
    hurried.wait_until(at_rest, 3)


@pytest.mark.requirement("SRV-37", state="scaled", note="limits of 0.3 and 0.5 s instead of 5 and 30")
def test_time_without_a_router_does_not_count(hurried: Server, dial_raw: RawDial) -> None:
    client = dial_raw(hurried)
    with suspended(*hurried.pids("router")):
        client.say(PREFACE)
        assert client.is_silent(1.0)
    client.expect(CONFIRM)
    client.say(hello())
    client.expect(WELCOME)


@pytest.mark.requirement("SRV-38")
@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"user": "somebody", "password": "wrong"}, "bad-credentials"),
        ({"version": 7}, "unsupported-version"),
        ({"type": "a/b"}, "bad-request"),
        ({"instance": "taken"}, "duplicate-instance"),
    ],
)
def test_a_refusal_has_a_reason_before_the_close(
    hurried: Server, dial_raw: RawDial, said: dict[str, Any], code: str
) -> None:
    hurried.wait_until(at_rest)  # the one before may still have the name
    taken = dial_raw(hurried)
    taken.say(PREFACE, hello(instance="taken"))
    taken.expect(CONFIRM)
    taken.expect(WELCOME)
    refused = dial_raw(hurried)
    refused.say(PREFACE, hello(**said))
    refused.expect(CONFIRM)
    assert code_of(refused) == code
    assert refused.read() is None
    taken.say(frame(PING, correlation=5))
    assert taken.expect(PONG).correlation == 5


@pytest.mark.requirement("SRV-38")
def test_an_unknown_version_of_the_preface_is_told_which_ones_are_spoken(shared: Server, dial_raw: RawDial) -> None:
    client = dial_raw(shared)
    client.say(b"FLD\n", struct.pack("<HH", 9, 0))
    refusal = client.expect(ERROR)
    assert dict(refusal.headers)["code"] == b"unsupported-version"
    assert b"1" in refusal.body
    assert client.read() is None


@pytest.mark.parametrize("garbage", [b"GETS / HTTP/1.1\r\n\r\n", b"\0" * 64, b"FLD\r", bytes(range(255, 0, -1))])
def test_what_is_no_preface_is_closed_and_harms_nobody(shared: Server, dial_raw: RawDial, garbage: bytes) -> None:
    client = dial_raw(shared)
    client.say(garbage)
    while (answer := client.read()) is not None:
        assert answer.kind == ERROR


async def test_a_client_that_leaves_in_the_middle_of_a_frame_leaves_nothing(shared: Server, dial_raw: RawDial) -> None:
    client = dial_raw(shared)
    client.say(PREFACE, hello(), frame(PUBLISH, topic=b"half", body=bytes(100_000))[:50_000])
    client.expect(CONFIRM)
    client.expect(WELCOME)
    client.close()
    await reported(shared, at_rest)
