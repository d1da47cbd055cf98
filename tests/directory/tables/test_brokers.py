"""Broker rows: who they are, whether they live, who may change them."""

from __future__ import annotations

import pytest

from fairlead.errors import BadName, BadParameter, NameTaken, NotAllowed, UnknownBroker

from .rig import Rig, abc


@pytest.mark.requirement("DIR-9", state="half", note="the tables; connecting to the address is shown with real brokers")
def test_one_row_for_each_broker_with_name_address_and_port() -> None:
    rig = Rig()
    rig.broker("A", port=7400)
    rig.broker("B", ip="2001:db8::1", port=7401, host="b.example")
    rows = rig.brokers()
    assert [(row["name"], row["ip"], row["port"]) for row in rows.values()] == [
        ("A", "127.0.0.1", 7400),
        ("B", "2001:db8::1", 7401),
    ]
    assert rows["B"]["host"] == "b.example"
    assert rows["A"]["available"]


@pytest.mark.parametrize(
    "row",
    [
        {"ip": "nowhere"},
        {"ip": "0.0.0.0"},
        {"ip": "::"},
        {"port": 0},
        {"port": 70_000},
        {"secure_port": -1},
        {"limit": -1},
        {"host": "x" * 256},
        {"identity": "a\nb"},
    ],
)
def test_a_row_nobody_could_connect_to_is_refused(row: dict[str, object]) -> None:
    rig = Rig()
    with pytest.raises(BadParameter):
        rig.broker("A", **row)
    assert not rig.brokers()


@pytest.mark.parametrize("name", ["", "a b", "x" * 241, "ä", "a\x00", "@A", "a*", ">"])
def test_a_name_that_could_not_be_part_of_a_queues_name_is_refused(name: str) -> None:
    with pytest.raises(BadName):
        Rig().broker(name)


@pytest.mark.requirement("DIR-31", state="half", note="the tables; restarting a broker is shown with real ones")
def test_a_broker_that_moved_keeps_its_row_and_its_place() -> None:
    rig = abc()
    rig.broker("A", "c", port=9999)
    assert len(rig.brokers()) == 3
    assert rig.brokers()["A"]["port"] == 9999
    assert [row["name"] for row in rig.say("get_cluster", cluster="c")["brokers"]] == ["A", "B", "C"]


def test_a_broker_tells_its_clusters_and_is_in_exactly_these() -> None:
    rig = abc()
    rig.broker("B", "d", "c")
    assert rig.brokers()["B"]["clusters"] == ("c", "d")
    rig.broker("B", "d")
    assert [row["name"] for row in rig.say("get_cluster", cluster="c")["brokers"]] == ["A", "C"]
    rig.say("put_broker", broker={"name": "B", "ip": "127.0.0.1", "port": 1, "identity": "id-B"})
    assert rig.brokers()["B"]["clusters"] == ("d",)


@pytest.mark.requirement("DIR-22", state="half", note="the machine; SIGKILL of a real broker is shown elsewhere")
def test_who_does_not_renew_is_not_picked_and_its_connections_go_until_it_renews() -> None:
    rig = abc(lease_s=15)
    for identity in ("one", "two"):
        rig.open("B", identity)
    rig.open("A", "three")
    for _ in range(3):
        rig.time(5)
        rig.renew("A", "C")
    assert rig.rows() == {"AX-3": "A"}
    assert rig.available() == "AC"
    assert rig.brokers()["B"]["clusters"] == ("c",)
    assert {rig.pick()[0] for _ in range(6)} == {"A", "C"}
    assert rig.renew("B")["known"]
    assert rig.brokers()["B"]["available"]
    assert {rig.pick()[0] for _ in range(3)} == {"A", "B", "C"}


def test_a_renewal_that_says_nothing_new_writes_nothing() -> None:
    rig = abc()
    written = len(rig.log)
    for _ in range(10):
        rig.time(5)
        rig.renew("A", "B", "C")
    assert len(rig.log) == written
    assert rig.available() == "ABC"


def test_a_new_primary_gives_everybody_that_lived_a_whole_lease() -> None:
    rig = abc(lease_s=15)
    rig.time(14)
    rig.renew("A", "B")
    rig.time(10)  # C is over
    rig.fail_over()
    rig.time(14)
    assert rig.available() == "AB"
    rig.time(1)
    assert rig.available() == ""


