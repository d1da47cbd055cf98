"""The broker driver: links that come back, tunnels that outlive them, a scripted gateway at the other end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import ssl
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import ConfigError, ConnectionLost, RequestTimeout
from fairlead.tunnel.edge.dial import open_stream
from fairlead.tunnel.edge.gateway import GatewaySettings
from fairlead.tunnel.edge.gateway.serve import GatewayServer
from fairlead.tunnel.edge.links import GatewayAddress, LinkTimes
from fairlead.tunnel.edge.memory import Faults
from fairlead.tunnel.edge.outlet import LIMIT_BYTES, SHARE_BYTES
from fairlead.tunnel.edge.server import TunnelServer
from fairlead.tunnel.end import End
from fairlead.tunnel.options import TunnelOptions
from fairlead.tunnel.packets import Abort, Kind, encode
from fairlead.tunnel.rules import Option, Rules
from tests.tunnel.carriers import QUICK, FaultyLink
from tests.tunnel.gateway_parts import before, certificate, running, until
from tests.tunnel.scripted_gateway import QUICK_TIMES, VERIFIER, ScriptedGateway, data, linked


@pytest.mark.requirement("TUN-43", state="half", note="no firewall in between; the broker dials, and that is all")
@pytest.mark.requirement("TUN-44")
def test_the_first_packet_lists_all_tunnels_with_their_ids_and_periods() -> None:
    async def main() -> None:
        async with linked() as (gateway, server):
            assert gateway.init().server == "b1"
            assert gateway.init().tunnels == []
            for connection_id in (5, 6, 7):
                await gateway.open(connection_id)
            streams = [await server.accept(30) for _ in range(3)]
            streams[0].set_option(Option.PULL_PERIOD, 30)
            streams[0].set_option(Option.INACTIVITY, 200)
            gateway.hang_up()
            await until(lambda: len(gateway.links) == 2 and gateway.packets)
            entries = {entry.connection_id: entry for entry in gateway.init().tunnels}
            assert set(entries) == {5, 6, 7}
            changed = entries[streams[0].pump.end.connection_id]
            assert (changed.pull_period_s, changed.inactivity_s, changed.verifier) == (30, 200, VERIFIER)
            assert entries[streams[1].pump.end.connection_id].pull_period_s == 0

    asyncio.run(main())


@pytest.mark.requirement("TUN-87", state="half", note="the broker's part: what a client's option says is listed")
def test_an_option_of_the_client_is_remembered_for_the_next_link() -> None:
    async def main() -> None:
        async with linked() as (gateway, server):
            await gateway.open(9)
            await server.accept(30)
            option = int(Option.PULL_PERIOD).to_bytes(4) + (30).to_bytes(4)
            gateway.send(encode(Kind.CONN_OPTION, 9, 1, payload=option))
            await until(lambda: gateway.of(Kind.ACK, 9))
            gateway.hang_up()
            await until(lambda: len(gateway.links) == 2 and gateway.packets)
            assert gateway.init().tunnels[0].pull_period_s == 30

    asyncio.run(main())


@pytest.mark.requirement("TUN-48", state="scaled", note="the link is away for a moment, not for 5 s")
def test_a_stream_goes_on_over_the_next_link() -> None:
    async def main() -> None:
        async with linked() as (gateway, server):
            await gateway.open(9)
            stream = await server.accept(30)
            gateway.send(data(9, 1, b"before, "))
            assert await stream.read(100, 30) == b"before, "
            gateway.hang_up()
            await stream.write(b"written while there is no link")
            await until(lambda: gateway.of(Kind.DATA, 9))
            assert gateway.of(Kind.DATA, 9)[0].payload == b"written while there is no link"
            gateway.send(data(9, 2, b"after"))
            assert await stream.read(100, 30) == b"after"

    asyncio.run(main())


def test_pauses_between_dials_grow_to_their_limit() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        times_s: list[float] = []

        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            times_s.append(loop.time())
            writer.transport.abort()

        nobody = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        times = LinkTimes(pause_first_s=0.02, pause_max_s=0.16)
        async with TunnelServer("b1", times=times) as server:
            await server.listen(f"127.0.0.1:{nobody.sockets[0].getsockname()[1]}")
            await until(lambda: len(times_s) >= 7)
        gaps = [later - earlier for earlier, later in pairwise(times_s)]
        for gap, turn in zip(gaps, (0.02, 0.03, 0.045, 0.0675, 0.1, 0.15), strict=False):
            assert gap >= turn / 2
        nobody.close()
        await nobody.wait_closed()

    asyncio.run(main())


@pytest.mark.requirement("TUN-48", "TUN-49", state="half", note="the broker's part")
def test_what_was_under_way_is_sent_again_as_soon_as_the_link_is_back() -> None:
    """The resend interval is a minute here."""

    async def main() -> None:
        rules = QUICK._replace(resend_first_s=60.0, resend_min_s=60.0)
        async with linked(rules) as (gateway, server):
            await gateway.open(5)
            stream = await server.accept(30)
            await stream.write(b"hello")
            await until(lambda: gateway.of(Kind.DATA, 5))
            for links in (2, 3, 4):
                gateway.hang_up()
                await until(lambda links=links: len(gateway.links) == links and gateway.of(Kind.DATA, 5))
                assert gateway.of(Kind.ACK, 5)
                assert len(gateway.of(Kind.DATA, 5)) == 1
            stream.abort()
            stream.release()

    asyncio.run(main())


@pytest.mark.requirement("TUN-51", state="half", note="the broker's part: what LINK_INIT_ACK refuses is aborted")
def test_what_the_gateway_has_ended_is_aborted() -> None:
    async def main() -> None:
        async with linked() as (gateway, server):
            await gateway.open(5)
            await gateway.open(6)
            streams = {(await server.accept(30)).pump.end.connection_id: None for _ in range(2)}
            assert set(streams) == {5, 6}
            ends = {pump.end.connection_id: pump for pump in server.pumps()}
            gateway.refused = [5]
            gateway.hang_up()
            await until(lambda: ends[5].stopped)
            assert ends[5].end.reason is not None
            assert ends[5].end.reason.code == 5
            await until(lambda: server.linked()[0])
            assert [pump.end.connection_id for pump in server.pumps()] == [6]

    asyncio.run(main())


@pytest.mark.requirement("TUN-53", state="half", note="the broker's part: the same start id at every dial")
def test_a_broker_has_the_same_start_id_at_every_dial_and_another_after_a_restart() -> None:
    async def main() -> None:
        async with linked() as (gateway, server):
            first = gateway.init().start_id
            gateway.hang_up()
            await until(lambda: len(gateway.links) == 2 and gateway.packets)
            assert gateway.init().start_id == first
            await server.close()
            async with TunnelServer("b1") as successor:
                await successor.listen(gateway.address, timeout_s=30)
                assert gateway.init().start_id != first

    asyncio.run(main())


@pytest.mark.requirement("TUN-55", state="scaled", note="PING after 0.1 s and loss after 1.5 s instead of 10 and 30")
def test_a_silent_gateway_is_asked_and_then_counts_as_lost() -> None:
    async def main() -> None:
        times = QUICK_TIMES._replace(ping_s=0.1, lost_s=1.5)
        async with linked(times=times) as (gateway, server):
            await gateway.open(9)
            await asyncio.sleep(1.2 * times.lost_s)  # it answers, so nothing happens
            assert len(gateway.links) == 1
            assert sum(packet.kind == Kind.PING for packet in gateway.packets) >= 2
            gateway.is_mute = True
            await until(lambda: len(gateway.links) > 1)
            assert len(server.pumps()) == 1

    asyncio.run(main())


def test_a_ping_is_answered_with_its_own_bytes() -> None:
    async def main() -> None:
        async with linked() as (gateway, _):
            gateway.send(encode(Kind.PING, payload=b"hello?"))
            await until(lambda: any(p.kind == Kind.PONG and p.payload == b"hello?" for p in gateway.packets))

    asyncio.run(main())


@pytest.mark.requirement("TUN-60", state="half", note="the broker's part: accepted only when confirmed")
def test_a_tunnel_is_accepted_when_its_client_has_confirmed_it() -> None:
    async def main() -> None:
        async with linked() as (gateway, server):
            await gateway.open(8, confirm=False)
            await until(lambda: len(gateway.of(Kind.CONN_INIT_ACK, 8)) >= 2)  # repeated until something comes
            with pytest.raises(RequestTimeout):
                await server.accept(0.05)
            gateway.send(encode(Kind.CONN_ABORT, 8, payload=Abort(3, "client lost").payload()))
            await until(lambda: not server.pumps())
            await gateway.open(9)
            stream = await server.accept(30)
            assert stream.pump.end.connection_id == 9
            await stream.write(b"greeting")
            await until(lambda: gateway.of(Kind.DATA, 9))

    asyncio.run(main())


@pytest.mark.requirement("TUN-61", state="half", note="the broker's part")
def test_a_repeated_connect_makes_no_second_tunnel() -> None:
    async def main() -> None:
        async with linked() as (gateway, server):
            await gateway.open(8, confirm=False)
            gateway.send(encode(Kind.CONN_INIT, 8, window=256))
            await until(lambda: len(gateway.of(Kind.CONN_INIT_ACK, 8)) >= 2)
            assert len(server.pumps()) == 1

    asyncio.run(main())


@pytest.mark.requirement("TUN-99", half="the broker's part, with a scripted gateway")
def test_packets_of_an_ended_tunnel_are_answered_by_an_abort_and_make_no_tunnel() -> None:
    async def main() -> None:
        async with linked() as (gateway, server):
            await gateway.open(9)
            stream = await server.accept(30)
            gateway.send(encode(Kind.CONN_ABORT, 9, payload=Abort(3, "client lost").payload()))
            with pytest.raises(ConnectionLost, match="client lost"):
                await stream.read(10, 30)
            await until(lambda: not server.pumps())
            gateway.send(data(9, 1, b"an old push, replayed"))
            await until(lambda: gateway.of(Kind.CONN_ABORT, 9))
            assert Abort.of(gateway.of(Kind.CONN_ABORT, 9)[0].payload).code == 5
            gateway.send(encode(Kind.CONN_ABORT, 9, payload=Abort(3, "again").payload()))
            gateway.send(encode(Kind.PING, payload=b"end"))
            await until(lambda: any(packet.kind == Kind.PONG for packet in gateway.packets))
            assert len(gateway.of(Kind.CONN_ABORT, 9)) == 1
            assert not server.pumps()
            with pytest.raises(RequestTimeout):
                await server.accept(0.02)

    asyncio.run(main())


@pytest.mark.requirement("TUN-94", state="half", note="the abort of the gateway, seen by the broker")
def test_an_abort_may_overtake_and_what_came_before_is_still_read() -> None:
    async def main() -> None:
        async with linked() as (gateway, server):
            await gateway.open(9)
            stream = await server.accept(30)
            abort = encode(Kind.CONN_ABORT, 9, payload=Abort(3, "client lost").payload())
            gateway.send(data(9, 1, b"one"), data(9, 3, b"three"), abort)
            assert await stream.read(100, 30) == b"one"
            with pytest.raises(ConnectionLost, match="client lost"):
                await stream.read(100, 30)

    asyncio.run(main())


@pytest.mark.requirement("TUN-11")
def test_two_gateways_may_hand_out_the_same_id() -> None:
    async def main() -> None:
        async with ScriptedGateway.listening() as other, linked() as (gateway, server):
            await server.listen(other.address)
            await until(lambda: server.linked() == (2, 2))
            streams = {}
            for one in (gateway, other):
                await one.open(7)
                streams[one] = await server.accept(30)
            gateway.send(data(7, 1, b"through the one"))
            other.send(data(7, 1, b"through the other"))
            assert await streams[gateway].read(100, 30) == b"through the one"
            assert await streams[other].read(100, 30) == b"through the other"
            gateway.hang_up()
            await until(lambda: len(gateway.links) == 2 and gateway.packets)
            assert [entry.connection_id for entry in gateway.init().tunnels] == [7]
            assert len(other.links) == 1
            await until(lambda: server.linked() == (2, 2))
            gateway.send(data(7, 2, b"still there"))
            assert await streams[gateway].read(100, 30) == b"still there"

    asyncio.run(main())


@pytest.mark.requirement("TUN-46")
def test_fifty_tunnels_share_one_link() -> None:
    async def main() -> None:
        async with linked() as (gateway, server):
            ids = range(1, 51)
            gateway.send(*(encode(Kind.CONN_INIT, one, window=64) for one in ids))
            gateway.send(*(data(one, 1, b"%d" % one) for one in ids))
            for _ in ids:
                stream = await server.accept(30)
                assert await stream.read(100, 30) == b"%d" % stream.pump.end.connection_id
                await stream.write(b"to %d" % stream.pump.end.connection_id)
            await until(lambda: sum(packet.kind == Kind.DATA for packet in gateway.packets) >= 50)
            for one in ids:
                assert gateway.of(Kind.DATA, one)[0].payload == b"to %d" % one
            assert len(gateway.links) == 1

    asyncio.run(main())


def test_a_busy_tunnel_leaves_room_for_a_quiet_one() -> None:
    """The gateway reads slowly; the busy one fills what there is; the quiet one's word is out within a few shares."""

    async def main() -> None:
        async with linked(Rules(capacity=4096, transmit_max=4096)) as (gateway, server):
            await gateway.open(1, window=4096)
            busy = await server.accept(30)
            await gateway.open(2)
            quiet = await server.accept(30)
            gateway.is_reading.clear()
            writing = asyncio.ensure_future(busy.write(bytes(64 << 20)))
            link_busy = server.status()[0]
            assert link_busy.linked
            await until(lambda: server.status()[0].waiting_bytes >= LIMIT_BYTES - SHARE_BYTES)
            await quiet.write(b"hello")
            gateway.is_reading.set()
            await until(lambda: gateway.of(Kind.DATA, 2))
            behind = sum(len(packet.raw) for packet in gateway.of(Kind.DATA, 1))
            # What had left for the network before, and one more share of the busy one; not its 64 MB.
            assert behind < LIMIT_BYTES + (12 << 20)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    asyncio.run(main())


