"""Picks: rotation, capacity, reservations, failures."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from fairlead.errors import BadParameter, NoneAvailable, TooMany

from .rig import Rig, abc


@pytest.mark.requirement("DIR-45", state="half", note="the directory's rotation; the client's is shown elsewhere")
def test_the_next_available_broker_in_order() -> None:
    rig = abc()
    rig.renew("B", state="disabled")
    assert "".join(rig.pick()[0] for _ in range(6)) == "ACACAC"


@pytest.mark.requirement("DIR-48", state="half", note="the machine")
def test_the_answer_is_one_broker_with_its_address() -> None:
    rig = abc()
    answer = rig.say("pick_broker", app="AX", cluster="c", request="q", may=("app.AX",))
    assert (answer["broker"]["name"], answer["broker"]["ip"], answer["broker"]["port"]) == ("A", "127.0.0.1", 7065)
    assert rig.pick(exclude=["B", "C", "nobody"])[0] == "A"


@pytest.mark.requirement("DIR-49", state="half", note="the machine; over two clients and two servers: elsewhere")
@pytest.mark.parametrize("seed", range(5))
def test_each_application_has_one_rotation_whoever_asks_in_between(seed: int) -> None:
    rig, random = abc(), Random(seed)
    asking = ["AX"] * 9 + ["AY"] * random.randrange(9) + ["AZ"] * random.randrange(9)
    random.shuffle(asking)
    found: Counter[str] = Counter()
    order = ""
    for app in asking:
        if random.random() < 0.2:
            rig.fail_over()
        broker, _ = rig.connect(app)
        found[broker] += app == "AX"
        order += broker if app == "AX" else ""
    assert order == "ABCABCABC"
    assert found == {"A": 3, "B": 3, "C": 3}
    assert rig.say("status")["picks"] == len(asking)
    assert rig.rows() == {f"AX-{number + 1}": broker for number, broker in enumerate(order)}


@pytest.mark.requirement("DIR-50", state="half", note="the machine")
def test_capacity_is_counted_over_the_whole_broker() -> None:
    rig = Rig()
    rig.broker("A", "a", "b", limit=2)
    rig.broker("B", "a")
    rig.broker("C", "b")
    assert rig.connect("AX", "a")[0] == "A"
    assert rig.connect("AY", "b")[0] == "A"
    assert rig.available() == "BC"
    assert {rig.connect(app, "a")[0] for app in ("AX", "AY", "AZ")} == {"B"}
    assert {rig.connect(app, "b")[0] for app in ("AX", "AY", "AZ")} == {"C"}
    rig.close("A", "i1", "AX")
    assert rig.pick("AW", "b")[0] == "A"
    assert rig.pick("AW", "b")[0] == "C", "the reservation counts"


@pytest.mark.requirement("DIR-51", state="half", note="the machine, with a clock of its own")
def test_a_pick_takes_a_place_until_it_is_opened_failed_or_over() -> None:
    rig = Rig(reserve_s=10)
    for name in "ABC":
        rig.broker(name, "c", limit=1)
    assert "".join(rig.pick()[0] for _ in range(3)) == "ABC"
    with pytest.raises(NoneAvailable, match=r"A: full .0 connections, 1 reserved, limit 1.") as error:
        rig.pick()
    assert "'c'" in str(error.value)
    rig.time(9.9)
    with pytest.raises(NoneAvailable):
        rig.pick()
    rig.time(0.1)
    broker, reservation = rig.pick()
    rig.say("report_failure", app="AX", broker=broker, client="c1", reason="refused", reservation=reservation)
    again, reservation = rig.pick(exclude=["B", "C"])
    assert (broker, again) == ("A", "A")
    rig.open("A", "one", reservation=reservation)
    assert (rig.brokers()["A"].get("reserved", 0), rig.brokers()["A"]["connections"]) == (0, 1)
    rig.time(10)
    with pytest.raises(NoneAvailable):
        rig.pick(exclude=["B", "C"])


def test_the_row_takes_the_place_of_the_reservation_in_one_step() -> None:
    rig = abc()
    broker, reservation = rig.pick()
    before = rig.brokers()[broker]
    assert (before["reserved"], before.get("connections", 0)) == (1, 0)
    rig.open(broker, "one")  # one reporter does not know of the reservation
    rig.open(broker, "one", reservation=reservation)  # the other one does
    after = rig.brokers()[broker]
    assert (after.get("reserved", 0), after["connections"]) == (0, 1)


def test_a_reservation_used_elsewhere_is_given_back() -> None:
    rig = abc()
    assert rig.pick(request="q")[0] == "A"
    rig.open("B", "one", reservation="q")
    assert rig.say("status")["reserved"] == 0
    assert rig.say("status")["rotations"][0]["owed"] == {"A": 1}, "its turn came to nothing"


def test_nobody_uses_the_reservation_of_another_application() -> None:
    rig = abc()
    rig.pick("AX", request="q")
    rig.open("A", "one", "AY", reservation="q")
    rig.say("report_failure", app="AY", broker="A", client="c", reason="", reservation="q")
    assert rig.say("status")["reserved"] == 1


def test_a_request_said_again_is_the_same_pick() -> None:
    rig = abc()
    assert rig.pick(request="q") == rig.pick(request="q") == ("A", "q")
    rig.fail_over()
    assert rig.pick(request="q") == ("A", "q")
    assert rig.say("status")["picks"] == 1
    assert rig.pick(request="q", exclude=["A"]) == ("B", "q"), "it failed there"
    assert rig.say("status")["reserved"] == 1
    assert {rig.pick()[0], rig.pick()[0]} == {"C", "A"}


@pytest.mark.requirement("DIR-52", state="half", note="the machine; with real clients elsewhere")
def test_a_hundred_connections_of_five_clients_are_even_at_every_instant() -> None:
    rig, random = abc(), Random(1)
    reserved: list[tuple[str, str, int]] = []
    held: Counter[str] = Counter(A=0, B=0, C=0)
    picked = 0
    while picked < 100 or reserved:
        if picked < 100 and ((len(reserved) < 5 and random.random() < 0.6) or not reserved):
            broker, reservation = rig.pick()
            picked += 1
            held[broker] += 1
            reserved.append((broker, reservation, picked))
        else:
            broker, reservation, number = reserved.pop(random.randrange(len(reserved)))
            rig.open(broker, f"c{number}", reservation=reservation)
        assert max(held.values()) - min(held.values()) <= 1
    assert sorted(rig.say("totals", app="AX", cluster="c")["brokers"].values()) == [33, 33, 34]


@pytest.mark.requirement("DIR-53", state="half", note="the directory's rule; the client's is shown elsewhere")
def test_least_connections_repairs_what_closing_left_uneven() -> None:
    rig = abc()
    at_c = [f"i{number + 1}" for number in range(9) if rig.connect(rule="least_connections")[0] == "C"]
    assert len(at_c) == 3
    for identity in at_c:
        rig.close("C", identity)
    assert [rig.connect(rule="least_connections")[0] for _ in range(3)] == ["C"] * 3
    assert rig.say("totals", app="AX")["brokers"] == {"A": 3, "B": 3, "C": 3}


def test_the_rule_is_that_of_the_request_the_cluster_or_all() -> None:
    rig = abc()
    rig.open("B", "one")
    assert rig.pick()[0] == "A"
    assert rig.pick()[0] == "B", "rotation does not count"
    rig.say("set_cluster", cluster="c", rule="least_connections")
    assert rig.pick()[0] == "C"
    assert [rig.pick(rule="rotation")[0] for _ in range(3)] == ["A", "B", "C"]


@pytest.mark.requirement("DIR-67", state="half", note="the directory's part: which broker is picked")
def test_who_wants_a_secure_connection_gets_a_broker_that_has_one() -> None:
    rig = abc()
    with pytest.raises(NoneAvailable, match="no secure port"):
        rig.pick(secure=True)
    rig.broker("B", "c", secure_port=7500)
    rig.broker("C", "c", port=0, secure_port=7501)
    assert "".join(rig.pick(secure=True)[0] for _ in range(4)) == "BCBC"
    assert "".join(rig.pick()[0] for _ in range(4)) == "ABAB"


def fail(rig: Rig, broker: str, client: str, reservation: str = "") -> None:
    rig.say("report_failure", app="AX", broker=broker, client=client, reason="refused", reservation=reservation)


@pytest.mark.requirement("DIR-64", state="half", note="the directory's part; the client's cool-down is shown elsewhere")
def test_reports_of_two_clients_make_everybody_skip_a_broker_for_a_while() -> None:
    rig = abc(suspect_s=10)
    for _ in range(5):
        fail(rig, "B", "client-1")
    assert rig.available() == "ABC", "one client alone may be wrong"
    rig.time(11)
    fail(rig, "B", "client-2")
    assert rig.available() == "ABC", "the report of the first is too old"
    rig.renew("A", "B", "C")
    rig.time(5)
    fail(rig, "B", "client-1")
    assert rig.available() == "AC"
    assert {rig.pick("AY")[0] for _ in range(6)} == {"A", "C"}
    rig.fail_over()
    assert rig.available() == "AC"
    assert list(rig.say("status")["suspects"]) == ["B"]
    rig.time(10)
    assert rig.available() == "ABC"
    fail(rig, "B", "client-3")
    assert rig.available() == "ABC", "begun anew"


@pytest.mark.requirement("DIR-64", state="half", note="the directory's part")
def test_when_all_are_cooling_down_they_are_tried_anyway() -> None:
    rig = abc()
    for name in "ABC":
        fail(rig, name, "client-1")
        fail(rig, name, "client-2")
    assert rig.available() == ""
    assert "".join(rig.pick()[0] for _ in range(3)) == "ABC"
    assert rig.pick(exclude=["A"])[0] == "B"
    rig.broker("B", "c", port=9)  # it is elsewhere now: what was said of it is void
    assert rig.available() == "B"
    assert {rig.pick()[0] for _ in range(3)} == {"B"}


def test_a_connection_that_opened_makes_earlier_reports_void() -> None:
    rig = abc()
    fail(rig, "B", "client-1")
    rig.open("B", "one")
    fail(rig, "B", "client-2")
    assert rig.available() == "ABC"


def test_a_failed_pick_frees_its_place_and_the_report_said_again_changes_nothing() -> None:
    rig = abc()
    broker, reservation = rig.pick()
    fail(rig, broker, "client-1", reservation)
    assert rig.say("status")["reserved"] == 0
    written = len(rig.log)
    fail(rig, broker, "client-1", reservation)
    fail(rig, "nobody", "client-1")
    assert len(rig.log) == written
    status = rig.say("status")
    assert status["failures"] == 1
    assert status["failures_by_broker"]["A"]["reason"] == "refused"


@pytest.mark.requirement("DIR-60", state="half", note="the picks of acceptance case 3, where B refuses")
def test_with_a_broker_that_refuses_nine_requests_end_five_and_four() -> None:
    rig = abc()
    for number in range(9):
        exclude: list[str] = []
        while (picked := rig.pick(exclude=exclude))[0] == "B":
            fail(rig, "B", "client-1", picked[1])
            exclude.append("B")
        rig.open(picked[0], f"n{number}", reservation=picked[1])
    assert sorted(rig.say("totals", app="AX", cluster="c")["brokers"].items()) in (
        [("A", 5), ("C", 4)],
        [("A", 4), ("C", 5)],
    )


@pytest.mark.requirement("DIR-52", state="half", note="brokers that some requests leave out")
def test_what_one_client_leaves_out_another_one_takes() -> None:
    rig = abc()
    held: Counter[str] = Counter()
    for _ in range(30):
        held[rig.connect(exclude=["A"])[0]] += 1
        held[rig.connect()[0]] += 1
    assert max(held.values()) - min(held.values()) <= 1


def test_turns_are_not_kept_for_a_broker_that_was_not_available() -> None:
    rig = abc()
    rig.renew("A", state="draining")
    assert "".join(rig.pick(exclude=["B"])[0] for _ in range(4)) == "CCCC"
    rig.renew("A", state="up")
    assert Counter(rig.pick()[0] for _ in range(4)) == {"B": 4}
    assert Counter(rig.pick()[0] for _ in range(6)) == {"A": 2, "B": 2, "C": 2}


def test_late_but_opened_is_no_turn_left() -> None:
    rig = abc(reserve_s=10)
    picks = [rig.pick() for _ in range(3)]
    rig.time(10)
    for broker, reservation in picks:
        rig.open(broker, f"of {reservation}", reservation=reservation)
    assert "".join(rig.pick()[0] for _ in range(3)) == "ABC"
    assert all(not turn["owed"] for turn in rig.say("status")["rotations"])


def test_bounds_of_a_pick() -> None:
    rig = abc()
    with pytest.raises(BadParameter):
        rig.pick(exclude=[f"b{number}" for number in range(1001)])
    for request in ("x" * 256, "\n"):
        with pytest.raises(BadParameter):
            rig.pick(request=request)
    with pytest.raises(BadParameter):
        rig.say("pick_broker", app="AX", cluster="c", request="")


def test_reservations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.directory.picking.RESERVATIONS_MAX", 10)
    rig = abc()
    for number in range(10):
        rig.pick(request=f"q{number}")
    with pytest.raises(TooMany):
        rig.pick()
    assert rig.pick(request="q3")[0] == "A"
    rig.time(10)
    rig.pick()


def test_rotations_that_are_not_used_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.directory.turns.ROTATIONS_MAX", 3)
    rig = abc()
    for app in ("AA", "AB", "AC", "AA", "AD"):
        rig.pick(app)
    assert {turn["app"] for turn in rig.say("status")["rotations"]} == {"AC", "AA", "AD"}
    assert rig.pick("AA")[0] == "C"
