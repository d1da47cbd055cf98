"""One request from the question to a broker: order, failures, rounds, deadlines, and who chooses."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.directory.placing.attempts import Dial, Wish
from fairlead.errors import (
    AllBrokersFailed,
    BadCredentials,
    ConnectionLost,
    NoDirectory,
    ServerFull,
    UnknownCluster,
    UnsupportedVersion,
)
from tests.directory.placing.world import World

WISH = Wish("AX", "cluster-A")
CENTRAL = WISH._replace(placement="centralised")
LOCAL = WISH._replace(placement="decentralised")
AUTO = WISH._replace(placement="auto")
REFUSED = ConnectionLost("Connection refused")


def test_a_client_rotates_and_begins_with_the_first() -> None:
    world = World("A", "B", "C")
    assert world.connects(world.knowledge(), 4) == "ABCA"
    assert world.connects(world.knowledge(), 5) == "ABCAB"  # another client has its own place
    assert Counter(world.open) == {"A": 4, "B": 3, "C": 2}
    assert world.asked == ["get_cluster", "get_cluster"]


def test_the_directory_rotates_for_all() -> None:
    world = World("A", "B", "C")
    one, two = world.knowledge(), world.knowledge()
    assert world.connects(one, 4, CENTRAL) + world.connects(two, 5, CENTRAL) == "ABCABCABC"
    assert world.asked == ["pick_broker"] * 9


@pytest.mark.requirement("DIR-3", state="half", note="in the machine")
def test_applications_have_places_of_their_own() -> None:
    world = World("A", "B", "C")
    knowledge = world.knowledge()
    assert world.connects(knowledge, 2) == "AB"
    assert world.connects(knowledge, 2, Wish("AY", "cluster-A")) == "AB"
    assert world.connects(knowledge, 2) == "CA"


@pytest.mark.parametrize("wish", [LOCAL, CENTRAL, AUTO])
def test_an_unknown_cluster_fails_at_once_and_not_for_ever(wish: Wish) -> None:
    world = World("A", cluster="other")
    knowledge = world.knowledge()
    before_s = world.now_s
    with pytest.raises(UnknownCluster, match="cluster-A"):
        world.connect(knowledge, wish)
    assert not world.dialled
    assert world.now_s - before_s < 1
    world.cluster = "cluster-A"
    assert world.connect(knowledge, wish) == "A"


def test_a_cluster_that_was_empty_is_asked_for_again() -> None:
    world = World("A")
    knowledge = world.knowledge()
    knowledge.copies.take("cluster-A", [], heuristic="decentralised", rule="rotation", revision=0, now_s=world.now_s)
    assert world.connect(knowledge) == "A"
    assert world.asked == ["get_cluster"]


def test_an_empty_cluster_says_so_after_one_look() -> None:
    world = World()
    with pytest.raises(UnknownCluster):
        world.connect(world.knowledge())
    assert world.asked == ["get_cluster"]


def test_with_a_warm_copy_nobody_is_asked() -> None:
    world = World("A", "B", "C")
    knowledge = world.knowledge()
    world.connect(knowledge)
    world.is_away = True
    assert world.connects(knowledge, 100) == ("BCA" * 34)[:100]
    assert world.asked == ["get_cluster"]


def test_those_not_available_are_skipped() -> None:
    world = World("A", "B", "C")
    world.change("B", available=False)
    assert world.connects(world.knowledge(), 6) == "ACACAC"


@pytest.mark.parametrize("wish", [LOCAL, CENTRAL, AUTO])
def test_a_failure_leads_to_the_next_each_tried_once_in_order(wish: Wish) -> None:
    world = World("A", "B", "C")
    world.refuse = {"A": REFUSED, "B": REFUSED}
    assert world.connect(world.knowledge(), wish) == "C"
    assert world.dialled == ["A", "B", "C"]
    reported = [] if wish is LOCAL else ["A", "B"]
    assert [report.broker for report in world.reports] == reported


def test_a_broker_that_dies_between_pick_and_dial_is_a_failed_attempt() -> None:
    world = World("A", "B", "C")

    def kill(dial: Dial) -> None:
        if dial.broker.name == "A":
            world.refuse["A"] = REFUSED

    world.on_dial = kill
    assert world.connect(world.knowledge(), CENTRAL) == "B"


@pytest.mark.parametrize("wish", [LOCAL, CENTRAL, AUTO])
@pytest.mark.parametrize("silent", [True, False])
def test_the_deadline_is_kept_and_every_broker_is_named(wish: Wish, silent: bool) -> None:
    world = World("A", "B", "C")
    world.refuse = {name: TimeoutError() if silent else REFUSED for name in "ABC"}
    before_s = world.now_s
    with pytest.raises(AllBrokersFailed) as failed:
        world.connect(world.knowledge(), wish._replace(limit_s=3.0, attempt_s=0.7))
    assert 2.99 <= world.now_s - before_s <= 3.5
    assert set(failed.value.reasons) == {"A", "B", "C"}
    for name in "ABC":
        assert f"{name}: {'it did not answer' if silent else 'Connection refused'}" in str(failed.value)


@pytest.mark.parametrize("wish", [LOCAL, CENTRAL, AUTO])
def test_one_that_comes_within_the_deadline_is_found(wish: Wish) -> None:
    world = World("A", "B", "C")
    world.refuse = dict.fromkeys("ABC", REFUSED)
    came_s = world.now_s + 20

    def come(dial: Dial) -> None:
        if world.now_s >= came_s:
            world.refuse.pop("B", None)

    world.on_dial = come
    assert world.connect(world.knowledge(), wish) == "B"
    assert world.now_s < came_s + 5  # pauses are bounded


@pytest.mark.parametrize("wish", [LOCAL, CENTRAL, AUTO])
def test_all_gone_and_one_comes_back_as_the_directory_says(wish: Wish) -> None:
    world = World("A", "B")
    for name in "AB":
        world.change(name, available=False)
    before_s = world.now_s
    with pytest.raises(AllBrokersFailed, match="A: not available, as the directory says") as failed:
        world.connect(world.knowledge(), wish._replace(limit_s=2))
    assert world.now_s - before_s >= 2
    assert set(failed.value.reasons) == {"A", "B"}
    assert not world.dialled
    knowledge = world.knowledge()
    world.fetch(knowledge)
    world.change("B", available=True)
    assert world.connect(knowledge, wish) == "B"


def test_for_ever_means_for_ever() -> None:
    world = World("A")
    world.refuse = {"A": REFUSED}

    def come(dial: Dial) -> None:
        if world.now_s > 5_000:
            world.refuse.clear()

    world.on_dial = come
    assert world.connect(world.knowledge(), LOCAL._replace(limit_s=None)) == "A"


@pytest.mark.parametrize("error", [BadCredentials("Unknown user"), UnsupportedVersion("Version 9")])
@pytest.mark.parametrize("wish", [LOCAL, CENTRAL])
def test_what_is_the_same_everywhere_ends_the_request(wish: Wish, error: Exception) -> None:
    world = World("A", "B", "C")
    world.refuse = dict.fromkeys("ABC", error)
    knowledge = world.knowledge()
    with pytest.raises(type(error)) as failed:
        world.connect(knowledge, wish)
    assert world.dialled == ["A"]
    assert not knowledge.cooling.names(world.now_s)
    assert not world.reports
    if isinstance(error, BadCredentials):
        assert "authentication failed" in str(failed.value).lower()


@pytest.mark.parametrize("wish", [LOCAL, CENTRAL])
def test_a_cluster_that_is_full_says_so_at_once(wish: Wish) -> None:
    world = World("A", "B")
    world.refuse = dict.fromkeys("AB", ServerFull("limit 5"))
    before_s = world.now_s
    with pytest.raises(AllBrokersFailed, match="full"):
        world.connect(world.knowledge(), wish)
    assert world.now_s - before_s < 1
    told = World("A", "B")
    for name in "AB":
        told.change(name, state="full", available=False)
    with pytest.raises(AllBrokersFailed, match="full"):
        told.connect(told.knowledge(), wish)
    assert not told.dialled


def test_a_full_broker_beside_a_broken_one_is_waited_for() -> None:
    world = World("A", "B")
    world.refuse = {"A": ServerFull("limit 5"), "B": REFUSED}
    with pytest.raises(AllBrokersFailed, match="none within 4 s"):
        world.connect(world.knowledge(), LOCAL._replace(limit_s=4))


def test_secure_never_takes_a_plain_port() -> None:
    world = World("A", "B")
    world.change("A", secure_port=0)
    seen: list[int] = []
    world.on_dial = lambda dial: seen.append(dial.broker.secure_port)
    knowledge = world.knowledge()
    assert world.connects(knowledge, 3, LOCAL._replace(secure=True)) == "BBB"
    assert 0 not in seen
    world.change("B", secure_port=0)
    world.fetch(knowledge)
    with pytest.raises(AllBrokersFailed, match="A: has no TLS port"):
        world.connect(knowledge, LOCAL._replace(secure=True, limit_s=2))


# The memory of failures.


@pytest.mark.parametrize("wish", [LOCAL, CENTRAL])
@pytest.mark.requirement("DIR-64", state="half", note="in the machine; two clients' reports are the tables'")
def test_one_that_failed_is_left_alone_for_a_while(wish: Wish) -> None:
    world = World("A", "B", "C")
    world.refuse = {"B": REFUSED}
    knowledge = world.knowledge()
    world.connects(knowledge, 6, wish)
    assert world.dialled.count("B") == 1
    assert "B" not in world.open
    world.refuse.clear()
    world.now_s += 10.1
    world.connects(knowledge, 3, wish)
    assert world.open.count("B") == 1


@pytest.mark.parametrize("wish", [LOCAL, CENTRAL])
def test_the_only_one_is_tried_although_it_cools_down(wish: Wish) -> None:
    world = World("B")
    world.refuse = {"B": REFUSED}
    knowledge = world.knowledge()
    with pytest.raises(AllBrokersFailed):
        world.connect(knowledge, wish._replace(limit_s=1))
    world.refuse.clear()
    assert knowledge.cooling.is_cooling("B", world.now_s)
    assert world.connect(knowledge, wish) == "B"


def test_the_one_that_was_left_comes_last() -> None:
    for wish in (LOCAL, CENTRAL):
        world = World("A", "B")
        assert world.connect(world.knowledge(), wish, avoid="A") == "B"
        alone = World("A")
        assert alone.connect(alone.knowledge(), wish, avoid="A") == "A"


# Who chooses.


@pytest.mark.requirement("DIR-54", state="half", note="in the machine")
def test_the_most_specific_setting_wins() -> None:
    for told, option, chooser in [
        ("centralised", None, "pick_broker"),
        ("decentralised", None, "get_cluster"),
        ("centralised", "decentralised", "get_cluster"),
        ("decentralised", "centralised", "pick_broker"),
    ]:
        world = World("A", heuristic=told)  # type: ignore[arg-type]
        world.connect(world.knowledge(), WISH._replace(placement=option))  # type: ignore[arg-type]
        assert world.asked[-1] == chooser


def test_a_fixed_choice_is_kept() -> None:
    world = World("A", "B", heuristic="centralised")
    knowledge = world.knowledge()
    world.connect(knowledge)  # as the directory says
    world.is_away = True
    for wish in (WISH, CENTRAL):
        with pytest.raises(NoDirectory, match="directory unreachable"):
            world.connect(knowledge, wish)
    assert world.connect(knowledge, AUTO) in ("A", "B")
    assert world.connect(knowledge, LOCAL) in ("A", "B")


def test_without_copy_and_directory_there_is_nothing_to_do() -> None:
    world = World("A")
    world.is_away = True
    for wish in (LOCAL, AUTO, CENTRAL, WISH):
        with pytest.raises(NoDirectory):
            world.connect(world.knowledge(), wish)
    assert not world.dialled


def test_a_directory_that_is_lost_does_not_hide_brokers_it_missed() -> None:
    world = World("A", "B")
    world.change("B", available=False)
    knowledge = world.knowledge()
    assert world.connect(knowledge) == "A"
    world.is_away = True
    world.refuse = {"A": REFUSED}
    assert world.connect(knowledge) == "B"


def test_auto_goes_from_the_directory_to_the_copy_and_back() -> None:
    world = World("A", "B", "C", heuristic="auto")
    knowledge = world.knowledge()
    assert world.connects(knowledge, 3) == "ABC"
    assert world.asked == ["get_cluster", *["pick_broker"] * 3]
    world.latency_s = 3.0
    assert world.connects(knowledge, 3) == "ABC"
    assert world.asked[4:] == ["pick_broker"]  # the first one waits in vain, the others do not ask
    world.latency_s = 0.01
    for _ in range(7):
        world.now_s += 5
        knowledge.auto.on_answer(0.01, False, world.now_s)
    world.connect(knowledge)
    assert world.asked[5:] == ["pick_broker"]


def test_a_change_of_mind_is_for_the_next_request() -> None:
    world = World("A", "B", heuristic="decentralised")
    knowledge = world.knowledge()
    world.connect(knowledge)
    world.heuristic, world.revision = "centralised", 2
    world.fetch(knowledge)
    world.connect(knowledge)
    assert world.asked == ["get_cluster", "pick_broker"]


@given(
    down=st.sets(st.sampled_from("ABCDE")),
    unavailable=st.sets(st.sampled_from("ABCDE")),
    wish=st.sampled_from([LOCAL, CENTRAL, AUTO]),
    requests=st.integers(1, 12),
    is_away=st.booleans(),
)
def test_whoever_accepts_is_found_and_in_a_round_each_is_tried_once(
    down: set[str], unavailable: set[str], wish: Wish, requests: int, is_away: bool
) -> None:
    world = World(*"ABCDE")
    knowledge = world.knowledge()
    for name in unavailable:
        world.change(name, available=False)
    world.fetch(knowledge)
    world.is_away = is_away
    world.refuse = dict.fromkeys(down, REFUSED)
    up = set("ABCDE") - down
    for _ in range(requests):
        world.dialled.clear()
        try:
            found = world.connect(knowledge, wish._replace(limit_s=5))
        except NoDirectory:
            assert wish is CENTRAL
            assert is_away
        except AllBrokersFailed as error:
            # Whoever the copy says is not available is tried only when nobody can say better.
            assert not up - unavailable or (is_away and not up)
            assert set(error.reasons) <= set("ABCDE")
        else:
            assert found in up
            assert max(Counter(world.dialled).values()) == 1
