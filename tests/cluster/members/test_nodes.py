"""Groups of real processes: who leads, what survives, how soon it goes on (docs/cluster.md)."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.journal.edge.journal import Journal
from fairlead.journal.edge.options import Options as JournalOptions
from tests.cluster.members.rig import Client, Lost, Nodes, until
from tests.cluster.members.sender import Sender

SMALL = {"segment_bytes": 1 << 20}

Make = Callable[..., Nodes]

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.slow]


def flood(sender: Sender, count: int) -> None:
    """Send until the link is lost or so many are on their way."""
    try:
        for _ in range(count // 10):
            sender.send(10)
            sender.hear()
            sender.client.turn(0.0)
    except Lost:
        pass


@pytest.mark.requirement("CLU-33", state="half", note="two groups on each of two nodes")
@pytest.mark.requirement("CLU-128", state="half", note="one order; no role is preferred by configuration")
def test_a_group_begins_whoever_starts_first_and_hosts_two_groups(make: Make, client_of: Callable[..., Client]) -> None:
    nodes = make(groups=("a", "b"))
    for name in ("w1", "m2", "m1"):
        nodes.start(name)
    assert nodes.wait_in_sync(2, "a")
    assert nodes.wait_in_sync(2, "b")
    client = client_of(nodes, "b")
    client.connect()
    session = client.open()
    assert session["session"] == 1 << 24 | 1
    assert session["ids"][0] >= 1 << 48
    client.send(client.producer("orders"), 1, b"one", b"two")
    assert until(lambda: list(client.stored()), "stored", step=client.turn) == [(1, 2, 0)]
    assert client.receive("orders", 2) == [b"one", b"two"]


@pytest.mark.requirement("CLU-116", state="half", note="killed right behind confirms, three times")
@pytest.mark.requirement("CLU-119", state="scaled", note="three times")
@pytest.mark.requirement("CLU-118", state="half", note="repeats after a failover")
@pytest.mark.requirement("CLU-140", state="half", note="killed")
@pytest.mark.requirement("CLU-141", state="half", note="the in-sync backup follows; rank is not shown")
def test_nothing_is_lost_when_primaries_are_killed(make: Make, client_of: Callable[..., Client]) -> None:
    nodes = make()
    nodes.start()
    nodes.wait_in_sync(2)
    sender = Sender(client_of(nodes))
    times = []
    for _ in range(3):
        primary = nodes.wait_in_sync(2)
        epoch = nodes.group(primary)["epoch"]
        for name in nodes.names:  # one that has just started has promised nothing to this primary yet
            nodes.until(lambda: nodes.status(name)["votes"]["a"]["record"][0] == epoch, f"{name} votes")  # noqa: B023
        pid = nodes.pid(primary)
        sender.send(200)
        for _ in range(5):
            sender.client.turn(0.0)
            sender.hear()
        killed_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        flood(sender, 100)
        times.append(sender.go_on(other_than=primary) - killed_s)
    print("failover, from kill -9 to the first answer:", [f"{one * 1000:.0f} ms" for one in times])
    sender.check()
    assert nodes.wait_in_sync(2)


@pytest.mark.requirement("CLU-140", state="half", note="frozen")
@pytest.mark.requirement("CLU-149", state="half", note="the old primary's clients are not watched")
def test_a_primary_that_was_frozen_confirms_and_delivers_nothing(make: Make, client_of: Callable[..., Client]) -> None:
    nodes = make()
    nodes.start()
    nodes.wait_in_sync(2)
    sender = Sender(client_of(nodes))
    sender.send(50)
    sender.confirm_all()
    primary = nodes.primary()
    pid = nodes.pid(primary)
    frozen_s = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        back_s = sender.go_on(other_than=primary)
        print(f"frozen: another primary answered after {back_s - frozen_s:.2f} s (lease 1 s, margin 0.3 s)")
        sender.send(50)
        sender.confirm_all()
    finally:
        os.kill(pid, signal.SIGCONT)
    nodes.wait_in_sync(2)
    assert nodes.primary() != primary
    sender.check()


@pytest.mark.requirement("CLU-138", state="half", note="digests and logs are equal; nothing had to be undone")
def test_a_member_that_was_away_catches_up_and_has_the_same_log(make: Make, client_of: Callable[..., Client]) -> None:
    nodes = make()
    nodes.start()
    nodes.wait_in_sync(2)
    sender = Sender(client_of(nodes))
    sender.send(100)
    sender.confirm_all()
    primary = nodes.primary()
    backup = next(name for name in nodes.members if name != primary)
    nodes.stop(backup)
    sender.send(300)
    sender.confirm_all()
    nodes.start(backup)
    nodes.wait_in_sync(2)
    sender.send(10)
    sender.confirm_all()
    nodes.until(lambda: len({nodes.group(name)["applied"] for name in nodes.members}) == 1, "all is applied")
    reports = [nodes.here(name, "scrub", group="a") for name in nodes.members]
    assert [one["damage"] for one in reports] == [[], []]
    assert reports[0]["digests"] == reports[1]["digests"]
    assert sorted(reports[0]["digests"]) == ["_ADMIN", "_DMQ", "_LOG", "orders"]
    sender.check()
    assert equal_logs(nodes) > 100


@pytest.mark.requirement("CLU-129", state="half", note="an empty disk is a newcomer")
@pytest.mark.requirement("CLU-131", state="half", note="the primary is the host")
def test_a_member_that_lost_its_disk_begins_anew_as_another_store(make: Make, client_of: Callable[..., Client]) -> None:
    nodes = make()
    nodes.start()
    nodes.wait_in_sync(2)
    sender = Sender(client_of(nodes))
    sender.send(300)
    sender.confirm_all()
    primary = nodes.primary()
    backup = next(name for name in nodes.members if name != primary)
    before = nodes.group(backup)["store"]
    nodes.stop(backup)
    shutil.rmtree(nodes.data(backup))
    nodes.start(backup)
    nodes.wait_in_sync(2)
    assert nodes.group(backup)["store"] != before
    assert nodes.status(backup)["votes"]["a"]["vote"] != f"{backup}.0"
    nodes.until(lambda: f"{backup}.0" not in nodes.group(primary)["votes"], "the lost vote is out")
    nodes.until(lambda: len(nodes.group(primary)["votes"]) == 3, "the new vote is in")
    nodes.stop(primary)
    sender.go_on(other_than=primary)
    sender.check()
    nodes.start(primary)
    nodes.wait_in_sync(2)
    assert equal_logs(nodes) > 10


def equal_logs(nodes: Nodes) -> int:
    """Stop all; the logs of all members are the same, record by record, as far as all of them are safe; how far."""
    nodes.until(
        lambda: len({nodes.group(name).get("safe") for name in nodes.members}) == 1, "everybody knows what is safe"
    )
    safe = min(nodes.group(name)["safe"] for name in nodes.members)
    firsts = max(nodes.group(name)["first"] for name in nodes.members)
    nodes.stop()
    found = []
    for name in nodes.members:
        journal, recovery = Journal.open(
            nodes.data(name) / "group-a" / "journal", JournalOptions(segment_bytes=1 << 20)
        )
        recovery.finish()
        found.append(
            [(one.index, one.kind, one.epoch, bytes(one.body)) for one in journal.replay(max(firsts, 1), safe)]
        )
        journal.close()
    assert found[0] == found[1]
    return int(safe)


TURNOVER = {"segment_bytes": 1 << 20, "checkpoint_bytes": 1 << 20}


@pytest.mark.requirement("CLU-131", "CLU-133", state="half", note="the primary is the host, and does not pause")
@pytest.mark.requirement("CLU-137", state="half", note="a small state; memory is bounded by the window")
def test_an_empty_store_takes_over_a_whole_state(make: Make, client_of: Callable[..., Client]) -> None:
    nodes = make(messages=TURNOVER)
    nodes.start()
    primary = nodes.wait_in_sync(2)
    backup = next(name for name in nodes.members if name != primary)
    old = Sender(client_of(nodes, own="cm2"), "old")
    old.fill(4000)
    assert old.client.receive("old", 4000)
    sender = Sender(client_of(nodes))
    sender.send(100)
    sender.confirm_all()
    nodes.until(lambda: nodes.group(primary)["first"] > 1, "the primary has let old records go")
    nodes.until(lambda: nodes.group(backup)["first"] > 1, "the backup has, too")
    nodes.stop(backup)
    shutil.rmtree(nodes.data(backup))
    nodes.start(backup)
    nodes.wait_in_sync(2)
    assert "took over a whole state" in nodes.output(backup)
    sender.send(100)
    sender.confirm_all()
    nodes.stop(primary)
    sender.go_on(other_than=primary)
    sender.check()
    nodes.start(primary)
    nodes.wait_in_sync(2)
    assert equal_logs(nodes) > 100


@pytest.mark.requirement("CLU-34", state="scaled", note="three times, without consumers")
def test_the_role_is_handed_over_and_back_under_load(make: Make, client_of: Callable[..., Client]) -> None:
    nodes = make()
    nodes.start()
    first = nodes.wait_in_sync(2)
    second = next(name for name in nodes.members if name != first)
    sender = Sender(client_of(nodes))
    pauses = []
    for here, there in ((first, second), (second, first), (first, second)):
        nodes.wait_in_sync(2)
        sender.send(200)
        sender.client.turn(0.0)
        began_s = time.monotonic()
        assert nodes.here(here, "hand-over", group="a", to=there)["to"] == there
        flood(sender, 50)
        pauses.append(sender.go_on(other_than=here) - began_s)
        assert nodes.primary() == there
    print("hand-over, from the command to the first answer:", [f"{one * 1000:.0f} ms" for one in pauses])
    assert nodes.group(first)["folds"] + nodes.group(second)["folds"] == 3
    nodes.wait_in_sync(2)
    pid = nodes.pid(second)
    keeper = nodes.keepers.pop(second)
    keeper.kill()  # without its keeper a node leaves in order
    keeper.wait()
    sender.go_on(other_than=second)
    sender.check()
    nodes.until(lambda: not Path(f"/proc/{pid}").exists(), "the node has left")
    nodes.start(second)
    nodes.wait_in_sync(2)
    assert equal_logs(nodes) > 100


@pytest.mark.requirement("CLU-113", state="half", note="a primary that cannot write hands over")
@pytest.mark.requirement("CLU-140", state="half", note="its disk fails")
def test_a_primary_whose_disk_fails_gives_up_at_once(make: Make, client_of: Callable[..., Client]) -> None:
    nodes = make()
    nodes.start("m1", "w1", faults="fail_write_at=40")
    nodes.wait_primary()
    nodes.start("m2")
    assert nodes.wait_in_sync(2) == "m1"
    sender = Sender(client_of(nodes))
    began_s = 0.0
    try:
        while True:
            sender.send(1)
            began_s = time.monotonic()
            sender.confirm_all()
    except Lost:
        pass
    print(f"disk failed: another primary answered after {sender.go_on(other_than='m1') - began_s:.2f} s")
    sender.send(10)
    sender.confirm_all()
    assert "this member ends" in nodes.output("m1")
    sender.check()


@pytest.mark.requirement("CLU-97", state="half", note="5 MiB; the backup pulls it from the primary")
def test_a_very_large_message_survives_its_primary(make: Make, client_of: Callable[..., Client]) -> None:
    nodes = make(messages={**SMALL, "large_bytes": 1 << 20})
    nodes.start()
    primary = nodes.wait_in_sync(2)
    backup = next(name for name in nodes.members if name != primary)
    client = client_of(nodes)
    client.connect()
    client.open()
    body = random.Random(1).randbytes(5 << 20)
    client.send_large(client.producer("orders"), 1, body)
    (here,) = (nodes.data(backup) / "group-a" / "large").iterdir()
    assert here.read_bytes() == body  # confirmed, so it is there
    nodes.kill(primary)
    client.connect(other_than=primary)
    client.open(resume=True)
    assert client.receive_large("orders", len(body)) == body
    nodes.until(lambda: not list((nodes.data(backup) / "group-a" / "large").iterdir()), "consumed, so it is gone")
    nodes.wait_in_sync(2)
    nodes.until(lambda: not list((nodes.data(primary) / "group-a" / "large").iterdir()), "gone there, too")
    nodes.stop(primary)  # its log tells of a file that nobody has any more
    nodes.start(primary)
    nodes.wait_in_sync(2)


@pytest.mark.requirement("CLU-113", note="the backup's disk; the primary's: processes/durable/test_flow.py")
def test_a_backup_whose_disk_is_full_leaves_the_set_and_comes_back(
    make: Make, client_of: Callable[..., Client]
) -> None:
    nodes = make(messages=TURNOVER)
    nodes.start("m1", "w1")
    nodes.wait_primary()
    nodes.start("m2", quota_bytes=6 << 20)
    nodes.wait_in_sync(2)
    sender = Sender(client_of(nodes))
    sender.bring(8000)
    nodes.until(lambda: len(nodes.group("m1")["set"]) == 1, "the primary goes on without it")
    full = nodes.group("m2")
    assert full["journal"]["full"]
    sender.bring(100)
    assert nodes.primary() == "m1"
    assert nodes.group("m1")["epoch"] == full["epoch"] == 1  # it hears who leads, and does not stand against it
    assert len(sender.client.receive("orders", sender.sent)) == sender.sent  # which frees everything
    nodes.wait_in_sync(2)
    assert not nodes.group("m2")["journal"]["full"]
    assert "m2: group a: has room again" in nodes.output("m2") or "took over a whole state" in nodes.output("m2")
    sender.bring(100)
    nodes.stop("m1")
    sender.go_on(other_than="m1")
    assert len(sender.client.receive("orders", 100)) == 100
