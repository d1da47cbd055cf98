"""Where a message goes, by what the directory says."""

from __future__ import annotations

from fairlead.directory.delivery.known import KnownRoutes
from fairlead.directory.delivery.queues import carried_to, carry_queue
from fairlead.directory.delivery.routes import UNKNOWN, Route, find_broker, find_route
from fairlead.directory.rows import AppKind, Application, Broker, Link
from fairlead.security.rules import Action, Rights, Rules


def broker(name: str, *, available: bool = True, store: str = "") -> Broker:
    return Broker(name=name, ip="127.0.0.1", port=7400, available=available, store=store or name)


def app(*links: str, kind: AppKind = "dynamic", home: str = "") -> Application:
    rows = tuple(Link(identity=str(number), broker=name) for number, name in enumerate(links))
    return Application(name="AZ", kind=kind, broker=home, links=rows)


ROWS = [broker("A"), broker("B"), broker("C")]


def test_nobody_knows_the_name() -> None:
    assert find_route(None, ROWS, own="A", store="A") is UNKNOWN
    assert not UNKNOWN.is_known
    assert not find_route(app(), ROWS, own="A").is_known  # dynamic, and gone


def test_here_if_possible() -> None:
    assert find_route(app("C", "A", "B"), ROWS, own="A", store="A") == Route("app.AZ", "A")


def test_else_where_it_is_each_broker_in_its_turn() -> None:
    found = [find_route(app("C", "B", "C"), ROWS, own="A", store="A", turn=turn).queue for turn in range(4)]
    assert found == ["carry.B::AZ", "carry.C::AZ", "carry.B::AZ", "carry.C::AZ"]


def test_brokers_that_are_up_come_first() -> None:
    rows = [broker("B", available=False), broker("C")]
    assert {find_route(app("B", "C"), rows, own="A", turn=turn).broker for turn in range(4)} == {"C"}
    rows = [broker("B", available=False)]
    assert find_route(app("B"), rows, own="A") == Route("carry.B::AZ", "B")  # it waits for it


def test_brokers_of_one_store_have_the_same_queues() -> None:
    rows = [broker("A", store="shared"), broker("B", store="shared"), broker("C")]
    assert find_route(app("B", "C"), rows, own="A", store="shared") == Route("app.AZ", "A")
    assert find_route(app(kind="static", home="B"), rows, own="A", store="shared") == Route("app.AZ", "A")
    assert find_route(app("B"), [Broker(name="B", ip="", port=1)], own="A", store="") == Route("carry.B::AZ", "B")


def test_a_static_application_that_is_away() -> None:
    away = app(kind="static", home="C")
    assert find_route(away, ROWS, own="A") == Route("carry.C::AZ", "C")
    assert find_route(away, ROWS, own="C") == Route("app.AZ", "C")
    assert find_route(app("B", kind="static", home="C"), ROWS, own="A") == Route("carry.B::AZ", "B")  # it is at B now
    assert not find_route(app(kind="static"), ROWS, own="A").is_known


def test_to_a_broker_itself() -> None:
    rows = [broker("A", store="shared"), broker("B", store="shared"), broker("C")]
    assert find_broker("A", rows, own="A") == Route("", "A")
    assert find_broker("B", rows, own="A", store="shared") == Route("", "A")
    assert find_broker("C", rows, own="A", store="shared") == Route("carry.C::", "C")
    assert find_broker("D", rows, own="A") is None


def test_routes_are_remembered_for_a_while_and_longer_if_nobody_can_be_asked() -> None:
    known = KnownRoutes(fresh_s=5, routes_max=2)
    known.at("A")
    known.learn("AZ", Route("carry.C::AZ", "C"), 10)
    assert known.fresh("AZ", 15) == Route("carry.C::AZ", "C")
    assert known.fresh("AZ", 15.1) is None
    assert known.old("AZ") == Route("carry.C::AZ", "C")
    known.learn("AY", Route("app.AY", "A"), 16)
    known.learn("AX", Route("app.AX", "A"), 16)
    assert len(known) == 2
    assert known.old("AZ") is None
    known.learn("AY", UNKNOWN, 17)
    assert known.old("AY") is None
    known.learn("@A", Route("", "A"), 17)
    assert known.fresh("@A", 17) == Route("", "A")
    known.at("A")
    assert len(known) == 2
    known.at("B")  # the connection has gone to another broker: from there everything is different
    assert len(known) == 0


def test_names_of_carry_queues_say_what_they_are_for() -> None:
    assert carried_to(carry_queue("C", "AZ")) == ("C", "AZ")
    assert carried_to(carry_queue("A")) == ("A", "")
    assert carried_to(carry_queue("b.eu-1/x", "AZ::odd")) == ("b.eu-1/x", "AZ::odd")
    for other in ("carry.C", "carry.::AZ", "app.AZ", "orders", "carry", "carried::x"):
        assert carried_to(other) is None


def test_who_may_send_to_an_application_may_have_it_carried_there() -> None:
    rules = Rules({"ax": Rights(send=("app.AZ",), consume=("app.AX",), publish=(), subscribe=()), "all": Rights()})
    actions: tuple[Action, ...] = ("send", "create")
    for action in actions:
        assert rules.allows("ax", action, "carry.C::AZ")
        assert rules.allows("ax", action, "carry.C::")  # answers
        assert not rules.allows("ax", action, "carry.C::AY")
        assert not rules.allows("ax", action, "carry.C")
        assert rules.allows("all", action, "carry.C::AY")
    assert not rules.allows("ax", "consume", "carry.C::AZ")
    assert not rules.allows("nobody", "send", "carry.C::AZ")
