"""The parts of a choice: cursor, cool-down, copy, `auto`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairlead
from fairlead.directory.placing.attempts import Wish
from fairlead.directory.placing.cooling import Cooling
from fairlead.directory.placing.copy import COPIES_MAX, Copies
from fairlead.directory.placing.mode import Auto
from fairlead.directory.placing.options import read_options
from fairlead.directory.placing.registrar_talk import Fault, error_of, hear
from fairlead.directory.placing.rotation import CURSORS_MAX, Cursors
from fairlead.errors import (
    BadCredentials,
    ConfigError,
    FairleadError,
    NoDirectory,
    RemoteProtocolError,
    ServerFull,
)
from tests.directory.placing.world import World, row

LEAST = Wish("AX", "cluster-A", rule="least_connections")


# Rotation.


def take(cursors: Cursors, *order: str) -> str:
    name = cursors.turns("AX", "c", order)[0]
    cursors.used("AX", "c", name, order)
    return name


def test_a_new_order_goes_on_after_the_one_used_last() -> None:
    cursors = Cursors(lambda: 0.0)
    assert [take(cursors, "A", "B", "C") for _ in range(2)] == ["A", "B"]
    assert take(cursors, "C", "B", "A") == "A"
    assert take(cursors, "A", "D", "B", "C") == "D"


def test_when_it_has_left_its_successor_is_next() -> None:
    cursors = Cursors(lambda: 0.0)
    assert [take(cursors, "A", "B", "C", "D") for _ in range(2)] == ["A", "B"]
    assert take(cursors, "A", "D") == "D"  # C, the successor, has left too
    assert take(cursors, "X", "Y") == "X"  # nobody is left of those


@pytest.mark.requirement("DIR-44", state="half", note="in the machine; tests/processes/directory has the refresh")
def test_a_refresh_keeps_the_place() -> None:
    world = World("A", "B", "C")
    knowledge = world.knowledge()
    world.fetch(knowledge)
    for _ in range(30):
        world.connect(knowledge)
        world.revision += 1
        world.fetch(knowledge)
    assert Counter(world.open) == {"A": 10, "B": 10, "C": 10}


@given(st.lists(st.tuples(st.permutations("ABCDE"), st.integers(1, 5)), min_size=1, max_size=40))
def test_a_turn_is_never_taken_twice_in_a_row_and_all_names_are_offered(orders: list[tuple[list[str], int]]) -> None:
    cursors = Cursors(lambda: 0.0)
    last = ""
    for order, size in orders:
        names = tuple(order[:size])
        turns = cursors.turns("AX", "c", names)
        assert sorted(turns) == sorted(names)
        name = take(cursors, *names)
        assert name != last or len(names) == 1
        last = name


@pytest.mark.requirement("DIR-46", state="half", note="the random start, in the machine")
def test_a_random_start_spreads_clients_that_connect_once() -> None:
    import random

    dice = random.Random(7)
    counted: Counter[str] = Counter()
    for _ in range(300):
        world = World("A", "B", "C")
        knowledge = world.knowledge()
        knowledge.cursors = Cursors(dice.random)
        counted[world.connect(knowledge, Wish("AX", "cluster-A", start="random"))] += 1
    assert min(counted[name] for name in "ABC") >= 60


def test_cursors_are_bounded() -> None:
    cursors = Cursors(lambda: 0.0)
    for number in range(CURSORS_MAX + 10):
        cursors.used(f"app-{number}", "c", "A", ("A",))
    assert len(cursors.facts()) == CURSORS_MAX


@pytest.mark.requirement("DIR-53", state="half", note="the client's choice, in the machine")
def test_least_connections_repairs_what_closings_left() -> None:
    world = World("A", "B", "C")
    knowledge = world.knowledge()
    assert world.connects(knowledge, 9, LEAST) == "ABCABCABC"
    for _ in range(3):
        knowledge.copies.count("C", -1)
    assert world.connects(knowledge, 3, LEAST) == "CCC"


def test_least_connections_goes_by_what_the_directory_counts() -> None:
    world = World("A", "B", "C")
    world.change("A", connections=5)
    world.change("B", reserved=2)
    assert world.connects(world.knowledge(), 4, LEAST) == "CCBC"


# Cool-down.


def test_a_cool_down_doubles_up_to_two_minutes_and_is_forgotten_on_success() -> None:
    cooling = Cooling()
    now_s, turns = 0.0, []
    for _ in range(6):
        cooling.fail("B", "refused", now_s)
        turns.append(float(cooling.facts(now_s)[0]["left_s"]))
        now_s += turns[-1]
        assert not cooling.is_cooling("B", now_s)
        assert cooling.is_cooling("B", now_s - 0.001)
    assert turns == [10, 20, 40, 80, 120, 120]
    cooling.reached("B")
    cooling.fail("B", "refused", now_s)
    assert cooling.facts(now_s)[0]["left_s"] == 10
    assert cooling.names(now_s) == {"B"}


# The copy.


def a_copy(copies: Copies, *names: str, now_s: float = 0.0, cluster: str = "c") -> None:
    rows = [row(name) for name in names]
    copies.take(cluster, rows, heuristic="auto", rule="rotation", revision=7, now_s=now_s)


def test_a_failed_refresh_keeps_the_copy_which_grows_old() -> None:
    copies = Copies()
    a_copy(copies, "A", "B")
    copies.fail("c", "nobody is there")
    copy = copies.get("c")
    assert copy is not None
    assert (copy.order, copy.age_s(12.0), copy.failed) == (("A", "B"), 12.0, "nobody is there")
    copies.confirm("c", 20.0)
    assert (copy.age_s(21.0), copy.failed) == (1.0, "")


def test_what_is_saved_is_found_again_with_its_age() -> None:
    copies = Copies()
    a_copy(copies, "A", "B", now_s=100.0)
    data = copies.save(130.0, calendar_s=1_000_000.0)
    found = Copies()
    assert found.load(data, 5.0, 1_000_060.0, age_max_s=100.0) == 1
    copy = found.get("c")
    assert copy is not None
    assert (copy.order, copy.age_s(5.0), copy.from_disk, copy.revision) == (("A", "B"), 90.0, True, 7)
    assert Copies().load(data, 5.0, 1_000_080.0, age_max_s=100.0) == 0  # too old now
    assert Copies().load(data, 5.0, 1_000_000.0, age_max_s=0.0) == 0
    newer = Copies()
    a_copy(newer, "C")
    assert newer.load(data, 5.0, 1_000_060.0, age_max_s=100.0) == 0


@given(st.binary(max_size=300))
def test_a_file_that_is_none_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        Copies().load(data, 0.0, 0.0, age_max_s=1.0)


def test_copies_are_bounded() -> None:
    copies = Copies()
    for number in range(COPIES_MAX + 5):
        a_copy(copies, "A", cluster=f"c-{number}")
    assert len(copies) == COPIES_MAX
    assert copies.get("c-0") is None


# Auto.


@given(
    st.lists(
        st.tuples(st.floats(0.01, 20.0), st.floats(0.0, 1.0), st.booleans(), st.booleans()), min_size=1, max_size=200
    )
)
def test_auto_goes_back_only_after_a_whole_good_period(events: list[tuple[float, float, bool, bool]]) -> None:
    auto = Auto(latency_max_s=0.5, stable_s=30.0)
    now_s = last_bad_s = 0.0
    first_good_s: float | None = None
    changes: list[float] = []
    was = True
    for pause_s, latency_s, overloaded, is_lost in events:
        now_s += pause_s
        is_bad = is_lost or overloaded or latency_s > 0.5
        if is_lost:
            auto.on_bad("lost", now_s)
        else:
            auto.on_answer(latency_s, overloaded, now_s)
        if is_bad:
            assert not auto.is_centralised
            last_bad_s, first_good_s = now_s, None
        elif first_good_s is None:
            first_good_s = now_s
        if auto.is_centralised != was:
            was = auto.is_centralised
            changes.append(now_s)
            if was:
                assert now_s - last_bad_s >= 30.0
                assert first_good_s is not None
                assert now_s - first_good_s >= 30.0
    backs = changes[1::2]
    assert all(later - earlier >= 30.0 for earlier, later in zip(changes[::2], backs, strict=False))  # no flapping
    assert auto.switches == len(changes)


# What registrars say.


@given(st.binary(max_size=200) | st.from_regex(r'\{"(ok|label|error|route|move)":.{0,20}\}', fullmatch=True))
def test_whatever_a_registrar_says_is_read_or_refused(words: bytes | str) -> None:
    try:
        hear(words if isinstance(words, bytes) else words.encode())
    except RemoteProtocolError:
        pass


def test_a_refusal_says_whose_fault_it_is() -> None:
    assert isinstance(error_of(Fault("authentication", "whatever")), BadCredentials)
    assert str(error_of(Fault("authentication", "one"))) == str(error_of(Fault("authentication", "other")))
    assert isinstance(error_of(Fault("full", "limit 5")), ServerFull)
    assert isinstance(error_of(Fault("no-directory", "away")), NoDirectory)
    assert isinstance(error_of(Fault("", "")), FairleadError)


# Options.


def test_options_come_from_the_program_and_from_the_url() -> None:
    options = read_options({"placement": "local"}, {"placement": "central", "refresh_s": "5", "secure": "true"})
    assert (options.placement, options.refresh_s, options.secure) == ("local", 5.0, True)


@pytest.mark.parametrize(
    "said", [{"placement": "nowhere"}, {"refresh_s": 0}, {"kind": "solid"}, {"colour": "red"}, {"cache_age_s": -1}]
)
def test_an_option_that_cannot_be_is_refused(said: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        read_options(said)


@pytest.mark.parametrize("said", [{"placement": "local"}, {"secure": True}, {"client": "one"}])
def test_the_url_of_a_broker_has_no_choice(said: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="only with a directory"):
        fairlead.connect("fairlead://localhost", **said)


def test_a_directory_needs_application_and_cluster() -> None:
    for url, name in (("fairlead+directory://d1/", "AX"), ("fairlead+directory://d1/cluster-A", None)):
        with pytest.raises(ConfigError, match="CLUSTER"):
            fairlead.connect(url, name=name)
