"""Clusters: order, membership, settings, and when `get_cluster` has something new to say."""

from __future__ import annotations

import pytest

from fairlead.errors import BadName, BadParameter, TooMany, UnknownCluster

from .rig import Rig, abc


def members(rig: Rig, cluster: str = "c") -> list[str]:
    answer = rig.say("get_cluster", cluster=cluster)
    assert list(answer["cluster"]["brokers"]) == [row["name"] for row in answer["brokers"]]
    return list(answer["cluster"]["brokers"])


@pytest.mark.requirement("DIR-10", state="half", note="the machine")
def test_a_broker_in_two_clusters_has_one_row_and_is_picked_for_both() -> None:
    rig = abc()
    rig.broker("D")
    rig.say("join_cluster", cluster="d", broker="A")
    rig.say("join_cluster", cluster="d", broker="D")
    assert members(rig) == ["A", "B", "C"]
    assert members(rig, "d") == ["A", "D"]
    assert list(rig.brokers()) == ["A", "B", "C", "D"]
    assert [rig.pick(cluster="d")[0] for _ in range(2)] == ["A", "D"]
    assert rig.pick(cluster="c")[0] == "A"


@pytest.mark.requirement("DIR-11", state="half", note="the machine and its replica")
def test_order_is_the_order_of_joining_unless_a_position_is_said() -> None:
    rig = abc()
    rig.broker("D")
    rig.say("join_cluster", cluster="c", broker="D", position=1)
    assert members(rig) == ["A", "D", "B", "C"]
    rig.say("join_cluster", cluster="c", broker="D")
    assert members(rig) == ["A", "D", "B", "C"], "it is there: no place was said"
    rig.say("join_cluster", cluster="c", broker="A", position=99)
    assert members(rig) == ["D", "B", "C", "A"]
    revision = rig.tables.revision
    rig.say("join_cluster", cluster="c", broker="A", position=3)
    assert rig.tables.revision == revision
    with pytest.raises(BadParameter):
        rig.say("join_cluster", cluster="c", broker="A", position=-1)
    rig.fail_over()
    assert members(rig) == ["D", "B", "C", "A"]


@pytest.mark.requirement("DIR-32", state="half", note="the machine: centralised picks")
def test_joining_and_leaving_at_run_time() -> None:
    rig = abc()
    rig.broker("D")
    assert [rig.pick()[0] for _ in range(3)] == ["A", "B", "C"]
    rig.say("join_cluster", cluster="c", broker="D")
    assert [rig.pick()[0] for _ in range(2)] == ["D", "A"]
    rig.open("B", "one")
    assert rig.say("leave_cluster", cluster="c", broker="B")["left"]
    assert [rig.pick()[0] for _ in range(4)] == ["C", "D", "A", "C"]
    assert rig.rows() == {"AX-1": "B"}
    assert not rig.say("leave_cluster", cluster="c", broker="B")["left"]


@pytest.mark.requirement("DIR-44", state="half", note="the shared rotation; the client's is shown elsewhere")
@pytest.mark.parametrize(("used", "next_one"), [("A", "B"), ("B", "C"), ("C", "A")])
def test_when_the_broker_used_last_leaves_its_successor_is_next(used: str, next_one: str) -> None:
    rig = abc()
    while rig.pick()[0] != used:
        pass
    rig.say("leave_cluster", cluster="c", broker=used)
    assert rig.pick()[0] == next_one


@pytest.mark.requirement("DIR-4", state="half", note="the directory's part")
def test_an_unknown_and_an_empty_cluster_are_an_error_that_names_it() -> None:
    rig = abc()
    for op, more in (("get_cluster", {}), ("pick_broker", {"app": "AX", "request": "q"}), ("rebalance", {})):
        with pytest.raises(UnknownCluster, match="no-such-cluster"):
            rig.say(op, cluster="no-such-cluster", **more)
    rig.say("set_cluster", cluster="empty", rule="rotation")
    with pytest.raises(UnknownCluster, match="empty"):
        rig.pick(cluster="empty")
    rig.say("join_cluster", cluster="no-such-cluster", broker="A")
    assert rig.pick(cluster="no-such-cluster")[0] == "A"
    rig.say("leave_cluster", cluster="no-such-cluster", broker="A")
    assert [row["name"] for row in rig.say("list_clusters")["clusters"]] == ["c", "empty"]


@pytest.mark.requirement("DIR-20", state="half", note="the machine; the transfer is counted on a real server elsewhere")
def test_the_second_refresh_without_a_change_says_unchanged() -> None:
    rig = abc()
    first = rig.say("get_cluster", cluster="c")
    assert rig.say("get_cluster", cluster="c", newer_than=first["revision"]) == {
        "unchanged": True,
        "revision": first["revision"],
    }
    assert "brokers" in rig.say("get_cluster", cluster="c", newer_than=first["revision"] + 5), "from a lost future"


def changed(rig: Rig, since: int) -> bool:
    return not rig.say("get_cluster", cluster="c", newer_than=since).get("unchanged", False)


