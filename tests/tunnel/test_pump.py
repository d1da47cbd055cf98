"""An end, a driver and a clock: one round per turn, nothing spun, nothing forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlead.tunnel.edge.memory import Faults, MemoryDriver, pair
from fairlead.tunnel.edge.pump import Pump, lost
from fairlead.tunnel.end import End, Role, State
from fairlead.tunnel.packets import Kind, Packet, encode, split
from fairlead.tunnel.rules import Option, Rules
from tests.tunnel.carriers import QUICK
from tests.tunnel.gateway_parts import until


class Spy:
    """A driver that keeps what it is given."""

    carrier = "spy"

    def __init__(self) -> None:
        self.free = 1 << 20
        self.asked = 0
        self.batches: list[list[Packet]] = []
        self.periods: list[tuple[float, float]] = []
        self.is_closed = False

    def room(self) -> int:
        self.asked += 1
        return self.free

    def send(self, packets: list[bytes]) -> None:
        self.batches.append([packet for raw in packets for packet in split(raw).packets])

    def set_period(self, pull_period_s: float, hold_s: float) -> None:
        self.periods.append((pull_period_s, hold_s))

    def close(self) -> None:
        self.is_closed = True

    def kinds(self) -> list[int]:
        return [packet.kind for batch in self.batches for packet in batch]


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def opened(rules: Rules = QUICK, on_change: Any = None) -> tuple[Pump, Spy]:
    loop, spy = asyncio.get_running_loop(), Spy()
    end = End(rules, Role.BROKER, 7, loop.time(), peer_window=100)
    end.on_packets([Packet(Kind.ACK, 7, 0, 100)], loop.time())
    assert end.state is State.OPEN
    return Pump(end, spy, loop, on_change), spy


def data(sequence: int, payload: bytes = b"x") -> Packet:
    return Packet(Kind.DATA, 7, sequence, payload=payload)


def test_everything_of_one_turn_travels_together() -> None:
    async def main() -> None:
        pump, spy = opened()
        await turns()
        spy.batches.clear()
        for _ in range(50):
            pump.write(b"word ")
        pump.on_packets([data(1)])
        await turns()
        assert len(spy.batches) == 1
        assert [packet.kind for packet in spy.batches[0]] == [Kind.ACK, Kind.DATA]
        assert spy.batches[0][1].payload == b"word " * 50
        pump.stop()

    asyncio.run(main())


def test_the_owner_is_told_once_a_turn_and_before_anything_leaves() -> None:
    told: list[int] = []

    async def main() -> None:
        def on_change() -> None:
            told.append(pump.end.readable())
            if pump.end.readable():
                pump.write(b"answer to " + pump.read(100))

        pump, spy = opened(on_change=on_change)
        await turns()
        told.clear()
        spy.batches.clear()
        for number in range(1, 9):
            pump.on_packets([data(number, b"%d" % number)])
        await turns(1)
        assert told == [8]
        assert len(spy.batches) == 1
        ack, answer = spy.batches[0]
        assert answer.payload == b"answer to 12345678"
        assert (ack.sequence, ack.window) == (8, QUICK.capacity)  # what was read is room already
        pump.stop()

    asyncio.run(main())


def test_a_driver_without_room_is_left_alone_until_it_has_some() -> None:
    async def main() -> None:
        pump, spy = opened(QUICK._replace(resend_first_s=0.02, resend_min_s=0.02))
        await turns()
        spy.batches.clear()
        spy.free, spy.asked = 0, 0
        pump.write(b"waits")
        await asyncio.sleep(0.1)  # several resend intervals
        assert not spy.batches
        assert spy.asked < 20
        spy.free = 1 << 20
        pump.on_room()
        await turns()
        assert Kind.DATA in spy.kinds()
        pump.stop()

    asyncio.run(main())


def test_an_idle_tunnel_costs_nothing() -> None:
    async def main() -> None:
        rounds = 0

        def on_change() -> None:
            nonlocal rounds
            rounds += 1

        pump, spy = opened(on_change=on_change)
        pump.on_packets([data(1)])
        await asyncio.sleep(0.1)  # its ACK has left
        before, asked = rounds, spy.asked
        await asyncio.sleep(0.3)
        assert rounds - before <= 2
        assert spy.asked == asked
        pump.stop()

    asyncio.run(main())


def test_time_alone_makes_it_send_again() -> None:
    async def main() -> None:
        pump, spy = opened(QUICK._replace(resend_first_s=0.03))
        pump.write(b"never acknowledged")
        await until(lambda: spy.kinds().count(Kind.DATA) >= 3)
        numbers = {packet.sequence for batch in spy.batches for packet in batch if packet.kind == Kind.DATA}
        assert numbers == {1}
        pump.stop()

    asyncio.run(main())


def test_a_new_pull_period_is_told_to_the_driver() -> None:
    async def main() -> None:
        pump, spy = opened()
        assert spy.periods == [(0.0, 25.0)]
        pump.set_option(Option.PULL_PERIOD, 7)
        await turns()
        option = int(Option.HOLD).to_bytes(4) + (3).to_bytes(4)
        pump.on_packets([Packet(Kind.CONN_OPTION, 7, 1, payload=option)])
        await turns()
        assert spy.periods[1:] == [(7.0, 25.0), (7.0, 3.0)]
        pump.stop()

    asyncio.run(main())


def test_an_abort_leaves_before_the_driver_is_closed() -> None:
    async def main() -> None:
        pump, spy = opened()
        done: list[bool] = []
        pump.when_done(lambda: done.append(spy.is_closed))
        await turns()
        spy.batches.clear()
        pump.abort(1, "enough")
        await turns()
        assert spy.kinds() == [Kind.CONN_ABORT]
        assert done == [True]
        pump.stop()
        assert done == [True]

    asyncio.run(main())


def test_what_the_carrier_says_is_gone_ends_without_a_word() -> None:
    async def main() -> None:
        pump, spy = opened()
        await turns()
        spy.batches.clear()
        pump.on_gone(5, "not known any more")
        await turns()
        assert pump.end.state is State.ABORTED
        assert not spy.batches
        assert spy.is_closed
        assert "not known any more" in lost(pump.end).text

    asyncio.run(main())


def test_an_owner_that_fails_ends_its_tunnel_and_no_other() -> None:
    async def main() -> None:
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

        def on_change() -> None:
            if pump.end.readable():
                raise ZeroDivisionError

        pump, spy = opened(on_change=on_change)
        pump.on_packets([data(1)])
        await turns()
        assert [type(error) for error in reported] == [ZeroDivisionError]
        assert Kind.CONN_ABORT in spy.kinds()
        assert pump.stopped

    asyncio.run(main())


def test_damage_is_counted() -> None:
    async def main() -> None:
        pump, _ = opened()
        pump.on_damaged(3)
        assert pump.status().end.damaged == 3
        assert pump.status().carrier == "spy"
        pump.stop()

    asyncio.run(main())


class Heard:
    """A sink that keeps what it hears."""

    def __init__(self) -> None:
        self.packets: list[Packet] = []
        self.damaged = 0
        self.rooms = 0
        self.restored = 0

    def on_packets(self, packets: list[Packet]) -> None:
        self.packets += packets

    def on_damaged(self, count: int) -> None:
        self.damaged += count

    def on_room(self) -> None:
        self.rooms += 1

    def on_restored(self) -> None:
        self.restored += 1

    def on_gone(self, code: int, text: str) -> None:
        raise AssertionError


def sinks() -> tuple[MemoryDriver, Heard]:
    one, other = pair(asyncio.get_running_loop())
    heard = Heard()
    one.start(Heard())
    other.start(heard)
    return one, heard


@pytest.mark.requirement("TUN-2", state="half", note="the memory driver; UDP and the link have theirs")
def test_a_driver_passes_on_what_it_is_fed_as_it_is_fed() -> None:
    async def main() -> None:
        driver, heard = sinks()
        fed = [encode(Kind.DATA, 7, number, payload=b"x") for number in (3, 1, 2, 2, 1)]
        driver.send(fed)
        await turns()
        assert [packet.raw for packet in heard.packets] == fed

    asyncio.run(main())


def test_a_memory_driver_is_as_bad_as_it_is_told_to_be() -> None:
    async def main() -> None:
        driver, heard = sinks()
        driver.faults = Faults(loss=1.0)
        driver.send([encode(Kind.PING)])
        driver.faults = Faults(duplication=1.0)
        driver.send([encode(Kind.PONG)])
        await turns()
        assert [packet.kind for packet in heard.packets] == [Kind.PONG, Kind.PONG]
        driver.faults = Faults(flips=1.0)
        driver.send([encode(Kind.DATA, 7, 1, payload=bytes(100))] * 20)
        await turns()
        assert heard.damaged == 20
        driver.stalled = True
        assert driver.room() == 0

    asyncio.run(main())
