"""Links of brokers at a real gateway: shared by many tunnels, guarded, and never a reason for others to wait."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import ConfigError
from fairlead.tunnel.edge.gateway import GatewaySettings, gateway_app, links
from fairlead.tunnel.edge.gateway.settings import advice, check, instance_of
from fairlead.tunnel.edge.gateway.station import STRANGERS_MAX
from fairlead.tunnel.link_init import LinkInit, LinkTunnel
from fairlead.tunnel.packets import Abort, Kind, encode, split
from tests.tunnel.gateway_parts import Broker, certificate, opened, running, until

SECRET = b"0123456789abcdef0123456789abcdef"


def payloads(content: bytes) -> list[bytes]:
    return [packet.payload for packet in split(content).packets]


@pytest.mark.requirement("TUN-9", state="half", note="with ends by script, a packet each way")
def test_many_brokers_and_many_clients_are_not_mixed_up() -> None:
    async def test() -> None:
        async with running() as gateway:
            brokers = {name: await Broker.linked(gateway, name) for name in ("b1", "b2")}
            tunnels = [
                (name, await opened(gateway, broker, name)) for _ in range(3) for name, broker in brokers.items()
            ]
            for number, (name, client) in enumerate(tunnels):
                answer = await client.push(client.data(1, f"up {number}".encode()))
                assert answer.status_code == 200
                brokers[name].data(client.connection_id, 1, f"down {number}".encode())
            for number, (name, client) in enumerate(tunnels):
                assert payloads((await client.pull(10)).content) == [f"down {number}".encode()]
                seen = await brokers[name].expect(Kind.DATA, client.connection_id)
                assert seen.payload == f"up {number}".encode()
                await client.http.aclose()
            for broker in brokers.values():
                assert not broker.got, "nothing came that belongs elsewhere"
                await broker.close()

    asyncio.run(test())


@pytest.mark.requirement("TUN-46")
@pytest.mark.requirement("TUN-47", state="half", note="the others lose nothing; their speed is not measured")
def test_fifty_tunnels_on_one_link_and_one_of_them_not_read() -> None:
    async def test() -> None:
        async with running(tunnel_bytes_max=256 << 10) as gateway:
            broker = await Broker.linked(gateway)
            clients = [await opened(gateway, broker) for _ in range(50)]
            assert len({client.connection_id for client in clients}) == 50
            assert len(gateway.station.links()) == 1
            lazy, *others = clients
            piece = bytes(20_000)
            for number in range(1, 101):  # 100 for the one that does not pull, far more than is kept for it
                broker.data(lazy.connection_id, number, piece)
                for client in others if number <= 10 else ():
                    broker.data(client.connection_id, number, piece)
            for client in others:
                got: list[int] = []
                while len(got) < 10:
                    got += [packet.sequence for packet in split((await client.pull(10)).content).packets]
                assert got == list(range(1, 11))
            status = {one.connection_id: one for one in gateway.station.status().tunnels}
            assert status[lazy.connection_id].dropped > 50
            assert status[lazy.connection_id].waiting_bytes <= 256 << 10
            assert not any(one.dropped for number, one in status.items() if number != lazy.connection_id)
            sequences = [packet.sequence for packet in split((await lazy.pull()).content).packets]
            assert sequences == list(range(1, len(sequences) + 1)), "what was kept is the beginning"
            for client in clients:
                await client.http.aclose()
            await broker.close()

    asyncio.run(test())


@pytest.mark.requirement("TUN-10")
def test_a_broker_that_does_not_read_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "OUT_MAX", 512 << 10)

    async def test() -> None:
        async with running() as gateway:
            stalled, well = await Broker.linked(gateway, "stalled"), await Broker.linked(gateway, "well")
            client, other = await opened(gateway, stalled, "stalled"), await opened(gateway, well, "well")
            stalled.writer.transport.pause_reading()  # type: ignore[attr-defined]
            (link,) = [one for one in gateway.station.links() if one.key == min(x.key for x in gateway.station.links())]
            number = 0
            while not link.dropped:
                number += 1
                assert number < 2000
                body = b"".join(client.data(20 * number + one, bytes(30_000)) for one in range(20))
                assert (await client.push(body)).status_code == 200, (
                    "the gateway has it, and nobody has acknowledged it"
                )
            answer = await client.pull(0)
            assert (answer.status_code, answer.content) == (200, b""), "the gateway acknowledges nothing itself"
            assert (await other.push(other.data(1, b"quick"))).status_code == 200
            assert (await well.expect(Kind.DATA)).payload == b"quick"
            assert link._transport.get_write_buffer_size() < (1 << 20)
            assert (await client.push(encode(Kind.ACK, client.connection_id))).status_code == 200
            stalled.writer.transport.resume_reading()  # type: ignore[attr-defined]
            await stalled.expect(Kind.ACK, client.connection_id)
            for one in (client, other):
                await one.http.aclose()
            for broker in (stalled, well):
                await broker.close()

    asyncio.run(test())


@pytest.mark.requirement("TUN-21", "TUN-20", state="half", note="the gateway's side")
def test_packets_pass_as_they_are_and_damaged_ones_do_not() -> None:
    async def test() -> None:
        async with running() as gateway:
            broker = await Broker.linked(gateway)
            client = await opened(gateway, broker)
            sent = [client.data(number, bytes([number]) * 50) for number in range(1, 6)]
            broken = bytearray(sent[2])
            broken[-1] ^= 1
            assert (await client.push(sent[0], sent[1], bytes(broken), sent[3], sent[4])).status_code == 200
            seen = [(await broker.expect(Kind.DATA)).raw for _ in range(4)]
            assert seen == [sent[0], sent[1], sent[3], sent[4]]
            back = [encode(Kind.DATA, client.connection_id, number, payload=b"back") for number in (1, 2, 3)]
            broken = bytearray(back[1])
            broken[30 - 5] ^= 4
            broker.send(back[0], bytes(broken), back[2])
            await until(lambda: gateway.station.counters.damaged_links == 1)
            assert (await client.pull(10)).content == back[0] + back[2]
            assert gateway.station.status().counters.damaged == 1
            await client.http.aclose()
            await broker.close()

    asyncio.run(test())


@pytest.mark.requirement("TUN-13")
@pytest.mark.parametrize("size", [0, 4, 19, 2**31, 2**32 - 1])
@pytest.mark.parametrize("greeted", [False, True])
def test_an_impossible_size_closes_the_link_with_a_reason(
    size: int, greeted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with running() as gateway:
            other = await Broker.linked(gateway, "other")
            broker = await Broker.dial(gateway.link_port, greet=greeted)
            if greeted:
                await broker.expect(Kind.LINK_INIT_ACK)
            broker.send(struct.pack(">HHIIIHH", 2, 3, size, 7, 1, 0, 0) + bytes(1000))
            await until(lambda: broker.is_cut)
            await until(lambda: len(gateway.station.links()) == 1)
            assert not other.is_cut
            assert gateway.station.counters.links_broken == 1
            await other.close()
            await broker.close()

    with caplog.at_level(logging.WARNING, "fairlead.tunnel.gateway"):
        asyncio.run(test())
    assert f"a packet cannot have {size} bytes" in caplog.text


def test_a_link_in_the_smallest_pieces_and_in_one() -> None:
    async def test() -> None:
        async with running() as gateway:
            broker = await Broker.dial(gateway.link_port, greet=False)
            broker.writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            hello = encode(Kind.LINK_INIT, payload=LinkInit("b1", b"", bytes(16), ()).encode())
            for byte in hello:
                broker.send(bytes([byte]))
                await asyncio.sleep(0)
            await broker.expect(Kind.LINK_INIT_ACK)
            broker.send(*[encode(Kind.PING, payload=bytes([number])) for number in range(100)])
            pongs = [(await broker.expect(Kind.PONG)).payload for _ in range(100)]
            assert pongs == [bytes([number]) for number in range(100)]
            broker.send(encode(Kind.PING, payload=b"alone"))
            assert (await broker.expect(Kind.PONG)).payload == b"alone"
            many = [LinkTunnel(number, 0, 60, bytes([number % 255 + 1]) * 32) for number in range(1, 5001)]
            large = await Broker.dial(gateway.link_port, "large", tunnels=many, start_id=b"s" * 16)
            assert await large.refused() == [], "LINK_INIT may be larger than other packets"
            assert len(gateway.station.status().tunnels) == 5000
            await broker.close()
            await large.close()

    asyncio.run(test())


@pytest.mark.requirement("TUN-53", "TUN-54")
def test_strangers_and_doubles_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    file.chmod(0o600)

    async def test() -> None:
        async with running(secret_file=str(file)) as gateway:
            for wrong in (b"", b"x", SECRET + b"x"):
                stranger = await Broker.dial(gateway.link_port, secret=wrong)
                assert "secret" in Abort.of((await stranger.expect(Kind.CONN_ABORT)).payload).text
                await until(lambda: stranger.is_cut)  # noqa: B023
                await stranger.close()
            first = await Broker.linked(gateway, secret=SECRET, start_id=b"1" * 16)
            client = await opened(gateway, first)
            double = await Broker.dial(gateway.link_port, secret=SECRET, start_id=b"2" * 16)
            assert "another broker" in Abort.of((await double.expect(Kind.CONN_ABORT)).payload).text
            await until(lambda: double.is_cut)
            assert (await client.push(client.data(1, b"unharmed"))).status_code == 200
            assert (await first.expect(Kind.DATA)).payload == b"unharmed"
            (tunnel,) = gateway.station.status().tunnels
            verifier = gateway.station.gateway._hub.table.find("b1", tunnel.connection_id).verifier
            again = await Broker.linked(
                gateway,
                secret=SECRET,
                start_id=b"1" * 16,
                tunnels=[LinkTunnel(client.connection_id, 0, 60, verifier)],
            )
            await until(lambda: first.is_cut)
            again.data(client.connection_id, 1, b"over the new one")
            assert payloads((await client.pull(10)).content) == [b"over the new one"]
            await client.http.aclose()
            for broker in (first, double, again):
                await broker.close()

    with caplog.at_level(logging.INFO, "fairlead.tunnel.gateway"):
        asyncio.run(test())
    assert "another broker of this name" in caplog.text


@pytest.mark.requirement("TUN-55", state="scaled", note="PING after 0.2 s, lost after 2 s")
def test_a_link_on_which_nothing_arrives_is_lost() -> None:
    async def test() -> None:
        async with running(ping_s=0.2, link_lost_s=2.0) as gateway:
            well, mute = await Broker.linked(gateway, "well"), await Broker.linked(gateway, "mute")
            mute.wants_pongs = False
            await mute.expect(Kind.PING)
            begun_s = time.perf_counter()
            await until(lambda: mute.is_cut)
            assert time.perf_counter() - begun_s > 0.5
            assert not well.is_cut
            assert [one.server for one in gateway.station.status().links] == ["well"]
            await well.close()
            await mute.close()

    asyncio.run(test())


def test_whoever_does_not_say_who_it_is_cannot_keep_brokers_out() -> None:
    async def test(count: int, link_init_s: float) -> None:
        async with running(link_init_s=link_init_s) as gateway:
            silent = [await Broker.dial(gateway.link_port, greet=False) for _ in range(count)]
            if count > STRANGERS_MAX:
                await until(lambda: sum(one.is_cut for one in silent) == count - STRANGERS_MAX)
            broker = await Broker.linked(gateway)
            if count <= STRANGERS_MAX:
                await until(lambda: all(one.is_cut for one in silent))
                assert len(gateway.station.links()) == 1
            assert not broker.is_cut
            for one in (*silent, broker):
                await one.close()

    asyncio.run(test(STRANGERS_MAX + 10, 3600.0))
    asyncio.run(test(3, 1.5))


@pytest.mark.requirement("TUN-54")
@pytest.mark.requirement("TUN-43", state="half", note="the broker dials; no firewall between them")
def test_links_over_tls_with_a_secret_or_with_certificates_on_both_sides(tmp_path: Path) -> None:
    pem, trusting = certificate(tmp_path)
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    file.chmod(0o600)
    guarded: dict[str, Any] = {"certificate": str(pem), "key": str(pem)}

    async def test() -> None:
        async with running("hypercorn", secret_file=str(file), **guarded) as gateway:
            broker = await Broker.linked(gateway, secret=SECRET, tls=trusting)
            plain = await Broker.dial(gateway.link_port, secret=SECRET)
            await until(lambda: plain.is_cut)
            assert not broker.is_cut
            await plain.close()
            await broker.close()
        async with running("hypercorn", link_ca=str(pem), **guarded) as gateway:
            nameless = await Broker.dial(gateway.link_port, tls=trusting)
            await until(lambda: nameless.is_cut)
            assert not gateway.station.status().links
            await nameless.close()
            trusting.load_cert_chain(pem)
            other = await Broker.dial(gateway.link_port, "b2", tls=trusting)  # a certificate has a name
            await until(lambda: other.is_cut)
            await other.close()
            broker = await Broker.linked(gateway, "localhost", tls=trusting)
            await broker.close()

    asyncio.run(test())


def test_settings_that_would_be_unsafe_are_refused_with_what_to_do(tmp_path: Path) -> None:
    for settings, words in (
        (GatewaySettings(link_listen="0.0.0.0:7401"), "give a certificate"),
        (GatewaySettings(link_listen=":7401", certificate="c", key="k"), "secret file"),
        (GatewaySettings(certificate="c"), "its key"),
        (GatewaySettings(listen="127.0.0.1:80", link_listen="127.0.0.1:80"), "a port of their own"),
        (GatewaySettings(listen="nowhere"), "HOST:PORT"),
    ):
        with pytest.raises(ConfigError, match=words):
            check(settings)
    check(GatewaySettings(link_listen="0.0.0.0:7401", certificate="c", key="k", secret_file="s"))
    check(GatewaySettings(link_listen="0.0.0.0:7401", certificate="c", key="k", link_ca="ca"))
    check(GatewaySettings(listen="0.0.0.0:80", link_listen="unix:/tmp/x"))
    assert "without TLS" in advice(GatewaySettings(listen="0.0.0.0:80"))[0]
    assert not advice(GatewaySettings(listen="127.0.0.1:80"))
    assert instance_of(GatewaySettings(listen="a:1")) == instance_of(GatewaySettings(listen="a:1"))
    assert instance_of(GatewaySettings(listen="a:1")) != instance_of(GatewaySettings(listen="a:2"))
    for content, mode, words in (
        (b"short", 0o600, "fewer than"),
        (SECRET, 0o644, "chmod 600"),
        (None, 0, "cannot read"),
    ):
        file = tmp_path / "secret"
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)
            file.chmod(mode)
        with pytest.raises(ConfigError, match=words):
            asyncio.run(gateway_app(GatewaySettings(secret_file=str(file))).start())


def test_a_link_over_a_unix_socket_that_was_handed_in(tmp_path: Path) -> None:
    async def test() -> None:
        listener = links.bind_private(str(tmp_path / "links"))
        assert (tmp_path / "links").stat().st_mode & 0o777 == 0o600
        app = gateway_app(GatewaySettings(link_listen=f"unix:{tmp_path / 'more'}"), link=listener)
        station = await app.start()
        assert station.link_addresses() == [f"unix:{tmp_path / 'links'}", f"unix:{tmp_path / 'more'}"]
        for name in ("links", "more"):
            broker = Broker(*await asyncio.open_unix_connection(tmp_path / name))
            broker.send(encode(Kind.LINK_INIT, payload=LinkInit(name, b"", bytes(16), ()).encode()))
            await broker.expect(Kind.LINK_INIT_ACK)
            await broker.close()
        await app.stop()

    asyncio.run(test())
