"""Several addresses: clients spread over them, leave one that fails, and follow a server that knows a better one."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from random import Random

import pytest

import fairlead
from fairlead import sync
from fairlead.client.bulk import BulkConnection
from fairlead.client.target import Address, Route, hinted, parse
from fairlead.errors import ConfigError, ConnectionLost
from fairlead.wire import kinds
from tests.client.conftest import FakeServer

A, B, C = Address("a"), Address("b"), Address("c")


@pytest.mark.requirement("CLU-13")
def test_clients_spread_over_the_addresses() -> None:
    chance = Random(7)
    chosen = Counter(Route([A, B, C], chance.random).round()[0] for _ in range(300))
    assert all(60 <= chosen[address] <= 140 for address in (A, B, C)), chosen


def test_every_round_has_every_address_and_the_lost_one_last() -> None:
    route = Route([A, B, C], Random(1).random)
    route.reached(B)
    order = route.round()
    assert sorted(order) == [A, B, C]
    assert order[-1] == B
    assert sorted(route.round()) == [A, B, C]
    assert Route([A], lambda: 1.0).round() == [A]


def test_a_hint_is_followed_once() -> None:
    route = Route([A], Random(1).random)
    route.hint([B, C])
    assert [route.take_hint(), route.take_hint(), route.take_hint()] == [B, C, None]
    route.hint([B])
    assert route.take_hint() is None, "two servers that point at each other keep nobody busy"
    route.reached(A)
    route.hint([B])
    assert route.take_hint() == B


def test_hints_that_cannot_be_read_are_left_out() -> None:
    assert hinted("b:7401, c,:,[::1]:1,x:99999,") == [Address("b", 7401), Address("c"), Address("::1", 1)]
    assert hinted("") == hinted(":::") == hinted("[") == []
    assert len(hinted(",".join(f"h{n}" for n in range(1000)))) == 16


def test_several_urls_are_one_target() -> None:
    target = parse(["fairlead://u:p@a:1,b:2", "fairlead://u:p@c:3,a:1"])
    assert target.addresses == [Address("a", 1), Address("b", 2), Address("c", 3)]
    assert (target.user, target.password, target.tls) == ("u", "p", False)
    for urls in ([], ["fairlead://a", "fairleads://b"], ["fairlead://u:secret@a", "fairlead://b"]):
        with pytest.raises(ConfigError) as fault:
            parse(urls)
        assert "secret" not in str(fault.value)


@pytest.mark.requirement("CLU-121", "CLU-13")
def test_a_server_that_is_lost_is_left_for_another() -> None:
    async def main() -> None:
        servers = [FakeServer(), FakeServer()]
        for server in servers:
            await server.start()
        urls = [server.url for server in servers]
        async with asyncio.timeout(10), fairlead.connect(urls, name="t", reconnect_limit_s=5) as connection:
            for _ in range(3):
                there = next(server for server in servers if server.peers)
                other = next(server for server in servers if server is not there)
                moved = asyncio.Event()
                connection.on_event(lambda event, moved=moved: moved.set() if event.name == "reconnected" else None)
                next(iter(there.peers.values())).transport.abort()
                await moved.wait()
                assert other.peers, "not to the one that has just failed"
        for server in servers:
            await server.stop()

    asyncio.run(main())


@pytest.mark.requirement("CLU-13")
def test_a_full_server_and_one_that_wants_to_be_left_name_another() -> None:
    async def main() -> None:
        full, other = FakeServer(), FakeServer()
        await full.start()
        await other.start()
        async with asyncio.timeout(10), fairlead.connect(full.url, name="t") as connection:
            (peer,) = full.peers.values()
            moved = asyncio.Event()
            connection.on_event(lambda event: moved.set() if event.name == "reconnected" else None)
            body = {"token": "x", "within_s": 1, "elsewhere": [f"127.0.0.1:{other.port}"]}
            peer.say(kinds.KIND_GO_AWAY, body=json.dumps(body).encode())
            await moved.wait()
            assert len(other.peers) == 1
            await connection.flush()
        await full.stop()
        await other.stop()

    asyncio.run(main())


def test_without_anybody_it_is_said_at_once_and_all_are_tried(server_on_a_thread: FakeServer) -> None:
    with pytest.raises(ConnectionLost):
        asyncio.run(_open(["fairlead://127.0.0.1:1", "fairlead://127.0.0.1:2"]))
    for _ in range(5):  # whichever is tried first
        with sync.connect(["fairlead://127.0.0.1:1", server_on_a_thread.url], name="t") as connection:
            connection.flush()


def test_the_bulk_client_begins_anywhere() -> None:
    urls = [f"fairlead://127.0.0.1:{port}" for port in range(1, 9)]
    firsts = {BulkConnection(urls)._addresses[0] for _ in range(100)}
    assert len(firsts) > 3


async def _open(urls: list[str]) -> None:
    async with fairlead.connect(urls):
        pass
