"""Hostile bytes on the durable road: random frames and valid ones changed at random, from fixed seeds.

Whatever comes, the processes stay the same, their memory stays bounded, and a bystander's messages are untouched.
"""

from __future__ import annotations

import json
import random
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fairlead.broker.answers import frame
from fairlead.testing import Server
from fairlead.wire.durable import (
    ENTRY,
    KIND_ANSWER,
    KIND_COMMAND,
    KIND_PIECE,
    KIND_PULL,
    KIND_SETTLE,
    KIND_STORE,
    KIND_WANT,
    LARGE,
    SETTLE_ITEM,
    STORE_HEAD,
)
from tests.processes.durable.test_flow import memory_of
from tests.processes.raw import ERROR
from tests.processes.test_durable_link import Talker
from tests.processes.tools import NEVER_FROZEN

pytestmark = pytest.mark.processes

MIB = 1 << 20
GROWTH_MAX = 48 * MIB
DO = (
    "session", "end-session", "produce", "consume", "end", "flow", "unsubscribe", "commit", "rollback", "outcome",
    "ids", "transfer", "temporary", "locate", "schedules", "cancel", "hello", "gone", "announce", "announced", "none",
)  # fmt: skip
NASTY: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 255, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 1.5, -0.0, "", "q", "victim", "_DMQ",
    "_ADMIN", "a" * 300, "*", ">", "é\u0000", "\ud83d", [], [1, "a"], {}, {"id": "00", "secret": "x", "incarnation": 1},
    {"ms": -1}, "first", "new", "queue", "topic", "x = ", "(" * 200, "a LIKE '%' ESCAPE 'xx'", {"a": {"b": {}}},
)  # fmt: skip
FIELDS = (
    "session", "destination", "kind", "create", "parameters", "selector", "exclusive", "messages", "bytes", "durable",
    "shared", "no_local", "start", "browse", "replay", "handle", "stop", "name", "transaction", "sends", "producer",
    "transfer", "length", "resume", "drop", "order", "ack", "client_name", "consumer", "user", "may", "client", "do",
)  # fmt: skip


@pytest.fixture(scope="module")
def target() -> Iterator[Server]:
    with Server(managers=1, **{"messages.resend_retention_s": 1}, **NEVER_FROZEN) as server:
        yield server
        assert server.stop() == 0


@pytest.fixture
def unharmed(target: Server) -> Iterator[Server]:
    """After the test: the same processes, bounded memory, no fault inside, and the bystander's messages in order."""
    roles = ("message-manager", "manager", "router", "dispatcher")
    pids = {role: target.pids(role) for role in roles}
    with Talker(target.port) as bystander:
        session = bystander.told("session", ack="individual")
        producer = bystander.told(
            "produce", session=session["session"], destination="victim", kind="queue", create=True
        )
        sent = producer["accepted"]
        assert bystander.store(producer["producer"], sent + 1, b"before", ids=session["ids"][0])
        before = {pid: memory_of(pid) for role in roles for pid in pids[role]}
        yield target
        assert bystander.store(producer["producer"], sent + 2, b"after", ids=session["ids"][0] + 1)
        assert {role: target.pids(role) for role in roles} == pids, target.output()
        grown = {pid: memory_of(pid) - size for pid, size in before.items()}
        assert max(grown.values()) < GROWTH_MAX, grown
        counters = target.ask("admin", name="counters", args={})
        assert '"faults": 0' in json.dumps(counters), counters
        bystander.told("end-session", session=session["session"])
    found = target.ask("admin", name="browse", args={"destination": "victim", "count": 1000})
    bodies = [one["body"] for one in find(found, "messages")]
    assert bodies.count("before") == bodies.count("after") >= 1


def find(answer: Any, name: str) -> Any:
    """The first value of this name, wherever it is."""
    if isinstance(answer, dict):
        if name in answer:
            return answer[name]
        for value in answer.values():
            if (found := find(value, name)) is not None:
                return found
    return None