@pytest.mark.requirement("DIR-20", state="half", note="the machine")
def test_every_change_raises_the_revision_and_only_those_of_the_cluster_are_news_of_it() -> None:
    rig = abc(lease_s=15, suspect_s=10)
    rig.broker("D", "d")

    answer = rig.say("get_cluster", cluster="c")
    seen = answer.pop("revision")

    def news() -> bool:
        """Is the answer another one, and does it say so?"""
        nonlocal seen, answer
        fresh = rig.say("get_cluster", cluster="c")
        told = changed(rig, seen)
        revision = fresh.pop("revision")
        differs = fresh != answer
        assert told == differs
        seen, answer = revision, fresh
        return told

    before = rig.tables.revision
    rig.connect()
    assert rig.tables.revision == before + 2
    assert not news()
    rig.say("join_cluster", cluster="e", broker="A")
    rig.broker("D", "d", limit=7)
    rig.say("set_cluster", cluster="d", rule="least_connections")
    assert not news()
    rig.broker("B", "c", limit=1)
    assert news()
    rig.open("B", "x", "AY")
    assert news(), "B is full"
    rig.close("B", "x", "AY")
    assert news()
    rig.renew("C", state="draining")
    assert news()
    rig.say("set_cluster", cluster="c", rule="least_connections")
    assert news()
    rig.say("set_cluster", heuristic="decentralised")
    assert news()
    for client in ("one", "two"):
        rig.say("report_failure", app="AX", broker="A", client=client, reason="refused")
    assert news(), "A is suspect"
    rig.time(10)
    rig.renew("A", "B", "C")
    assert news(), "and no more"
    rig.time(15)
    assert news(), "all leases are over"


@pytest.mark.requirement(
    "DIR-54", state="half", note="the settings of the directory; what clients make of it: elsewhere"
)
def test_settings_of_a_cluster_go_before_those_of_all() -> None:
    rig = abc(heuristic="auto", rule="rotation")
    rig.say("join_cluster", cluster="d", broker="A")

    def told(cluster: str) -> tuple[str, str]:
        answer = rig.say("get_cluster", cluster=cluster)
        return answer["heuristic"], answer["rule"]

    assert told("c") == ("auto", "rotation")
    rig.say("set_cluster", heuristic="decentralised")
    rig.say("set_cluster", cluster="c", heuristic="centralised")
    assert (told("c"), told("d")) == (("centralised", "rotation"), ("decentralised", "rotation"))
    rig.say("set_cluster", cluster="c", rule="least_connections")
    assert told("c") == ("centralised", "least_connections"), "what is not said stays"
    revision = rig.tables.revision
    rig.say("set_cluster", cluster="c", rule="least_connections")
    assert rig.tables.revision == revision
    rig.fail_over()
    assert (told("c"), told("d")) == (("centralised", "least_connections"), ("decentralised", "rotation"))


def test_settings_can_be_taken_back_and_a_cluster_of_which_nothing_is_said_goes() -> None:
    rig = abc()
    rig.say("set_cluster", cluster="c", heuristic="centralised", rule="least_connections")
    rig.say("set_cluster", cluster="c", heuristic="default")
    assert rig.say("list_clusters")["clusters"] == [
        {"name": "c", "brokers": ("A", "B", "C"), "rule": "least_connections"}
    ]
    rig.say("set_cluster", cluster="d", rule="rotation")
    rig.say("set_cluster", cluster="d", rule="default")
    assert [row["name"] for row in rig.say("list_clusters")["clusters"]] == ["c"]


def test_settings_of_the_configuration_can_be_changed_while_it_runs() -> None:
    rig = abc()
    rig.say("get_cluster", cluster="c")
    rig.tables.settings = type(rig.settings)(rule="least_connections", lease_s=1)
    assert rig.say("get_cluster", cluster="c")["rule"] == "least_connections"
    assert rig.renew("A")["lease_s"] == 1


@pytest.mark.parametrize("name", ["", "a b", "x" * 241])
def test_a_cluster_needs_a_proper_name(name: str) -> None:
    rig = abc()
    with pytest.raises(BadName):
        rig.say("join_cluster", cluster=name, broker="A")
    with pytest.raises(BadName):
        rig.broker("A", "c", name)


def test_a_broker_is_not_in_more_clusters_than_allowed() -> None:
    rig = Rig()
    rig.broker("A", *(f"c{number}" for number in range(100)))
    with pytest.raises(TooMany):
        rig.say("join_cluster", cluster="one-more", broker="A")
    with pytest.raises(BadParameter):
        rig.broker("A", *(f"d{number}" for number in range(101)))
    rig.broker("A", *(f"d{number}" for number in range(100)))
    assert len(rig.say("list_clusters")["clusters"]) == 100


def test_rebalance_asks_the_newest_above_the_fair_share_to_go() -> None:
    rig = abc()
    for number in range(6):
        rig.open("A", f"a{number}")
    rig.open("B", "b0")
    rig.open("C", "direct", cluster="")
    assert rig.say("rebalance", cluster="c")["moves"] == {"A": 3}
    assert rig.renew("A")["move"] == ["a5", "a4", "a3"]
    assert rig.renew("B")["move"] == []
    rig.close("A", "a5")
    rig.fail_over()
    assert rig.renew("A")["move"] == ["a4", "a3"]
    for _ in range(6):
        rig.time(10)
        rig.renew("A", "B", "C")
    assert rig.renew("A")["move"] == []


def test_rebalance_empties_a_broker_that_drains() -> None:
    rig = abc()
    for name in "ABC":
        rig.open(name, f"{name}1")
        rig.open(name, f"{name}2")
    assert rig.say("rebalance", cluster="c")["moves"] == {}
    rig.renew("B", state="draining")
    assert rig.say("rebalance", cluster="c")["moves"] == {"B": 2}