def test_the_end_of_a_lease_that_could_not_be_written_is_tried_again() -> None:
    rig = abc(lease_s=15)
    first = rig.tables.tick(rig.now_ms + 15_000)
    assert [change["broker"] for change in first] == ["A", "B", "C"]
    assert rig.tables.tick(rig.now_ms + 15_100) == first
    rig.write(first)
    assert rig.available() == ""
    assert rig.tables.next_ms is None


def test_a_primary_that_slept_takes_nobody_for_dead() -> None:
    rig = abc(lease_s=15)
    rig.open("A", "one")
    rig.now_ms += 60_000
    assert rig.tables.tick(rig.now_ms) == []
    rig.time(14)
    rig.renew("A", "B")
    assert rig.available() == "ABC"
    assert rig.rows() == {"AX-1": "A"}
    rig.time(1)
    assert rig.available() == "AB", "but a lease later it is"


def test_who_is_told_unknown_has_another_identity_or_no_row() -> None:
    rig = abc()
    assert not rig.say("renew", name="Z", identity="id-Z")["known"]
    assert not rig.say("renew", name="A", identity="another")["known"]
    rig.time(14)
    rig.say("renew", name="A", identity="another")
    rig.time(1)
    assert "A" not in rig.available(), "somebody else does not renew A's lease"


@pytest.mark.parametrize("state", ["full", "draining", "disabled"])
@pytest.mark.requirement("DIR-50", state="half", note="states; capacity is shown in test_picking")
def test_a_broker_that_says_it_takes_no_more_is_not_picked(state: str) -> None:
    rig = abc()
    rig.renew("B", state=state)
    assert {rig.pick()[0] for _ in range(6)} == {"A", "C"}
    rig.renew("B", state="up")
    assert {rig.pick()[0] for _ in range(3)} == {"A", "B", "C"}


@pytest.mark.requirement("DIR-33", state="half", note="the machine; a real second broker exits, shown elsewhere")
def test_a_second_living_broker_of_a_name_is_refused_until_the_lease_of_the_first_is_over() -> None:
    rig = abc(lease_s=15)
    with pytest.raises(NameTaken, match=r"127\.0\.0\.1"):
        rig.broker("A", "c", identity="other", port=1)
    assert rig.brokers()["A"]["identity"] == "id-A"
    rig.open("A", "one")
    rig.broker("A", "c", port=2)  # the same, restarted
    assert rig.rows() == {"AX-1": "A"}
    rig.time(15)
    rig.broker("A", "c", identity="other", port=1)
    assert rig.brokers()["A"]["identity"] == "other"
    assert rig.brokers()["A"]["available"]
    assert not rig.say("renew", name="A", identity="id-A")["known"]


def test_without_identities_the_address_says_who_it_is() -> None:
    rig = Rig()
    rig.broker("A", identity="", port=1)
    rig.broker("A", identity="", port=1, limit=5)
    with pytest.raises(NameTaken):
        rig.broker("A", identity="", port=2)
    with pytest.raises(NameTaken):
        rig.broker("A", identity="x", port=1)


@pytest.mark.requirement("DIR-18", state="half", note="the machine")
def test_a_broker_that_is_removed_is_in_no_table_but_static_registrations() -> None:
    rig = abc()
    rig.say("register_app", app="AZ", kind="static", broker="B")
    rig.open("B", "one")
    rig.open("B", "two", "AZ")
    rig.pick(exclude=["A", "C"])
    assert rig.say("remove_broker", name="B")["removed"]
    assert "B" not in rig.brokers()
    assert rig.say("list_clusters")["clusters"] == [{"name": "c", "brokers": ("A", "C")}]
    found = rig.say("lookup_app", app="AZ")
    assert found["app"]["broker"] == "B"
    assert found["app"]["broker_missing"]
    assert not found["app"].get("links")
    assert found["brokers"] == [{"name": "B", "ip": "", "port": 0, "missing": True}]
    assert rig.say("list_apps")["apps"] == [found["app"]]
    assert rig.say("status")["reserved"] == 0
    assert not rig.say("remove_broker", name="B")["removed"], "said again it is no error"
    rig.broker("B", "c")
    assert not rig.say("lookup_app", app="AZ")["app"].get("broker_missing")


