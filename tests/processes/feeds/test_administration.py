"""The stream administration in a real server: what it says to adapters and clients, and how it survives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.errors import FairleadError, NotAllowed
from fairlead.feeds import words
from fairlead.feeds.edge.administration.operator import Operator
from fairlead.feeds.edge.administration.store import FILE
from fairlead.feeds.speech import encode
from fairlead.security import users
from fairlead.security.passwords import hash_password
from fairlead.security.users import User, Users
from fairlead.testing.server import Server

from .administration_parts import STREAM, WAIT_S, ScriptedAdapter, ScriptedClient, until

LEAN: dict[str, Any] = {"messages.enabled": "false"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(command=("streams", "serve"), managers=1, **LEAN) as one:
        yield one


class Pair:
    """Two adapters and a client of a stream of their own."""

    def __init__(self, a: ScriptedAdapter, b: ScriptedAdapter, client: ScriptedClient) -> None:
        self.a, self.b, self.client, self.stream = a, b, client, a.stream


@asynccontextmanager
async def pair(server: Server, stream: str) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(fairlead.connect(server.url)) for _ in range(3)]
        a = await stack.enter_async_context(ScriptedAdapter(connections[0], "a", stream))
        await until(lambda: a.role == "active")
        b = await stack.enter_async_context(ScriptedAdapter(connections[1], "b", stream))
        await b.hears(words.Role)
        a.group = b.group = {"a": a, "b": b}
        client = await stack.enter_async_context(ScriptedClient(connections[2], "c", stream))
        await client.has_lines("a", "b")
        yield Pair(a, b, client)


async def facts(server: Server, stream: str) -> dict[str, object]:
    async with fairlead.connect(server.url) as connection, Operator(connection) as operator:
        (found,) = await operator.order(words.Order(do="status", stream=stream))
        return found


@pytest.mark.requirement("STR-4", half="the exchange with the server; lines are shown with real adapters")
async def test_a_subscription_is_brokered_with_both_adapters(server: Server) -> None:
    async with pair(server, "exchange") as found:
        offer = found.client.told(words.Brokered)[0]
        assert [(line.adapter, line.role) for line in offer.lines] == [("a", "active"), ("b", "backup")]
        assert {line.token for line in offer.lines} <= found.a.tokens & found.b.tokens
        assert (offer.threshold, offer.epoch, [one.id for one in offer.sources]) == (8, 1, ["line"])
        link = found.b.told(words.Role)[0].link_token
        await found.a.hears(words.Admit, lambda word: word.link and word.token == link)


@pytest.mark.requirement("STR-5", half="adapters are scripted")
@pytest.mark.requirement("STR-76", half="adapters are scripted")
async def test_a_lost_adapter_is_followed_at_once_and_brokered_again_when_it_is_back(server: Server) -> None:
    async with pair(server, "failover") as found:
        a, b, client = found.a, found.b, found.client
        await a.__aexit__()
        await b.is_now("active", 2)
        await client.has_lines("b")
        async with fairlead.connect(server.url) as connection, ScriptedAdapter(connection, "a", found.stream) as again:
            await again.is_now("backup", 2)
            assert (await client.has_lines("b", "a")).epoch == 2
        await a.__aenter__()


async def test_a_planned_switch_and_what_an_operator_is_told(server: Server) -> None:
    async with pair(server, "planned") as found:
        await until(lambda: found.b._talk is not None)
        async with fairlead.connect(server.url) as connection, Operator(connection) as operator:

            async def synchronised() -> bool:
                (seen,) = await operator.order(words.Order(do="status", stream="planned"))
                return all(one["synchronised"] for one in seen["adapters"])

            while not await synchronised():
                await asyncio.sleep(0.01)
            (seen,) = await operator.order(words.Order(do="switch", stream="planned"))
            assert (seen["active"], seen["epoch"], seen["switches"], seen["failovers"]) == ("b", 2, 1, 0)
            with pytest.raises(FairleadError, match="active already"):
                await operator.order(words.Order(do="switch", stream="planned", adapter="b"))
        await found.client.has_lines("b", "a")


# --- It dies --------------------------------------------------------------------------------------------------------
@pytest.mark.requirement("STR-7", half="adapters are scripted")
async def test_killed_it_is_started_again_and_nothing_has_changed(server: Server) -> None:
    async with pair(server, "killed") as found:
        token = found.client.told(words.Brokered)[0].lines[0].token
        await asyncio.to_thread(server.kill, "streams")
        await until(lambda: len(found.client.told(words.Brokered)) == 2)
        offer = found.client.told(words.Brokered)[1]
        assert [(line.adapter, line.token) for line in offer.lines] == [("a", token), ("b", token)]
        assert (found.a.role, found.a.epoch, found.b.role) == ("active", 1, "backup")
        assert not [word for one in (found.a, found.b) for word in one.told(words.Revoke)]
        await found.a.__aexit__()
        await found.b.is_now("active", 2)
        await found.client.has_lines("b")
        await found.a.__aenter__()


async def test_it_is_updated_in_order(server: Server) -> None:
    async with pair(server, "updated") as found:
        answer = await asyncio.to_thread(server.update, "streams")
        assert answer["ok"]
        await until(lambda: len(found.client.told(words.Brokered)) == 2)
        assert (found.a.role, found.a.epoch) == ("active", 1)


@pytest.mark.requirement("STR-7", half="adapters are scripted")
async def test_the_whole_server_is_restarted_also_with_a_damaged_file(tmp_path: Path) -> None:
    settings = {**LEAN, "streams.grace_s": "3"}
    with Server(command=("streams", "serve"), managers=1, data=tmp_path, **settings) as first:
        port = first.port
        async with pair(first, STREAM) as found:
            await found.a.__aexit__()
            await found.b.is_now("active", 2)
            await found.a.__aenter__()
            await found.a.is_now("backup", 2)
            for damage in (False, True):
                brokered = len(found.client.told(words.Brokered))
                await asyncio.to_thread(first.kill_everything)
                if damage:
                    file = tmp_path / FILE
                    file.write_bytes(file.read_bytes()[:-3])
                first._arguments[first._arguments.index("--listen") + 1] = f"127.0.0.1:{port}"
                await asyncio.to_thread(first.start)
                await until(lambda: len(found.client.told(words.Brokered)) > brokered)  # noqa: B023
                offer = await found.client.has_lines("b", "a")
                assert (offer.epoch, found.b.role, found.a.role) == (2, "active", "backup")
            assert "checksum is wrong" in (tmp_path / "log" / "fairlead.log").read_text() or (
                "checksum is wrong" in first.output()
            )
            assert (tmp_path / f"{FILE}.damaged").exists()


# --- Bad manners ----------------------------------------------------------------------------------------------------
HOSTILE = [
    b"",
    b"\xc1",
    b"\x81\xa3say\xa8register",
    b"\x93" * 100_000,
    encode(words.Renew()),
    encode(words.Hello(stream="x", token="t", client="c")),
    b'{"say": "order"}',
    encode(words.Order(do="status")) + b"x",
]


async def test_hostile_words_end_their_own_conversation_only(server: Server) -> None:
    async with pair(server, "hostile") as found, fairlead.connect(server.url) as connection:
        heard = len(found.client.heard)
        for body in HOSTILE:
            async with connection.converse("_STREAMS") as talk:
                await talk.send(body)
                answer = words.Refusal, (await talk.receive(WAIT_S)).body
                assert b"bad-parameter" in answer[1], body[:20]
                with pytest.raises(FairleadError):
                    await talk.receive(WAIT_S)
        async with connection.converse("_STREAMS") as talk:
            await talk.send(encode(words.Subscribe(stream="hostile", client="evil")))
            await talk.receive(WAIT_S)
            await talk.send(encode(found.a.report()))
            assert b"bad-parameter" in (await talk.receive(WAIT_S)).body
        assert len(found.client.heard) == heard
        assert (found.a.role, found.a.epoch, found.b.role) == ("active", 1, "backup")


async def test_nobody_else_may_be_the_administration(server: Server) -> None:
    async with fairlead.connect(server.url) as connection:
        with pytest.raises(NotAllowed):
            async with connection.accept("_STREAMS") as acceptor:
                await acceptor.next(WAIT_S)
    with pytest.raises(FairleadError):
        async with fairlead.connect(server.url, user="_streams", password="guessed", reconnect=False) as _:
            pass


async def test_a_name_that_lives_elsewhere_is_taken(server: Server) -> None:
    async with (
        pair(server, "taken") as found,
        fairlead.connect(server.url) as connection,
        ScriptedAdapter(connection, "a", "taken") as second,
    ):
        word = await second.ends()
        assert isinstance(word, words.Refusal)
        assert word.code == "name-taken"
        assert found.a.role == "active"


async def test_many_clients_at_once(server: Server) -> None:
    async with pair(server, "many") as found, AsyncExitStack() as stack, fairlead.connect(server.url) as connection:
        crowd = [
            await stack.enter_async_context(ScriptedClient(connection, f"client-{number}", "many"))
            for number in range(300)
        ]
        for one in crowd:
            await one.has_lines("a", "b")
        tokens = {one.told(words.Brokered)[0].lines[0].token for one in crowd}
        assert len(tokens) == 300
        assert tokens <= found.a.tokens & found.b.tokens
        seen = await facts(server, "many")
        assert seen["clients_total"] == 301


# --- Rights ---------------------------------------------------------------------------------------------------------
PASSWORD = "correct horse battery"


def write_users(path: Path, *, reader: bool = True) -> None:
    word = hash_password(PASSWORD)
    users.write(
        path,
        Users(
            {
                "feed": User(hash=word, publish=["stream.>"], subscribe=[], serve=[]),
                "reader": User(hash=word, publish=[], subscribe=["stream.prices.>"] if reader else [], serve=[]),
                "other": User(hash=word, publish=[], subscribe=["stream.prices.>"], serve=[]),
                "boss": User(hash=word, publish=[], subscribe=[], serve=[], admin=["stream.>"]),
            }
        ),
    )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    file = tmp_path_factory.mktemp("rights") / "users.toml"
    write_users(file)
    with Server(command=("streams", "serve"), managers=1, **{**LEAN, "security.users": str(file)}) as one:
        yield one, file


def as_user(server: Server, user: str) -> fairlead.Connection:
    return fairlead.connect(server.url, user=user, password=PASSWORD)


@pytest.mark.requirement("STR-80", half="the server's side; adapters refuse forged tokens elsewhere")
@pytest.mark.requirement("STR-82", half="adapters are scripted")
async def test_rights_come_from_the_users_file_and_go_with_it(guarded: tuple[Server, Path]) -> None:
    server, file = guarded
    async with (
        as_user(server, "feed") as feed,
        as_user(server, "reader") as reading,
        as_user(server, "other") as another,
        ScriptedAdapter(feed, "a") as a,
        ScriptedClient(another, "kept") as kept,
        ScriptedClient(reading, "one") as one,
    ):
        await one.has_lines("a")
        await kept.has_lines("a")
        async with ScriptedAdapter(reading, "b") as intruder, ScriptedClient(feed, "x") as curious:
            for refused in (intruder, curious):
                word = await refused.ends()
                assert isinstance(word, words.Refusal)
                assert word.code == "not-allowed"
        async with Operator(reading) as operator:
            with pytest.raises(NotAllowed):
                await operator.order(words.Order(do="switch", stream=STREAM))
            (seen,) = await operator.order(words.Order(do="status"))
            assert (seen["active"], seen["clients"]) == ("a", [])
        token = one.told(words.Brokered)[0].lines[0].token
        assert token in a.tokens
        write_users(file, reader=False)
        began_s = time.monotonic()
        await asyncio.to_thread(server.ask, "reload")
        assert isinstance(await one.ends(), words.Revoked)
        await until(lambda: token not in a.tokens)
        assert time.monotonic() - began_s < 5.0
        assert not kept.over
        write_users(file)
        await asyncio.to_thread(server.ask, "reload")


@pytest.mark.requirement("STR-82", half="adapters are scripted")
async def test_an_operator_revokes_and_an_adapter_that_was_away_hears_of_it(guarded: tuple[Server, Path]) -> None:
    server, _ = guarded
    async with (
        as_user(server, "feed") as feed,
        as_user(server, "other") as reading,
        as_user(server, "boss") as boss,
        Operator(boss) as operator,
        ScriptedAdapter(feed, "a", "prices.us") as a,
    ):
        await a.is_now("active", 1)
        b = ScriptedAdapter(feed, "b", "prices.us")
        async with b:
            await b.hears(words.Role)
            async with ScriptedClient(reading, "one", "prices.us") as one:
                await one.has_lines("a", "b")
                token = one.told(words.Brokered)[0].lines[0].token
                await b.__aexit__()
                await operator.order(words.Order(do="revoke", stream="prices.us", client="one"))
                assert isinstance(await one.ends(), words.Revoked)
                assert token in b.tokens
                await b.__aenter__()
                await until(lambda: token not in b.tokens)
        async with ScriptedClient(reading, "one", "prices.us") as again:
            assert isinstance(await again.ends(), words.Refusal)
        await operator.order(words.Order(do="permit", stream="prices.us", client="one"))
        async with ScriptedClient(reading, "one", "prices.us") as again:
            await until(lambda: again.offer is not None)


# --- Status ---------------------------------------------------------------------------------------------------------
async def test_the_servers_own_status_has_it(server: Server) -> None:
    async with pair(server, "shown"):

        def is_shown(status: dict[str, object]) -> bool:
            seen = status["streams"]
            assert isinstance(seen, dict)
            return bool(seen["state"] == "active" and seen.get("clients", 0) >= 1 and seen.get("adapters", 0) >= 2)

        status = await asyncio.to_thread(server.wait_until, is_shown)
        assert status["streams"]["streams"] >= 1
