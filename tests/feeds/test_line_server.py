"""An adapter's port over real sockets: who is let in, what it gets, and that nobody waits for anybody."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from fairlead.broker.edge.tls import make_context
from fairlead.feeds import words
from fairlead.feeds.adapter import Adapter, Limits
from fairlead.feeds.adapter.admission import Admission
from fairlead.feeds.edge.faults import Faults
from fairlead.feeds.edge.line_server import LineServer
from fairlead.feeds.edge.running import loop_factory
from fairlead.feeds.frames import word_frame
from fairlead.feeds.made import Made
from fairlead.feeds.records import MESSAGE
from fairlead.feeds.settings import ListenSettings
from fairlead.feeds.speech import LinkHears
from tests.feeds.raw_line import RawLine, certificate

SOURCE = "S"
Loop = Callable[[], asyncio.AbstractEventLoop] | None


class Port:
    """A line server around a real machine, without a source and an administration."""

    def __init__(self, limits: Limits, listen: ListenSettings, faults: Faults | None) -> None:
        self.machine = Adapter(name="a", stream="prices", incarnation=1, limits=limits)
        self.admission = Admission()
        self.server = LineServer(
            self.machine, self, self.admission, listen, stream="prices", heartbeat_s=limits.heartbeat_s, faults=faults
        )
        self.address = ""
        self.sequence = 0
        self.epochs: list[int] = []
        self.links: list[tuple[str, object]] = []
        self.now_s = asyncio.get_running_loop().time

    def on_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def on_link_up(self, adapter: str, hello: words.LinkHello) -> None:
        self.links.append((adapter, "up"))

    def on_link_word(self, adapter: str, word: LinkHears) -> None:
        self.links.append((adapter, word))

    def on_link_down(self, adapter: str) -> None:
        self.links.append((adapter, "down"))

    def admit(self, client: str, *, link: bool = False, life_s: float = 60) -> None:
        self.admission.admit(
            words.Admit(token=f"token of {client}", client=client, life_s=life_s, link=link), self.now_s()
        )

    def make(self, count: int, body: bytes = b"x" * 20) -> None:
        """The source sends so many messages."""
        sequences = np.arange(self.sequence + 1, self.sequence + count + 1, dtype=np.uint64)
        ones = np.ones(count, dtype=np.uint16)
        made = Made(
            SOURCE,
            np.full(count, MESSAGE, dtype=np.uint8),
            sequences,
            ones,
            ones,
            body * count,
            np.arange(1, count + 1, dtype=np.uint64) * len(body),
            self.sequence + 1,
            self.sequence + count,
        )
        self.sequence += count
        self.machine.on_made(made, self.now_s())
        self.server.supply.wake()

    @asynccontextmanager
    async def line(self, client: str = "c") -> AsyncIterator[RawLine]:
        """A line that was let in."""
        self.admit(client)
        async with RawLine(self.address) as line:
            line.say(words.Hello(stream="prices", token=f"token of {client}", client=client))
            await line.hear(words.Welcome)
            yield line


@asynccontextmanager
async def port(
    limits: Limits | None = None, listen: ListenSettings | None = None, faults: Faults | None = None
) -> AsyncIterator[Port]:
    one = Port(limits or Limits(), listen or ListenSettings(address="127.0.0.1:0"), faults)
    one.machine.on_source(words.Source(id=SOURCE), 0.0)
    one.machine.on_role(words.Role(epoch=1, role="active", active="a"), 0.0)
    one.address = await one.server.listen(None)
    try:
        yield one
    finally:
        await one.server.close("the test is over")


def story(work: Callable[[], Awaitable[None]], loop: Loop = None) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), 60)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(bounded())


LOOPS = pytest.mark.parametrize("loop", [None, loop_factory()], ids=["asyncio", "uvloop"])
"""What adapters run on, where it is installed, has transports of its own."""


def listening(**changes: object) -> ListenSettings:
    return ListenSettings(address="127.0.0.1:0", **changes)  # type: ignore[arg-type]


# Who is let in.


@pytest.mark.requirement("STR-80", half="the adapter's side, without an administration")
@pytest.mark.parametrize(
    ("hello", "code"),
    [
        (words.Hello(stream="prices", token="forged", client="c"), "stream-refused"),
        (words.Hello(stream="prices", token="token of c", client="somebody"), "stream-refused"),
        (words.Hello(stream="prices", token="token of old", client="old"), "stream-refused"),
        (words.Hello(stream="prices", token="token of link", client="link"), "stream-refused"),
        (words.Hello(stream="other", token="token of c", client="c"), "unknown-stream"),
        (words.LinkHello(stream="prices", token="token of c", adapter="c", incarnation=1, epoch=1), "stream-refused"),
        (words.Start(), "bad-request"),
    ],
)
def test_only_a_living_token_of_this_stream_lets_in(hello: words.Word, code: str) -> None:
    async def work() -> None:
        async with port() as one:
            one.admit("c")
            one.admit("old", life_s=0)
            one.admit("link", link=True)
            async with RawLine(one.address) as line:
                line.say(hello)
                (refusal,) = await line.ended()
                assert isinstance(refusal, words.Refusal)
                assert refusal.code == code

    story(work)


def test_a_token_may_come_a_little_before_the_adapter_is_told_of_it() -> None:
    async def work() -> None:
        async with port() as one, RawLine(one.address) as line, RawLine(one.address, is_link=True) as link:
            line.say(words.Hello(stream="prices", token="token of c", client="c"))
            link.say(words.LinkHello(stream="prices", token="token of b", adapter="b", incarnation=1, epoch=1))
            while one.server.facts()["lines_waiting"] < 2:
                await asyncio.sleep(0)
            one.admit("c")
            one.server.on_admitted("token of c")
            await line.hear(words.Welcome)
            one.admit("b", link=True)
            one.server.on_admitted("token of b")
            await link.hear(words.Welcome)

    story(work)


@pytest.mark.requirement("STR-82", half="the adapter's side, without an administration")
def test_a_revoked_token_ends_its_line_at_once_and_others_go_on() -> None:
    async def work() -> None:
        async with port() as one, one.line("c") as line, one.line("d") as other:
            for each in (line, other):
                each.say(words.Start(at="new"))
            other.say(words.FetchAdmin(id=1, admin="none"))
            await other.hear(words.Unavailable)
            one.admission.revoke("token of c")
            one.server.revoke("token of c", "not paid")
            one.make(3)
            said = await line.ended()
            assert isinstance(said[-1], words.Refusal)
            assert said[-1].code == "stream-revoked"
            assert said[-1].why == "not paid"
            assert len(await other.records(3)) == 3
            async with RawLine(one.address) as again:
                again.say(words.Hello(stream="prices", token="token of c", client="c"))
                assert isinstance((await again.ended())[0], words.Refusal)

    story(work)


def test_a_line_whose_token_ran_out_ends_when_it_is_looked_for() -> None:
    async def work() -> None:
        async with port() as one, one.line() as line:
            one.server.end_without_right()
            one.admit("c", life_s=0)
            one.server.end_without_right()
            assert isinstance((await line.ended())[-1], words.Refusal)

    story(work)


def test_whoever_says_nothing_is_not_waited_for() -> None:
    async def work() -> None:
        async with port(listen=listening(hello_s=0.05)) as one, RawLine(one.address) as line:
            (refusal,) = await line.ended()
            assert isinstance(refusal, words.Refusal)
            assert refusal.code == "timeout"

    story(work)


def test_those_who_wait_are_bounded_and_the_oldest_makes_room() -> None:
    async def work() -> None:
        async with port(listen=listening(waiting_max=2)) as one:
            lines = [RawLine(one.address) for _ in range(50)]
            for line in lines:
                await line.__aenter__()
                assert one.server.facts()["lines_waiting"] <= 2
            for line in lines[:-2]:
                (refusal,) = await line.ended()
                assert isinstance(refusal, words.Refusal)
                assert refusal.code == "server-full"
            async with one.line() as let_in:
                let_in.say(words.FetchAdmin(id=1, admin="none"))
                await let_in.hear(words.Unavailable)
            for line in lines:
                await line.__aexit__(None, None, None)

    story(work)


@LOOPS
def test_handshakes_are_bounded_and_the_slowest_makes_room(loop: Loop, tmp_path: Path) -> None:
    pem = certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=pem)

    async def work() -> None:
        one = Port(Limits(), listening(waiting_max=4), None)
        one.machine.on_role(words.Role(epoch=1, role="active", active="a"), 0.0)
        one.address = await one.server.listen(make_context(str(pem), str(pem)))
        one.admit("c")
        idle = [RawLine(one.address) for _ in range(20)]
        for line in idle:
            await line.__aenter__()
        for line in idle[:16]:
            assert await line.ended() == []
        async with RawLine(one.address, tls=trusting) as line:
            line.say(words.Hello(stream="prices", token="token of c", client="c"))
            await line.hear(words.Welcome)
            await one.server.close("the test is over")
            assert isinstance((await line.ended())[-1], words.Closing)
        for line in idle:
            await line.__aexit__(None, None, None)

    story(work, loop)


def test_lines_are_bounded() -> None:
    async def work() -> None:
        async with port(listen=listening(lines_max=1)) as one, one.line():
            one.admit("d")
            async with RawLine(one.address) as line:
                line.say(words.Hello(stream="prices", token="token of d", client="d"))
                (refusal,) = await line.ended()
                assert isinstance(refusal, words.Refusal)
                assert refusal.code == "server-full"

    story(work)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 64,
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x00" * 10,
        b"\x05\x00\x00\x00\x01\xc1\xc1\xc1\xc1",
        word_frame(words.Beat(epoch=1, incarnation=1, role="active", last=1)),
        b"\x0a\x00\x00\x00\x02" + bytes(20),
        os.urandom(4096),
    ],
)
def test_garbage_ends_its_own_line_only(data: bytes) -> None:
    async def work() -> None:
        async with port() as one, one.line() as good:
            async with RawLine(one.address) as line:
                line.writer.write(data)
                line.writer.write_eof()
                await line.ended()
            async with one.line("d") as inside:
                inside.writer.write(data)
                inside.writer.write_eof()
                await inside.ended()
            good.say(words.Start(at="new"))
            good.say(words.FetchAdmin(id=1, admin="none"))
            await good.hear(words.Unavailable)
            one.make(1)
            assert len(await good.records(1)) == 1

    story(work)


def test_questions_without_end_end_the_line() -> None:
    async def work() -> None:
        async with port(listen=listening(questions_max=4)) as one, one.line() as line:
            line.writer.write(b"".join(word_frame(words.FetchAdmin(id=n, admin="none")) for n in range(50)))
            said = await line.ended()
            assert isinstance(said[-1], words.Refusal)
            assert said[-1].code == "too-many"

    story(work)


def test_a_program_may_dial_again_but_not_keep_many_lines() -> None:
    async def work() -> None:
        async with port() as one, one.line() as oldest, one.line(), one.line(), one.line(), one.line():
            assert isinstance((await oldest.ended())[-1], words.Closing)

    story(work)


# What it gets.


@pytest.mark.requirement("STR-9", half="the adapter's port with a machine, in one process")
@pytest.mark.requirement("STR-18", half="the adapter's port with a machine, in one process")
@LOOPS
def test_lines_get_what_is_made_in_order_with_numbers_without_holes(
    loop: Loop,
) -> None:
    async def work() -> None:
        async with port() as one, one.line("c") as line, one.line("d") as other:
            for each in (line, other):
                each.say(words.Start(at="oldest"))
            for count in (1, 1000, 3):
                one.make(count)
            found, same = await line.records(1004), await other.records(1004)
            assert [record.number for record in found] == list(range(1, 1005))
            assert [record.sequence for record in found] == list(range(1, 1005))
            assert found == same

    story(work, loop)


@pytest.mark.requirement("STR-74", half="the adapter's side: new, from a position, from a number, oldest")
def test_a_line_begins_where_it_asks_to() -> None:
    async def work() -> None:
        async with port() as one:
            for _ in range(10):
                one.make(10)
            async with one.line() as line:
                line.say(words.Start(positions={SOURCE: (55, 1, 1)}))
                found = await line.records(45)
                assert found[-1].sequence == 100
                assert 51 <= found[0].sequence <= 56
                line.say(words.Start(at="number", number=91))
                assert [record.number for record in await line.records(10)] == list(range(91, 101))
                line.say(words.Start(at="new"))
                line.say(words.FetchAdmin(id=1, admin="none"))
                await line.hear(words.Unavailable)
                one.make(2)
                assert [record.number for record in await line.records(2)] == [101, 102]
                line.say(words.Stop())
                line.say(words.FetchAdmin(id=2, admin="none"))
                await line.hear(words.Unavailable)
                one.make(2)
                line.say(words.Fill(id=7, first=103, last=104))
                frame = await line.frame()
                while frame is not None and frame.kind == 1:
                    frame = await line.frame()
                assert frame is not None
                assert frame.kind == 3

    story(work)


@pytest.mark.requirement("STR-14", half="the adapter's port with a machine, in one process")
def test_an_old_range_is_repeated_identically_and_what_is_gone_is_said_to_be() -> None:
    async def work() -> None:
        limits = Limits(retained_messages=50, retained_s=0.0)
        async with port(limits) as one, one.line() as line:
            line.say(words.Start(at="oldest"))
            line.say(words.FetchAdmin(id=9, admin="none"))
            await line.hear(words.Unavailable)
            for _ in range(10):
                one.make(10)
                await asyncio.sleep(0)
            live = await line.records(100)
            line.say(words.Fill(id=1, first=81, last=90))
            by_number = await line.filled(1)
            assert by_number == live[80:90]
            line.say(words.Fill(id=2, source=SOURCE, after=(80, 1, 1), to=90))
            by_position = await line.filled(2)
            assert isinstance(by_position, list)
            assert [one for one in by_position if 80 < one.sequence <= 90] == live[80:90]
            line.say(words.Fill(id=3, first=1, last=5))
            gone = await line.filled(3)
            assert isinstance(gone, words.Unavailable)
            assert gone.first == 51
            assert gone.why

    story(work)


@pytest.mark.requirement("STR-29", half="the adapter's port with a machine, in one process")
def test_a_quiet_line_gets_heartbeats_started_or_not() -> None:
    async def work() -> None:
        async with port(Limits(heartbeat_s=0.02)) as one, one.line("c") as line, one.line("d") as silent:
            line.say(words.Start(at="new"))
            one.make(5)

            async def beat() -> None:
                while True:
                    one.server.beat()
                    await asyncio.sleep(0.005)

            beating = asyncio.create_task(beat())
            for each in (line, silent):
                for _ in range(3):
                    word = await each.hear(words.Beat)
                    assert (word.epoch, word.role) == (1, "active")
                assert word.last == 5
                assert word.positions == {SOURCE: (5, 1, 1)}
            beating.cancel()

    story(work)


# Nobody waits for anybody.


@pytest.mark.requirement("STR-84", half="one slow line beside others, in one process; no backup")
@LOOPS
def test_a_line_that_does_not_read_slows_nobody_and_is_told_what_it_missed(
    loop: Loop,
) -> None:
    async def work() -> None:
        limits = Limits(retained_messages=100, retained_s=0.0)
        async with port(limits, listening(send_bytes=16384)) as one, one.line("slow") as slow, one.line("c") as line:
            for each in (slow, line):
                each.say(words.Start(at="oldest"))
                each.say(words.FetchAdmin(id=1, admin="none"))
            await line.hear(words.Unavailable)
            for _ in range(400):  # far more than the sockets take
                one.make(10, bytes(5000))
                assert len(await line.records(10)) == 10
            missed = await slow.hear(words.Missed)
            assert 1 < missed.first <= missed.last
            found = await slow.records(1)
            assert found[0].number == missed.last + 1

    story(work, loop)


@LOOPS
def test_a_line_that_stalls_for_long_is_ended(loop: Loop) -> None:
    async def work() -> None:
        async with port(listen=listening(send_bytes=16384, stalled_s=0.05)) as one, one.line() as line:
            line.say(words.Start(at="oldest"))
            line.say(words.FetchAdmin(id=1, admin="none"))
            await line.hear(words.Unavailable)
            for _ in range(400):
                one.make(10, bytes(5000))
                await asyncio.sleep(0)
            while one.server.facts()["lines"]:
                one.server.beat()
                await asyncio.sleep(0.01)

    story(work, loop)


@LOOPS
def test_a_long_way_behind_is_sent_in_turns(loop: Loop) -> None:
    async def work() -> None:
        async with port() as one:
            for _ in range(100):
                one.make(1000)
            async with one.line("late") as late, one.line("c") as line:
                line.say(words.Start(at="new"))
                line.say(words.FetchAdmin(id=1, admin="none"))
                await line.hear(words.Unavailable)
                late.say(words.Start(at="oldest"))
                one.make(1)
                assert (await line.records(1))[0].number == 100_001
                assert [record.number for record in await late.records(100_001)] == list(range(1, 100_002))

    story(work, loop)


# Links, faults, the end.


def test_links_are_let_in_with_their_own_tokens_one_for_each_adapter() -> None:
    async def work() -> None:
        async with port() as one:
            one.admit("b", link=True)
            hello = words.LinkHello(stream="prices", token="token of b", adapter="b", incarnation=5, epoch=1)
            async with RawLine(one.address, is_link=True) as first:
                first.say(hello)
                await first.hear(words.Welcome)
                first.say(words.AskAnchor(source=SOURCE, place=(1, 1, 1)))
                async with RawLine(one.address, is_link=True) as second:
                    second.say(hello)
                    await second.hear(words.Welcome)
                    assert isinstance((await first.ended())[-1], words.Closing)
                    one.server.say("b", words.Final(admin="x", n=3))
                    one.server.say("unknown", words.Final(admin="y", n=3))
                    assert (await second.hear(words.Final)).admin == "x"
                    one.server.refuse_links(True)
                    await second.ended()
                while ("b", "down") not in one.links[3:]:
                    await asyncio.sleep(0.005)
            assert [what for _, what in one.links if isinstance(what, str)] == ["up", "down", "up", "down"]

    story(work)


def test_a_stopped_line_gets_up_to_the_number_and_no_further_until_it_starts_again() -> None:
    async def work() -> None:
        async with port() as one, one.line() as line:
            line.say(words.Start(at="oldest"))
            line.say(words.FetchAdmin(id=1, admin="none"))
            await line.hear(words.Unavailable)
            one.make(5)
            one.server.supply.stop_after(5)
            one.make(5)
            one.make(5)
            line.say(words.FetchAdmin(id=2, admin="none"))
            found = await line.records(5)
            await line.hear(words.Unavailable)
            assert found[-1].number == 5
            line.say(words.Start(positions={SOURCE: (5, 1, 1)}))
            assert [record.number for record in await line.records(15)][-10:] == list(range(6, 16))

    story(work)


def test_ordered_faults_drop_and_spoil_blocks() -> None:
    async def work() -> None:
        faults = Faults()
        async with port(faults=faults) as one, one.line() as line:
            line.say(words.Start(at="oldest"))
            line.say(words.FetchAdmin(id=1, admin="none"))
            await line.hear(words.Unavailable)
            assert faults.order({"do": "lines", "drop": 1})
            one.make(1)
            one.make(1)
            assert [record.number for record in await line.records(1)] == [2]
            assert faults.order({"do": "lines", "corrupt": 1})
            one.make(1)
            with pytest.raises(Exception, match="checksum"):
                await line.records(1)

    story(work)


def test_programs_hear_of_the_end_and_of_higher_epochs() -> None:
    async def work() -> None:
        async with port() as one:
            one.admit("c")
            async with RawLine(one.address) as line:
                line.say(words.Hello(stream="prices", token="token of c", client="c", epoch=9))
                welcome = await line.hear(words.Welcome)
                assert (welcome.adapter, welcome.epoch, welcome.role) == ("a", 1, "active")
                assert one.epochs == [9]
                await one.server.close("good night")
                said = await line.ended()
                assert isinstance(said[-1], words.Closing)
                assert said[-1].why == "good night"

    story(work)
