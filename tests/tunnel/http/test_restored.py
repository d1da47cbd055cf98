"""The client driver tells the end when the way is open again, and does not sleep any longer then."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.tunnel.packets import Kind, encode
from tests.tunnel.http.scripted import ID, Gateway, Reply, Request
from tests.tunnel.http.sink import driving, play


def data(number: int) -> bytes:
    return encode(Kind.DATA, ID, number, payload=b"x")


def refusing(kinds: set[str], retry_after: str) -> Gateway:
    """503 to those kinds of requests."""

    async def script(request: Request) -> Reply | None:
        return Reply(503, headers=(("Retry-After", retry_after),)) if request.kind in kinds else None

    return Gateway(script)


@pytest.mark.requirement("TUN-49", "TUN-50", half="the client, with a scripted gateway")
def test_the_first_200_after_a_while_of_503_is_told_once() -> None:
    async def test() -> None:
        shut = {"push", "pull"}
        async with refusing(shut, "0.05") as gateway, driving(gateway) as (driver, notes):
            driver.send([data(1)])
            began_s = asyncio.get_running_loop().time()
            await gateway.until(lambda: asyncio.get_running_loop().time() - began_s > 0.8)
            assert notes.restored == 0
            shut.clear()
            await notes.until(lambda: notes.restored)
            await gateway.until(lambda: gateway.of("pull"))
            driver.send([data(2)])
            await gateway.until(lambda: len(gateway.pushed()) >= 2)
            assert notes.restored == 1

    play(test)


def test_whoever_sleeps_is_woken_when_another_got_through() -> None:
    """Pushes were told to wait for ten seconds; a pull finds out that this is not necessary."""

    async def test() -> None:
        shut = {"push"}
        async with refusing(shut, "10") as gateway, driving(gateway) as (driver, notes):
            loop = asyncio.get_running_loop()
            await gateway.until(lambda: gateway.of("pull"))
            driver.send([data(1)])
            await gateway.until(lambda: gateway.of("push"))
            shut.clear()
            await asyncio.sleep(0.8)  # so long is an outage
            began_s = loop.time()
            gateway.say(encode(Kind.ACK, ID, 0, 10))
            await gateway.until(lambda: len(gateway.of("push")) >= 2)
            assert loop.time() - began_s < 8
            assert notes.restored == 1

    play(test)
