"""The attacker's view: what a program that means ill can do to a directory, its brokers, and other applications.

Mallory has a login of its own, for an application of its own, and reaches brokers and directory like everybody.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from click.testing import CliRunner

import fairlead
from fairlead.cli import main
from fairlead.directory.rows import Broker, Link
from fairlead.errors import BadParameter, FairleadError, NotAllowed, UnknownCluster
from fairlead.testing.directory_world import World
from tests.directory_requirements.tools import Stage, off

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(240)]

IDENTITY: Final = "ab" * 16
WRONG: Final = "application name, user id or password is wrong"
USERS: Final = {
    "root": ("--admin", "_DIRECTORY", "--admin", "_ADMIN"),
    "a": ("--serve", "_BROKER.A", "--send", "app.>", "--consume", "none"),
    "b": ("--serve", "_BROKER.B", "--send", "app.>", "--consume", "none"),
    "ax": ("--consume", "app.AX.*", "--send", "app.>", "--publish", "none"),
    "mallory": ("--consume", "app.MAL", "--send", "app.MAL", "--publish", "none"),
}
MALLORY: Final = {"user": "mallory", "password": "mallory-secret"}
AX: Final = {"login": "ax:ax-secret"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Broker A keeps the directory itself; B is another one; all have the same users."""
    home = tmp_path_factory.mktemp("users")
    users = home / "users.toml"
    for name, rights in USERS.items():
        arguments = ["user", "add", name, "--password-stdin", "--file", str(users), *rights]
        done = CliRunner().invoke(main, arguments, input=f"{name}-secret\n")
        assert done.exit_code == 0, done.output
    with World(
        "AB",
        servers=0,
        settings={"security.users": users},
        own={name: login(home, name.lower()) for name in "AB"},
        admin=("root", "root-secret"),
    ) as made:
        yield made


def login(home: Path, user: str) -> dict[str, Any]:
    """Settings by which a broker speaks to the directory."""
    file = home / f"{user}.password"
    file.write_text(f"{user}-secret\n")
    file.chmod(0o600)
    return {"directory.user": user, "directory.password_file": file}


@asynccontextmanager
async def talk(world: World, broker: str = "B") -> AsyncIterator[Any]:
    """A conversation of Mallory with a registrar, word by word."""
    async with (
        fairlead.connect(world.brokers[broker].url, name="intruder", **MALLORY) as connection,
        connection.converse("_REGISTRAR") as conversation,
    ):
        yield conversation


def said(app: str, identity: str = IDENTITY, **more: Any) -> bytes:
    return json.dumps({"app": app, "kind": "dynamic", "identity": identity, **more}).encode()


HOSTILE = {
    "nothing": b"",
    "half": b"{",
    "null": b"null",
    "a list": b"[]",
    "a string": b'"MAL"',
    "no text": b"\xff\xfe\x00",
    "no name": b'{"kind": "dynamic"}',
    "a number as name": b'{"app": 7}',
    "no identity": b'{"app": "MAL"}',
    "a short identity": said("MAL", "short"),
    "no hex": said("MAL", "z" * 32),
    "another kind": said("MAL", kind="eternal"),
    "an empty name": said(""),
    "a pattern": said("M.>"),
    "a long name": said("x" * 70_000),
    "a control character": said("MAL\0"),
    "a huge cluster": said("MAL", cluster="c" * 70_000),
    "a route first": b'{"route": "AZ", "number": 1}',
    "deregister first": b'{"deregister": "close"}',
    "deep lists": b"[" * 50_000,
    "deep objects": b'{"a":' * 20_000,
}


@pytest.mark.parametrize("words", HOSTILE.values(), ids=HOSTILE)
async def test_the_registrar_refuses_hostile_words(world: World, words: bytes) -> None:
    async with talk(world) as conversation:
        await conversation.send(words)
        answer = json.loads((await conversation.receive(40)).body)
        assert answer["error"]["code"] in ("bad-request", "bad-parameter", "authentication"), answer
        assert len(answer["error"]["text"]) < 500
    assert "MAL" not in {one.name for one in (await world.tables())[2]}


async def test_after_all_that_the_registrar_serves_others(world: World, stage: Stage) -> None:
    connection = await stage.client(**AX).open("AX.after", "only-B")
    assert await connection.labelled() == "AX.after-1"


@pytest.mark.requirement("DIR-24")
async def test_wrong_name_user_and_password_are_one_error(world: World, stage: Stage) -> None:
    before, texts = [one.name for one in (await world.tables())[2]], []
    for app, user, password in (
        ("AX.1", "ax", "guessed"),
        ("AX.1", "nobody", "ax-secret"),
        ("MAL", "ax", "ax-secret"),
    ):
        with pytest.raises(FairleadError) as caught:
            async with fairlead.connect(
                world.url("only-B", login="ax:ax-secret"), name=app, user=user, password=password
            ):
                pass
        texts.append(str(caught.value))
    assert WRONG in texts[0]
    assert texts == texts[:1] * 3
    assert [one.name for one in (await world.tables())[2]] == before
    assert (await stage.client(**AX).open("AX.1", "only-B")).broker == "B"


