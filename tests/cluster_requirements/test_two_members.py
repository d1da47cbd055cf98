"""Two message managers and one client manager, each with a vote: who leads, who may confirm, who has to wait."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

import fairlead
from fairlead.errors import FairleadError
from fairlead.runtime.admin import answer_of
from fairlead.testing.cluster import Cluster
from tests.cluster_requirements.conftest import QUICK
from tests.cluster_requirements.tools import PATIENCE_S, all_linked, bodies, browsed, facts, off, take, until

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(240)]

REMOVAL_S = 2.0
MEMBERS = ("mm1", "mm2")


@pytest.fixture(scope="module")
def lasting() -> Iterator[Cluster]:
    with Cluster(
        cms=1, groups=1, backups=1, faults=True, secret=True, essential=QUICK, settings={"removal_s": REMOVAL_S}
    ) as made:
        yield made


@pytest.fixture
def pair(lasting: Cluster) -> Iterator[Cluster]:
    """Both in sync."""
    lasting.wait_in_sync("a", 2)
    lasting.wait_until(lambda: all_linked(lasting), "the client manager has the group")
    yield lasting
    for node in lasting.nodes:
        lasting.thaw(node)
    lasting.start_all()
    heal(lasting)


def fault(cluster: Cluster, **what: str) -> None:
    """At every node over its own socket, since some are cut off from some."""
    for name in cluster.local.running():
        args = {"do": "fault", **what, "nodes": [name]}
        answer_of(cluster.data(name) / "run", "admin", name="cluster", args=args)


def heal(cluster: Cluster) -> None:
    fault(cluster, fault="heal")


def cut_off(cluster: Cluster, node: str) -> None:
    fault(cluster, fault="cut", **{"from": node, "to": "*"})
    fault(cluster, fault="cut", **{"from": "*", "to": node})


def roles(cluster: Cluster) -> tuple[str, str]:
    """Who leads, and who follows."""
    primary = cluster.primary("a")
    return primary, next(node for node in MEMBERS if node != primary)


def here(cluster: Cluster, node: str) -> dict[str, Any]:
    """What a node says about its member, over its own socket."""
    question = {"do": "status", "nodes": [node]}
    answer = answer_of(cluster.data(node) / "run", "admin", name="cluster", args=question)["result"]["nodes"][node]
    found: dict[str, Any] = answer["status"]["groups"]["a"]
    return found


@pytest.mark.requirement("CLU-116", state="half", note="confirms; other answers: tests/simulation")
@pytest.mark.requirement("CLU-148", "CLU-167", state="half", note="one backup; kills while the set changes: simulation")
@pytest.mark.requirement("CLU-45", state="scaled", note="frozen for some seconds")
async def test_confirms_wait_for_a_frozen_backup_until_it_is_out_of_the_set(pair: Cluster) -> None:
    async with fairlead.connect(pair.url) as connection:
        queue = connection.queue("frozen", create=True)
        await queue.send("both have it")
        primary, backup = roles(pair)
        version = pair.facts(primary, "a")["version"]
        await off(pair.freeze, backup)
        began_s = time.monotonic()
        waiting = asyncio.create_task(queue.send("one has it"))
        await asyncio.sleep(0.5)
        assert not waiting.done(), "it is not safe yet"
        await waiting
        assert time.monotonic() - began_s < REMOVAL_S + 2
        found = pair.facts(primary, "a")
        assert (len(found["set"]), found["version"], found["degraded"]) == (1, version + 1, True)
        await off(pair.thaw, backup)
        await off(pair.wait_in_sync, "a", 2)
        await off(lambda: pair.change("cm1", strict_copies=True))
        await off(pair.freeze, backup)
        waiting = asyncio.create_task(queue.send("both again"))
        await asyncio.sleep(REMOVAL_S + 2)
        assert not waiting.done(), "rather wait than confirm with one copy"
        await off(pair.thaw, backup)
        await waiting
        await off(lambda: pair.change("cm1", strict_copies=False))
        await off(pair.wait_in_sync, "a", 2)
        await off(pair.kill, roles(pair)[0])
        assert [text for _, text in await browsed(connection, "frozen")] == ["both have it", "one has it", "both again"]


@pytest.mark.requirement("CLU-143", state="half", note="the epoch grows; what is refused is not counted at every node")
@pytest.mark.requirement("CLU-140", note="killed, cut off; with a frozen one and a failing disk: members/test_nodes.py")
@pytest.mark.requirement("CLU-149", state="half", note="the lease ends and another one leads; no voter restarts")
@pytest.mark.requirement("CLU-138", state="half", note="digests are equal again")
async def test_a_primary_that_is_killed_or_cut_off_is_followed_by_the_other(pair: Cluster) -> None:
    async with fairlead.connect(pair.url) as connection:
        queue = connection.queue("led", create=True)
        await queue.send("0")
        primary, backup = roles(pair)
        epoch = pair.facts(primary, "a")["epoch"]
        await off(pair.kill, primary)
        await queue.send("1")
        assert pair.primary("a") == backup
        assert pair.facts(backup, "a")["epoch"] > epoch
        await off(pair.start, primary)
        await off(pair.wait_in_sync, "a", 2)
        await off(pair.kill, "cm1")  # the two of them are a majority
        assert here(pair, backup)["serving"]
        await off(pair.start, "cm1")
        await queue.send("2")
        primary, backup = roles(pair)
        await off(cut_off, pair, primary)
        await queue.send("3")
        assert here(pair, backup)["serving"]
        assert not here(pair, primary)["serving"], "never two"
        await off(heal, pair)
        await off(pair.wait_in_sync, "a", 2)
        assert [text for _, text in await browsed(connection, "led")] == ["0", "1", "2", "3"]
        await off(pair.wait_until, lambda: equal(pair), "both copies are equal")


def equal(cluster: Cluster) -> bool:
    reports = list(cluster.ask("scrub", list(MEMBERS), group="a")["nodes"].values())
    return reports[0]["digests"] == reports[1]["digests"] and not any(one["damage"] for one in reports)


@pytest.mark.requirement("CLU-151")
@pytest.mark.requirement("CLU-146", note="a1 lost, a1 cut off, the client manager lost: the test before this one")
@pytest.mark.requirement("CLU-150", "CLU-152", state="half", note="two members; three: tests/replication")
@pytest.mark.requirement("CLU-185", note="status of every node: cli/test_cluster.py")
async def test_a_backup_left_behind_leads_only_by_force(pair: Cluster) -> None:
    async with fairlead.connect(pair.url, name="watcher") as connection:
        async with connection.topic("_LOG").subscribe(durable="watch"):
            pass
        queue = connection.queue("forced", create=True)
        await queue.send("both")
        primary, backup = roles(pair)
        await off(cut_off, pair, backup)
        await queue.send("only the primary")  # it goes on with the client manager's vote
        found = here(pair, primary)
        assert (len(found["set"]), found["degraded"]) == (1, True)
        await off(pair.kill, primary)
        await off(heal, pair)
        await until(lambda: asyncio.to_thread(_waits_for, pair, backup, primary), "it says for whom it waits", 40)
        await asyncio.sleep(2 * QUICK["lease_s"])
        assert not here(pair, backup)["serving"]
        refused = pair.ask("force", [backup], group="a")["nodes"][backup]
        assert not refused["ok"]
        assert pair.ask("force", [backup], group="a", accept_loss=True)["nodes"][backup]["ok"]
        await off(pair.wait_until, lambda: here(pair, backup)["serving"], "it serves")
    async with fairlead.connect(pair.url, name="watcher") as connection:
        await connection.queue("forced").send("after the loss")
        assert [text for _, text in await browsed(connection, "forced")] == ["both", "after the loss"]
        async with connection.topic("_LOG").subscribe(durable="watch", ack="individual") as log:
            while b"forced-primary" not in (await take(log, 1))[0].body:
                pass
        await connection.topic("_LOG").unsubscribe("watch")
        await off(pair.start, primary)
        await off(pair.wait_in_sync, "a", 2)
        assert pair.primary("a") == backup
        await off(pair.wait_until, lambda: equal(pair), "both copies are equal")
        assert any("aside" in path.name for path in (pair.data(primary) / "group-a").rglob("*")), "what only it had"


@pytest.mark.requirement("CLU-14")
@pytest.mark.requirement("CLU-129", "CLU-186", state="half", note="a member that was behind, started alone")
async def test_after_a_cold_start_only_who_was_in_sync_leads(pair: Cluster) -> None:
    primary, backup = roles(pair)
    async with fairlead.connect(pair.url) as connection:
        queue = connection.queue("cold", create=True)
        await queue.send("first")
        await off(pair.stop, backup)
        await queue.send_many([str(number) for number in range(100)])
    for node in (primary, "cm1"):
        await off(pair.kill, node)
    for node in (backup, "cm1"):
        await off(pair.start, node)
    await until(lambda: asyncio.to_thread(_waits_for, pair, backup, primary), "it says for whom it waits", 40)
    assert not here(pair, backup)["serving"]
    await off(pair.start, primary)
    await off(pair.wait_serving)
    assert pair.primary("a") == primary
    async with fairlead.connect(pair.url) as connection, connection.queue("cold").consume() as consumer:
        assert await bodies(consumer, 101) == ["first", *map(str, range(100))]


def _waits_for(cluster: Cluster, node: str, other: str) -> bool:
    try:
        found = here(cluster, node)
    except (FairleadError, KeyError):  # it has just started
        return False
    return other in str(found["waiting"])


@pytest.mark.requirement("CLU-134", state="half", note="all but open and prepared transactions")
@pytest.mark.requirement("CLU-130", "CLU-132", "CLU-136", "CLU-139", state="half", note="a new store under some load")
@pytest.mark.requirement("CLU-97", state="half", note="8 MiB; the backup pulls the body from the primary")
async def test_a_fresh_backup_knows_everything(pair: Cluster) -> None:
    primary, backup = roles(pair)
    body = bytes(range(256)) * (8 << 12)
    async with fairlead.connect(pair.url, name="full") as connection:
        queue, topic = connection.queue("full", create=True), connection.topic("full.news", create=True)
        async with topic.subscribe(durable="kept"):
            pass
        await topic.send("news")
        await queue.send("counted")
        async with connection.transaction() as transaction:
            await transaction.receive("full", timeout=PATIENCE_S)
            await transaction.rollback()
        await queue.send("once", dedup="7")
        await connection.queue("full.large", create=True).send(body)
        await connection.queue("full.late", create=True).send("late", delay=10.0)
        began_s = time.monotonic()
        before = pair.facts(backup, "a")["store"]
        await off(pair.stop, backup)
        shutil.rmtree(pair.data(backup) / "group-a")
        await off(pair.start, backup)
        for number in range(20):
            await connection.queue(f"full.made.{number}", create=True).send(str(number))
        await off(pair.wait_in_sync, "a", 2)
        assert pair.facts(backup, "a")["store"] != before, "a newcomer"
        await off(pair.kill, primary)
        async with queue.consume() as consumer:
            found = await take(consumer, 2)
        assert [(one.text(), one.delivery_count) for one in found] == [("counted", 2), ("once", 1)]
        assert (await queue.send("twice", dedup="7")).duplicate
        async with topic.subscribe(durable="kept", ack="individual") as news:
            assert await bodies(news, 1) == ["news"]
        async with connection.queue("full.large").consume() as consumer:
            message = await consumer.receive(timeout=PATIENCE_S)
            assert await message.read() == body
            await message.ack(confirm=True)
        async with connection.queue("full.late").consume() as consumer:
            assert await bodies(consumer, 1) == ["late"]
        assert time.monotonic() - began_s >= 9.5
        for number in range(20):
            assert (await facts(connection, f"full.made.{number}"))["depth"] == 1


@pytest.mark.requirement("CLU-76", "CLU-189", "CLU-190")
@pytest.mark.requirement("CLU-187", "CLU-207", state="half", note="refused; replays: tests/bus")
async def test_files_that_do_not_fit_are_noticed(pair: Cluster) -> None:
    _, backup = roles(pair)
    folder = pair.directory / backup
    await off(pair.stop, backup)
    essential = (folder / "cluster.toml").read_bytes()

    def start(timeout_s: float = 60.0) -> tuple[int, str]:
        words = [sys.executable, "-m", "fairlead", "node", "mm", "--node", str(folder / "node.toml")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)
        return done.returncode, done.stdout + done.stderr

    (folder / "cluster.toml").write_bytes(essential + b"\n")
    code, told = await off(start)
    assert code != 0
    assert all(node in told for node in pair.nodes if node != backup)
    (folder / "cluster.toml").write_bytes(essential + b"\nremoval_s = 1.0\n")
    code, told = await off(start)
    assert code != 0
    assert "removal_s" in told
    (folder / "cluster.toml").write_bytes(essential)
    secret = pair.directory / "secret"
    right = secret.read_bytes()
    secret.write_bytes(right[::-1])
    await off(pair.start, backup)
    await asyncio.sleep(2 * QUICK["detection_s"])

    def is_left_out() -> bool:
        seen = answer_of(pair.data("cm1") / "run", "admin", name="cluster", args={"do": "status"})["result"]
        return (seen["expected"], backup in seen["nodes"]) == (2, False)

    await off(pair.wait_until, is_left_out, "it is in no view")
    await off(pair.stop, backup)
    secret.write_bytes(right)
    await off(pair.start, backup)
    await off(pair.wait_in_sync, "a", 2)
    path = folder / "settings.toml"
    edited = path.read_bytes().replace(b"removal_s = 2.0", b"removal_s = 4.0")
    path.write_bytes(edited)
    await off(lambda: pair.change("cm1", removal_s=3.0))

    def agreed() -> bool:
        return len({(pair.directory / node / "settings.toml").read_bytes() for node in pair.nodes}) == 1

    await off(pair.wait_until, agreed, "all files agree")
    assert [kept.read_bytes() for kept in folder.glob("settings.toml.edited-*")] == [edited]
    assert "edited" in pair.output(backup) + (pair.data(backup) / "log" / "fairlead.log").read_text()
    await off(lambda: pair.change("cm1", removal_s=REMOVAL_S))