@pytest.mark.requirement("DIR-18", state="half", note="the machine")
def test_nobody_joins_registers_or_connects_at_a_broker_that_is_unknown() -> None:
    rig = abc()
    for attempt in (
        lambda: rig.say("join_cluster", cluster="c", broker="Z"),
        lambda: rig.say("register_app", app="AX", kind="static", broker="Z"),
        lambda: rig.open("Z", "one"),
        lambda: rig.say("restate", name="Z", identity="id-Z", links=[]),
        lambda: rig.say("restate", name="A", identity="another", links=[]),
    ):
        with pytest.raises(UnknownBroker):
            attempt()


def test_a_connection_at_a_broker_whose_lease_is_over_waits_for_the_renewal() -> None:
    rig = abc()
    rig.time(15)
    with pytest.raises(UnknownBroker, match="lease"):
        rig.open("A", "one")
    rig.renew("A")
    assert rig.open("A", "one") == "AX-1"


LINK = {"identity": "one", "broker": "A"}
WRITES = [
    ("put_broker", {"broker": {"name": "A", "ip": "127.0.0.1", "port": 7065, "identity": "id-A"}}, "_BROKER.A"),
    ("renew", {"name": "A", "identity": "id-A"}, "_BROKER.A"),
    ("restate", {"name": "A", "identity": "id-A", "links": []}, "_BROKER.A"),
    ("remove_broker", {"name": "A"}, "_BROKER.A"),
    ("join_cluster", {"cluster": "c", "broker": "A"}, "_BROKER.A"),
    ("leave_cluster", {"cluster": "c", "broker": "A"}, "_BROKER.A"),
    ("set_cluster", {"cluster": "c", "rule": "rotation"}, "_DIRECTORY"),
    ("register_app", {"app": "AX", "kind": "static", "broker": "A"}, "_BROKER.A"),
    ("deregister_app", {"app": "AX", "broker": "A", "links": "close"}, "_BROKER.A"),
    ("connection_opened", {"app": "AX", "link": LINK}, "_BROKER.A"),
    ("connection_opened", {"app": "AX", "link": LINK}, "app.AX"),
    ("connection_closed", {"app": "AX", "identity": "one", "broker": "A"}, "_BROKER.A"),
    ("connection_closed", {"app": "AX", "identity": "one", "broker": "A"}, "app.AX"),
    ("pick_broker", {"app": "AX", "cluster": "c", "request": "q"}, "app.AX"),
    ("report_failure", {"app": "AX", "broker": "A", "client": "c1", "reason": "refused"}, "app.AX"),
    ("publish_key", {"app": "AX", "key": {"id": "k", "public": "00"}}, "app.AX"),
    ("rebalance", {"cluster": "c"}, "_DIRECTORY"),
]


@pytest.mark.requirement("DIR-34", state="half", note="the tables' part: which right each change needs")
@pytest.mark.parametrize(("op", "arguments", "right"), WRITES)
def test_a_change_needs_the_right_on_what_it_is_about(op: str, arguments: dict[str, object], right: str) -> None:
    rig = abc()
    rig.open("A", "one")
    before = rig.tables.snapshot()
    for may in ((), ("_BROKER.B", "app.AY", "_BROKER.", "app.", "_BROKER.AX", "app.A")):
        with pytest.raises(NotAllowed):
            rig.say(op, may=may, **arguments)
    assert rig.tables.snapshot() == before
    rig.say(op, may=(right,), **arguments)


@pytest.mark.requirement("DIR-34", state="half", note="the tables' part")
def test_a_broker_cannot_deregister_an_application_that_is_elsewhere() -> None:
    rig = abc()
    rig.open("A", "one")
    with pytest.raises(NotAllowed):
        rig.say("deregister_app", app="AX", broker="B", links="close", may=("_BROKER.B",))
    with pytest.raises(NotAllowed):
        rig.say("deregister_app", app="AX", links="close", may=("_BROKER.B",))
