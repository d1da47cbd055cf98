"""The registrar of a real broker through its life: leases, names, losses and ends, and what it says of itself."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

import fairlead
from fairlead.errors import NoneAvailable, Unavailable
from fairlead.security.passwords import hash_password
from fairlead.security.users import User, update
from fairlead.testing.server import Server
from tests.processes.directory.registrar_parts import ADMIN, LOGIN, at
from tests.processes.directory.registrar_scene import (
    LEASE_S,
    NUMBERS,
    Scene,
    are,
    begun,
    is_gone,
    no_rows,
    opened,
)

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with begun(tmp_path_factory.mktemp("registrar")) as scene:
        yield scene


@pytest.fixture
def app() -> str:
    """An application nobody has used before."""
    return f"A.{next(NUMBERS)}"


# --- What the broker keeps, and says ------------------------------------------------------------------------------
@pytest.mark.requirement("DIR-8")
@pytest.mark.requirement("DIR-27")
@pytest.mark.requirement("DIR-81", state="half", note="the broker's part: registrations, lease, what waits")
def test_a_static_application_outlives_its_connections_and_its_broker_and_its_messages_wait(
    scene: Scene, app: str
) -> None:
    async def waiting() -> int:
        async with fairlead.connect(scene.url("B"), user=ADMIN[0], password=ADMIN[1]) as connection:
            return int((await connection.admin.destination(destination=f"app.{app}"))["depth"])

    async def leave() -> None:
        async with at(scene.url("B"), app, kind="static"):
            await scene.world.labelled(app, 1)
            status = await asyncio.to_thread(
                scene.world.brokers["B"].wait_until, lambda report: app in report["registrar"].get("applications", {})
            )
            told = status["registrar"]
            assert told["applications"][app] == {"kind": "static", "connections": 1}
            assert (told["name"], told["registered"], told["error"], told["lease_s"]) == ("B", True, "", LEASE_S)
            assert told["directory"] == f"fairlead://{scene.world.authorities[0]}"
            assert f"Broker B of the directory at {told['directory']}" in await asyncio.to_thread(
                command, "status", "--data", str(scene.world.brokers["B"].data)
            )
        await no_rows(scene.world, app)
        async with at(scene.url("A"), "AX") as sender:
            for number in range(3):
                await sender.send_to(app, f"message {number}")
        await scene.world.until(lambda: are(waiting(), 3), "three messages wait")

    asyncio.run(leave())
    broker = scene.world.brokers["B"]
    broker.stop()
    broker.start()

    async def come_back() -> None:
        found = await scene.world.application(app)
        assert found is not None
        assert (found.kind, found.broker, found.links) == ("static", "B", ())
        assert await waiting() == 3
        async with at(scene.url("B"), app, kind="static") as connection:
            async with connection.application() as inbox:
                for number in range(3):
                    message = await inbox.receive(20)
                    assert message is not None
                    assert message.text() == f"message {number}"
                    await message.ack()
            await connection.deregister("close")
        await scene.world.until(lambda: is_gone(scene.world, app), "it is deregistered")

    asyncio.run(come_back())


@pytest.mark.requirement("DIR-42", state="half", note="at the broker; the client's part is in test_placing.py")
def test_nobody_waits_for_the_directory_and_it_hears_of_all_when_it_is_back(scene: Scene, app: str) -> None:
    directories = scene.world.directories
    assert directories is not None

    async def main() -> None:
        assert directories is not None
        connections = [at(scene.url("A"), app) for _ in range(30)]
        directories.pause("d1")
        try:
            began_s = time.monotonic()
            for connection in connections[:20]:
                await connection
            took_s = time.monotonic() - began_s
            assert {connection.label for connection in connections[:20]} == {""}
            for connection in connections[:5]:
                await connection.close()
        finally:
            directories.resume("d1")
        try:
            labels = await asyncio.gather(*(connection.labelled(40) for connection in connections[5:20]))
            rows = await scene.world.labelled(app, 15)
            assert {row.label for row in rows} == set(labels)
            assert took_s < 20 * 1.0, took_s  # each is told to go ahead 50 ms after it was registered
            await asyncio.to_thread(
                scene.world.brokers["A"].wait_until, lambda report: report["registrar"]["pending"] == 0
            )
        finally:
            await asyncio.gather(*(connection.close() for connection in connections[5:20]))
        await no_rows(scene.world, app)

    asyncio.run(main())


@pytest.mark.parametrize("role", ["registrar", "manager"])
def test_connections_keep_their_labels_when_the_registrar_or_its_line_is_lost(
    scene: Scene, app: str, role: str
) -> None:
    """Whoever was connected through a manager that is killed connects anew; with one manager that is everybody."""

    async def main() -> None:
        async with opened(*(at(scene.url("A"), app) for _ in range(3))) as connections:
            before = await scene.world.labelled(app, 3)
            killed_s = time.monotonic()
            pid = scene.world.brokers["A"].kill(role)
            await scene.world.until(
                lambda: (
                    pid not in scene.world.brokers["A"].pids(role, None)
                    and scene.registrar("A").get("connections") == 3
                    and all(connection.connected and connection.label for connection in connections)
                ),
                "all are back",
            )
            rows = await scene.world.labelled(app, 3)
            if role == "registrar" and time.monotonic() - killed_s < LEASE_S / 2:  # else its lease may be over
                assert rows == before
            assert {row.label for row in rows} == {connection.label for connection in connections}
        await no_rows(scene.world, app)

    asyncio.run(main())


async def until_said(talk: fairlead.Conversation, word: str) -> Any:
    """What the registrar says under this word, whatever it says before."""
    while True:
        said = json.loads((await talk.receive(30)).body)
        if word in said:
            return said[word]


@pytest.mark.requirement("DIR-32", half="the centralised rule; the other one is shown in directory_requirements")
def test_a_broker_joins_and_leaves_while_everything_runs(scene: Scene, app: str) -> None:
    async def main() -> None:
        async with scene.world.open() as directory, at(scene.url("B"), app):
            await directory.join_cluster("moving", "A")

            async def picked() -> set[str]:
                return {(await directory.pick_broker(app=app, cluster="moving")).broker.name for _ in range(2)}

            assert await picked() == {"A"}
            await directory.join_cluster("moving", "B")
            assert await picked() == {"A", "B"}
            await directory.leave_cluster("moving", "B")
            assert await picked() == {"A"}
            assert [row.broker for row in await scene.world.rows(app)] == ["B"]  # who is there stays
            await directory.leave_cluster("moving", "A")

    asyncio.run(main())


def test_who_is_asked_to_move_hears_of_it(scene: Scene, app: str) -> None:
    async def main() -> None:
        async with fairlead.connect(scene.url("A"), **LOGIN) as connection, scene.world.open() as directory:  # type: ignore[arg-type]
            await directory.join_cluster("uneven", "A")
            await directory.join_cluster("uneven", "B")
            talks = []
            for _ in range(4):
                talk = connection.converse("_REGISTRAR")
                identity = secrets.token_hex(16)
                await talk.send(json.dumps({"app": app, "identity": identity, "cluster": "uneven"}))
                talks.append(talk)
            await scene.world.labelled(app, 4)
            assert (await directory.rebalance("uneven")).moves == {"A": 2}

            heard = [asyncio.ensure_future(until_said(talk, "move")) for talk in talks]
            await scene.world.until(lambda: sum(one.done() for one in heard) == 2, "two of them are asked to move")
            for one in heard:
                one.cancel()
            assert (
                sum(not isinstance(one, BaseException) for one in await asyncio.gather(*heard, return_exceptions=True))
                == 2
            )
            for talk in talks:
                await talk.close()
            for broker in "AB":
                await directory.leave_cluster("uneven", broker)
        await no_rows(scene.world, app)

    asyncio.run(main())


def command(*words: str) -> str:
    """What `fairlead …` prints."""
    arguments = [sys.executable, "-m", "fairlead", *words]
    found = subprocess.run(
        arguments, check=True, capture_output=True, text=True, timeout=60, env=os.environ | {"COLUMNS": "200"}
    )
    return found.stdout


def test_a_draining_broker_is_passed_over_and_asks_who_is_there_to_go(scene: Scene, app: str) -> None:
    server = scene.world.brokers["A"]

    async def state() -> tuple[str, bool]:
        async with scene.world.open() as directory:
            row = next(one for one in (await directory.list_brokers()).brokers if one.name == "A")
            return row.state, row.available

    async def main() -> None:
        first = {"app": app, "identity": secrets.token_hex(16)}
        async with fairlead.connect(scene.url("A"), **LOGIN) as connection:  # type: ignore[arg-type]
            async with connection.converse("_REGISTRAR") as talk:
                await talk.send(json.dumps(first))
                assert await until_said(talk, "ok")
                said = await asyncio.to_thread(command, "directory", "state", "draining", "--data", str(server.data))
                assert said == "The broker is draining.\n"
                assert await until_said(talk, "move")
                await scene.world.until(lambda: are(state(), ("draining", False)), "A is draining")
                pid = server.kill("registrar")  # what the operator wants is not forgotten
                await scene.world.until(
                    lambda: (
                        pid not in server.pids("registrar", None)
                        and scene.registrar("A").get("broker_state") == "draining"
                    ),
                    "it is back",
                )
            await asyncio.to_thread(server.ask, "broker-state", state="up")
            await scene.world.until(lambda: are(state(), ("up", True)), "A can be chosen")
        with pytest.raises(Unavailable, match="draining"):
            await asyncio.to_thread(server.ask, "broker-state", state="asleep")

    asyncio.run(main())


def test_who_loses_the_right_is_shown_out(scene: Scene, app: str) -> None:
    server, path = scene.world.brokers["A"], scene.files["brokers.toml"]
    eve = User(hash=hash_password("eves"), consume=[f"app.{app}"])

    async def main() -> None:
        update(path, lambda known: known.with_user("eve", eve))
        await asyncio.to_thread(server.ask, "reload")
        connection = at(scene.url("A"), app, user="eve", password="eves")
        await scene.world.until(lambda: _is_open(connection), "eve is known")
        await scene.world.labelled(app, 1)
        update(path, lambda known: known.with_user("eve", replace(eve, consume=[])))
        await asyncio.to_thread(server.ask, "reload")
        await no_rows(scene.world, app)
        await scene.world.until(lambda: connection.closed, "it is closed")
        await connection.close()

    asyncio.run(main())


async def _is_open(connection: fairlead.Connection) -> bool:
    await connection
    return True


# --- Leases, names and ends ---------------------------------------------------------------------------------------
@pytest.mark.requirement("DIR-22")
def test_a_killed_broker_is_not_picked_and_its_rows_go_until_it_is_back(scene: Scene, app: str) -> None:
    world = scene.world

    async def main() -> None:
        async with world.open() as directory:

            async def is_picked() -> bool:
                """Is B chosen, if all others are left out?"""
                try:
                    found = await directory.pick_broker(app=app, cluster="cluster-A", exclude=("A", "C"))
                except NoneAvailable:
                    return False
                return found.broker.name == "B"

            assert await is_picked()
            connection = await at(scene.url("B"), app, reconnect=False)
            await world.labelled(app, 1)
            world.kill("B")
            await connection.close()
            await world.until(lambda: are(is_picked(), False), "B is not picked any more")
            for _ in range(4):
                assert (await directory.pick_broker(app=app, cluster="cluster-A")).broker.name != "B"
            await no_rows(world, app)
            rows = {one.name: one for one in (await directory.list_brokers()).brokers}
            assert not rows["B"].available
            assert "cluster-A" in rows["B"].clusters  # its row and memberships stay
            await asyncio.to_thread(world.start_again, "B")
            await world.until(is_picked, "B is picked again")

    asyncio.run(main())


@pytest.mark.requirement("DIR-33")
def test_a_second_broker_of_a_name_ends_and_says_why_and_takes_it_over_when_the_first_is_dead(scene: Scene) -> None:
    world = scene.world
    first = Server(managers=1, **scene.settings("T"))
    second = Server(managers=1, **scene.settings("T"))

    async def port() -> int:
        async with world.open() as directory:
            return next((one.port for one in (await directory.list_brokers()).brokers if one.name == "T"), 0)

    try:
        first.start()
        asyncio.run(world.until(lambda: are(port(), first.port), "the first one is registered"))
        with suppress(RuntimeError):  # it may end before it is ready, or just after
            second.start()
        assert second.process is not None
        assert second.process.wait(60) == 1
        second.process = None
        assert "This server cannot be broker T" in second.output()
        assert f"is alive at 127.0.0.1 port {first.port}" in second.output()
        assert asyncio.run(port()) == first.port
        first.kill_everything()

        async def is_over() -> bool:
            async with world.open() as directory:
                return not next(one for one in (await directory.list_brokers()).brokers if one.name == "T").available

        asyncio.run(world.until(is_over, "the lease of the first one is over"))
        second.start()
        asyncio.run(world.until(lambda: are(port(), second.port), "the second one has the name"))
    finally:
        second.__exit__(None, None, None)
        first.__exit__(None, None, None)


def test_a_stopped_broker_says_goodbye(scene: Scene, app: str) -> None:
    world = scene.world

    async def main() -> None:
        connection = await at(scene.url("C"), app, reconnect=False)
        await world.labelled(app, 1)
        began_s = time.monotonic()
        await asyncio.to_thread(world.brokers["C"].stop)
        async with world.open() as directory:
            row = next(one for one in (await directory.list_brokers()).brokers if one.name == "C")
            assert not row.available
        await no_rows(world, app)
        await connection.close()
        assert row.state == "disabled" or time.monotonic() - began_s > LEASE_S
        await asyncio.to_thread(world.start_again, "C")

    asyncio.run(main())


def test_a_new_supervisor_adopts_the_registrar(scene: Scene, app: str) -> None:
    server = scene.world.brokers["C"]

    async def main() -> None:
        async with at(scene.url("C"), app):
            before = await scene.world.labelled(app, 1)
            pids = server.pids("registrar")
            assert server.process is not None
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait()
            await asyncio.to_thread(server.start)
            assert server.pids("registrar") == pids
            await scene.world.until(lambda: scene.registrar("C").get("connections") == 1, "it reports again")
            assert await scene.world.rows(app) == before
            server.update("registrar")
            assert server.pids("registrar") != pids
            await scene.world.until(lambda: scene.registrar("C").get("connections") == 1, "the next one reports")
            assert [row.identity for row in await scene.world.labelled(app, 1)] == [row.identity for row in before]

    asyncio.run(main())
