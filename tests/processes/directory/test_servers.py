"""Real directory servers, several of them: killed, cut off, started again; every one of them is the directory."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.client.aio.connection import Connection
from fairlead.directory.edge.client import DirectoryClient
from fairlead.directory.rows import AppKind, Broker, Link
from fairlead.errors import BadCredentials, ConnectionLost, FairleadError, NoDirectory, NotAllowed
from fairlead.runtime.admin import answer_of
from fairlead.security.passwords import hash_password
from fairlead.security.users import User, Users, write
from fairlead.testing.directory import DirectorySet
from fairlead.testing.server import Server

PATIENCE_S = 60.0
LASTING: dict[str, Any] = {"directory.lease_s": 600, "directory.reserve_s": 600}  # nothing ends by itself


def broker(name: str, **facts: Any) -> Broker:
    return Broker(name=name, ip="127.0.0.1", port=7400, identity=f"id-{name}", **facts)


def link(number: int, of: str, label: str = "") -> Link:
    return Link(identity=f"{number:032x}", broker=of, label=label)


@asynccontextmanager
async def lines(directory: DirectorySet) -> AsyncIterator[list[Connection]]:
    """A connection to each server, with nothing between that would go to another one."""
    opened = [await fairlead.connect(url) for url in directory.urls]
    try:
        yield opened
    finally:
        for one in opened:
            await one.close()


async def tables(line: Connection) -> dict[str, Any]:
    """Everything a server shows as current; NoDirectory while it does not."""
    found: dict[str, Any] = {}
    for op in ("list_brokers", "list_clusters", "list_apps"):
        answer = await line._ask_directory(op, {}, 10)
        if answer.get("stale"):
            raise NoDirectory(f"{op} is stale")
        found |= answer
    return found


async def until(condition: Callable[[], Any], what: str) -> Any:
    """Await the condition again and again; errors of a directory that is not there yet count as no."""
    limit_s = time.monotonic() + PATIENCE_S
    why: object = None
    while True:
        try:
            if found := await condition():
                return found
        except FairleadError as error:
            why = error
        assert time.monotonic() < limit_s, f"not in {PATIENCE_S:g} s: {what} ({why})"
        await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def three() -> Iterator[DirectorySet]:
    with DirectorySet(servers=3, **LASTING) as one:
        yield one


@pytest.fixture
def whole(three: DirectorySet) -> Iterator[DirectorySet]:
    """All three, with each other; a test that hurts them leaves that to the next one."""
    three.heal()
    three.start()
    three.wait_serving()
    yield three
    three.heal()


@pytest.mark.requirement("DIR-35")
async def test_each_server_does_everything_and_shows_what_the_others_did(whole: DirectorySet) -> None:
    async with DirectoryClient(whole.urls[0]) as one, DirectoryClient(whole.urls[1]) as two:
        for name in "ABC":
            await one.put_broker(broker=broker(name), clusters=("each",))
        first = await one.pick_broker(app="AX-each", cluster="each")
        second = await two.pick_broker(app="AX-each", cluster="each")
        assert (first.broker.name, second.broker.name) == ("A", "B")
        await one.connection_opened(app="AX-each", link=link(1, "A"), reservation=first.reservation)
        opened = await two.connection_opened(app="AX-each", link=link(2, "B"), reservation=second.reservation)
        assert opened.label == "AX-each-2"
        for client in (one, two):
            (app,) = (await client.list_apps(app="AX-each")).apps
            assert [(row.label, row.broker) for row in app.links] == [("AX-each-1", "A"), ("AX-each-2", "B")]
        await two.connection_closed(app="AX-each", identity=f"{1:032x}", broker="A")
        assert (await one.totals(app="AX-each")).brokers == {"B": 1}


@pytest.mark.requirement("DIR-36", state="scaled", note="300 alternations; 1000 in the long test")
async def test_a_read_elsewhere_shows_what_was_acknowledged(whole: DirectorySet) -> None:
    await _alternate(whole, 300)


@pytest.mark.long
@pytest.mark.requirement("DIR-36")
async def test_a_thousand_reads_elsewhere_show_what_was_acknowledged(whole: DirectorySet) -> None:
    await _alternate(whole, 1000)


async def _alternate(directory: DirectorySet, times: int) -> None:
    async with lines(directory) as (one, two, _):
        await one._ask_directory("put_broker", {"broker": {**ROW, "name": "alternating"}}, 10)
        for number in range(times):
            row = {**ROW, "name": "alternating", "port": 10_000 + number}
            wrote = await one._ask_directory("put_broker", {"broker": row}, 10)
            answer = await two._ask_directory("list_brokers", {}, 10)
            (found,) = [each for each in answer["brokers"] if each["name"] == "alternating"]
            assert found["port"] == 10_000 + number, "a stale answer"
            assert answer["revision"] >= wrote["revision"]
            assert "stale" not in answer


@pytest.mark.requirement("DIR-49", state="scaled", note="by the operations, from three servers at once; 99 picks")
async def test_one_rotation_for_all_servers(whole: DirectorySet) -> None:
    async with lines(whole) as every:
        for name in "ABC":
            row = {**ROW, "name": name, "identity": f"id-{name}"}
            await every[0]._ask_directory("put_broker", {"broker": row, "clusters": ["each", "turns"]}, 10)

        async def pick(number: int, app: str) -> str:
            asked = {"app": app, "cluster": "turns", "request": f"r{number}"}
            answer = await every[number % 3]._ask_directory("pick_broker", asked, 20)
            return str(answer["broker"]["name"])

        others = [pick(number, app) for number in range(40) for app in ("AY", "AZ")]
        found = await asyncio.gather(*(pick(number, "AX") for number in range(99)), *others)
        ours = found[:99]
        assert {name: ours.count(name) for name in "ABC"} == {"A": 33, "B": 33, "C": 33}


@pytest.mark.requirement("DIR-38")
async def test_a_server_cut_off_refuses_changes_and_marks_reads_and_is_equal_when_healed(whole: DirectorySet) -> None:
    async with lines(whole) as every:
        await every[0]._ask_directory("put_broker", {"broker": {**ROW, "name": "before"}, "clusters": ["cut"]}, 10)
        lonely = whole.names.index(whole.primary())  # the hardest case: it led
        others = [line for number, line in enumerate(every) if number != lonely]
        whole.cut(whole.names[lonely])

        async def is_stale() -> bool:
            answer = await every[lonely]._ask_directory("list_brokers", {}, 5)
            assert "before" in [one["name"] for one in answer["brokers"]]
            return answer.get("stale") is True

        await until(is_stale, "reads at the server that is cut off are marked")
        for op, facts in (
            ("put_broker", {"broker": {**ROW, "name": "lost"}}),
            ("pick_broker", {"app": "AX", "cluster": "cut", "request": "r-cut"}),
        ):
            with pytest.raises(NoDirectory):
                await every[lonely]._ask_directory(op, facts, 20)

        async def changed() -> bool:
            await others[0]._ask_directory("put_broker", {"broker": {**ROW, "name": "after"}}, 10)
            return True

        await until(changed, "the other two go on")
        answer = await others[1]._ask_directory("list_brokers", {}, 10)
        names = [one["name"] for one in answer["brokers"]]
        assert "after" in names
        assert "lost" not in names
        assert "stale" not in answer
        stale = await every[lonely]._ask_directory("list_brokers", {}, 10)
        assert stale["stale"]
        assert "after" not in [one["name"] for one in stale["brokers"]]
        whole.heal()

        async def equal() -> bool:
            one, two, three = [await tables(line) for line in every]
            return one == two == three and "after" in [row["name"] for row in one["brokers"]]

        await until(equal, "all three are equal after healing")


@pytest.mark.requirement("DIR-39")
async def test_a_server_that_comes_back_takes_over_everything_before_it_answers_as_current(whole: DirectorySet) -> None:
    away = next(name for name in whole.names if name != whole.primary())
    stay = next(name for name in whole.names if name != away)
    whole.stop(away)
    async with DirectoryClient(whole.url_of(stay)) as one:
        await one.put_broker(broker=broker("home"))
        for number in range(100):
            await one.register_app(app=f"late-{number}", kind="static", broker="home", user="u")
    whole.start(away, wait=False)
    async with fairlead.connect(whole.url_of(away)) as line:

        async def first() -> dict[str, Any] | None:
            answer = await line._ask_directory("list_apps", {}, 5)
            return None if answer.get("stale") else answer

        answer = await until(first, f"{away} answers as current")
    assert {f"late-{number}" for number in range(100)} <= {app["name"] for app in answer["apps"]}


@pytest.mark.requirement("DIR-37", state="half", note="requests of the directory client; applications in another test")
async def test_requests_go_on_while_a_server_dies(whole: DirectorySet) -> None:
    """The server that leads is killed in the middle of a run: every request succeeds, and none is done twice."""
    done: list[str] = []
    async with DirectoryClient(whole.url, timeout_s=3.0, deadline_s=PATIENCE_S) as client:
        for name in "ABC":
            await client.put_broker(broker=broker(name), clusters=("dying",))
        victim = whole.primary()
        for number in range(60):
            if number == 20:
                whole.kill(victim)
            picked = await client.pick_broker(app="AX-dying", cluster="dying", request=f"run-{number}")
            done.append(picked.broker.name)
    assert done == list("ABC" * 20)


@pytest.mark.requirement(
    "DIR-21", state="half", note="by the operations, told again by hand; brokers in test_registrar"
)
async def test_everything_is_there_after_all_were_killed(whole: DirectorySet) -> None:
    async with DirectoryClient(whole.url) as client:
        for name in "AB":
            await client.put_broker(broker=broker(name), clusters=("killed",))
        await client.register_app(app="static", kind="static", broker="A", user="u")
        for number in (11, 12, 13):
            await client.connection_opened(app="AX-killed", link=link(number, "A"))
        revision = (await client.list_brokers()).revision
    first = whole.primary()  # the others may have been behind
    whole.kill()
    whole.start(first, wait=False)
    async with fairlead.connect(whole.url_of(first)) as line:

        async def alone() -> dict[str, Any]:
            return await line._ask_directory("get_cluster", {"cluster": "killed"}, 5)

        answer = await until(alone, "the first one tells what it knows, while it is alone")
        assert answer["stale"]
        assert [one["name"] for one in answer["brokers"]] == ["A", "B"]
    whole.start()
    async with DirectoryClient(whole.url, deadline_s=PATIENCE_S) as client:
        found = await client.list_brokers()
        assert {"A", "B"} <= {one.name for one in found.brokers}
        assert found.revision >= revision
        assert not found.stale
        (cluster,) = [one for one in (await client.list_clusters()).clusters if one.name == "killed"]
        assert cluster.brokers == ("A", "B")
        assert (await client.lookup_app(app="static")).app is not None
        rows: list[tuple[str, AppKind, Link]] = [
            ("AX-killed", "dynamic", link(number, "A", f"AX-killed-{number - 10}")) for number in (11, 13)
        ]
        told = await client.restate(name="A", identity="id-A", links=tuple(rows))
        assert told.labels == {f"{11:032x}": "AX-killed-1", f"{13:032x}": "AX-killed-3"}
        assert (await client.connection_opened(app="AX-killed", link=link(14, "A"))).label == "AX-killed-4"


def _counts(facts: dict[str, Any], name: str) -> bool:
    """Has it a vote that is not the one it was founded with, and a copy in sync?"""
    votes = [vote for vote in facts.get("votes", ()) if vote.startswith(f"{name}.")]
    return bool(votes) and f"{name}.0" not in votes and any(one.startswith(f"{name}.") for one in facts["set"])


async def test_a_server_that_lost_its_disk_rejoins_and_then_counts_as_before(whole: DirectorySet) -> None:
    lost = next(name for name in whole.names if name != whole.primary())
    async with DirectoryClient(whole.url, deadline_s=PATIENCE_S) as client:
        await client.put_broker(broker=broker("kept"), clusters=("kept",))
        whole.kill(lost)
        shutil.rmtree(whole.data(lost))
        whole.start(lost, rejoin=True)
        stays = next(name for name in whole.names if name not in (lost, whole.primary()))
        # Its vote and its copy count again: with it and the primary, the third one is not needed.
        whole.wait_until(lambda: _counts(whole.facts(), lost), f"{lost} has another vote, and a copy")
        whole.kill(stays)

        async def changed() -> bool:
            await client.put_broker(broker=broker("without"), clusters=("kept",))
            return True

        await until(changed, "two of three go on, one of which had lost everything")
        assert [row.name for row in (await client.get_cluster(cluster="kept")).brokers] == ["kept", "without"]


@pytest.mark.long
@pytest.mark.requirement("DIR-38", state="half", note="with two servers: the loss of one stops changes, not reads")
async def test_two_servers_without_one_of_them_are_for_reading() -> None:
    with DirectorySet(servers=2, **LASTING) as two:
        async with fairlead.connect(two.urls[0]) as line:
            await line._ask_directory("put_broker", {"broker": {**ROW, "name": "A"}, "clusters": ["c"]}, 20)
            two.kill("d2")

            async def is_stale() -> bool:
                answer = await line._ask_directory("get_cluster", {"cluster": "c"}, 5)
                assert [one["name"] for one in answer["brokers"]] == ["A"]
                return answer.get("stale") is True

            await until(is_stale, "reads are marked")
            with pytest.raises(NoDirectory):
                await line._ask_directory("put_broker", {"broker": {**ROW, "name": "B"}}, 20)
            two.start("d2")

            async def changed() -> bool:
                return bool(await line._ask_directory("put_broker", {"broker": {**ROW, "name": "B"}}, 10))

            await until(changed, "both together change it again")


async def test_a_list_longer_than_a_frame_comes_whole(whole: DirectorySet) -> None:
    async with fairlead.connect(whole.urls[0]) as line:
        await line._ask_directory("put_broker", {"broker": {**ROW, "name": "long"}}, 20)
        names = [f"{number:05d}-{'x' * 220}" for number in range(5000)]
        facts = {"kind": "static", "broker": "long"}
        await asyncio.gather(*(line._ask_directory("register_app", {"app": name, **facts}, 60) for name in names))
        answer = await line._ask_directory("list_apps", {}, 60)
        assert set(names) <= {app["name"] for app in answer["apps"]}
        assert len(str(answer)) > 1 << 20
        gone = ({"app": name, "broker": "long"} for name in names)
        await asyncio.gather(*(line._ask_directory("deregister_app", one, 60) for one in gone))


# --- The processes of one server --------------------------------------------------------------------------------------
def _children(directory: DirectorySet, name: str) -> list[int]:
    """Its two nodes: the member's keeper, and the supervisor of the client manager."""
    first, *others = directory.pids(name)
    return [pid for pid in others if _parent(pid) == first]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_a_node_that_dies_is_started_again(whole: DirectorySet) -> None:
    name = next(one for one in whole.names if one != whole.primary())
    before = _children(whole, name)
    assert len(before) == 2
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    whole.wait_until(lambda: len(set(_children(whole, name)) - set(before)) == 2, "both are started again")
    whole.wait_serving([name])
    async with DirectoryClient(whole.url_of(name), deadline_s=PATIENCE_S) as client:
        await client.put_broker(broker=broker("again"))


