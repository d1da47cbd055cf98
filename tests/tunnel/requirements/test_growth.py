"""Nothing stays behind: opened and closed, or refused, thousands of times."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.tunnel.hostile.harness import Program, World, until
from tests.tunnel.requirements.parts import RawClient, opened, serving
from tests.tunnel.requirements.parts import until as wait_until

Making = Callable[..., World]
MIB = 1 << 20


def rounds(world: World, count: int) -> None:
    """The memory of client, gateway and broker after a fifth of the rounds, and after all of them.

    Ends remember a tunnel for two seconds here: with the usual two minutes memory would grow until those are over.
    """
    world.start({"resend_max_s": 1.0})
    words = ["-m", "tests.tunnel.requirements.rounds", f"http://127.0.0.1:{world.address[1]}/tunnel/b1", str(count)]
    client = Program(words, world.directory / "rounds.log", "rounds")
    world.clients.append(client)
    assert world.gateway is not None
    programs = (client, world.gateway, world.server)
    client.wait("rounds", number=count // 5, seconds=600)
    level = [program.rss() for program in programs]
    client.wait("rounds", number=count, seconds=3000)
    until(lambda: not world.server.status(), "an empty table at the broker")
    grown = [program.rss() - before for program, before in zip(programs, level, strict=True)]
    assert max(grown) < 12 * MIB, grown
    status = world.gateway_status()
    assert (status["tunnels"], status["buffered_bytes"], status["counters"]["closed"]) == ([], 0, count)
    assert status["counters"]["aborted"] == 0


@pytest.mark.requirement("TUN-91", scaled="100 rounds instead of 10,000")
def test_rounds_of_open_and_close(own_world: Making) -> None:
    rounds(own_world(), 100)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.requirement("TUN-91")
def test_ten_thousand_rounds_of_open_and_close(own_world: Making) -> None:
    rounds(own_world(), 10_000)


async def refusals(world: World, count: int) -> None:
    world.start_gateway()
    assert world.gateway is not None
    async with serving(world, "b1") as server, RawClient(world, "b1") as raw:

        def tunnels() -> tuple[int, int]:
            return len(world.gateway_status()["tunnels"]), len(server.pumps())

        assert tunnels() == (0, 0)
        async with opened(world, server) as (client, broker, _):
            assert tunnels() == (1, 1)
            level = 0
            for number in range(count):
                assert (await raw.connect()).status_code == 429
                if number == count // 5:
                    level = world.gateway.rss()
            assert world.gateway.rss() - level < 8 * MIB
            assert tunnels() == (1, 1)
            broker.write_eof()
            assert await client.close()
        await wait_until(lambda: tunnels()[0] == 0)


@pytest.mark.requirement("TUN-57", scaled="200 refused opens instead of 10,000")
async def test_refused_opens(own_world: Making) -> None:
    await refusals(own_world(tunnels_max=1), 200)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.requirement("TUN-57")
async def test_ten_thousand_refused_opens(own_world: Making) -> None:
    await refusals(own_world(tunnels_max=1), 10_000)