def test_a_full_broker_refuses_and_the_ended_take_no_place() -> None:
    async def main() -> None:
        async with linked(tunnels_max=1) as (gateway, server):
            await gateway.open(5)
            stream = await server.accept(30)
            gateway.send(encode(Kind.CONN_INIT, 6, window=1))
            await until(lambda: gateway.of(Kind.CONN_ABORT, 6))
            assert Abort.of(gateway.of(Kind.CONN_ABORT, 6)[0].payload).code == 7
            assert len(server.pumps()) == 1
            # An orderly close of both: the end stays for its last ACK, and somebody else gets its place.
            gateway.send(encode(Kind.CONN_CLOSE, 5, 1))
            assert await stream.read(1, 30) == b""
            await until(lambda: gateway.of(Kind.CONN_CLOSE, 5))
            gateway.send(encode(Kind.ACK, 5, 1, 256))
            assert await stream.close()
            assert len(server.pumps()) == 1
            await gateway.open(7)
            assert (await server.accept(30)).pump.end.connection_id == 7

    asyncio.run(main())


@pytest.mark.requirement("TUN-57", state="scaled", note="the broker's part; 1000 refused and 1000 abandoned opens")
@pytest.mark.requirement("TUN-91", state="scaled", note="the broker's part; 300 rounds")
def test_tunnels_that_have_ended_leave_nothing_behind() -> None:
    async def main() -> None:
        rules = QUICK._replace(resend_max_s=0.1, resend_first_s=0.1)  # remembered for 0.2 s
        async with linked(rules, tunnels_max=300) as (gateway, server):
            for first in range(1, 1001, 100):
                ids = range(first, first + 100)
                gateway.send(*(encode(Kind.CONN_INIT, one, window=9, payload=VERIFIER) for one in ids))
                gateway.send(*(encode(Kind.CONN_ABORT, one, payload=Abort(3, "lost").payload()) for one in ids))
            await until(lambda: not server.pumps())
            for connection_id in range(2001, 2301):
                gateway.send(encode(Kind.CONN_INIT, connection_id, window=9, payload=VERIFIER))
                gateway.send(encode(Kind.CONN_CLOSE, connection_id, 1))
                stream = await server.accept(30)
                assert await stream.read(1, 30) == b""
                gateway.send(encode(Kind.ACK, connection_id, 1, 9))
                assert await stream.close()
            gateway.send(*(encode(Kind.CONN_INIT, one, window=9) for one in range(5001, 6301)))
            await until(lambda: any(packet.kind == Kind.CONN_ABORT for packet in gateway.packets))
            gateway.send(*(encode(Kind.CONN_ABORT, one, payload=Abort(3, "").payload()) for one in range(5001, 6301)))
            await until(lambda: not server.pumps())
            del stream
            gc.collect()
            assert not [one for one in gc.get_objects() if isinstance(one, End)]

    asyncio.run(main())