def opened(server: Server, number: int) -> tuple[Talker, dict[str, int]]:
    """A client with everything open: session, producer, consumer and a transfer."""
    client = Talker(server.port)
    session = client.told("session", ack="individual")
    name = f"hostile.{number}"
    here = {"session": session["session"], "destination": name, "kind": "queue"}
    handles = {
        "session": session["session"],
        "ids": session["ids"][0],
        "producer": client.told("produce", create=True, **here)["producer"],
        "consumer": client.told("consume", messages=10, bytes=10_000, **here)["consumer"],
    }
    client.told("transfer", session=session["session"], producer=handles["producer"], transfer=1, length=None)
    return client, handles


def still_answers(client: Talker) -> bool:
    """Is it answered? False: the connection was ended, which is an answer too."""
    try:
        return client.ask("locate", destination="victim").kind in (KIND_ANSWER, ERROR)
    except (AssertionError, OSError, EOFError, struct.error):
        return False


def attack(server: Server, seed: int, count: int, make: Callable[[random.Random, dict[str, int]], bytes]) -> int:
    """So many frames; how many connections it took."""
    chance, used, left = random.Random(seed), 0, count
    until_s = time.monotonic() + 30
    while left > 0:
        assert time.monotonic() < until_s
        client, handles = opened(server, used)
        used += 1
        with client:
            while left > 0:
                some = min(left, 20)
                left -= some
                try:
                    client.send(b"".join(make(chance, handles) for _ in range(some)))
                except OSError:
                    break
                if not still_answers(client):
                    break
    return used


def random_frame(chance: random.Random, handles: dict[str, int]) -> bytes:
    """A correct head of a durable kind, and noise behind it."""
    number = chance.choice((0, 1, handles["producer"], handles["consumer"], 2**32 - 1))
    return frame(
        chance.randrange(0x60, 0x80),
        number=number,
        correlation=chance.choice((0, 1, chance.getrandbits(63))),
        peer=chance.choice((0, 1, chance.getrandbits(63))),
        flags=chance.choice((0, 1, 0xFF & chance.getrandbits(8) & ~0x08)),
        body=chance.randbytes(chance.choice((0, 1, 7, 24, 40, 100, 4000))),
    )


def valid_frame(chance: random.Random, handles: dict[str, int]) -> tuple[int, dict[str, int], bytes]:
    """A frame a good client could have sent."""
    match chance.randrange(5):
        case 0:
            body = b"x" * chance.randrange(50)
            entry = ENTRY.pack(ENTRY.size + len(body), 0, 4, 0, 0, 0) + body
            if chance.random() < 0.3:
                large = LARGE.pack(1, 10, bytes(32))
                entry = ENTRY.pack(ENTRY.size + len(large), 4, 4, 0, 0, 0) + large
            count = chance.randrange(1, 4)
            head = STORE_HEAD.pack(count, 0, 1_700_000_000_000, handles["ids"])
            where = {
                "number": handles["producer"],
                "correlation": chance.randrange(1, 5),
                "peer": chance.choice((0, 1)),
            }
            return KIND_STORE, where, head + entry * count
        case 1:
            items = [(chance.randrange(5), chance.randrange(9), chance.randrange(5), 0) for _ in range(3)]
            where = {"number": handles["consumer"], "correlation": chance.choice((0, 1)), "peer": chance.choice((0, 9))}
            return KIND_SETTLE, where, b"".join(SETTLE_ITEM.pack(*item) for item in items)
        case 2:
            return KIND_WANT, {"number": handles["consumer"], "correlation": 5, "peer": 1000}, b""
        case 3:
            return KIND_PIECE, {"number": handles["producer"], "correlation": 1, "peer": 0}, b"p" * 100
        case _:
            return KIND_PULL, {"number": handles["consumer"], "correlation": 1, "peer": 1 << 20}, b""