async def test_a_server_whose_own_process_is_killed_ends_whole_and_starts_again(whole: DirectorySet) -> None:
    name = next(one for one in whole.names if one != whole.primary())
    first, *others = whole.pids(name)
    os.kill(first, signal.SIGKILL)
    whole._processes.pop(name).wait()
    whole.wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in others), "its nodes end by themselves")
    whole.start(name)
    async with DirectoryClient(whole.url_of(name), deadline_s=PATIENCE_S) as client:
        await client.put_broker(broker=broker("once-more"))


# --- One server alone -----------------------------------------------------------------------------------------------
@pytest.mark.requirement("DIR-20")
async def test_a_refresh_without_a_change_is_told_unchanged(whole: DirectorySet) -> None:
    async with DirectoryClient(whole.urls[0]) as one, DirectoryClient(whole.urls[2]) as other:
        await one.put_broker(broker=broker("A"), clusters=("refresh",))
        full = await one.get_cluster(cluster="refresh")
        assert [row.name for row in full.brokers] == ["A"]
        again = await other.get_cluster(cluster="refresh", newer_than=full.revision)
        assert again.unchanged
        assert again.revision == full.revision
        changed = await one.join_cluster(cluster="refresh", broker="A")
        await other.put_broker(broker=broker("B"), clusters=("refresh",))
        newer = await one.get_cluster(cluster="refresh", newer_than=full.revision)
        assert not newer.unchanged
        assert newer.revision >= changed.revision
        assert [row.name for row in newer.brokers] == ["A", "B"]