def test_a_closed_server_tells_its_clients() -> None:
    async def main() -> None:
        async with linked() as (gateway, server):
            await gateway.open(5)
            await server.accept(30)
            waiting = asyncio.ensure_future(server.accept(30))
            await asyncio.sleep(0)
            await server.close()
            with pytest.raises(ConnectionLost):
                await waiting
            await until(lambda: gateway.of(Kind.CONN_ABORT, 5))
            assert Abort.of(gateway.of(Kind.CONN_ABORT, 5)[0].payload).code == 9

    asyncio.run(main())


@pytest.mark.parametrize(
    "rubbish",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\nNo links are taken here, whoever you are.",
        encode(Kind.DATA, 5, 1, payload=b"x")[:4] + bytes(4) + bytes(40),
        encode(Kind.DATA, 5, 1)[:4] + (1 << 31).to_bytes(4) + bytes(40),
        encode(Kind.LINK_INIT_ACK, payload=b"\x00\x00\x00\x09"),
        encode(Kind.CONN_ABORT, payload=Abort(7, "wrong secret").payload()),
    ],
)
@pytest.mark.requirement("TUN-13", state="half", note="the broker's side of the link")
def test_a_gateway_that_talks_rubbish_is_left_and_dialled_again(rubbish: bytes, caplog: Any) -> None:
    async def main() -> None:
        async with ScriptedGateway.listening() as gateway:
            gateway.first_answer = rubbish
            async with TunnelServer("b1", times=QUICK_TIMES) as server:
                with caplog.at_level(logging.INFO, "fairlead"):
                    with pytest.raises(RequestTimeout):
                        await server.listen(gateway.address, timeout_s=0.3)
                    await until(lambda: len(gateway.links) >= 2)
                    gateway.first_answer = None
                    await until(lambda: server.linked()[0])

    asyncio.run(main())
    assert "No link to the gateway" in caplog.text
    if b"wrong secret" in rubbish:
        assert "wrong secret" in caplog.text