@pytest.mark.requirement("DIR-34")
async def test_nobody_speaks_for_others(world: World, stage: Stage) -> None:
    connection = await stage.client(**AX).open("AX.victim", "only-B")
    await connection.labelled()
    before = await world.tables()
    (row,) = await world.rows("AX.victim")
    forged = Link(identity=IDENTITY, broker="A", client="x/1")
    for who in (MALLORY, {"user": "a", "password": "a-secret"}):
        async with world.open(**who) as directory:
            for attempt in (
                directory.remove_broker(name="B"),
                directory.put_broker(broker=Broker(name="B", ip="10.0.0.1", port=1, identity="mallory")),
                directory.renew(name="B", identity="mallory", state="disabled"),
                directory.restate(name="B", identity="mallory", links=()),
                directory.join_cluster(cluster="cluster-A", broker="B", position=0),
                directory.leave_cluster(cluster="cluster-A", broker="B"),
                directory.connection_closed(app="AX.victim", identity=row.identity, broker="B"),
                directory.deregister_app(app="AX.victim", links="close"),
                directory.set_cluster(cluster="cluster-A", rule="least_connections"),
                directory.rebalance(cluster="cluster-A"),
                directory.publish_key(app="AX.victim", key={"id": "1", "public": "00"}),
            ):
                with pytest.raises(NotAllowed):
                    await attempt
    async with world.open(**MALLORY) as directory:
        for attempt in (
            directory.connection_opened(app="AX.victim", link=forged),
            directory.pick_broker(app="AX.victim", cluster="cluster-A"),
            directory.report_failure(app="AX.victim", broker="B", client="x", reason="because"),
            directory.register_app(app="MAL", kind="static", broker="B"),
        ):
            with pytest.raises(NotAllowed):
                await attempt
    assert await world.tables() == before


async def test_a_liar_keeps_nobody_from_connecting(world: World, stage: Stage) -> None:
    """Many reports under many names: at worst all brokers are suspects, and then none is."""
    async with world.open(**MALLORY) as directory:
        for n in range(200):
            await directory.report_failure(
                app="MAL", broker="AB"[n % 2], client=f"mallory/{n}" + "x" * 100, reason="r" * 200
            )
    opened = [await stage.client(placement="centralised", **AX).open("AX.liar") for _ in range(4)]
    assert sorted(connection.broker for connection in opened) == ["A", "A", "B", "B"]
    assert len(json.dumps((await world.status()).facts)) < 200_000


async def test_the_directory_refuses_hostile_arguments(world: World) -> None:
    long = "n" * 100_000
    async with world.open() as directory:
        revision = (await directory.list_apps()).revision
        for attempt in (
            directory.put_broker(broker=Broker(name=long, ip="127.0.0.1", port=1, identity="x")),
            directory.put_broker(broker=Broker(name="", ip="127.0.0.1", port=1, identity="x")),
            directory.put_broker(broker=Broker(name="X", ip="127.0.0.1", port=1_000_000, identity="x")),
            directory.put_broker(broker=Broker(name="X", ip="not an address", port=1, identity="x")),
            directory.join_cluster(cluster=long, broker="A"),
            directory.join_cluster(cluster="", broker="A"),
            directory.join_cluster(cluster="a\nb", broker="A"),
            directory.join_cluster(cluster="cluster-A", broker="A", position=-5),
            directory.pick_broker(app=long, cluster="cluster-A"),
            directory.pick_broker(app="AX", cluster="cluster-A", request="r" * 100_000),
            directory.connection_opened(app="AX", link=Link(identity=long, broker="A")),
            directory.publish_key(app="AX", key={"id": long}),
        ):
            with pytest.raises((BadParameter, FairleadError)) as caught:
                await attempt
            assert len(str(caught.value)) < 600
        with pytest.raises(UnknownCluster):
            await directory.pick_broker(app="AX", cluster="nowhere")
        answer = await directory.list_apps()
        assert "X" not in {row.name for row in (await directory.list_brokers()).brokers}
    assert answer.revision == revision


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"op": None},
        {"op": "no_such_operation"},
        {"op": ["list_apps"]},
        {"op": "pick_broker"},
        {"op": "pick_broker", "app": 1, "cluster": 2, "request": 3},
        {"op": "list_apps", "surprise": True},
        {"op": "put_broker", "broker": "B"},
        {"op": "put_broker", "broker": {"name": "B", "ip": "127.0.0.1", "port": "99999999999999999999"}},
        {"op": "restate", "name": "B", "identity": "x", "links": [[1, 2, 3]]},
        {"op": "join_cluster", "cluster": "cluster-A", "broker": "B", "position": 10**30},
        {"op": "list_apps", "may": ["_DIRECTORY"]},
        {"op": "remove_broker", "name": "B", "may": ["_DIRECTORY"], "user": "root"},
    ],
    ids=str,
)
async def test_the_directory_refuses_what_is_no_operation(world: World, request_: dict[str, Any]) -> None:
    arguments = dict(request_)
    async with fairlead.connect(world.brokers["A"].url, name="intruder", **MALLORY) as connection:
        try:
            await connection._ask_directory(arguments.pop("op", ""), arguments, timeout=40)
        except (BadParameter, NotAllowed) as error:
            assert len(str(error)) < 600
        else:
            assert request_ == {"op": "list_apps", "may": ["_DIRECTORY"]}  # overwritten, and reads need no right
    assert {row.name for row in (await world.tables())[0]} == {"A", "B"}