@pytest.mark.requirement("DIR-34")
async def test_only_who_has_the_right_writes(tmp_path: Path) -> None:
    known = hash_password("secret")
    users = Users(
        {
            "root": User(hash=known, admin=["_DIRECTORY"]),
            "broker-a": User(hash=known, serve=["_BROKER.A"], consume=[]),
            "ax": User(hash=known, consume=["app.AX"], serve=[]),
        }
    )
    write(tmp_path / "users.toml", users)
    settings: dict[str, Any] = {**LASTING, "security.users": str(tmp_path / "users.toml")}
    with DirectorySet(servers=1, **settings) as directory:
        with pytest.raises((BadCredentials, ConnectionLost)):
            await fairlead.connect(directory.urls[0], connect_timeout_s=10)
        opened: list[DirectoryClient] = []

        def as_user(name: str) -> DirectoryClient:
            opened.append(DirectoryClient(directory.urls[0], user=name, password="secret"))
            return opened[-1]

        root, a, ax = as_user("root"), as_user("broker-a"), as_user("ax")
        try:
            await root.put_broker(broker=broker("B"), clusters=("c",))
            await a.put_broker(broker=broker("A"), clusters=("c",))
            for refused in (
                a.remove_broker(name="B"),
                a.leave_cluster(cluster="c", broker="B"),
                a.connection_opened(app="AX", link=link(1, "B")),
                ax.connection_opened(app="AY", link=link(1, "A")),
                ax.put_broker(broker=broker("AX")),
                ax.set_cluster(cluster="c", heuristic="auto"),
            ):
                with pytest.raises(NotAllowed):
                    await refused
            assert [one.name for one in (await ax.list_brokers()).brokers] == ["B", "A"]
            assert (await ax.pick_broker(app="AX", cluster="c")).broker.name in "AB"
            await a.connection_opened(app="AX", link=link(1, "A"))
            await root.remove_broker(name="A")
        finally:
            for client in opened:
                await client.close()
    settings |= {"directory.serve": "true", "security.allow_anonymous": "true"}
    with Server(managers=1, **settings) as server:
        async with fairlead.connect(server.url) as nobody:
            assert "brokers" in await nobody._ask_directory("list_brokers", {}, 10)
            for op, facts in (
                ("put_broker", {"broker": {**ROW, "name": "X"}}),
                ("pick_broker", {"app": "AX", "cluster": "c", "request": "r", "may": ["_DIRECTORY"]}),
                ("remove_broker", {"name": "A", "user": "root"}),
            ):
                with pytest.raises(FairleadError) as told:
                    await nobody._ask_directory(op, facts, 10)
                assert told.value.code in ("not-allowed", "bad-parameter"), told.value


async def test_a_server_that_keeps_no_directory_and_one_whose_keeper_died_say_so() -> None:
    with Server(managers=1) as plain:
        async with fairlead.connect(plain.url) as line:
            with pytest.raises(NoDirectory):
                await line._ask_directory("list_brokers", {}, 10)
    with DirectorySet(servers=1) as alone:
        async with fairlead.connect(alone.urls[0]) as line:
            await line._ask_directory("put_broker", {"broker": ROW}, 10)
            report = answer_of(alone.run("d1"), "status", brief=True)
            (pid,) = [c["pid"] for c in report["status"]["components"] if c["role"] == "message-manager"]
            os.kill(pid, signal.SIGKILL)

            async def back() -> bool:
                return bool((await line._ask_directory("list_brokers", {}, 10))["brokers"])

            await until(back, "it is there again with what it had")


ROW = {"name": "A", "ip": "127.0.0.1", "port": 7400, "identity": "id"}
