"""Several servers, one answer: what is asked of whom, how often and for how long. The servers are scripted here."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from fairlead.directory import DirectoryClient, open_directory
from fairlead.errors import (
    BadCredentials,
    ConnectionLost,
    FairleadError,
    NoDirectory,
    NoneAvailable,
    RemoteProtocolError,
    ServerFull,
    UnknownCluster,
)

Says = Callable[[str], Awaitable[dict[str, Any]]]


class Scripted:
    """A connection to a server that says what it is told to; `asked` lists the operations."""

    def __init__(self, says: Says, opens: Exception | None = None, gate: asyncio.Event | None = None) -> None:
        self.says, self.opens, self.gate = says, opens, gate
        self.asked: list[dict[str, Any]] = []
        self.opened = 0
        self.connected = False

    @property
    def closed(self) -> bool:
        return not self.connected

    def __await__(self) -> Any:
        return self._open().__await__()

    async def _open(self) -> Scripted:
        await asyncio.sleep(0)
        self.opened += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.opens is not None:
            raise self.opens
        self.connected = True
        return self

    async def close(self) -> None:
        self.connected = False

    async def _ask_directory(self, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.asked.append({"op": op, **arguments})
        return await self.says(op)


def says(facts: dict[str, Any]) -> Says:
    async def said(op: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        return facts

    return said


def raises(error: FairleadError) -> Says:
    async def said(op: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        raise error

    return said


async def silent(op: str) -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


FINE = says({"revision": 7, "brokers": []})


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Callable[..., DirectoryClient]:
    def make(*servers: Scripted, **options: Any) -> DirectoryClient:
        names = {f"fairlead://d{number}:7402": server for number, server in enumerate(servers)}
        monkeypatch.setattr(DirectoryClient, "_connection", lambda self, url: names[url])
        return open_directory(list(names), **options)

    return make


Make = Callable[..., DirectoryClient]


@pytest.mark.parametrize(
    "broken",
    [
        Scripted(raises(NoDirectory("there is no primary"))),
        Scripted(raises(ConnectionLost("lost"))),
        Scripted(FINE, opens=ConnectionLost("refused")),
        Scripted(says({"revision": "x"})),
        Scripted(raises(RemoteProtocolError("not JSON"))),
    ],
)
def test_the_next_server_answers_for_one_that_cannot(directory: Make, broken: Scripted) -> None:
    async def story() -> None:
        well = Scripted(FINE)
        async with directory(broken, well) as client:
            assert (await client.list_brokers()).revision == 7
            assert client.server == "fairlead://d1:7402"
            tried = len(broken.asked) + broken.opened
            await client.list_brokers()
            assert len(broken.asked) + broken.opened == tried, "it is not asked while another one answers"
            assert len(well.asked) == 2
            assert well.opened == 1, "the connection is kept"
            assert client.facts()["servers"][0]["failures"] == 1
            assert client.facts()["servers"][0]["reason"]

    asyncio.run(story())


def test_a_silent_server_is_left_after_its_share_of_the_time(directory: Make) -> None:
    async def slow(op: str) -> dict[str, Any]:
        await asyncio.sleep(0.1)
        return {"revision": 7}

    async def story() -> None:
        mute, well = Scripted(silent), Scripted(slow)
        async with directory(mute, well, timeout_s=30) as client:
            assert (await client.list_brokers(timeout=1)).revision == 7
            assert len(well.asked) == 1
            assert (client.latency_s or 0) > 0.05, "that it was slow is remembered"

    asyncio.run(story())


def test_a_connection_that_took_all_its_time_is_given_up(directory: Make) -> None:
    async def story() -> None:
        mute, well = Scripted(silent), Scripted(FINE)
        async with directory(mute, well, timeout_s=0.05) as client:
            await client.list_brokers()
            await asyncio.sleep(0)
            assert not mute.connected

    asyncio.run(story())


@pytest.mark.parametrize("error", [UnknownCluster("no"), NoneAvailable("full"), BadCredentials("wrong")])
def test_a_no_of_the_directory_is_an_answer(directory: Make, error: FairleadError) -> None:
    async def story() -> None:
        first, second = Scripted(raises(error)), Scripted(FINE)
        async with directory(first, second) as client:
            with pytest.raises(type(error)):
                await client.get_cluster("x")
            assert not second.asked

    asyncio.run(story())


def test_a_repeated_pick_is_the_same_request(directory: Make) -> None:
    async def story() -> None:
        row = {"name": "A", "ip": "::1", "port": 1}
        first, second = Scripted(raises(ConnectionLost("died"))), Scripted(says({"revision": 1, "broker": row}))
        async with directory(first, second) as client:
            picked = await client.pick_broker(app="AX", cluster="c")
            assert (picked.broker.name, picked.broker.ip) == ("A", "::1")
            assert first.asked == second.asked
            again = await client.pick_broker(app="AX", cluster="c")
            assert again.broker == picked.broker
            assert second.asked[0]["request"] != second.asked[1]["request"], "another connection, another request"

    asyncio.run(story())


@pytest.mark.requirement("DIR-37", state="half", note="the client's part; killed servers are in the process tests")
def test_it_goes_on_until_one_answers_or_time_is_up(directory: Make) -> None:
    async def story() -> None:
        moments = iter(range(100))

        async def later(op: str) -> dict[str, Any]:
            if next(moments) < 4:
                raise NoDirectory("nobody leads")
            return {"revision": 9}

        coming, dead = Scripted(later), Scripted(FINE, opens=ConnectionLost("refused"))
        async with directory(dead, coming) as client:
            assert (await client.list_brokers()).revision == 9
        mute = Scripted(silent)
        async with directory(mute, dead) as client:
            with pytest.raises(NoDirectory) as caught:
                await client.list_brokers(timeout=0.3)
            text = str(caught.value)
            assert text.startswith("directory unreachable: ")
            assert "d0:7402: no answer within" in text
            assert "d1:7402: refused" in text

    asyncio.run(story())


def test_with_no_time_each_is_asked_once(directory: Make) -> None:
    async def story() -> None:
        servers = [Scripted(raises(NoDirectory("no"))) for _ in range(3)]
        async with directory(*servers) as client:
            with pytest.raises(NoDirectory):
                await client.list_brokers(timeout=0)
            assert [len(server.asked) for server in servers] == [1, 1, 1]

    asyncio.run(story())


@pytest.mark.requirement("DIR-38", state="half", note="how the client takes stale answers")
def test_a_stale_answer_is_taken_if_there_is_no_better_one(directory: Make) -> None:
    async def story() -> None:
        old, fresh = Scripted(says({"revision": 3, "stale": True})), Scripted(FINE)
        async with directory(old, fresh) as client:
            assert (await client.list_brokers()).revision == 7
            assert client.server == "fairlead://d1:7402"
        dead = Scripted(FINE, opens=ConnectionLost("cut"))
        async with directory(dead, old) as client:
            answer = await client.list_brokers()
            assert (answer.revision, answer.stale) == (3, True)
            assert client.facts()["stale"]
            await client.list_brokers()
            assert dead.opened == 1, "one that just failed is not waited for when there is some answer"

    asyncio.run(story())


def test_questions_at_the_same_time_share_one_connection(directory: Make) -> None:
    async def story() -> None:
        well = Scripted(FINE)
        async with directory(well) as client:
            await asyncio.gather(*(client.list_brokers() for _ in range(50)))
            assert (well.opened, len(well.asked)) == (1, 50)
            well.connected = False
            await client.list_brokers()
            assert well.opened == 2, "a lost one is opened again"

    asyncio.run(story())


def test_one_who_gives_up_takes_nobody_else_along(directory: Make) -> None:
    async def story() -> None:
        gate = asyncio.Event()

        async def gated(op: str) -> dict[str, Any]:
            await gate.wait()
            return {"revision": 1}

        async with directory(Scripted(gated)) as client:
            stays, goes = (asyncio.create_task(client.list_brokers()) for _ in range(2))
            while not (client.latency_s or 0):
                await asyncio.sleep(0.001)
            goes.cancel()
            gate.set()
            assert (await stays).revision == 1
            with pytest.raises(asyncio.CancelledError):
                await goes
            waited = client.latency_s
            await asyncio.sleep(0.01)
            assert client.latency_s == waited, "no question is open any more"

    asyncio.run(story())


def test_one_who_gives_up_while_it_is_opened_takes_nobody_else_along(directory: Make) -> None:
    async def story() -> None:
        gate = asyncio.Event()
        well = Scripted(FINE, gate=gate)
        async with directory(well) as client:
            goes, stays = (asyncio.create_task(client.list_brokers()) for _ in range(2))
            while not well.opened:
                await asyncio.sleep(0)
            goes.cancel()
            with pytest.raises(asyncio.CancelledError):
                await goes
            gate.set()
            assert (await stays).revision == 7
            assert well.opened == 1

    asyncio.run(story())


def test_overload_is_passed_on(directory: Make) -> None:
    async def story() -> None:
        busy = Scripted(says({"revision": 1, "overloaded": True}))
        async with directory(busy) as client:
            seen = []
            for what in (busy.says, FINE, raises(ServerFull())):
                busy.says = what
                with contextlib.suppress(NoDirectory):
                    await client.list_brokers(timeout=0)
                seen.append(client.overloaded)
            assert seen == [True, False, True]

    asyncio.run(story())


def test_a_closed_client_says_so(directory: Make) -> None:
    async def story() -> None:
        well = Scripted(FINE)
        client = directory(well)
        await client.list_brokers()
        await client.close()
        assert not well.connected
        with pytest.raises(ConnectionLost, match="closed"):
            await client.list_brokers()

    asyncio.run(story())


# --- Real sockets, and nobody behind them ------------------------------------------------------------------------
@contextlib.contextmanager
def listener() -> Iterator[int]:
    """Takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_one_that_accepts_and_is_silent_and_one_that_refuses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        free = gone.getsockname()[1]

    async def story(mute: int) -> None:
        async with open_directory(f"fairlead+directory://127.0.0.1:{mute},127.0.0.1:{free}") as client:
            with pytest.raises(NoDirectory) as caught:
                await client.list_apps(timeout=0.5)
            assert f"127.0.0.1:{mute}: no answer within" in str(caught.value)
            assert f"127.0.0.1:{free}: Cannot connect" in str(caught.value)

    with listener() as mute:
        asyncio.run(story(mute))
