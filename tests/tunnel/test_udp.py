"""Tunnels over UDP: set up by a cookie, carried by a token, ended by silence; strangers get nothing."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from fairlead.errors import ConnectionLost, Refused, RequestTimeout
from fairlead.tunnel.edge.memory import Faults
from fairlead.tunnel.edge.server import TunnelServer
from fairlead.tunnel.edge.stream import TunnelStream
from fairlead.tunnel.edge.udp import NO_TOKEN, PAYLOAD_MAX, TOKEN_BYTES, UdpTimes, open_udp, udp_rules
from fairlead.tunnel.end import State
from fairlead.tunnel.packets import Kind, Packet, encode, split
from fairlead.tunnel.rules import Rules
from tests.tunnel.carriers import QUICK, FaultyDatagrams
from tests.tunnel.gateway_parts import until


class Stranger(asyncio.DatagramProtocol):
    """A socket that says what a test says, and keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.transport: Any

    @classmethod
    async def beside(cls, address: tuple[str, int]) -> Stranger:
        loop = asyncio.get_running_loop()
        self = cls()
        self.transport, _ = await loop.create_datagram_endpoint(lambda: self, remote_addr=address)
        return self

    def datagram_received(self, data: bytes, address: Any) -> None:
        self.heard.append(data)

    async def ask(self, datagram: bytes) -> bytes:
        before = len(self.heard)
        self.transport.sendto(datagram)
        await until(lambda: len(self.heard) > before)
        return self.heard[-1]


def packet_of(datagram: bytes) -> Packet:
    (packet,) = split(datagram[TOKEN_BYTES:]).packets
    return packet


def init(nonce: bytes, cookie: bytes = bytes(16), connection_id: int = 0) -> bytes:
    return NO_TOKEN + encode(Kind.CONN_INIT, connection_id, window=5, payload=nonce + cookie)


@pytest.mark.requirement("TUN-8", state="half", note="id by the broker, payload at most 1200 bytes")
def test_the_broker_chooses_the_id_and_datagrams_stay_small() -> None:
    sizes: list[int] = []

    async def main() -> None:
        async with TunnelServer("b1") as server:
            address = await server.listen_udp("127.0.0.1", 0)

            def watch(packet: Packet) -> bool:
                sizes.append(len(packet.payload))
                return False

            middle = await FaultyDatagrams.between(address, Faults(drop=watch), Faults(drop=watch))
            client = TunnelStream(await open_udp(*middle.address))
            broker = await server.accept(30)
            assert client.pump.end.connection_id == broker.pump.end.connection_id != 0
            assert broker.status().carrier == "udp"
            await asyncio.gather(client.write(bytes(50_000)), broker.readexactly(50_000, 30))
            client.release()
            middle.close()

    asyncio.run(main())
    assert max(sizes) == PAYLOAD_MAX


def test_rules_are_made_to_fit() -> None:
    assert udp_rules(Rules()).payload_max == 1200
    assert udp_rules(Rules(payload_max=500, capacity=9)).payload_max == 500
    assert udp_rules(Rules(payload_max=500, capacity=9)).capacity == 9


def test_without_its_cookie_nobody_gets_a_tunnel_and_no_answer_is_longer_than_the_question() -> None:
    async def main() -> None:
        async with TunnelServer("b1") as server:
            address = await server.listen_udp("127.0.0.1", 0)
            one, other = await Stranger.beside(address), await Stranger.beside(address)
            nonce = bytes(range(16))
            first = await one.ask(init(nonce))
            assert len(first) <= len(init(nonce))
            assert packet_of(first).connection_id == 0
            cookie = packet_of(first).payload[16:]
            # The cookie is for one address only: whoever forges it gets a cookie of its own at most.
            stolen = await other.ask(init(nonce, cookie))
            assert packet_of(stolen).connection_id == 0
            assert packet_of(stolen).payload[16:] != cookie
            await one.ask(init(bytes(16), cookie))
            assert not server.pumps()
            second = await one.ask(init(nonce, cookie))
            assert packet_of(one.heard[-1]).kind in (Kind.CONN_INIT, Kind.CONN_INIT_ACK)
            assert len(second) <= len(init(nonce))
            assert len(server.pumps()) == 1
            # Asked again, since the answer may have been lost: the same tunnel.
            await one.ask(init(nonce, cookie))
            assert len(server.pumps()) == 1
            one.transport.close()
            other.transport.close()

    asyncio.run(main())


