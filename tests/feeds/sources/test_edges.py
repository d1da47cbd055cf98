"""Sources over real sockets and files: what the scripted source sends arrives once, in order, or is reported."""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fairlead.cli.feed_generate import generate
from fairlead.errors import ConfigError
from fairlead.feeds.edge.sources import check_sources, declared, open_sources
from fairlead.feeds.edge.sources.recording import write_day
from fairlead.feeds.sources.day import TradingDay
from fairlead.feeds.sources.events import SourceDown, SourceGap, SourceReset, SourceTrouble, SourceUp
from fairlead.testing.feed_source import FeedSource, FeedSourceProcess
from tests.feeds.formats.test_texts import fixed
from tests.feeds.sources.listening import listening

ID = "day:DAY0000001"


def test_two_adapters_hear_the_same_over_two_lines() -> None:
    async def scene() -> None:
        with FeedSource() as source:
            one, two = source.add("one"), source.add("two", lines=1)
            async with listening(one.table(start="first")) as a, listening(two.table(start="first")) as b:
                await asyncio.to_thread(source.wait_sent, source.send(5000))
                for ear in (a, b):
                    await ear.until(lambda ear=ear: len(ear.heard.get(ID, ())) >= 5000)  # type: ignore[misc]
                assert a.heard == b.heard == {ID: list(range(1, 5001))}
                assert a.bodies[ID] == b.bodies[ID] == source.bodies(1, 5000)
                assert a.declared == {ID: ()}

    asyncio.run(scene())


@pytest.mark.requirement("STR-15", half="the source side of two adapters over real sockets, without clients")
@pytest.mark.parametrize("scheme", ["udp", "tcp"])
def test_what_is_dropped_is_rewound_and_what_cannot_be_is_a_gap(scheme: str) -> None:
    async def scene() -> None:
        with FeedSource() as source:
            ends = source.add("one")
            source.drop("one", 100, 1999, rewind=False)
            source.drop("one", 3000, 3004)
            source.drop("one", 4000, 4000, lines="A")
            rewind = [url for url in ends.rewind if url.startswith(scheme)]
            table = ends.table(start="first", patience_s=0.5) | {"rewind": rewind}
            async with listening(table) as ear:
                source.send(5000, rate=20_000)
                await ear.until(lambda: len(ear.heard.get(ID, ())) >= 5000)
                wanted = [-n if 3000 <= n <= 3004 else n for n in range(1, 5001)]
                assert ear.heard[ID] == wanted
                assert ear.of(SourceGap) == [SourceGap(ID, 3000, 3004)]
                counters = ear.sources.counters
                assert counters["lost"] == 5
                assert counters["recovered"] >= 1900

    asyncio.run(scene())


@pytest.mark.requirement("STR-22", half="the source side of one adapter over real sockets, without a client")
def test_a_reset_makes_a_new_source_and_nothing_of_it_is_dropped() -> None:
    async def scene() -> None:
        with FeedSource() as source:
            async with listening(source.add("one").table(start="first")) as ear:
                source.send(500)
                await ear.until(lambda: len(ear.heard.get(ID, ())) >= 500)
                source.reset("DAY2")
                source.send(300)
                await ear.until(lambda: len(ear.heard.get("day:DAY2", ())) >= 300)
                assert ear.heard == {ID: list(range(1, 501)), "day:DAY2": list(range(1, 301))}
                (reset,) = ear.of(SourceReset)
                assert (reset.source, reset.successor_of, reset.start) == ("day:DAY2", ID, 1)
                assert ear.declared["day:DAY2"] == (f"successor {ID}",)

    asyncio.run(scene())


def test_silence_and_return() -> None:
    async def scene() -> None:
        with FeedSource(heartbeat_s=0.05) as source:
            async with listening(source.add("one").table(start="first", silent_s=0.5)) as ear:
                await ear.until(lambda: bool(ear.of(SourceUp)))
                source.heartbeats(False)
                await ear.until(lambda: bool(ear.of(SourceDown)))
                source.heartbeats(True)
                await ear.until(lambda: len(ear.of(SourceUp)) == 2)
                source.cut("one", "A")
                source.send(10)
                await ear.until(lambda: len(ear.heard.get(ID, ())) >= 10)

    asyncio.run(scene())