def test_random_packets_harm_nobody() -> None:
    """Each on its own id, each packet as odd as can be; a neighbour's stream is whole, and the link stays."""
    rng = random.Random(20)

    def odd() -> bytes:
        return encode(
            rng.choice((*Kind, 77)),
            rng.choice((0, 5, 5, 6, rng.randrange(1 << 32))),
            rng.choice((0, 1, 2, rng.randrange(1 << 32))),
            rng.randrange(1 << 16),
            rng.randbytes(rng.choice((0, 1, 8, 50))),
            rng.choice((1, 2)),
        )

    def is_fatal(raw: bytes) -> bool:
        """What a gateway says to end the link."""
        return raw[2:4] == bytes((0, Kind.CONN_ABORT)) and raw[8:12] == bytes(4)

    async def main() -> None:
        async with linked(tunnels_max=50) as (gateway, server):
            await gateway.open(9)
            stream = await server.accept(30)
            for number in range(1, 101):
                gateway.send(*(raw for raw in (odd() for _ in range(20)) if not is_fatal(raw)))
                gateway.send(data(9, number, b"%d," % number))
            got = await stream.readexactly(len(b"".join(b"%d," % n for n in range(1, 101))), 30)
            assert got == b"".join(b"%d," % number for number in range(1, 101))
            assert len(gateway.links) == 1

    asyncio.run(main())


