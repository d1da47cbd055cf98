"""Administration of a real server: `connection.admin`, plain messages, the local socket (CLU-179…186)."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.errors import BadParameter, FairleadError, NoDestination, NotAllowed, WrongKind
from fairlead.testing import Server
from tests.processes.durable.conftest import Join
from tests.processes.tools import NEVER_FROZEN, suspended

pytestmark = pytest.mark.processes

PATIENCE_S = 20.0
MM = "message-manager"


@pytest.fixture(scope="module")
def fresh() -> Iterator[Server]:
    """A server of this module only; its message manager may be killed."""
    with Server(managers=2, **NEVER_FROZEN) as server:
        yield server
        assert server.stop() == 0


async def plain(connection: Any, command: str, scope: dict[str, Any] | None = None, id_: str = "", **args: Any) -> Any:
    """A command with nothing but the transient client and docs/administration.md: the answers that came."""
    topic, answers = f"replies.{secrets.token_hex(6)}", []
    request = {"id": id_ or secrets.token_hex(6), "command": command, "args": args, "reply": topic}
    if scope is not None:
        request["scope"] = scope
    async with connection.subscribe(topic) as replies:
        await connection.publish("_ADMIN", json.dumps(request).encode())
        while True:
            try:
                answers.append(json.loads((await replies.next(timeout=0.4 if scope else PATIENCE_S)).body))
            except FairleadError:
                return answers
            if not scope or len(answers) >= answers[0]["expected"]:
                return answers


@pytest.mark.requirement("CLU-176")
@pytest.mark.requirement("CLU-178", state="half", note="says that nothing protects them; there are no groups")
async def test_a_fresh_server_has_exactly_the_well_known_destinations() -> None:
    with Server(managers=1) as server:
        async with fairlead.connect(server.url) as connection:
            found = (await connection.admin.destinations())["destinations"]
            assert {(one["name"], one["kind"]) for one in found} == {
                ("_ADMIN", "topic"), ("_LOG", "topic"), ("_DMQ", "queue"),
            }  # fmt: skip
            assert (await connection.admin.status())["protected"] is False
        async with fairlead.connect(server.url) as first, first.topic("_LOG").subscribe() as log:
            await first.queue("new", create=True).send("x")
            message = await log.receive(timeout=PATIENCE_S)
            assert message is not None
            assert json.loads(message.body)["code"] == "destination-created"


@pytest.mark.requirement("CLU-180", "CLU-182", state="half", note="one node answers")
async def test_every_command_runs_with_a_plain_client_and_the_documented_format(join: Join, name: str) -> None:
    async with join() as connection:
        (answer,) = await plain(connection, "commands")
        assert {"id", "node", "expected", "view", "ok"} == set(answer)
        assert answer["expected"] == 1
        commands = {one["name"]: one for one in answer["ok"]["commands"]}
        text = (Path(__file__).parents[3] / "docs" / "administration.md").read_text()
        for command in commands:
            assert f"`{command}`" in text
        args: dict[str, Any] = {"destination": name}
        await plain(connection, "create", **args)
        await connection.queue(name).send("hello")
        for command, facts in commands.items():
            if facts["changes"]:
                continue
            given = {"destination": name, "order": 1, "id": "00" * 20, "trace": "4b" * 16}
            wanted = {one["name"]: given[one["name"]] for one in facts["arguments"] if one["required"]}
            (answer,) = await plain(connection, command, **wanted)
            assert "ok" in answer, (command, answer)
        for bad in (b"no json", b"[]", b'{"command": 7}', b"\xff\xfe", b'{"command": "status", "reply": "_LOG"}'):
            await connection.publish("_ADMIN", bad)
        (answer,) = await plain(connection, "no-such-command")
        assert answer["error"]["code"] == "bad-request"
        (answer,) = await plain(connection, "browse", destination=name, colour="red")
        assert answer["error"]["code"] == "bad-parameter"


@pytest.mark.requirement("CLU-181", state="half", note="one node; whoever is not meant says nothing")
async def test_who_is_not_meant_ignores_the_command(join: Join) -> None:
    async with join() as connection:
        for scope in ({"node": "mm-0"}, {"node": ["mm-0", "mm-7"]}, {"kind": MM}, {"group": "a"}, {"role": "primary"}):
            assert len(await plain(connection, "status", scope)) == 1
        others = ({"node": "mm-1"}, {"node": []}, {"kind": "connection-manager"}, {"group": "b"}, {"role": "backup"})
        found = await asyncio.gather(*(plain(connection, "status", scope) for scope in others))
        assert found == [[]] * len(others)


@pytest.mark.requirement("CLU-184", state="half", note="one node")
async def test_a_command_said_again_is_executed_once(join: Join, name: str) -> None:
    async with join() as connection:
        await connection.queue(name, create=True).send_many(["1", "2", "3"])
        first = await plain(connection, "drop", id_=f"drop-{name}", destination=name, orders=[1])
        again = await plain(connection, "drop", id_=f"drop-{name}", destination=name, orders=[2])
        assert first == again
        assert (await connection.admin.destination(destination=name))["depth"] == 2
        before = (await connection.admin.status())["configuration_revision"]
        for _ in range(2):
            await plain(connection, "set", id_=f"set-{name}", destination=name, parameters={"delivery_limit": 3})
        assert (await connection.admin.status())["configuration_revision"] == before + 1


@pytest.mark.requirement("CLU-184", "CLU-192", state="half", note="one node")
async def test_two_administrators_and_restarts_leave_what_was_answered_last(fresh: Server) -> None:
    async with fairlead.connect(fresh.url) as one, fairlead.connect(fresh.url) as two:
        await one.queue("contested", create=True).send("x")
        revisions: list[tuple[int, int]] = []

        async def change(connection: Any, values: range) -> None:
            for value in values:
                found = await connection.admin.set(destination="contested", parameters={"delivery_limit": value})
                revisions.append((found["revision"], found["parameters"]["delivery_limit"]))

        working = asyncio.gather(change(one, range(100, 125)), change(two, range(200, 225)))
        await asyncio.sleep(0.05)
        old = fresh.kill(MM)
        await working
        await asyncio.to_thread(fresh.wait_until, lambda _: fresh.pids(MM) not in ([], [old]))
        numbers = [revision for revision, _ in revisions]
        assert len(numbers) == len(set(numbers)) == 50
        facts = await one.admin.destination(destination="contested")
        assert facts["parameters"]["delivery_limit"] == max(revisions)[1]
        await one.admin.set(parameters={"transaction_idle_s": 77.0})
        old = fresh.kill(MM)
        await asyncio.to_thread(fresh.wait_until, lambda _: fresh.pids(MM) not in ([], [old]))
        status = await one.admin.status()
        assert status["settings"] == {"transaction_idle_s": 77.0}
        assert status["configuration_revision"] == max(numbers) + 1
        with pytest.raises(BadParameter):
            await one.admin.set(parameters={"sync": "memory"})


@pytest.mark.requirement("CLU-185", state="half", note="no groups")
async def test_the_local_socket_answers_when_no_manager_does(fresh: Server) -> None:
    pids = fresh.pids("manager")
    with suspended(*pids):
        found = await asyncio.to_thread(fresh.ask, "admin", name="status", args={})
        assert json.dumps(found).count("message-manager")
    mode = (fresh.data / "run").stat().st_mode
    assert mode & 0o077 == 0


@pytest.mark.requirement("CLU-72", state="half", note="no limit of 1 s is checked")
async def test_deleting_a_destination_is_told_to_all_who_use_it(join: Join, name: str) -> None:
    async with join() as one, join() as two, join() as three:
        queue = one.queue(name, create=True)
        await queue.send("x")
        consumer = two.queue(name, create=False).consume()
        await consumer.start()
        assert await consumer.receive(timeout=PATIENCE_S)
        assert (await three.admin.delete(destination=name))["messages"] == 1
        async with asyncio.timeout(5):
            with pytest.raises(FairleadError) as ended:
                while True:
                    assert await consumer.receive(timeout=PATIENCE_S) is None
            assert ended.value.code == "destination-deleted"
            with pytest.raises(FairleadError):
                await one.queue(name, create=False).send("y")
        with pytest.raises(NoDestination):
            await three.admin.destination(destination=name)


async def test_messages_are_browsed_dropped_moved_and_purged(join: Join, name: str) -> None:
    async with join() as connection:
        queue, other = connection.queue(f"{name}.a", create=True), connection.queue(f"{name}.b", create=True)
        await other.send("already there")
        await queue.send_many([f"{number}" for number in range(300)], properties={"of": name})
        await queue.send(b"\xff\xfe", properties={"of": "binary"})
        admin, a, b = connection.admin, f"{name}.a", f"{name}.b"
        seen, start = [], 0
        while start is not None:
            page = await admin.browse(destination=a, start=start, count=100)
            seen += page["messages"]
            start = page["next"]
        assert [one["order"] for one in seen] == list(range(1, 302))
        assert (seen[0]["body"], seen[0]["state"], seen[0]["properties"]) == ("0", "ready", {"of": name})
        assert seen[300]["body_base64"]
        assert (await admin.message(destination=a, order=7))["message"]["body"] == "6"
        assert (await admin.drop(destination=a, orders=[3, 1, 1, 9999]))["messages"] == 2
        assert (await admin.move(destination=a, to=b, orders=[2, 4]))["messages"] == 2
        assert (await admin.move(destination=a, to=b, selector="of = 'binary'"))["messages"] == 1
        assert (await admin.purge(destination=a, selector=f"of = '{name}'"))["messages"] == 296
        async with other.consume() as consumer:
            bodies = []
            for _ in range(4):
                message = await consumer.receive(timeout=PATIENCE_S)
                assert message is not None
                bodies.append(message.body)
                await message.ack(confirm=True)
        assert bodies == [b"already there", b"1", b"3", b"\xff\xfe"]
        assert {(await admin.destination(destination=one))["depth"] for one in (a, b)} == {0}
        with pytest.raises(NoDestination):
            await admin.move(destination=a, to=f"{name}.c", orders=[1])
        with pytest.raises(NotAllowed):
            await admin.delete(destination="_DMQ")
        with pytest.raises(WrongKind):
            await admin.create(destination=a, kind="topic")
        with pytest.raises(BadParameter):
            await admin.set(destination=a, parameters={"max_mesages": 1})


async def test_a_paused_destination_takes_and_does_not_give_also_after_a_restart(fresh: Server) -> None:
    async with fairlead.connect(fresh.url) as connection:
        queue = connection.queue("paused", create=True)
        await queue.send("waits")
        await connection.admin.pause(destination="paused")
        async with queue.consume() as consumer:
            await queue.send("too")
            assert await consumer.receive(timeout=0.2) is None
            old = fresh.kill(MM)
            await asyncio.to_thread(fresh.wait_until, lambda _: fresh.pids(MM) not in ([], [old]))
            await queue.send("three")
            assert await consumer.receive(timeout=0.2) is None
            await connection.admin.resume(destination="paused")
            for expected in ("waits", "too", "three"):
                message = await consumer.receive(timeout=PATIENCE_S)
                assert message is not None
                assert message.text() == expected
                await message.ack()


@pytest.mark.requirement("CLU-186", state="half", note="one node needs nobody else")
async def test_destinations_of_the_configuration_file_are_there_after_every_start(tmp_path: Path) -> None:
    config = tmp_path / "fairlead.toml"
    config.write_text('[destinations."orders.eu"]\nmax_messages = 7\n\n[destinations.news]\nkind = "topic"\n')
    data = tmp_path / "data"
    data.mkdir()
    with Server(managers=1, data=data, environment={"FAIRLEAD_CONFIG": str(config)}) as server:
        for limit in (7, 9):
            async with fairlead.connect(server.url) as connection:
                facts = await connection.admin.destination(destination="orders.eu")
                assert (facts["kind"], facts["parameters"]["max_messages"]) == ("queue", limit)
                assert (await connection.admin.destination(destination="news"))["kind"] == "topic"
                await connection.admin.set(destination="orders.eu", parameters={"max_messages": 100})
            if limit == 7:
                config.write_text(config.read_text().replace("= 7", "= 9"))
                server.stop()
                server.start()
