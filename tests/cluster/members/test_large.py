"""A very large message whose primary dies on the way: its client goes on, and it is there once, whole (CLU-98)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.cluster.members.rig import Client, Nodes, until

BODY = random.Random(1).randbytes(5 << 20)

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.requirement("CLU-98")
@pytest.mark.parametrize("upto", [3 << 20, len(BODY)], ids=["in the middle", "behind its last piece"])
def test_a_large_upload_goes_on_with_the_next_primary(
    upto: int, make: Callable[..., Nodes], client_of: Callable[..., Client]
) -> None:
    nodes = make(messages={"segment_bytes": 1 << 20, "large_bytes": 1 << 20})
    nodes.start()
    primary = nodes.wait_in_sync(2)
    client = client_of(nodes)
    client.connect()
    client.open()
    assert client.upload(client.producer("orders"), BODY, upto) == 0
    if upto < len(BODY):
        backup = next(name for name in nodes.members if name != primary)
        folder = nodes.data(backup) / "group-a" / "large"
        until(lambda: sum(one.stat().st_size for one in folder.iterdir()) > 1 << 20, "some of it", step=client.turn)
    else:
        client.turn(0.0)
    nodes.kill(primary)
    client.connect(other_than=primary)
    client.open(resume=True)
    producer = client.producer("orders")
    began = client.upload(producer, BODY)
    print(f"killed after {upto} bytes were sent, the next primary had {began}")
    assert began > (1 << 20 if upto < len(BODY) else -1)
    client.send_large(producer, 1, BODY)  # it is complete: nothing is sent but the message
    assert client.receive_large("orders", len(BODY)) == BODY
    assert "large-lost" not in nodes.output(nodes.primary())