@pytest.mark.requirement("TUN-49", state="scaled", note="2 MB both ways, a gateway of this process stopped and started")
def test_tunnels_survive_a_restart_of_the_gateway() -> None:
    content = random.Random(21).randbytes(2 << 20)

    async def main() -> None:
        ports = {}

        @contextlib.asynccontextmanager
        async def gateway_at() -> AsyncIterator[Any]:
            settings = GatewaySettings(
                listen=f"127.0.0.1:{ports.get('http', 0)}",
                link_listen=f"127.0.0.1:{ports.get('link', 0)}",
                servers=("b1",),
                instance="one",
                leave_s=1,
            )
            server = GatewayServer(settings, intake=None, link=None)
            ready = asyncio.Event()
            server.ready = lambda _: ready.set()
            serving = asyncio.create_task(server.serve())
            await before(ready.wait(), serving)
            try:
                yield server
            finally:
                server.should_exit = True
                await serving

        async with TunnelServer("b1", rules=QUICK._replace(payload_max=32768), times=QUICK_TIMES) as server:
            async with gateway_at() as gateway:
                ports["http"] = int(gateway.urls[0].rpartition(":")[2].partition("/")[0])
                ports["link"] = int(gateway.link_addresses()[0].rpartition(":")[2])
                await server.listen(f"127.0.0.1:{ports['link']}", timeout_s=30)
                options = TunnelOptions(rules=QUICK._replace(payload_max=32768))
                client = await open_stream(f"http://127.0.0.1:{ports['http']}/tunnel/b1", options)
                accepted = await server.accept(30)
                connection_id = client.pump.end.connection_id
                sending = asyncio.gather(client.write(content), accepted.write(content[::-1]))
                first = await asyncio.gather(accepted.readexactly(100_000, 30), client.readexactly(100_000, 30))
            await until(lambda: not server.linked()[0])
            async with gateway_at():
                rest = await asyncio.gather(
                    accepted.readexactly(len(content) - 100_000, 60), client.readexactly(len(content) - 100_000, 60)
                )
                await sending
                assert first[0] + rest[0] == content
                assert first[1] + rest[1] == content[::-1]
                assert client.pump.end.connection_id == connection_id
                assert await asyncio.gather(client.close(), accepted.close()) == [True, True]
                client.release()
                await asyncio.sleep(0.05)

    asyncio.run(main())