def test_packets_doubled_delayed_and_mixed_up() -> None:
    async def scene() -> None:
        with FeedSource() as source:
            async with listening(source.add("one").table(start="first", reorder_s=0.05)) as ear:
                source.duplicate("one", 3)
                source.reorder("one", 20)
                source.delay("one", 0.05, "B")
                source.send(3000, rate=30_000)
                await ear.until(lambda: len(ear.heard.get(ID, ())) >= 3000)
                assert ear.heard[ID] == list(range(1, 3001))
                await ear.until(lambda: ear.sources.counters["duplicates"] >= 9000)

    asyncio.run(scene())


def test_a_hostile_line_is_survived_and_reported() -> None:
    """Garbage, other sessions, sequences that go back, counts and lengths that lie, between the real packets."""

    async def scene() -> None:
        chance = random.Random(5)
        with FeedSource() as source:
            async with listening(source.add("one").table(start="first")) as ear:
                source.send(1)
                await ear.until(lambda: bool(ear.heard))
                for turn in range(200):
                    source.garbage("one", chance.randbytes(chance.randrange(1500)))
                    source.garbage("one", b"OTHERDAY%02d" % (turn % 50) + (7).to_bytes(8, "big") + b"\0\0", "B")
                    source.garbage("one", b"DAY0000001" + (1).to_bytes(8, "big") + b"\xff\xfe" + b"\0\1x" * 9)
                    source.garbage("one", b"DAY0000001" + (1 << 60).to_bytes(8, "big") + b"\0\0")
                    source.wait_sent(source.send(10))
                await ear.until(lambda: len(ear.heard.get(ID, ())) >= 2001)
                assert ear.heard == {ID: list(range(1, 2002))}
                assert not ear.of(SourceGap)
                await ear.until(lambda: bool(ear.of(SourceTrouble)))
                assert len(ear.of(SourceTrouble)) < 40, "a flood of nonsense is no flood in the log"

    asyncio.run(scene())


def test_multicast_has_several_listeners() -> None:
    async def scene() -> None:
        with FeedSource() as source:
            probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            probe.bind(("", 0))
            group = ("239.255.77.3", probe.getsockname()[1])
            probe.close()
            table = source.add("all", to=[group]).table(start="first")
            async with listening(table) as a, listening(table) as b:
                source.send(500)
                for ear in (a, b):
                    await ear.until(lambda ear=ear: len(ear.heard.get(ID, ())) >= 500)  # type: ignore[misc]

    asyncio.run(scene())


def test_numbered_packets_over_tcp_with_a_connection_that_is_lost() -> None:
    async def scene() -> None:
        with FeedSource() as source:
            ends = source.add("one", lines=0)
            address = ends.rewind[1].removeprefix("tcp://")
            table = {"kind": "tcp", "id": "day", "connect": address, "start": "first", "retry_s": 0.05}
            source.send(1000)
            async with listening(table) as ear:
                await ear.until(lambda: len(ear.heard.get(ID, ())) >= 1000)
                source.hang_up("one")
                source.send(1000)
                await ear.until(lambda: len(ear.heard.get(ID, ())) >= 2000)
                assert ear.heard[ID] == list(range(1, 2001))
                assert len(ear.of(SourceDown)) == 1
                assert len(ear.of(SourceUp)) == 2

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("framing", "data", "bodies", "sequence", "numbers"),
    [
        ("lines", b"a\nbb\n\nc\n", [b"a", b"bb", b"", b"c"], "count", [1, 2, 3, 4]),
        ("fix", b"?" + fixed(b"35=D\x0134=7\x01") + fixed(b"35=D\x0134=8\x01"), None, "34", [7, 8]),
        ("fix", fixed(b"35=D\x0134=7\x01") * 2, None, "count", [1, 2]),
    ],
)
def test_lines_and_fix_over_tcp(
    framing: str, data: bytes, bodies: list[bytes] | None, sequence: str, numbers: list[int]
) -> None:
    async def scene() -> None:
        calls = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal calls
            calls += 1
            writer.write(data)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        table = {"kind": "tcp", "id": "x", "connect": f"127.0.0.1:{port}", "framing": framing, "sequence": sequence}
        async with server, listening(table | {"retry_s": 0.02}) as ear:
            await ear.until(lambda: calls >= 3)
            assert ear.heard == {"x": numbers}, "what is repeated is known"
            if bodies:
                assert ear.bodies == {"x": bodies}

    asyncio.run(scene())


