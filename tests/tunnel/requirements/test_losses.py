"""A broker or a client that is gone without a word: one abort for the other, and everything freed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from fairlead.errors import ConnectionLost
from fairlead.tunnel.packets import Kind, split
from tests.tunnel.hostile.harness import World, until
from tests.tunnel.middlebox.proxy import Middlebox
from tests.tunnel.middlebox.wire import Wire
from tests.tunnel.requirements.parts import RawClient, serving

Making = Callable[..., World]
NO_SOCKET = {"websocket": "never"}


@pytest.mark.requirement("TUN-94", half="the loss of the broker; that of the client is below")
@pytest.mark.requirement("TUN-95", scaled="a grace time of 1.5 s instead of 15, and of 0")
@pytest.mark.parametrize("grace_s", [0.0, 1.5])
def test_a_killed_broker_is_one_abort_and_everything_is_freed(own_world: Making, grace_s: float) -> None:
    world = own_world(grace_s=grace_s).start()
    with Middlebox(world.address) as box:
        client = world.client(box.address, mode="echo", rounds=10**6, pause_s=0.05, options=NO_SOCKET)
        client.wait("echoed")
        world.server.kill()
        began_s = time.monotonic()
        (event,) = client.wait("failed")
        assert "ConnectionLost" in event["error"]
        assert grace_s - 0.1 <= time.monotonic() - began_s < grace_s + 10
        aborts = until(
            lambda: {
                packet.raw
                for one in box.capture.of("push", "pull")
                for packet in one.pulled
                if packet.kind == Kind.CONN_ABORT
            }
        )
        assert len(aborts) == 1
        status = world.gateway_status()
        assert (status["tunnels"], status["buffered_bytes"], status["counters"]["aborted"]) == ([], 0, 1)
        world.stop_clients()


@pytest.mark.requirement("TUN-94")
@pytest.mark.requirement("TUN-96", "TUN-98", scaled="a limit of 2 s instead of 60")
def test_a_killed_client_is_one_abort_and_everything_is_freed(own_world: Making) -> None:
    killed_client(own_world(inactivity_s=2.0, hold_s=1.0), 2.0)


@pytest.mark.long
@pytest.mark.requirement("TUN-94", "TUN-96", "TUN-98")
def test_a_killed_client_is_an_abort_after_a_minute(own_world: Making) -> None:
    killed_client(own_world(), 60.0)


def killed_client(world: World, limit_s: float) -> None:
    world.start_gateway()
    with Wire(world.link, capture_bytes=32 << 20) as wire:
        world.dialled = wire.address
        world.start()
        client = world.client(up=500_000_000, options={**NO_SOCKET, "hold_s": 1.0})
        client.moved(2)
        client.kill()
        began_s = time.monotonic()
        (event,) = world.server.wait("ended")
        assert limit_s - 1.2 <= time.monotonic() - began_s < limit_s + 15
        assert "broke off" in event["how"], "an abort, not an end of stream"
        until(lambda: not world.gateway_status()["tunnels"])
        until(lambda: not world.server.status())
        status = world.gateway_status()
        assert (status["tunnels"], status["buffered_bytes"], status["counters"]["aborted"]) == ([], 0, 1)
        (kept,) = wire.captured
        assert len(kept["down"]) < wire.capture_bytes
        assert [one.kind for one in split(bytes(kept["down"])).packets].count(Kind.CONN_ABORT) == 1
        world.server.stop()


@pytest.mark.requirement("TUN-96", scaled="a limit of 2 s instead of 60")
async def test_pushes_alone_are_no_life(own_world: Making) -> None:
    world = own_world(inactivity_s=2.0, hold_s=1.0)
    world.start_gateway()
    async with serving(world, "b1") as server, RawClient(world, "b1") as raw:
        await raw.open()
        broker = await server.accept(30)
        reading = asyncio.ensure_future(broker.read())
        status = 200
        async with asyncio.timeout(60):
            while status == 200:
                status = (await raw.push(raw.packet(Kind.ACK, 0, 256))).status_code
                await asyncio.sleep(0.05)
        assert status == 410
        with pytest.raises(ConnectionLost):
            await reading
