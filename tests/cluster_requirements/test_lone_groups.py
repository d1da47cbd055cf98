"""Three groups without backups on nodes of their own: what one group suffers, the others do not notice."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator

import msgspec
import pytest

import fairlead
from fairlead.errors import CommitUnknown, FairleadError, NoMessageManager, TransactionAborted
from fairlead.runtime.admin import answer_of
from fairlead.testing.cluster import Cluster
from tests.cluster_requirements.conftest import QUICK
from tests.cluster_requirements.tools import PATIENCE_S, Tapped, all_linked, bodies, name_in, off, until

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(240)]

LIMIT_S = 2.0


@pytest.fixture(scope="module")
def lasting() -> Iterator[Cluster]:
    with Cluster(
        cms=2, groups=3, backups=0, shared=False, faults=True, essential=QUICK, settings={"prepare_limit_s": LIMIT_S}
    ) as made:
        yield made


@pytest.fixture
def lone(lasting: Cluster) -> Iterator[Cluster]:
    """a1, b1 and c1 lead what their names say."""
    lasting.wait_until(lambda: all_linked(lasting), "every client manager has all groups")
    yield lasting
    for node in lasting.nodes:
        lasting.thaw(node)
    lasting.start_all()


def named(group: str, stem: str) -> str:
    return name_in(group, stem, "abc")


async def exchange(connection: fairlead.Connection, name: str, count: int = 5) -> None:
    await connection.queue(name, create=True).send_many([str(number) for number in range(count)])
    async with connection.queue(name).consume() as consumer:
        assert await bodies(consumer, count) == [str(number) for number in range(count)]


@pytest.mark.requirement("CLU-31", state="half", note="with no backup; with one: test_client_managers.py")
@pytest.mark.requirement("CLU-6", "CLU-9")
async def test_nodes_that_need_not_talk_may_be_cut_off_from_each_other(lone: Cluster) -> None:
    pairs = [("cm1", "cm2"), ("a1", "b1"), ("b1", "c1"), ("a1", "c1")]
    names = {group: named(group, "cut") for group in "abc"}
    async with fairlead.connect(lone.urls()[0]) as one, fairlead.connect(lone.urls()[1]) as two:
        for here, there in pairs:
            for sender, receiver in ((here, there), (there, here)):
                await off(lambda: lone.fault("cut", sender=sender, receiver=receiver))  # noqa: B023
        try:
            await asyncio.sleep(2 * QUICK["detection_s"])
            for name in names.values():
                await exchange(one, name)
                await exchange(two, name)
                await two.queue(name).send("coin")
                async with one.transaction() as transaction:
                    message = await transaction.receive(name, timeout=PATIENCE_S)
                    await transaction.send(name, f"{message.text()} again")
                async with two.queue(name).consume() as consumer:
                    assert await bodies(consumer, 1) == ["coin again"]
        finally:
            await off(heal, lone)
    groups = {group["group"]: group for group in lone.status()["groups"]}
    assert {name: group["primary"] for name, group in groups.items()} == {"a": "a1", "b": "b1", "c": "c1"}


def heal(cluster: Cluster) -> None:
    """At every node over its own socket, since some are cut off from some."""
    for name in cluster.local.running():
        args = {"do": "fault", "fault": "heal", "nodes": [name]}
        answer_of(cluster.data(name) / "run", "admin", name="cluster", args=args)


@pytest.mark.requirement("CLU-77", "CLU-153", state="half", note="one group is lost; in the storms: tests/simulation")
@pytest.mark.requirement("CLU-3", state="half", note="connections stay while groups are lost")
@pytest.mark.requirement("CLU-185", state="half", note="status; forced promotion: test_two_members.py")
async def test_a_lost_group_is_told_and_the_others_go_on(lone: Cluster) -> None:
    lost, kept = named("a", "lost"), named("b", "kept")
    async with fairlead.connect(lone.urls()[0]) as connection:
        await exchange(connection, lost)
        await exchange(connection, kept)
        heard: list[str] = []
        connection.on_event(lambda event: heard.append(event.name))
        async with connection.queue(lost).consume(), connection.queue(kept).consume() as consumer:
            await off(lone.kill, "a1")
            await connection.queue(kept).send("goes on")
            assert await bodies(consumer, 1) == ["goes on"]
            with pytest.raises(FairleadError) as told:
                await connection.queue(lost).send("nobody is there", timeout=2.0)
            assert told.value.retryable
            assert "disconnected" not in heard
            for node in ("cm2", "b1", "c1"):  # where _ADMIN lived is gone
                found = lone.ask("status", [node])["nodes"]
                assert found[node]["ok"]
            assert "group a has no primary" in " ".join(lone.status()["warnings"]) or not lone.primary("a")
            await off(lone.start, "a1")
            await connection.queue(lost).send("back")
            await off(lone.kill, "b1")
            await off(lone.kill, "c1")
            await connection.queue(lost).send("and again")
            assert connection.connected


@pytest.mark.requirement("CLU-165")
@pytest.mark.requirement("CLU-67", "CLU-84", state="half", note="one group stands still; by 80 % of the messages")
async def test_a_group_that_stands_still_delays_nobody_else(lone: Cluster) -> None:
    still, names = named("c", "still"), [named("a", "quick"), named("b", "quick")]
    async with fairlead.connect(lone.urls()[0]) as connection:
        await exchange(connection, still)
        for name in names:
            await exchange(connection, name)

        async def commits(count: int) -> float:
            took = []
            for number in range(count):
                began_s = time.monotonic()
                async with connection.transaction() as transaction:
                    for name in names:
                        await transaction.send(name, str(number))
                took.append(time.monotonic() - began_s)
            return statistics.median(took)

        before_s = await commits(10)
        await off(lone.freeze, "c1")
        waiting = asyncio.create_task(connection.queue(still).send("patience"))
        frozen_s = await commits(10)
        assert not waiting.done()
        assert frozen_s < 3 * before_s + 0.2
        await off(lone.thaw, "c1")
        await waiting
        for name in names:
            async with connection.queue(name).consume() as consumer:
                assert len(await bodies(consumer, 20)) == 20


@pytest.mark.requirement("CLU-162", "CLU-163", "CLU-166", state="half", note="the outcome; steps: cluster/transactions")
@pytest.mark.requirement("CLU-164", state="half", note="a client waits for a lost group as long as for a server")
async def test_a_group_that_is_not_ready_in_time_fails_the_commit(lone: Cluster) -> None:
    names = [named("b", "prepared"), named("c", "prepared")]
    async with fairlead.connect(lone.urls()[0], reconnect_limit_s=6) as connection:
        for name in names:
            await exchange(connection, name)
        ids = [(await connection.admin.execute("destination", destination=name))["id"] for name in names]
        outcomes = []
        for frozen, identity in zip(("b1", "c1"), ids, strict=True):
            began_s = time.monotonic()
            with pytest.raises((TransactionAborted, CommitUnknown)) as told:
                async with connection.transaction() as transaction:
                    for name in names:
                        await transaction.send(name, "never")
                        await until(lambda: _holds_sends(connection, name), "the send is there, hidden")  # noqa: B023
                    await off(lone.freeze, frozen)
            took_s = time.monotonic() - began_s
            await off(lone.thaw, frozen)
            await off(lone.wait_until, lambda: all_linked(lone), "all groups are back")
            outcomes.append((type(told.value), took_s, identity == min(ids)))
        for kind, took_s, is_decider in outcomes:
            assert took_s < 30
            assert is_decider or kind is TransactionAborted, "only the decider's silence leaves it unknown"
        await until(lambda: _settled(connection), "nothing is prepared any more", 30)
        for name in names:
            async with connection.queue(name).consume() as consumer:
                assert await consumer.receive(timeout=0.5) is None, "nothing of it is to be seen"


async def _holds_sends(connection: fairlead.Connection, name: str) -> bool:
    found = await connection.admin.execute("destination", destination=name)
    return bool(found["transactions"])


async def _settled(connection: fairlead.Connection) -> bool:
    return not (await connection.admin.execute("transactions"))["transactions"]


@pytest.mark.requirement("CLU-55", state="half", note="no quota is filled")
async def test_no_group_keeps_what_belongs_to_another(lone: Cluster) -> None:
    async with fairlead.connect(lone.url) as connection, Tapped(lone) as tap:
        for group in "abc":
            await connection.queue(named(group, "apart"), create=True).send(f"only in group {group}")
    for group in "abc":
        kept = [path for path in (lone.data(f"{group}1") / f"group-{group}").rglob("*") if path.is_file()]
        stored = b"".join(path.read_bytes() for path in kept)
        for other in "abc":
            assert (f"only in group {other}".encode() in stored) == (other == group)
    members = {"a1", "b1", "c1"}
    assert not {port for sender, receiver, port in tap.heads if {sender, receiver} <= members and "link" in port}


@pytest.mark.requirement("CLU-2", state="half", note="without any message manager: try again")
@pytest.mark.requirement("CLU-8", "CLU-12", "CLU-11", state="half", note="a client manager and a group come and go")
async def test_client_managers_and_groups_come_and_go_under_load(lone: Cluster) -> None:
    await off(lone.stop, "cm2")
    errors: list[FairleadError] = []
    over, sent = False, 0
    name = named("b", "busy")

    async def load() -> None:
        nonlocal sent
        async with fairlead.connect(lone.urls()[0]) as connection:
            while not over:
                try:
                    await connection.queue(name, create=True).send(str(sent))
                    sent += 1
                except FairleadError as error:
                    errors.append(error)

    async def more(count: int = 10) -> None:
        wanted = sent + count
        await until(lambda: sent >= wanted, "the load goes on")

    working = asyncio.create_task(load())
    await more()
    await off(lone.start, "cm2")
    await off(lone.wait_serving)
    await more()
    groups = [*(_plain(group) for group in lone.local.files("cm1").settings.groups), {"name": "d", "members": ["c1"]}]
    await off(lambda: lone.change("cm1", groups=groups))
    await off(lone.wait_until, lambda: lone.primary("d") == "c1", "the new group is served")
    await more()
    await off(lone.stop, "cm2")
    await more()
    over = True
    await working
    assert errors == []
    async with fairlead.connect(lone.urls()[0]) as connection:
        async with connection.queue(name).consume() as consumer:
            assert await bodies(consumer, sent) == [str(number) for number in range(sent)]
        fresh = name_in("d", "fresh", "abcd")
        await exchange(connection, fresh)
        assert (await connection.admin.execute("destination", destination=fresh))["group"] == "d"
    for node in ("a1", "b1", "c1"):
        await off(lone.stop, node)
    async with fairlead.connect(lone.urls()[0]) as connection:
        with pytest.raises(NoMessageManager):
            await connection.admin.destination(destination=name)
    await off(lone.start_all)


def _plain(group: object) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(group)
    return found