async def test_rows_that_a_client_makes_up_do_not_stay(world: World, stage: Stage) -> None:
    """Mallory may report connections of its own application, but B knows better, and says so."""
    async with world.open(**MALLORY) as directory:
        for number in range(50):
            await directory.connection_opened(app="MAL", link=Link(identity=f"{number:032x}", broker="B"))
    assert (await stage.client(**AX).open("AX.beside", "only-B")).broker == "B"
    await world.until(lambda: gone(world, "MAL"), "B has stated what it really has")
    assert len(await world.rows("AX.beside")) == 1


async def test_the_row_of_another_application_is_out_of_reach(world: World, stage: Stage) -> None:
    connection = await stage.client(**AX).open("AX.row", "only-B")
    await connection.labelled()
    (row,) = await world.rows("AX.row")
    async with world.open(**MALLORY) as directory:
        try:
            await directory.connection_opened(app="MAL", link=Link(identity=row.identity, broker="A"))
        except FairleadError:
            pass
        for broker in "AB":
            try:
                await directory.connection_closed(app="MAL", identity=row.identity, broker=broker)
            except FairleadError:
                pass
    assert await world.rows("AX.row") == (row,)
    await world.until(lambda: gone(world, "MAL"), "nothing is left of it")
    assert await world.rows("AX.row") == (row,)


async def test_the_answer_to_a_pick_is_for_its_application(world: World) -> None:
    async with world.open() as directory:
        first = await directory.pick_broker(app="AX.pick", cluster="cluster-A", request="guessable")
        again = await directory.pick_broker(app="AX.pick", cluster="cluster-A", request="guessable")
    async with world.open(**MALLORY) as directory:
        other = await directory.pick_broker(app="MAL", cluster="cluster-A", request="guessable")
        try:
            await directory.report_failure(
                app="MAL", broker=first.broker.name, client="m", reason="mine", reservation=first.reservation
            )
        except FairleadError:
            pass
    assert again == first
    held = {(one["app"], one["reservation"]) for one in (await world.status()).facts["reservations"]}
    assert ("AX.pick", first.reservation) in held
    assert other.reservation == "guessable"


@pytest.mark.requirement("DIR-73", state="half", note="with narrow rights; all else is shown elsewhere")
async def test_narrow_rights_are_enough_to_send_across_brokers(world: World, stage: Stage) -> None:
    here, there = [await stage.client(**AX).open(f"AX.{name}", f"only-{name}") for name in "AB"]
    async with there.application() as inbox:
        await here.send_to("AX.B", b"across")
        message = await inbox.receive(40)
        assert (bytes(message.body), message.sender) == (b"across", "AX.A")
        await message.ack()


async def test_what_is_carried_needs_the_rights_of_its_sender(world: World, stage: Stage) -> None:
    """Mallory hands messages to be carried to broker B: for others, and for itself with a queue of others in them."""
    here, there = [await stage.client(**AX).open(f"AX.{name}", f"only-{name}") for name in "AB"]
    mine = await stage.client(login="mallory:mallory-secret").open("MAL", "only-B")
    forged = {"id": "forged", "from": "AX.A", "to": "AX.B", "queue": "app.AX.B"}
    async with there.application() as inbox, mine.application():
        async with fairlead.connect(world.brokers["A"].url, name="intruder", **MALLORY) as connection:
            for name in ("carry.B::AX.B", "carry.B", "app.AX.B", "carry.B::AX.B::MAL"):
                with pytest.raises(NotAllowed):
                    await connection.queue(name, create=True).send(b"from Mallory", properties=forged)
            before = await dead(world)
            queues = [connection.queue(name, create=True) for name in ("carry.B::MAL", "carry.B::")]
            hostile = (
                forged,
                {**forged, "queue": "app.AX.A"},
                {**forged, "to": "MAL"},
                {**forged, "queue": "orders"},
                {**forged, "queue": "_ADMIN"},
                {**forged, "hops": -1},
                {**forged, "to": "MAL", "queue": "app.MAL", "hops": 10**9},
                {"nonsense": "x"},
            )
            for queue in queues:
                for properties in hostile:
                    await queue.send(b"from Mallory", properties=properties)
            async with fairlead.connect(world.url("only-A", login="mallory:mallory-secret"), name="MAL") as sender:
                await sender.send_to("MAL", b"so that it is carried")

        async def buried() -> bool:
            return await dead(world) >= before + len(hostile)

        await world.until(buried, "what Mallory handed over is dead")
        await here.send_to("AX.B", b"last")
        message = await inbox.receive(40)
        assert bytes(message.body) == b"last"
        await message.ack()


