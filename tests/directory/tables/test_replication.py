"""The same changes make the same tables: at backups, from snapshots, when they come again."""

from __future__ import annotations

import json
from random import Random

import pytest

from fairlead.directory.operations import OPERATIONS, Nothing, read
from fairlead.directory.tables import Tables
from fairlead.errors import BadParameter

from .rig import Rig, abc


def busy() -> Rig:
    """Something of everything."""
    rig = abc(lease_s=30)
    for _ in range(5):
        rig.connect()
    rig.pick(exclude=["A"])
    rig.connect("AY", rule="least_connections")
    rig.say("register_app", app="AZ", kind="static", broker="C", user="zoe")
    rig.say("publish_key", app="AZ", key={"id": "k", "public": "00"})
    rig.close("A", "never opened")
    rig.say("set_cluster", cluster="c", rule="rotation")
    rig.say("set_cluster", heuristic="centralised")
    for client in ("one", "two"):
        rig.say("report_failure", app="AX", broker="B", client=client, reason="refused")
    rig.open("A", "extra")
    rig.open("A", "extra 2")
    rig.say("rebalance", cluster="c")
    rig.say("deregister_app", app="AY", links="close")
    rig.broker("D", "c", "d")
    rig.open("D", "gone", "AW")
    rig.time(29)
    rig.renew("A", "B", "C")
    rig.time(1)
    rig.pick("AV")
    return rig


def test_a_backup_a_snapshot_and_the_primary_are_the_same() -> None:
    rig = busy()
    kept = rig.tables.snapshot()
    assert rig.replayed().snapshot() == kept
    plain = json.loads(json.dumps(kept))
    restored = Tables(rig.settings)
    restored.restore(plain)
    assert restored.snapshot() == kept
    for op in ("list_brokers", "list_clusters", "list_apps"):
        assert restored.ask(op, OPERATIONS[op].arguments(), 0) == rig.tables.ask(op, OPERATIONS[op].arguments(), 0)


@pytest.mark.requirement("DIR-39", state="half", note="the machine: a state taken over goes on like the original")
def test_what_was_restored_goes_on_as_the_original_does() -> None:
    rig = busy()
    other = busy()
    other.tables.restore(json.loads(json.dumps(other.tables.snapshot())))
    for each in (rig, other):
        each.tables.begin(each.now_ms)
        for _ in range(7):
            each.connect()
        each.time(11)
        each.connect("AV")
        each.renew("A", state="draining")
        each.say("remove_broker", name="B")
    assert rig.tables.snapshot() == other.tables.snapshot()
    assert rig.log == other.log


def test_a_change_that_comes_again_does_nothing_and_a_missing_one_is_noticed() -> None:
    rig = busy()
    kept = rig.tables.snapshot()
    for change in rig.log:
        assert not rig.tables.apply(change)
    assert rig.tables.snapshot() == kept
    backup = Tables()
    with pytest.raises(ValueError, match="after 0"):
        backup.apply(rig.log[1])
    assert backup.revision == 0


def test_a_decision_that_is_not_applied_leaves_no_trace() -> None:
    rig = busy()
    kept = rig.tables.snapshot()
    for op, arguments in (
        ("pick_broker", {"app": "AX", "cluster": "c", "request": "new"}),
        ("remove_broker", {"name": "A"}),
        ("connection_opened", {"app": "AX", "link": {"identity": "new", "broker": "A"}}),
        ("restate", {"name": "A", "identity": "id-A", "links": []}),
    ):
        assert rig.tables.decide(op, read(op, arguments), rig.now_ms, may=("_DIRECTORY",)).changes
    assert rig.tables.snapshot() == kept


@pytest.mark.requirement("DIR-21", state="half", note="the machine: what the log brings back")
def test_static_data_and_counters_come_back_from_the_log() -> None:
    rig = busy()
    rig.fail_over()
    assert rig.brokers()["C"]["clusters"] == ("c",)
    assert rig.app("AZ") == {
        "name": "AZ",
        "kind": "static",
        "user": "zoe",
        "broker": "C",
        "keys": ({"id": "k", "public": "00"},),
    }
    app = rig.app()
    assert app is not None
    assert rig.open("C", "next") == f"AX-{app['last'] + 1}"


@pytest.mark.requirement("DIR-81", state="half", note="the tables' part of the status")
def test_status_tells_counts_rotations_reservations_failures_and_leases() -> None:
    rig = abc(lease_s=15, reserve_s=10)
    rig.connect()
    rig.pick("AY")
    rig.say("report_failure", app="AX", broker="C", client="one", reason="refused")
    rig.time(5)
    rig.renew("A")
    with pytest.raises(BadParameter):
        rig.pick(request="\n")
    status = rig.say("status")
    assert status["picks"] == 2
    assert status["picks_by_cluster"] == {"c": 2}
    assert status["operations"]["pick_broker"] == 3
    assert status["refused"] == {"bad-parameter": 1}
    assert {(turn["app"], turn["cluster"], turn["last"]) for turn in status["rotations"]} == {
        ("AX", "c", "A"),
        ("AY", "c", "A"),
    }
    assert [(place["app"], place["broker"], place["left_s"]) for place in status["reservations"]] == [("AY", "A", 5.0)]
    assert status["failures"] == 1
    assert status["leases"] == {"A": 15.0, "B": 10.0, "C": 10.0}
    assert (status["brokers"], status["clusters"], status["apps"], status["connections"]) == (3, 1, 1, 1)
    json.dumps(status)


def test_a_question_is_not_decided_and_a_change_is_not_asked() -> None:
    tables = Tables()
    for op in ("status", "nonsense"):
        with pytest.raises(BadParameter):
            tables.decide(op, Nothing(), 0, may=("_DIRECTORY",))
    for op in ("pick_broker", "nonsense"):
        with pytest.raises(BadParameter):
            tables.ask(op, Nothing(), 0)
    assert tables.next_ms is None


def test_a_server_that_leads_no_more_has_no_leases_to_end() -> None:
    rig = abc(lease_s=15)
    rig.tables.end()
    assert rig.tables.next_ms is None
    assert rig.tables.tick(rig.now_ms + 60_000) == []


def test_many_lapsed_reservations_end_in_several_changes() -> None:
    rig = abc(reserve_s=1)
    for number in range(2500):
        rig.pick(request=f"q{number}")
    written = len(rig.log)
    rig.time(1)
    assert len(rig.log) == written + 3
    assert rig.say("status")["reserved"] == 0


def test_hostile_changes_of_the_order_of_the_clock_do_no_harm() -> None:
    rig, random = abc(), Random(3)
    for _ in range(300):
        rig.now_ms += random.randrange(-20_000, 20_000)
        rig.renew("A", "B", "C")
        rig.connect()
    assert rig.replayed().snapshot() == rig.tables.snapshot()