def test_nobody_listens_over_there() -> None:
    async def scene() -> None:
        table = {"kind": "tcp", "id": "x", "connect": "127.0.0.1:1", "retry_s": 0.02}
        async with listening(table) as ear:
            await ear.until(lambda: bool(ear.of(SourceDown)))
            assert "127.0.0.1:1 cannot be reached" in ear.of(SourceDown)[0].why

    asyncio.run(scene())


def test_a_file_of_packets_and_a_generator_give_the_same(tmp_path: Path) -> None:
    async def scene() -> None:
        path = tmp_path / "day.mold"
        write_day(path, TradingDay(messages=20_000, malformed=10), "FILED")
        file = {"kind": "file", "id": "f", "path": str(path)}
        made = {"kind": "generator", "id": "g", "messages": 20_000, "malformed": 10, "rate": 0}
        check_sources([file, made])
        async with listening(file, made) as ear:
            await ear.until(lambda: ear.is_over)
            assert ear.heard == {"f:FILED": list(range(1, 20_001)), "g": list(range(1, 20_001))}
            assert ear.bodies["f:FILED"] == ear.bodies["g"]
            assert sorted(relation for one in ear.declared.values() for relation in one) in (
                ["sibling f:FILED"],
                ["sibling g"],
            )

    asyncio.run(scene())


def test_a_paced_file_of_lines(tmp_path: Path) -> None:
    async def scene() -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(b"".join(b"line %d\n" % n for n in range(1, 401)) + b"the last has no end")
        async with listening({"kind": "file", "id": "f", "path": str(path), "framing": "lines", "rate": 2000}) as ear:
            begun_s = asyncio.get_running_loop().time()
            await ear.until(lambda: ear.is_over)
            assert asyncio.get_running_loop().time() - begun_s > 0.15
            assert ear.heard == {"f": list(range(1, 402))}
            assert ear.bodies["f"][-1] == b"the last has no end"

    asyncio.run(scene())


@pytest.mark.requirement("STR-12", half="the merging alone, without clients")
def test_two_sources_are_merged_with_the_order_of_each() -> None:
    async def scene() -> None:
        with FeedSource(seed=1) as one, FeedSource(seed=2, session="OTHER") as two:
            first = one.add("x").table(start="first")
            second = two.add("x").table(id="other", start="first")
            one.delay("x", 0.02, "A")
            two.reorder("x", 5)
            async with listening(first, second) as ear:
                one.send(2000, rate=20_000)
                two.send(2000, rate=20_000)
                await ear.until(lambda: sum(map(len, ear.heard.values())) >= 4000)
                assert ear.heard == {ID: list(range(1, 2001)), "other:OTHER": list(range(1, 2001))}

    asyncio.run(scene())


def test_relations_are_meant_within_a_session() -> None:
    async def scene() -> None:
        with FeedSource() as source:
            table = source.add("x").table(relations=[{"kind": "equivalent", "of": "other", "offset": 1000}])
            async with listening(table) as ear:
                await ear.until(lambda: bool(ear.declared))
                assert ear.declared == {ID: ("equivalent other:DAY0000001",)}

    asyncio.run(scene())


