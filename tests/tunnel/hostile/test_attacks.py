"""Strangers at the gateway's two ports: refused, logged, bounded; the tunnel that is open meanwhile notices nothing."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from typing import Any

import httpx
import pytest

from fairlead.tunnel.link_init import LinkInit
from fairlead.tunnel.packets import HEADER, Kind, encode, split
from tests.tunnel.hostile.harness import Program, World, until
from tests.tunnel.middlebox.http1 import encode_head
from tests.tunnel.middlebox.proxy import Middlebox

MIB = 1 << 20
PACKETS = {"Content-Type": "application/octet-stream", "Cache-Control": "no-store"}


class Victim:
    """A client that talks all the time, and what a thief would know of its tunnel."""

    def __init__(self, world: World, box: Middlebox) -> None:
        self.world = world
        self.program: Program = world.client(
            box.address, mode="echo", rounds=10**9, pause_s=0.02, options={"websocket": "never"}
        )
        self.program.wait("echoed")
        push = box.capture.of("push")[-1]
        self.headers = {k: v for k, v in push.request_headers if k.lower() in ("authorization", "fairlead-instance")}
        self.id: int = self.program.wait("opened")[0]["id"]

    def talks_on(self) -> None:
        self.program.wait("echoed", number=self.program.latest("echoed", {})["number"] + 5)
        assert not self.program.failed()


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Victim]]:
    world = World(tmp_path_factory.mktemp("siege"), patience_s=2.0)
    with ExitStack() as stack:
        stack.callback(world.stop)
        world.start()
        box = stack.enter_context(Middlebox(world.address))
        stack.callback(world.stop_clients)
        yield world, Victim(world, box)


@pytest.fixture
def world(besieged: tuple[World, Victim]) -> World:
    return besieged[0]


@pytest.fixture
def victim(besieged: tuple[World, Victim]) -> Iterator[Victim]:
    """Who must be as well after the attack as before."""
    tunnels = len(besieged[0].gateway_status()["tunnels"])
    yield besieged[1]
    besieged[1].talks_on()
    until(lambda: len(besieged[0].gateway_status()["tunnels"]) <= tunnels, "no tunnel more than before")


@pytest.fixture
def http(world: World) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=f"http://127.0.0.1:{world.address[1]}", headers=PACKETS, timeout=30, trust_env=False
    ) as client:
        yield client


def url(kind: str, connection_id: int | None = None, server: str = "b1", **more: Any) -> str:
    words = {"ServerName": server, "Type": kind, **more}
    if connection_id is not None:
        words["ConnId"] = connection_id
    return "/tunnel?" + "&".join(f"{name}={value}" for name, value in words.items())


def connect(http: httpx.Client) -> tuple[int, dict[str, str]]:
    """A tunnel that is granted; nobody confirms it."""
    answer = http.post(url("connect"), content=encode(Kind.CONN_INIT, window=10))
    assert answer.status_code == 200
    (granted,) = split(answer.content).packets
    return granted.connection_id, {"Authorization": f"Bearer {granted.payload.hex()}"}


def leave(http: httpx.Client, connection_id: int, headers: dict[str, str]) -> None:
    abort = encode(Kind.CONN_ABORT, connection_id, payload=b"\0\1bye")
    http.post(url("push", connection_id), content=abort, headers=headers)


@pytest.mark.requirement("TUN-63")
def test_an_id_without_its_token_opens_nothing(http: httpx.Client, victim: Victim) -> None:
    data = encode(Kind.DATA, victim.id, 1, 0, b"forged")
    own, headers = connect(http)
    for given, allowed in (({}, {401}), ({"Authorization": "Bearer " + "00" * 32}, {403}), (headers, {403})):
        for answer in (
            http.post(url("push", victim.id), content=data, headers=given),
            http.post(url("pull", victim.id, Hold=0), headers=given),
        ):
            assert answer.status_code in allowed
            assert not [one for one in split(answer.content).packets if one.kind != Kind.CONN_ABORT]
    # The thief's own token, and a foreign id hidden behind its own.
    mixed = encode(Kind.ACK, own, 0, 10) + data
    assert http.post(url("push", own), content=mixed, headers=headers).status_code == 403
    assert http.post(url("push"), content=mixed, headers=headers).status_code == 403
    leave(http, own, headers)


@pytest.mark.requirement("TUN-25", "TUN-22", half="the url's id is checked")
def test_the_urls_id_has_to_be_the_packets(http: httpx.Client, victim: Victim) -> None:
    own, headers = connect(http)
    ack = encode(Kind.ACK, own, 0, 10)
    assert http.post(url("push", own + 1), content=ack, headers=headers).status_code >= 400
    leave(http, own, headers)


@pytest.mark.requirement("TUN-36", half="guessed ids")
def test_guessed_ids(http: httpx.Client, victim: Victim) -> None:
    chance = Random(4)
    for _ in range(200):
        answer = http.post(url("pull", chance.randrange(1, 2**32), Hold=0), headers={"Authorization": "Bearer 00"})
        assert answer.status_code in (401, 403, 410)
    assert http.post(url("connect", server="B1"), content=encode(Kind.CONN_INIT, window=10)).status_code == 404


@pytest.mark.requirement("TUN-15")
def test_an_unknown_type_is_counted_and_dropped(world: World, http: httpx.Client, victim: Victim) -> None:
    before = world.gateway_status()["counters"]["unknown_kind"]
    for kind in (77, 60_000):
        http.post(url("push", victim.id), content=encode(kind, victim.id), headers=victim.headers)
    assert world.gateway_status()["counters"]["unknown_kind"] == before + 2


@pytest.mark.requirement("TUN-22", "TUN-73", half="replayed by a thief who has the token")
def test_old_packets_again(http: httpx.Client, victim: Victim) -> None:
    victim.program.wait("echoed", number=60)  # what is not old would be taken: the thief has the token
    old = b"".join(encode(Kind.DATA, victim.id, number, 0, b"x" * 8) for number in range(1, 50))
    for _ in range(20):
        http.post(url("push", victim.id), content=old, headers=victim.headers)


@pytest.mark.requirement("TUN-22", half="three kinds of packets")
@pytest.mark.parametrize("kind", [Kind.LINK_INIT, Kind.LINK_INIT_ACK, Kind.CONN_INIT_ACK])
def test_packets_that_are_not_a_clients(http: httpx.Client, victim: Victim, kind: Kind) -> None:
    forged = encode(kind, victim.id, payload=b"\0\2b1" + bytes(30))
    http.post(url("push", victim.id), content=forged, headers=victim.headers)
    http.post(url("connect"), content=encode(kind, payload=bytes(30)))


def random_bodies(world: World, http: httpx.Client, count: int) -> None:
    assert world.gateway is not None
    chance = Random(5)
    own, headers = connect(http)
    good = encode(Kind.DATA, own, 1, 0, b"x" * 100)
    memory = 0
    for number in range(count):
        body = (
            bytearray(good * chance.randrange(1, 4))
            if number % 2
            else bytearray(chance.randbytes(chance.randrange(400)))
        )
        for _ in range(chance.randrange(4)):
            if body:
                body[chance.randrange(len(body))] = chance.randrange(256)
        answer = http.post(url("push", own), content=bytes(body[: chance.randrange(len(body) + 1)]), headers=headers)
        assert answer.status_code < 500
        if number == count // 4:
            memory = world.gateway.rss()
    assert world.gateway.rss() < memory + 8 * MIB
    leave(http, own, headers)


@pytest.mark.requirement("TUN-22", scaled="1,000 bodies instead of 100,000")
def test_random_bodies(world: World, http: httpx.Client, victim: Victim) -> None:
    random_bodies(world, http, 1000)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.requirement("TUN-22")
def test_a_hundred_thousand_random_bodies(world: World, http: httpx.Client, victim: Victim) -> None:
    random_bodies(world, http, 100_000)


@pytest.mark.requirement("TUN-23", half="the gateway's own limit")
def test_bodies_that_are_too_large(world: World, http: httpx.Client, victim: Victim) -> None:
    assert world.gateway is not None
    memory = world.gateway.rss()
    assert http.post(url("push", victim.id), content=bytes(3 * MIB), headers=victim.headers).status_code == 413
    for _ in range(20):  # announced, and never sent
        with socket.create_connection(world.address) as one:
            head = f"POST {url('push', victim.id)} HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000000\r\n\r\n"
            one.sendall(head.encode())
            one.settimeout(30)
            assert b" 413 " in one.recv(1000)
    assert world.gateway.rss() < memory + 16 * MIB


@pytest.mark.requirement("TUN-54")
@pytest.mark.parametrize("secret", [b"", b"wrong" * 8])
def test_a_stranger_claims_to_be_the_broker(world: World, victim: Victim, secret: bytes) -> None:
    assert world.gateway is not None
    before = world.gateway_status()["counters"]["links_refused"]
    forged = LinkInit("b1", secret, bytes(16), [])
    with socket.create_connection(world.link) as one:
        one.settimeout(30)
        one.sendall(encode(Kind.LINK_INIT, payload=forged.encode(2)))
        while one.recv(4096):
            pass  # refused, and hung up
    assert world.gateway_status()["counters"]["links_refused"] == before + 1
    until(lambda: "refused" in world.gateway.log(), "a line in the log")  # type: ignore[union-attr]


@pytest.mark.requirement("TUN-13")
@pytest.mark.parametrize("size", [4, 2**31])
def test_impossible_sizes_on_the_link(world: World, victim: Victim, size: int) -> None:
    assert world.gateway is not None
    memory = world.gateway.rss()
    with socket.create_connection(world.link) as one:
        one.settimeout(30)
        one.sendall(HEADER.pack(2, Kind.LINK_INIT, size, 0, 0, 0, 0) + bytes(100))
        try:
            assert one.recv(4096) == b""
        except ConnectionResetError:
            pass
    until(lambda: f"{size} bytes" in world.gateway.log(), "a line in the log")  # type: ignore[union-attr]
    assert world.gateway.rss() < memory + 4 * MIB


@pytest.mark.requirement("TUN-54", half="rubbish")
def test_rubbish_on_the_link_port(world: World, victim: Victim) -> None:
    chance = Random(6)
    for _ in range(50):
        with socket.create_connection(world.link) as one:
            try:
                one.sendall(chance.randbytes(chance.randrange(1, 5000)))
                one.shutdown(socket.SHUT_WR)
            except OSError:
                pass


@pytest.mark.requirement("TUN-101", half="connections that send slowly")
def test_slow_loris(world: World, victim: Victim) -> None:
    """Two hundred connections that send their request a byte at a time are closed when the time is over."""
    slow = [socket.create_connection(world.address) for _ in range(200)]
    try:
        alive, sent = set(slow), 0
        head = f"POST {url('push', 7)} HTTP/1.1\r\nHost: ".encode() + b"x" * 1000
        limit_s = time.monotonic() + 60
        while alive and time.monotonic() < limit_s:
            for one in list(alive):
                try:
                    one.send(head[sent : sent + 1])
                    one.setblocking(False)
                    if one.recv(1000) == b"":
                        alive.discard(one)
                except BlockingIOError:
                    pass
                except OSError:
                    alive.discard(one)
            sent += 1
            time.sleep(0.1)
        assert not alive
    finally:
        for one in slow:
            one.close()


@pytest.mark.requirement("TUN-85", half="a client that asks and does not read the answers")
def test_answers_nobody_reads(world: World, victim: Victim) -> None:
    assert world.gateway is not None
    with Middlebox(world.address) as box:
        flooding = world.client(box.address, mode="flood", options={"websocket": "never"})
        flooding.wait("flooded")
        pull = box.capture.of("pull")[-1]
        memory = world.gateway.rss()
        asking = [socket.create_connection(world.address) for _ in range(50)]
        try:
            head = encode_head(f"POST {pull.target} HTTP/1.1", pull.request_headers)
            for one in asking:
                one.settimeout(2)
                try:
                    one.sendall(head * 200)
                except OSError:
                    pass  # it does not take more from one who does not read
            until(lambda: world.gateway_status()["counters"]["packets_down"] > 500)
            assert world.gateway.rss() < memory + 80 * MIB  # one tunnel's share, and what was under way
        finally:
            for one in asking:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.close()
            flooding.stop()