@pytest.mark.requirement("TUN-22", state="half", note="UDP: forged and random datagrams")
def test_a_stranger_can_neither_end_a_tunnel_nor_speak_in_it() -> None:
    rng = random.Random(5)

    async def main() -> None:
        async with TunnelServer("b1", rules=QUICK) as server:
            address = await server.listen_udp("127.0.0.1", 0)
            client = TunnelStream(await open_udp(*address, rules=QUICK))
            broker = await server.accept(30)
            connection_id = broker.pump.end.connection_id
            stranger = await Stranger.beside(address)
            token = client.pump.driver.token  # type: ignore[attr-defined]
            abort = encode(Kind.CONN_ABORT, connection_id, payload=b"\0\1ha")
            for said in (
                NO_TOKEN + abort,
                rng.randbytes(TOKEN_BYTES) + abort,
                token + abort,  # the right token, from another address
                token + encode(Kind.DATA, connection_id, 1, payload=b"forged"),
                *(rng.randbytes(rng.randrange(80)) for _ in range(500)),
                *(NO_TOKEN + encode(rng.choice(list(Kind)), 5, 1, 1, rng.randbytes(32)) for _ in range(200)),
            ):
                stranger.transport.sendto(said)
            await client.write(b"genuine")
            assert await broker.readexactly(7, 30) == b"genuine"
            assert broker.pump.end.state is State.OPEN
            assert len(server.pumps()) == 1
            stranger.transport.close()
            client.release()

    asyncio.run(main())


def test_late_datagrams_of_an_ended_tunnel_are_answered_by_an_abort() -> None:
    async def main() -> None:
        async with TunnelServer("b1", rules=QUICK) as server:
            address = await server.listen_udp("127.0.0.1", 0)
            client = TunnelStream(await open_udp(*address, rules=QUICK))
            broker = await server.accept(30)
            broker.release()
            await client.write(b"anybody there?")
            with pytest.raises(ConnectionLost, match="ended"):
                await client.read(1, 30)

    asyncio.run(main())


def test_silence_is_asked_about_and_ends_the_tunnel_at_last() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        rules, times = QUICK._replace(inactivity_s=1.5), UdpTimes(ping_s=0.1)
        async with TunnelServer("b1", rules=rules) as server:
            address = await server.listen_udp("127.0.0.1", 0, times)
            there, back = Faults(), Faults()
            seen: list[int] = []
            there.drop = lambda packet: bool(seen.append(packet.kind))
            middle = await FaultyDatagrams.between(address, there, back)
            client = TunnelStream(await open_udp(*middle.address, rules=rules, times=times))
            broker = await server.accept(30)
            opened_s = loop.time()
            await until(lambda: loop.time() - opened_s > 1.2 * rules.inactivity_s)
            assert broker.pump.end.state is client.pump.end.state is State.OPEN
            assert Kind.PING in seen or Kind.PONG in seen
            there.drop = back.drop = lambda _: True
            with pytest.raises(ConnectionLost, match="nothing was heard"):
                await broker.read(1, 30)
            assert broker.pump.end.reason is not None
            assert broker.pump.end.reason.code == 3
            with pytest.raises(ConnectionLost, match="nothing was heard"):
                await client.read(1, 30)
            assert not server.pumps()
            middle.close()

    asyncio.run(main())


def test_lost_answers_at_set_up_are_asked_for_again() -> None:
    async def main() -> None:
        async with TunnelServer("b1", rules=QUICK) as server:
            address = await server.listen_udp("127.0.0.1", 0)
            faults = Faults(loss=0.5, seed=3), Faults(loss=0.5, seed=4)
            middle = await FaultyDatagrams.between(address, *faults)
            times = UdpTimes(ask_again_s=0.02)
            client = TunnelStream(await open_udp(*middle.address, rules=QUICK, times=times, timeout_s=30))
            await server.accept(30)
            assert len(server.pumps()) == 1
            client.release()
            middle.close()

    asyncio.run(main())


def test_nobody_there_and_nobody_wanted_are_different_errors() -> None:
    async def main() -> None:
        async with TunnelServer("b1", tunnels_max=0) as server:
            address = await server.listen_udp("127.0.0.1", 0)
            with pytest.raises(Refused, match="no more tunnels"):
                await open_udp(*address, timeout_s=30)
            assert not server.pumps()
        with pytest.raises(RequestTimeout):
            await open_udp(*address, timeout_s=0.1)

    asyncio.run(main())


@pytest.mark.requirement("TUN-2", state="half", note="the UDP driver")
def test_the_driver_passes_on_what_it_is_fed_as_it_is_fed() -> None:
    async def main() -> None:
        async with TunnelServer("b1", rules=QUICK) as server:
            address = await server.listen_udp("127.0.0.1", 0)
            pump = await open_udp(*address, rules=QUICK)
            broker = await server.accept(30)
            heard: list[bytes] = []
            broker.pump.on_packets = lambda packets: heard.extend(p.raw for p in packets)  # type: ignore[method-assign]
            connection_id = pump.end.connection_id
            fed = [encode(Kind.DATA, connection_id, number, payload=b"x") for number in (3, 1, 2, 2, 1)]
            pump.driver.send(fed)
            await until(lambda: len([raw for raw in heard if raw in fed]) == 5)
            assert [raw for raw in heard if raw in fed] == fed
            pump.stop()

    asyncio.run(main())