def test_a_cut_link_under_load_loses_nothing() -> None:
    content = random.Random(22).randbytes(3 << 20)

    async def main() -> None:
        rules = QUICK._replace(payload_max=32768)
        async with running() as gateway:
            middle = FaultyLink(lambda: asyncio.open_connection("127.0.0.1", gateway.link_port), Faults(), Faults())
            await middle.start()
            async with TunnelServer("b1", rules=rules, times=QUICK_TIMES) as server:
                await server.listen(f"127.0.0.1:{middle.port}", timeout_s=30)
                url = f"http://127.0.0.1:{gateway.port}/tunnel/b1"
                client = await open_stream(url, TunnelOptions(rules=rules, websocket="never"))
                accepted = await server.accept(30)
                sending = asyncio.ensure_future(client.write(content))
                got = b""
                while len(got) < len(content):
                    got += await accepted.read(1 << 20, 60)
                    if middle.links < 4:
                        links = middle.links
                        middle.cut()
                        await until(lambda links=links: middle.links > links and server.linked()[0])
                assert got == content
                await sending
                assert await asyncio.gather(client.close(), accepted.close()) == [True, True]
                client.release()
                await asyncio.sleep(0.05)
            await middle.close()

    asyncio.run(main())


@pytest.mark.requirement("TUN-54", state="half", note="the broker's part: TLS that checks, and the secret inside it")
def test_a_link_over_tls_shows_its_secret_to_the_right_gateway_only(tmp_path: Path, caplog: Any) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    secret.chmod(0o600)

    async def main() -> None:
        pem, trusted = certificate(tmp_path)
        async with running(certificate=str(pem), key=str(pem), secret_file=str(secret)) as gateway:
            address = GatewayAddress("127.0.0.1", gateway.link_port, tls=trusted)
            async with TunnelServer("b1", secret=b"s" * 32, times=QUICK_TIMES) as server:
                await server.listen(address, timeout_s=30)
            stranger = address._replace(tls=ssl.create_default_context())
            for wrong, text in ((b"guessed", address), (b"s" * 32, stranger)):
                async with TunnelServer("b2", secret=wrong, times=QUICK_TIMES) as server:
                    with pytest.raises(RequestTimeout, match=r"refuses the link|certificate verify failed"):
                        await server.listen(text, timeout_s=1)

    with caplog.at_level(logging.WARNING, "fairlead"):
        asyncio.run(main())
    assert "No link to the gateway" in caplog.text


