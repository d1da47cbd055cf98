"""What is damaged on a disk is found, named, and replaced by what a healthy member has; what is lost is said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import FairleadError
from fairlead.wire import durable
from tests.cluster.members.rig import Client, Nodes, messages_of
from tests.cluster.members.sender import Sender

Make = Callable[..., Nodes]
ClientOf = Callable[..., Client]

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def flip(nodes: Nodes, name: str) -> Path:
    """One bit in the middle of the oldest file of its journal, which is sealed; the file."""
    found = sorted((nodes.data(name) / "group-a" / "journal").glob("*.seg"))
    assert len(found) > 1
    with open(found[0], "r+b") as file:
        file.seek(1 << 19)
        byte = file.read(1)[0]
        file.seek(1 << 19)
        file.write(bytes([byte ^ 0x10]))
    return found[0]


def begun(make: Make, client_of: ClientOf) -> tuple[Nodes, Sender, str, str]:
    """Two in sync with two sealed files each; who leads, and who does not."""
    nodes = make()
    nodes.start()
    primary = nodes.wait_in_sync(2)
    backup = next(name for name in nodes.members if name != primary)
    sender = Sender(client_of(nodes))
    while len(list((nodes.data(backup) / "group-a" / "journal").glob("*.seg"))) < 5:  # two of them are ahead
        sender.bring(500)
    return nodes, sender, primary, backup


def whole(nodes: Nodes, sender: Sender, healed: str) -> None:
    """It leads when the other is gone, and has everything."""
    nodes.wait_in_sync(2)
    if nodes.primary() != healed:
        nodes.here(nodes.primary(), "hand-over", group="a", to=healed)
    nodes.wait_primary(other_than=next(name for name in nodes.members if name != healed))
    nodes.stop(*(name for name in nodes.members if name != healed))
    sender.go_on()
    got = sender.client.receive("orders", sender.sent)
    assert [int(body.rstrip(b"\0")) for body in got] == list(range(1, sender.sent + 1))


def log_of(client: Client) -> list[dict[str, Any]]:
    """What has come to a durable subscription to the group's log, `_LOG`, since it was made."""
    asked = {"session": client.session["session"], "destination": "_LOG", "kind": "topic", "durable": "all"}
    consumer = client.ask(1, "consume", **asked, messages=1000, bytes=1 << 20)["consumer"]
    client.turn(0.1)
    found = [body for data in client.take(durable.KIND_DELIVER, consumer) for _, body in messages_of(data)]
    client.ask(1, "end", handle=consumer)
    return [json.loads(body) for body in found]


@pytest.mark.requirement("CLU-114")
@pytest.mark.requirement("CLU-129")
@pytest.mark.parametrize("who", ["backup", "primary"])
def test_damage_found_at_a_start_makes_another_store_that_synchronises(
    who: str, make: Make, client_of: ClientOf
) -> None:
    nodes, sender, primary, backup = begun(make, client_of)
    hurt = backup if who == "backup" else primary
    before = nodes.group(hurt)["store"]
    nodes.stop(hurt)
    file = flip(nodes, hurt)
    if who == "primary":
        sender.go_on(other_than=hurt)
    sender.bring(100)
    nodes.start(hurt)
    nodes.wait_in_sync(2)
    assert nodes.group(hurt)["store"] != before
    assert f"segment {int(file.stem)}" in nodes.output(hurt), nodes.output(hurt)
    whole(nodes, sender, hurt)


@pytest.mark.requirement("CLU-114")
@pytest.mark.parametrize("who", ["backup", "primary"])
def test_a_scrub_finds_a_flipped_bit_and_the_member_is_repaired_while_it_runs(
    who: str, make: Make, client_of: ClientOf
) -> None:
    nodes, sender, primary, backup = begun(make, client_of)
    hurt = backup if who == "backup" else primary
    before, pid = nodes.group(hurt)["store"], nodes.pid(hurt)
    file = flip(nodes, hurt)
    report = nodes.here(hurt, "scrub", group="a")
    assert {one["segment"] for one in report["damage"]} == {int(file.stem)}
    assert all(one["offset"] <= 1 << 19 for one in report["damage"])
    assert "begins anew" in report["repair"]
    nodes.until(lambda: nodes.group(hurt).get("store") not in (None, before), "it is another store")
    if who == "primary":
        sender.go_on(other_than=hurt)
    nodes.wait_in_sync(2)
    assert nodes.pid(hurt) == pid
    assert nodes.here(hurt, "scrub", group="a")["damage"] == []
    whole(nodes, sender, hurt)


@pytest.mark.requirement("CLU-151")
@pytest.mark.requirement("CLU-129")
def test_a_primary_is_forced_only_with_acceptance_and_the_log_says_what_may_be_missing(
    make: Make, client_of: ClientOf
) -> None:
    nodes = make()
    nodes.start()
    first = nodes.wait_in_sync(2)
    stale = next(name for name in nodes.members if name != first)
    sender = Sender(client_of(nodes))
    log_of(sender.client)
    sender.send(50)
    sender.confirm_all()
    nodes.stop(stale)
    nodes.until(lambda: len(nodes.group(first)["set"]) == 1, "it goes on alone")
    sender.send(50)
    sender.confirm_all()
    lost, epoch = nodes.group(first)["store"], nodes.group(first)["epoch"]
    nodes.stop(first)
    shutil.rmtree(nodes.data(first))
    nodes.start(stale)
    nodes.until(lambda: (nodes.group(stale).get("waiting") or {}).get("for") == [lost], "it names whom it waits for")
    with pytest.raises(FairleadError, match="accept_loss"):
        nodes.here(stale, "force", group="a")
    assert nodes.primary() == ""
    nodes.here(stale, "force", group="a", accept_loss=True)
    nodes.wait_primary()
    assert nodes.group(stale)["epoch"] > epoch
    sender.client.connect()
    sender.client.open(resume=True)
    found: list[dict[str, Any]] = []

    def forced() -> list[dict[str, Any]]:
        found.extend(log_of(sender.client))
        return [one for one in found if one["code"] == "forced-primary"]

    (record,) = {one["epoch"]: one for one in nodes.until(forced, "it is in the log")}.values()
    assert record["missing"] == [lost]
    assert (record["group"], record["epoch"]) == ("a", nodes.group(stale)["epoch"])
    assert record["last"] > 0
    sender.sent = 50
    sender.check()
