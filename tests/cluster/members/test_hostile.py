"""A node that belongs to the cluster and is broken: what it sends is dropped and said, and nothing ends."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from fairlead.cluster.client_manager.link_head import DATA, LINK_HEAD, OPEN, OWN_SLOT
from fairlead.cluster.outgoing import Link
from fairlead.cluster.replication import messages
from fairlead.cluster.replication.record import ControlRecord
from fairlead.wire import durable
from tests.cluster.members.rig import Client, Nodes
from tests.cluster.members.sender import Sender

PORTS = ("member:a", "ballot:a", "voter:a", "link:a", "state:a", "side:a", "settle:a", "config", "admin", "no:such")

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def nonsense(chance: random.Random, epoch: int) -> list[bytes]:
    """Bytes of all kinds: none, noise, pieces of what could be right, and right words with wrong contents."""
    framed = Link(0)
    framed.frame(0, 0, durable.KIND_COMMAND, number=1, body=b"{}")
    framed.frame(7, 7, durable.KIND_STORE, number=1 << 31, body=b"")
    framed.frame(7, 7, 0xEE, number=3, body=bytes(100))
    link = b"".join(map(bytes, framed.out))
    whole = [
        messages.encode(messages.Stored(epoch, "cm.0", 1 << 60, 1 << 61)),
        messages.encode(messages.FetchAsk(epoch, -5, 0)),
        messages.encode(messages.JoinAsk(epoch)),
        LINK_HEAD.pack(OPEN, 3, 1, epoch),
        LINK_HEAD.pack(DATA, 3, 1, epoch) + link,
        LINK_HEAD.pack(DATA, 3, 1, epoch) + link[:-3],
        LINK_HEAD.pack(OPEN, OWN_SLOT, 1, epoch),
        LINK_HEAD.pack(DATA, OWN_SLOT, 1, epoch) + chance.randbytes(300),
        b'{"do":"ask","id":7}',
        b'{"do":"decide","id":"' + b"0" * 56 + b'","outcome":"committed","group":["a"]}',
        b"[" * 100_000,
        b'{"do":"status","number":{}}',
        b'{"answer":{},"ok":7}',
        b'{"do":"scrub","group":{}}',
        msgspec.msgpack.encode({"type": "want", "file": 1 << 63, "offset": 0, "up_to": 1}),
    ]
    head = msgspec.msgpack.encode({"type": "piece", "file": 1, "offset": 0})
    whole.append(len(head).to_bytes(4, "little") + head + bytes(100))
    cut = [one[: chance.randrange(len(one))] for one in whole]
    return [b"", b"\0", b"\xff" * 5, *whole, *cut, *(chance.randbytes(chance.randrange(2000)) for _ in range(60))]


def test_what_a_broken_node_sends_is_dropped_and_nothing_ends(
    make: Callable[..., Nodes], client_of: Callable[..., Client]
) -> None:
    nodes = make()
    nodes.start()
    primary = nodes.wait_in_sync(2)
    sender = Sender(client_of(nodes))
    broken = client_of(nodes, own="broken")
    sender.send(10)
    sender.confirm_all()
    pids = {name: nodes.pid(name) for name in nodes.names}
    epoch = nodes.group(primary)["epoch"]
    nodes.until(lambda: set(nodes.names) <= set(broken.bus.view.peers), "it is in the view")
    for data in nonsense(random.Random(5), epoch):
        for port in PORTS:
            for name in nodes.names:
                broken.bus.send(name, port, data)
        broken.turn(0.0)
        sender.client.turn(0.0)
    forged = messages.Append(epoch, nodes_record(nodes, primary), 5, 1, 1, 0, ((3, 1),), memoryview(bytes(300)))
    for name in nodes.members:
        broken.bus.send(name, "member:a", messages.encode(forged))
    nodes.until(lambda: all(nodes.group(name)["strange"] > 50 for name in nodes.members), "it is counted")
    assert {name: nodes.pid(name) for name in nodes.names} == pids
    assert nodes.wait_in_sync(2) == primary
    assert nodes.group(primary)["epoch"] == epoch
    assert "sends what is dropped" in nodes.output(primary)
    if sender.client.served is None:
        sender.go_on()
    sender.send(10)
    sender.confirm_all()
    sender.check()


def nodes_record(nodes: Nodes, name: str) -> ControlRecord:
    found = nodes.group(name)
    return ControlRecord(
        epoch=found["epoch"],
        version=found["version"],
        primary="broken.1",
        members=frozenset(found["set"]),
        copies=2,
        electorate=frozenset(found["votes"]),
        returning=frozenset(),
    )
