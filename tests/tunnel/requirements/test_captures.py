"""What passes a box, read with the tables of the specification and nothing of ours."""

from __future__ import annotations

import asyncio
import struct
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.tunnel.hostile.harness import World
from tests.tunnel.middlebox.proxy import Middlebox
from tests.tunnel.requirements.parts import opened, serving, until

TABLE = struct.Struct(">HHIIIHH")  # version, type, size, connection id, sequence, receive window, reserved
CONN_INIT, CONN_INIT_ACK, DATA, ACK, CONN_OPTION, CONN_CLOSE = range(1, 7)


class Seen(NamedTuple):
    version: int
    kind: int
    size: int
    connection_id: int
    sequence: int
    window: int
    payload: bytes


def decoded(body: bytes) -> list[Seen]:
    found, at = [], 0
    while at < len(body):
        version, kind, size, identity, sequence, window, flags = TABLE.unpack_from(body, at)
        assert (version, flags) == (2, 0)
        found.append(Seen(version, kind, size, identity, sequence, window, body[at + 24 : at + size]))
        at += size
    assert sum(one.size for one in found) == len(body)
    return found


@pytest.mark.requirement("TUN-12", "TUN-16", "TUN-17", "TUN-25", "TUN-27", "TUN-56")
async def test_two_tunnels_of_one_client(world: World, box: Middlebox) -> None:
    sizes = {}
    async with (
        serving(world) as server,
        opened(world, server, box.address) as one,
        opened(world, server, box.address) as other,
    ):
        for pair, size in ((one, 300_000), (other, 500_000)):
            sizes[pair.id] = size
            sending = [asyncio.ensure_future(stream.write(bytes(size))) for stream in (pair.client, pair.broker)]
            await asyncio.gather(pair.client.readexactly(size), pair.broker.readexactly(size), *sending)
            assert all(await asyncio.gather(pair.client.close(), pair.broker.close()))
        await until(lambda: all(one.status for one in box.capture.of("push")))
    exchanges = [one for one in box.capture.exchanges if one.status == 200]
    assert len(sizes) == 2
    assert 0 not in sizes

    for connect in [exchange for exchange in exchanges if exchange.kind == "connect"]:
        (asked,), (granted,) = decoded(connect.request_body), decoded(connect.answer_body)
        assert (asked.kind, asked.connection_id, asked.sequence, asked.window) == (CONN_INIT, 0, 0, 256)
        assert (granted.kind, granted.sequence, granted.window) == (CONN_INIT, 0, 0)
        assert granted.connection_id in sizes
        assert parse_qs(urlsplit(connect.target).query) == {"ServerName": [server.name], "Type": ["connect"]}

    for identity, size in sizes.items():
        own = [one for one in exchanges if f"ConnId={identity}" in one.target]
        for exchange in own:
            asked_for = parse_qs(urlsplit(exchange.target).query)
            assert asked_for["ServerName"] == [server.name]
            assert asked_for["Type"] in (["push"], ["pull"])
        up = [packet for one in own for packet in decoded(one.request_body)]
        down = [packet for one in own for packet in decoded(one.answer_body)]
        assert {packet.connection_id for packet in up + down} == {identity}
        assert down[0].kind == CONN_INIT_ACK
        first_data = next(at for at, packet in enumerate(up) if packet.kind == DATA)
        assert (ACK, 0) in [(packet.kind, packet.sequence) for packet in up[:first_data]], "the confirmation"
        for packets in (up, down):
            numbered = {one.sequence: one for one in packets if one.kind in (DATA, CONN_OPTION, CONN_CLOSE)}
            assert sorted(numbered) == list(range(1, len(numbered) + 1)), "1, 2, 3 …, and ACKs take none"
            assert sum(len(one.payload) for one in numbered.values() if one.kind == DATA) == size
            assert {one.window for one in numbered.values()} == {0}
            last = numbered[len(numbered)]
            assert (last.kind, last.payload) == (CONN_CLOSE, b"")