def test_the_source_in_a_process_of_its_own() -> None:
    async def scene() -> None:
        with FeedSourceProcess(malformed=5) as source:
            table = source.add("one").table(start="first")
            async with listening(table) as ear:
                source.wait_sent(source.send(2000))
                await ear.until(lambda: len(ear.heard.get(ID, ())) >= 2000)
                assert source.sent == 2000
                with pytest.raises(RuntimeError, match="KeyError"):
                    source.drop("nobody", 1, 2)

    asyncio.run(scene())


def test_bodies_of_ones_own() -> None:
    async def scene() -> None:
        with FeedSource() as source:
            async with listening(source.add("one").table(start="first")) as ear:
                source.send(3)
                source.send_bodies([b"x", b"", b"N anything"])
                source.send(1)
                await ear.until(lambda: len(ear.heard.get(ID, ())) >= 7)
                assert ear.bodies[ID][3:6] == [b"x", b"", b"N anything"]
                assert ear.bodies[ID] == source.bodies(1, 7)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "kind = None: it is one of udp, tcp"),
        ({"kind": "udp", "id": "x"}, "listen"),
        ({"kind": "udp", "id": "x", "lisen": "127.0.0.1:1"}, "did you mean `listen`"),
        ({"kind": "udp", "id": "x", "listen": "nowhere"}, "write HOST:PORT"),
        ({"kind": "udp", "id": "x", "listen": "127.0.0.1:1", "rewind": "h:1"}, "udp://HOST:PORT or tcp"),
        ({"kind": "udp", "id": "x", "listen": "127.0.0.1:1", "start": "never"}, "start"),
        ({"kind": "udp", "id": "", "listen": "127.0.0.1:1"}, "id"),
        ({"kind": "udp", "id": "x" * 101, "listen": "127.0.0.1:1"}, "id"),
        ({"kind": "udp", "id": "a b", "listen": "127.0.0.1:1"}, "id"),
        ({"kind": "tcp", "id": "x", "connect": "h:1", "framing": "lines", "sequence": "34"}, "a tag if framing"),
        ({"kind": "file", "id": "x", "path": "nothing/here"}, "no such file"),
        ({"kind": "generator", "id": "x", "messages": 1}, "messages"),
        ({"kind": "topic", "id": "x"}, "topic"),
    ],
)
def test_tables_that_are_not_right(table: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_sources([table])


def test_ids_are_ones_own() -> None:
    generator = {"kind": "generator", "id": "a"}
    with pytest.raises(ConfigError, match="id of its own"):
        check_sources([generator, generator])
    with pytest.raises(ConfigError, match="needs a source"):
        open_sources([], stream="x")
    found = declared([generator, generator | {"id": "b"}, {"kind": "udp", "id": "c", "listen": "127.0.0.1:1"}])
    assert [(one.id, [relation.of for relation in one.relations]) for one in found] == [("a", ["b"]), ("b", ["a"])]


def test_an_address_that_is_taken_is_told() -> None:
    async def scene() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(("127.0.0.1", 0))
            listen = f"127.0.0.1:{taken.getsockname()[1]}"
            sources = open_sources([{"kind": "udp", "id": "x", "listen": listen}], stream="x")
            with pytest.raises(ConfigError, match=f"cannot listen on {listen}"):
                await anext(sources)
            await sources.aclose()

    asyncio.run(scene())


def test_generate_writes_a_file_and_sends_to_a_line(tmp_path: Path) -> None:
    path = tmp_path / "day.mold"
    result = CliRunner().invoke(generate, [str(path), "--messages", "500", "--session", "X"])
    assert result.exit_code == 0, result.output
    assert "500 messages" in result.output
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.bind(("127.0.0.1", 0))
        to = f"127.0.0.1:{line.getsockname()[1]}"
        result = CliRunner().invoke(generate, ["--to", to, "--messages", "100", "--rate", "10000"])
        assert result.exit_code == 0, result.output
        line.settimeout(5)
        assert line.recv(65536)[:10] == b"DAY0000001"
    for wrong in ([], [str(path), "--to", to], [str(path), "--session", "far too long a name"], ["--to", "x"]):
        assert CliRunner().invoke(generate, wrong).exit_code == 2
