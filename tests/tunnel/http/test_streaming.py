"""The WebSocket: taken when it works, left when it does not, and the tunnel goes on."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.tunnel.edge.http import HttpDriver
from fairlead.tunnel.edge.http.streaming import Streaming
from fairlead.tunnel.options import TunnelOptions
from fairlead.tunnel.packets import Kind, encode
from fairlead.tunnel.policy import StreamPauses
from tests.tunnel.http.scripted import ID, TOKEN, Gateway
from tests.tunnel.http.sink import Notes, driving, play
from tests.tunnel.http.test_driver import data, numbers

AUTO = TunnelOptions()


def quick(driver: HttpDriver, pause_s: float = 0.05, **times: float) -> None:
    """Times short enough for a test."""
    pauses = StreamPauses(lambda: 0.5)
    pauses.SOON_S = pauses.REFUSED_S = pause_s  # type: ignore[misc]
    streaming = driver._streaming
    assert isinstance(streaming, Streaming)
    streaming._pauses = pauses
    for name, value in times.items():
        setattr(streaming, f"_{name}", value)


async def open_up(gateway: Gateway, notes: Notes) -> None:
    """A WebSocket is tried after the first packets came."""
    gateway.say(encode(Kind.CONN_INIT_ACK, ID, 0, 10))
    await notes.until(lambda: notes.packets)


@pytest.mark.requirement("TUN-39")
def test_frames_of_packets_in_both_directions() -> None:
    async def test() -> None:
        gateway = Gateway()
        gateway.takes_streams = True
        async with gateway, driving(gateway, AUTO) as (driver, notes):
            assert driver.carrier == "push/pull"
            await open_up(gateway, notes)
            await notes.until(lambda: driver.carrier == "websocket")
            (upgrade,) = gateway.of("stream")
            assert upgrade.method == "GET"
            assert upgrade.query == {"ServerName": "b1", "Type": "stream", "ConnId": str(ID)}
            assert upgrade.headers["authorization"] == f"Bearer {TOKEN.hex()}"
            assert upgrade.headers["fairlead-instance"] == "g-1"
            pulls = len(gateway.of("pull"))
            gateway.say(data(1), data(2))
            await notes.until(lambda: len(notes.packets) == 3)
            for number in range(1, 40):
                while not driver.room():
                    await asyncio.sleep(0)
                driver.send([data(number, 30_000)])
            await gateway.until(lambda: len(gateway.pushed()) == 39)
            assert numbers(gateway) == list(range(1, 40))
            assert not gateway.of("push")
            assert len(gateway.of("pull")) == pulls, "a pull would tell the gateway that the stream is over"
            gateway.say(encode(Kind.PING, ID, payload=b"you?"))
            await gateway.until(lambda: any(b"you?" in frame for frame in gateway.frames))
            assert len(notes.packets) == 3, "PING and PONG are the carrier's own"

    play(test)


@pytest.mark.requirement("TUN-39")
def test_a_refused_upgrade_leaves_everything_as_it_is_and_is_tried_again() -> None:
    async def test() -> None:
        async with Gateway() as gateway, driving(gateway, AUTO) as (driver, notes):
            quick(driver)
            await open_up(gateway, notes)
            await gateway.until(lambda: len(gateway.of("stream")) >= 2)
            driver.send([data(1)])
            gateway.say(data(5))
            await gateway.until(lambda: gateway.of("push"))
            await notes.until(lambda: len(notes.packets) == 2)
            assert driver.carrier == "push/pull"
            gateway.takes_streams = True
            await notes.until(lambda: driver.carrier == "websocket")
            assert not notes.gone

    play(test)


def test_never_means_never() -> None:
    async def test() -> None:
        gateway = Gateway()
        gateway.takes_streams = True
        async with gateway, driving(gateway) as (_, notes):
            await open_up(gateway, notes)
            gateway.say(data(1))
            await notes.until(lambda: len(notes.packets) == 2)
            assert not gateway.of("stream")

    play(test)


@pytest.mark.requirement("TUN-39")
def test_a_cut_brings_push_and_pull_back_on_the_same_tunnel() -> None:
    async def test() -> None:
        gateway = Gateway()
        gateway.takes_streams = True
        async with gateway, driving(gateway, AUTO) as (driver, notes):
            quick(driver, 60)
            await open_up(gateway, notes)
            await notes.until(lambda: driver.carrier == "websocket")
            driver.send([data(1)])
            await gateway.until(lambda: gateway.pushed())
            gateway.takes_streams = False
            gateway.streams[0].transport.abort()
            await notes.until(lambda: driver.carrier == "push/pull")
            driver.send([data(2)])
            gateway.say(data(7))
            await gateway.until(lambda: gateway.of("push"))
            await notes.until(lambda: len(notes.packets) == 2)
            assert gateway.of("push")[0].query["ConnId"] == gateway.of("stream")[0].query["ConnId"] == str(ID)
            assert len(gateway.of("connect")) == 1

    play(test)


@pytest.mark.requirement("TUN-39")
def test_silence_brings_push_and_pull_back() -> None:
    async def test() -> None:
        gateway = Gateway()
        gateway.takes_streams = True
        async with gateway, driving(gateway, AUTO) as (driver, notes):
            quick(driver, 60, ping_s=0.1, silence_s=1.5)
            await open_up(gateway, notes)
            await notes.until(lambda: driver.carrier == "websocket")
            pings = len(gateway.frames)
            await gateway.until(lambda: len(gateway.frames) >= pings + 16)  # longer than the silence allowed
            assert driver.carrier == "websocket", "its PINGs are answered"
            gateway.answers_pings = False
            await notes.until(lambda: driver.carrier == "push/pull")
            driver.send([data(1)])
            await gateway.until(lambda: gateway.of("push"))

    play(test)


def test_an_upgrade_that_lets_no_frame_through_is_not_used() -> None:
    async def test() -> None:
        gateway = Gateway()
        gateway.takes_streams = True
        gateway.answers_pings = False
        async with gateway, driving(gateway, AUTO) as (driver, notes):
            quick(driver, 60, trial_s=0.2)
            await open_up(gateway, notes)
            await gateway.until(lambda: gateway.streams)
            while gateway.streams:
                assert driver.carrier == "push/pull"
                await asyncio.sleep(0.01)
            driver.send([data(1)])
            gateway.say(data(2))
            await gateway.until(lambda: gateway.of("push"))
            await notes.until(lambda: len(notes.packets) == 2)

    play(test)


def test_frames_that_are_no_packets_do_no_harm() -> None:
    async def test() -> None:
        gateway = Gateway()
        gateway.takes_streams = True
        async with gateway, driving(gateway, AUTO) as (driver, notes):
            await open_up(gateway, notes)
            await notes.until(lambda: driver.carrier == "websocket")
            for frame in (b"", b"x", b"\xff" * 500, data(1)[:-1], b"\x00\x02\x00\x03\xff\xff\xff\xff" + bytes(40)):
                gateway.streams[0].frame(frame)
            gateway.streams[0]._websocket.send_text(b"hello")  # type: ignore[union-attr]
            gateway.say(data(3))
            await notes.until(lambda: len(notes.packets) == 2)
            assert notes.packets[-1].sequence == 3
            assert notes.damaged == 4

    play(test)


def test_closing_closes_it() -> None:
    async def test() -> None:
        gateway = Gateway()
        gateway.takes_streams = True
        async with gateway, driving(gateway, AUTO) as (driver, notes):
            await open_up(gateway, notes)
            await notes.until(lambda: driver.carrier == "websocket")
            driver.close()
            while gateway.streams:
                await asyncio.sleep(0.01)

    play(test)
