"""Groups of real processes: who leads, what survives, how soon it goes on (docs/cluster.md)."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.journal.edge.journal import Journal
from fairlead.journal.edge.options import Options as JournalOptions
from tests.cluster.members.rig import Client, Lost, Nodes, until

SMALL = {"segment_bytes": 1 << 20}

Make = Callable[..., Nodes]

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Nodes] = []

    def begin(**facts: Any) -> Nodes:
        made.append(Nodes(tmp_path / f"{len(made)}", **{"messages": SMALL, **facts}))
        return made[-1]

    yield begin
    for nodes in made:
        for name in list(nodes.keepers):
            try:
                os.kill(int(nodes.status(name)["pid"]), signal.SIGCONT)
            except (KeyError, ProcessLookupError):
                pass
        nodes.stop()
        for name in nodes.names:
            print(f"--- {name}\n{nodes.output(name) if (nodes.directory / f'{name}.out').exists() else ''}")


@pytest.fixture
def client_of() -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def begin(nodes: Nodes, group: str = "a", own: str = "cm") -> Client:
        made.append(Client(nodes, group, own))
        return made[-1]

    yield begin
    for client in made:
        client.close()


class Sender:
    """Sends numbered messages one after another, keeps what is not confirmed, resumes and repeats like a library."""

    def __init__(self, client: Client, queue: str = "orders") -> None:
        self.client = client
        self.queue = queue
        self.sent = 0
        self.confirmed = 0
        client.connect()
        client.open()
        self.producer = client.producer(queue)

    def send(self, count: int) -> None:
        for _ in range(count):
            self.sent += 1
            self.client.send(self.producer, self.sent, b"%d" % self.sent)

    def fill(self, count: int) -> None:
        """Larger ones, in batches."""
        for first in range(self.sent + 1, self.sent + count + 1, 100):
            self.client.send(self.producer, first, *(b"%d" % n + bytes(1000) for n in range(first, first + 100)))
            self.sent += 100
            self.client.turn(0.0)
        self.confirm_all()

    def hear(self) -> None:
        for first, count, _ in self.client.stored():
            assert first == self.confirmed + 1, "confirmed out of order"
            self.confirmed = first + count - 1

    def confirm_all(self) -> None:
        def done() -> bool:
            self.hear()
            if self.client.served is None:
                raise Lost
            return self.confirmed == self.sent

        until(done, f"all {self.sent} confirmed", step=self.client.turn)

    def go_on(self, other_than: str = "") -> float:
        """After an interruption: resume, learn what was accepted, repeat the rest. When the group answered again."""
        while True:
            try:
                self.client.connect(other_than)
                accepted = self.client.open(resume=True)["accepted"].get(self.queue, 0)
                back_s = time.monotonic()
                assert accepted >= self.confirmed, "a confirmed message is not there"
                self.producer = self.client.producer(self.queue)
                self.confirmed, rest = accepted, self.sent
                self.sent = accepted
                self.send(rest - accepted)
                self.confirm_all()
                return back_s
            except Lost:
                continue

    def check(self) -> None:
        """Everything confirmed is there, in order, once."""
        got = self.client.receive(self.queue, self.sent)
        assert got == [b"%d" % n for n in range(1, self.sent + 1)]


def flood(sender: Sender, count: int) -> None:
    """Send until the link is lost or so many are on their way."""
    try:
        for _ in range(count // 10):
            sender.send(10)
            sender.hear()
            sender.client.turn(0.0)
    except Lost:
        pass


@pytest.mark.requirement("CLU-33")
@pytest.mark.requirement("CLU-141")
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


@pytest.mark.requirement("CLU-116")
@pytest.mark.requirement("CLU-130")
@pytest.mark.requirement("CLU-140")
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


@pytest.mark.requirement("CLU-149")
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


@pytest.mark.requirement("CLU-138")
@pytest.mark.requirement("CLU-152")
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


@pytest.mark.requirement("CLU-129")
@pytest.mark.requirement("CLU-131")
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


@pytest.mark.requirement("CLU-131")
@pytest.mark.requirement("CLU-137")
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


@pytest.mark.requirement("CLU-34")
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


@pytest.mark.requirement("CLU-113")
@pytest.mark.requirement("CLU-140")
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


@pytest.mark.requirement("CLU-93")
@pytest.mark.requirement("CLU-130")
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


@pytest.mark.requirement("CLU-113")
def test_a_backup_whose_disk_is_full_leaves_the_set_and_comes_back(
    make: Make, client_of: Callable[..., Client]
) -> None:
    nodes = make()
    nodes.start("m1", "w1")
    nodes.wait_primary()
    nodes.start("m2", quota_bytes=4 << 20)
    nodes.wait_in_sync(2)
    sender = Sender(client_of(nodes))
    sender.fill(6000)
    nodes.until(lambda: len(nodes.group("m1")["set"]) == 1, "the primary goes on without it")
    assert nodes.group("m2")["journal"]["full"]
    sender.fill(100)
    assert nodes.primary() == "m1"
    nodes.stop("m2")
    nodes.start("m2")
    nodes.wait_in_sync(2)
    assert equal_logs(nodes) > 60