async def dead(world: World) -> int:
    """How many messages the registrar of A has found to be dead."""
    return int((await off(world.brokers["A"].status))["registrar"]["carrying"]["dead"])


async def test_a_claimed_identity_is_not_taken_over(world: World, stage: Stage) -> None:
    """Mallory learns the identity of AX's connection from the tables, and registers under it."""
    connection = await stage.client(**AX).open("AX.owner", "only-B")
    label = await connection.labelled()
    (row,) = await world.rows("AX.owner")
    async with talk(world) as conversation:
        await conversation.send(said("MAL", row.identity))
        await conversation.receive(40)
    assert await world.rows("AX.owner") == (row,)
    assert (connection.label, connection.broker) == (label, "B")
    await world.until(lambda: gone(world, "MAL"), "Mallory's registration is gone")


async def gone(world: World, app: str) -> bool:
    return await world.application(app) is None


async def test_a_thousand_conversations_cost_little_and_go(world: World, stage: Stage) -> None:
    (pid,) = world.brokers["B"].pids("registrar")
    registrar = psutil.Process(pid)
    before = registrar.memory_info().rss
    async with fairlead.connect(world.brokers["B"].url, name="intruder", **MALLORY) as connection:
        talks = [connection.converse("_REGISTRAR") for _ in range(1000)]
        for number, conversation in enumerate(talks):
            await conversation.send(said("MAL", f"{number:032x}"))
        answers = [json.loads((await conversation.receive(60)).body) for conversation in talks]
        assert all(answer.get("ok") or answer["error"]["code"] == "full" for answer in answers)
        assert (await stage.client(**AX).open("AX.meanwhile", "only-B")).broker == "B"
        assert registrar.memory_info().rss - before < 64 << 20
    await world.until(lambda: gone(world, "MAL"), "all of them are gone")
    assert world.brokers["B"].pids("registrar") == [pid]


async def test_routes_to_nowhere_are_bounded(world: World) -> None:
    (pid,) = world.brokers["B"].pids("registrar")
    registrar = psutil.Process(pid)
    async with talk(world) as conversation:
        await conversation.send(said("MAL", "1" * 32))
        assert json.loads((await conversation.receive(40)).body)["ok"]
        before = registrar.memory_info().rss
        unknown = 0
        for start in range(0, 2000, 100):
            for number in range(start, start + 100):
                await conversation.send(json.dumps({"route": f"nobody-{number}" + "x" * 200, "number": number}))
            while unknown < start + 100:
                answer = json.loads((await conversation.receive(40)).body)
                unknown += bool(answer.get("unknown"))
        assert registrar.memory_info().rss - before < 32 << 20
    await world.until(lambda: gone(world, "MAL"), "Mallory is gone")


async def test_a_static_application_of_mallory_is_one_row(world: World) -> None:
    for _ in range(20):
        async with talk(world) as conversation:
            await conversation.send(said("MAL", kind="static"))
            await conversation.receive(40)
    found = await world.application("MAL")
    assert found is not None
    assert found.kind == "static"
    async with world.open() as directory:
        await world.until(lambda: empty(world, "MAL"), "its rows are gone")
        await directory.deregister_app(app="MAL", links="close")
    assert await gone(world, "MAL")


async def empty(world: World, app: str) -> bool:
    return not await world.rows(app)


async def test_guessing_passwords_disturbs_nobody(world: World, stage: Stage) -> None:
    async def guess(number: int) -> None:
        with pytest.raises(FairleadError):
            async with fairlead.connect(
                world.brokers["B"].url, name="x", user="mallory", password=f"guess-{number}", connect_timeout=20
            ):
                pass

    guesses = asyncio.gather(*(guess(number) for number in range(5)))
    assert (await stage.client(**AX).open("AX.calm", "only-B")).broker == "B"
    await guesses