def mutated_frame(chance: random.Random, handles: dict[str, int]) -> bytes:
    """One with something changed: bytes flipped, cut off, or added, or a number of the head replaced."""
    kind, where, body = valid_frame(chance, handles)
    changed = bytearray(body)
    for _ in range(chance.randrange(3)):
        if changed:
            changed[chance.randrange(len(changed))] = chance.choice((0, 1, 127, 128, 255, chance.getrandbits(8)))
    if changed and chance.random() < 0.3:
        del changed[chance.randrange(len(changed)) :]
    if chance.random() < 0.2:
        changed += chance.randbytes(chance.randrange(64))
    if chance.random() < 0.3:
        where[chance.choice(list(where))] = chance.choice((0, 1, 2**31, 2**32 - 1))
    return frame(kind, body=bytes(changed), **where)


def odd_command(chance: random.Random, handles: dict[str, int]) -> bytes:
    """A COMMAND with strange values in known and unknown fields, or not even JSON."""
    if chance.random() < 0.05:
        noise = (b"", b"[", b"[]", b"null", b"\xff" * 20, b'{"do":' * 100, b'{"do":"' + b"x" * 60_000 + b'"}')
        return frame(KIND_COMMAND, number=chance.getrandbits(31), body=chance.choice(noise))
    request: dict[str, Any] = {"do": chance.choice(DO), "session": handles["session"]}
    for _ in range(chance.randrange(6)):
        request[chance.choice(FIELDS)] = chance.choice(NASTY)
    if "destination" in request and not isinstance(request["destination"], str):
        request["destination"] = chance.choice(("hostile.x", request["destination"]))
    if request.get("destination") == "victim":
        request["destination"] = "hostile.victim"
    body = json.dumps(request).encode()
    return frame(KIND_COMMAND, number=chance.randrange(1000, 2000), body=body)


@pytest.mark.requirement("CLU-59", "CLU-64", state="half", note="no newer minor version is spoken")
def test_unknown_commands_and_made_up_numbers_are_answered_or_dropped(unharmed: Server) -> None:
    client, handles = opened(unharmed, 900)
    with client:
        before = find(unharmed.ask("admin", name="counters", args={}), "dropped")
        assert client.ask("no-such-command").code == "bad-request"
        client.send(frame(0x6E, number=7, body=b"of a newer minor version"))
        refused = client.frame()
        while refused.kind != ERROR:
            refused = client.frame()
        assert refused.code == "bad-request"
        assert client.ask("commit", session=12345, transaction=1, sends={}).kind == ERROR
        for kind in (KIND_STORE, KIND_SETTLE, KIND_WANT, KIND_PIECE, KIND_PULL):
            client.send(frame(kind, number=54321, correlation=1, body=bytes(24)))
        assert client.store(handles["producer"], 1, b"usable", ids=handles["ids"])
        after = find(unharmed.ask("admin", name="counters", args={}), "dropped")
        assert sum(after.values()) >= sum(before.values()) + 4, (before, after)


@pytest.mark.requirement("CLU-59")
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("make", [random_frame, mutated_frame, odd_command])
def test_noise_harms_nobody(
    unharmed: Server, make: Callable[[random.Random, dict[str, int]], bytes], seed: int
) -> None:
    assert attack(unharmed, seed, 600, make)


@pytest.mark.requirement("CLU-101", state="half", note="a client that sends what nobody asked for")
def test_a_client_that_ignores_every_window_fills_no_memory(unharmed: Server) -> None:
    client, handles = opened(unharmed, 901)
    with client:
        piece = frame(KIND_PIECE, number=handles["producer"], correlation=1, peer=0, body=b"p" * 250_000)
        head = STORE_HEAD.pack(1, 0, 1_700_000_000_000, handles["ids"])
        entry = ENTRY.pack(ENTRY.size + 200_000, 0, 4, 0, 0, 0) + b"z" * 200_000
        early = frame(KIND_STORE, number=handles["producer"], correlation=99_999, body=head + entry)
        hidden = frame(KIND_STORE, number=handles["producer"], correlation=77, peer=5, body=head + entry)
        for _ in range(60):
            client.send(piece + early + hidden)
        assert still_answers(client)