@pytest.mark.requirement("TUN-2", state="half", note="the broker driver")
def test_the_driver_passes_on_what_it_is_fed_as_it_is_fed() -> None:
    async def main() -> None:
        async with linked() as (gateway, server):
            await gateway.open(9)
            stream = await server.accept(30)
            heard: list[bytes] = []
            again = lambda p: encode(p.kind, p.connection_id, p.sequence, p.window, p.payload, p.version)  # noqa: E731
            stream.pump.on_packets = lambda packets: heard.extend(map(again, packets))  # type: ignore[method-assign]
            fed = [data(9, number, b"x") for number in (3, 1, 2, 2, 1)]
            stream.pump.driver.send(fed)
            await until(lambda: len(gateway.of(Kind.DATA, 9)) == 5)
            assert [packet.raw for packet in gateway.of(Kind.DATA, 9)] == fed
            gateway.send(*fed)
            await until(lambda: len(heard) == 5)
            assert heard == fed

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gw.example:7500", GatewayAddress("gw.example", 7500)),
        ("gw.example", GatewayAddress("gw.example", 7401)),
        ("[::1]:9", GatewayAddress("::1", 9)),
        ("[::1]", GatewayAddress("::1", 7401)),
        ("unix:/run/x", GatewayAddress(unix="/run/x")),
    ],
)
def test_addresses_of_gateways(text: str, expected: GatewayAddress) -> None:
    assert GatewayAddress.parse(text) == expected


@pytest.mark.parametrize("text", ["", ":1", "host:0", "host:x", "host:70000"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="address of a gateway"):
        GatewayAddress.parse(text)


def test_a_verifier_that_is_none_does_not_keep_the_link_away() -> None:
    async def main() -> None:
        async with linked() as (gateway, server):
            gateway.send(encode(Kind.CONN_INIT, 5, window=9, payload=b"odd"), data(5, 1, b"x"))
            await server.accept(30)
            gateway.hang_up()
            await until(lambda: len(gateway.links) == 2 and gateway.packets)
            assert [(one.connection_id, one.verifier) for one in gateway.init().tunnels] == [(5, b"")]

    asyncio.run(main())


def test_a_secret_that_no_link_can_carry() -> None:
    with pytest.raises(ConfigError, match="secret"):
        TunnelServer("b1", secret=bytes(2000))


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_names_that_no_broker_can_have(name: str) -> None:
    with pytest.raises(ConfigError, match="name of a broker"):
        TunnelServer(name)
