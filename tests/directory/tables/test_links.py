"""Connection rows: labels, two reporters, late reports, restating after a loss."""

from __future__ import annotations

import pytest

from fairlead.directory.digest import links_digest
from fairlead.errors import BadName, BadParameter

from .rig import Rig, abc


@pytest.mark.requirement("DIR-12", state="half", note="the machine")
def test_one_row_for_each_connection_with_label_and_broker() -> None:
    rig = abc()
    for name in "ABC":
        rig.open(name, f"at {name}")
    assert rig.rows() == {"AX-1": "A", "AX-2": "B", "AX-3": "C"}
    app = rig.app()
    assert app is not None
    assert app["kind"] == "dynamic"
    assert app["last"] == 3


@pytest.mark.requirement("DIR-13", state="half", note="the machine")
def test_labels_rise_by_one_and_are_not_given_again() -> None:
    rig = abc()
    assert [rig.open("A", f"i{number}") for number in range(3)] == ["AX-1", "AX-2", "AX-3"]
    rig.close("A", "i2")
    rig.close("A", "i0")
    assert rig.open("B", "i3") == "AX-4"
    rig.fail_over()
    assert rig.open("B", "i4") == "AX-5"
    assert rig.open("B", "i4", "AY") == "AY-1", "another application"


@pytest.mark.requirement("DIR-14", state="half", note="the machine")
def test_totals_and_their_split() -> None:
    rig = abc()
    rig.say("join_cluster", cluster="other", broker="A")
    for number, name in enumerate("AAAABBBCC"):
        rig.open(name, f"i{number}")
    rig.open("A", "elsewhere", cluster="other")
    rig.open("C", "direct", "AY", cluster="")
    assert rig.say("totals", app="AX", cluster="c") | {"revision": 0} == {
        "total": 9,
        "brokers": {"A": 4, "B": 3, "C": 2},
        "revision": 0,
    }
    assert rig.say("totals", app="AX")["total"] == 10
    assert rig.say("totals", app="AY", cluster="c")["brokers"] == {"C": 1}
    assert rig.say("totals", app="nobody")["total"] == 0


@pytest.mark.requirement("DIR-16", state="half", note="the machine")
def test_two_reporters_and_repeats_make_one_row() -> None:
    rig = abc()
    assert rig.open("A", "one", client="worker/1") == "AX-1"
    assert rig.open("A", "one", user="ann") == "AX-1"
    app = rig.app()
    assert app is not None
    row = {"identity": "one", "broker": "A", "label": "AX-1", "client": "worker/1", "user": "ann", "cluster": "c"}
    assert list(app["links"]) == [row]
    written = len(rig.log)
    rig.open("A", "one", client="worker/1", user="ann")
    rig.open("A", "one", client="another")
    assert len(rig.log) == written
    assert rig.rows() == {"AX-1": "A"}


def test_a_connection_cannot_be_claimed_by_another_broker() -> None:
    rig = abc()
    rig.open("A", "one")
    with pytest.raises(BadParameter, match="'A'"):
        rig.open("B", "one")
    assert not rig.close("B", "one")["closed"]
    rig.say("restate", name="B", identity="id-B", links=[["AX", "dynamic", {"identity": "one", "broker": "B"}]])
    assert rig.rows() == {"AX-1": "A"}


@pytest.mark.requirement("DIR-17", state="half", note="the machine")
def test_closed_before_opened_leaves_no_row() -> None:
    rig = abc()
    assert not rig.close("A", "one")["closed"]
    assert rig.open("A", "one") == ""
    assert rig.app() is None
    assert rig.open("B", "two") == "AX-1"
    assert rig.close("B", "two")["closed"]
    assert rig.open("B", "two") == "", "the other side's report came late"
    assert rig.app() is None


def test_the_memory_of_closed_connections_is_bounded() -> None:
    rig = abc()
    for number in range(20_100):
        rig.tables.apply({"c": "closed", "r": rig.tables.revision + 1, "app": "AX", "identity": f"i{number}"})
    assert len(rig.tables.snapshot()["closed"]) == 20_000
    assert rig.open("A", "i0") == "AX-1"
    assert rig.open("A", "i20099") == ""


@pytest.mark.requirement("DIR-21", state="half", note="the machine: restated rows keep their labels")
def test_restated_connections_keep_their_labels_and_those_not_named_go() -> None:
    rig = abc()
    labels = {identity: rig.open("A", identity) for identity in ("one", "two", "three")}
    rig.open("B", "four")
    before = rig.rows()

    def stated(*identities: str) -> list[object]:
        return [["AX", "dynamic", {"identity": i, "broker": "A", "label": labels.get(i, "")}] for i in identities]

    rig.time(16)  # everything is lost
    assert rig.app() is None
    rig.renew("B")
    answer = rig.say("restate", name="A", identity="id-A", links=stated("one", "two", "three"))
    assert answer["labels"] == labels
    assert "A" in rig.available(), "restating renews the lease"
    assert rig.rows() == {label: broker for label, broker in before.items() if broker == "A"}
    assert rig.open("A", "five") == "AX-5", "four is still B's, who may come back"
    rig.close("A", "five")
    written = len(rig.log)
    assert rig.say("restate", name="A", identity="id-A", links=stated("one", "two", "three"))["labels"] == labels
    assert len(rig.log) == written
    answer = rig.say("restate", name="A", identity="id-A", links=stated("two", "new"))
    assert answer["labels"] == {"two": "AX-2", "new": "AX-6"}
    assert rig.rows() == {"AX-2": "A", "AX-6": "A"}
    rig.say("restate", name="A", identity="id-A", links=[])
    assert rig.app() is None


def test_a_label_that_does_not_fit_is_replaced() -> None:
    rig = abc()
    rig.open("B", "zero")
    said = ["AX-1", "AY-7", "AX-", "AX-0", "AX--3", "AX-9999999999999999", "x", "AX-٣", "AX-5", "AX-5", "AX-05"]
    links = [["AX", "dynamic", {"identity": f"i{n}", "broker": "A", "label": label}] for n, label in enumerate(said)]
    labels = rig.say("restate", name="A", identity="id-A", links=links)["labels"]
    given = [labels[f"i{number}"] for number in range(len(said))]
    assert given == [f"AX-{number}" for number in (6, 7, 8, 9, 10, 11, 12, 13, 5, 14, 15)]


def test_restating_in_pieces_leaves_what_is_outside_the_range() -> None:
    rig = abc()
    for identity in ("a", "b", "c", "d"):
        rig.open("A", identity)
    rig.say("restate", name="A", identity="id-A", links=[], above="", upto="b")
    assert rig.rows() == {"AX-3": "A", "AX-4": "A"}
    rig.say("restate", name="A", identity="id-A", links=[], above="c", upto="")
    assert rig.rows() == {"AX-3": "A"}
    with pytest.raises(BadParameter, match="range"):
        link = {"identity": "x", "broker": "A"}
        rig.say("restate", name="A", identity="id-A", links=[["AX", "dynamic", link]], above="", upto="b")


def test_the_brokers_word_counts_against_a_report_that_a_connection_is_closed() -> None:
    rig = abc()
    rig.open("A", "one")
    rig.say("connection_closed", app="AX", identity="one", broker="A", may=("app.AX",))
    link = {"identity": "one", "broker": "A", "label": "AX-1"}
    assert rig.say("restate", name="A", identity="id-A", links=[["AX", "dynamic", link]])["labels"] == {"one": "AX-1"}
    assert rig.rows() == {"AX-1": "A"}
    assert rig.close("A", "one")["closed"]


def test_a_broker_states_only_its_own_connections() -> None:
    rig = abc()
    with pytest.raises(BadParameter):
        rig.say("restate", name="A", identity="id-A", links=[["AX", "dynamic", {"identity": "x", "broker": "B"}]])


def test_the_digest_says_whether_both_know_the_same_connections() -> None:
    rig = abc()
    rows = [("AX", f"i{number}", rig.open("A", f"i{number}")) for number in range(5)]
    rows.append(("AY", "i0", rig.open("A", "i0", "AY")))
    assert rig.renew("A")["links"] == links_digest(rows) == links_digest(reversed(rows))
    rig.close("A", "i3")
    del rows[3]
    assert rig.renew("A")["links"] == links_digest(rows)
    rig.fail_over()
    assert rig.renew("A")["links"] == links_digest(rows)
    assert links_digest([("AX", "i0", "")]) != links_digest([("AX", "i0", "AX-1")])
    assert rig.renew("B")["links"] == links_digest([])


@pytest.mark.requirement("DIR-66", state="half", note="the row; the replacement is the client's, shown elsewhere")
def test_the_row_of_a_broken_connection_goes_and_its_replacement_has_a_new_label() -> None:
    rig = abc()
    for _name in "ABC":
        rig.connect()
    for _ in range(3):
        rig.time(5)
        rig.renew("A", "C")
    assert rig.rows() == {"AX-1": "A", "AX-3": "C"}
    assert rig.connect() == ("A", "AX-4")


@pytest.mark.parametrize("identity", ["", "x" * 256, "a\n"])
def test_an_identity_has_to_be_one(identity: str) -> None:
    with pytest.raises(BadParameter):
        abc().open("A", identity)


@pytest.mark.parametrize("app", ["", "a b", "x" * 241, "@A"])
def test_an_application_needs_a_proper_name(app: str) -> None:
    rig = abc()
    for attempt in (
        lambda: rig.open("A", "one", app),
        lambda: rig.pick(app),
        lambda: rig.close("A", "one", app),
        lambda: rig.say("register_app", app=app, kind="static", broker="A"),
        lambda: rig.say("publish_key", app=app, key={"id": "k", "x": "y"}),
    ):
        with pytest.raises(BadName):
            attempt()


@pytest.mark.requirement("DIR-19", state="half", note="the machine")
def test_looking_up_an_application_tells_where_it_is_and_how_to_get_there() -> None:
    rig = Rig()
    rig.broker("C", "c", port=7403, store="s")
    rig.open("C", "one", "AZ")
    found = rig.say("lookup_app", app="AZ")
    assert [(row["name"], row["ip"], row["port"]) for row in found["brokers"]] == [("C", "127.0.0.1", 7403)]
    rig.broker("C", "c", port=7404, store="s")
    assert rig.say("lookup_app", app="AZ")["brokers"][0]["port"] == 7404, "an answer that is kept is not an old one"
    nobody: dict[str, object] = {"app": None, "brokers": [], "keys": [], "revision": rig.tables.revision}
    assert rig.say("lookup_app", app="nobody") == nobody
