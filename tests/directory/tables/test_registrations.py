"""Applications: static and dynamic, changing from one to the other, deregistering, published keys."""

from __future__ import annotations

import pytest

from fairlead.errors import BadParameter, Refused, TooMany

from .rig import Rig, abc


def register(rig: Rig, app: str, kind: str, broker: str = "A", **more: str) -> None:
    rig.say("register_app", app=app, kind=kind, broker=broker, **more)


def kinds(rig: Rig) -> dict[str, str]:
    return {app["name"]: app["kind"] for app in rig.say("list_apps")["apps"]}


@pytest.mark.requirement("DIR-23", state="half", note="the machine")
def test_applications_are_registered_as_they_asked() -> None:
    rig = abc()
    register(rig, "AZ", "static", "C", user="zoe")
    register(rig, "AY", "dynamic", "B")
    assert kinds(rig) == {"AZ": "static", "AY": "dynamic"}
    assert rig.say("list_apps", app="AZ")["apps"] == [{"name": "AZ", "kind": "static", "user": "zoe", "broker": "C"}]
    assert rig.say("list_apps", app="nobody")["apps"] == []


@pytest.mark.requirement("DIR-27", state="half", note="the machine")
def test_a_static_registration_outlives_connections_brokers_and_primaries() -> None:
    rig = abc()
    register(rig, "AZ", "static", "C")
    rig.open("C", "one", "AZ")
    rig.close("C", "one", "AZ")
    assert rig.app("AZ") == {"name": "AZ", "kind": "static", "broker": "C", "last": 1}
    rig.open("C", "two", "AZ")
    rig.time(15)
    rig.fail_over()
    assert rig.app("AZ") == {"name": "AZ", "kind": "static", "broker": "C", "last": 2}
    rig.say("restate", name="C", identity="id-C", links=[])
    assert rig.app("AZ") is not None
    assert rig.open("C", "three", "AZ") == "AZ-3"


@pytest.mark.requirement("DIR-28", state="half", note="the machine")
def test_a_dynamic_registration_goes_with_the_last_connection() -> None:
    rig = abc()
    register(rig, "AY", "dynamic", "A")
    rig.open("A", "one", "AY")
    rig.open("B", "two", "AY")
    rig.close("A", "one", "AY")
    assert kinds(rig) == {"AY": "dynamic"}
    rig.close("B", "two", "AY")
    assert kinds(rig) == {}


@pytest.mark.requirement("DIR-28", state="half", note="the machine: declared dead")
def test_a_dynamic_registration_goes_with_its_broker() -> None:
    rig = abc()
    rig.open("B", "two", "AY")
    register(rig, "AW", "dynamic", "B")
    for _ in range(3):
        rig.time(5)
        rig.renew("A", "C")
    assert kinds(rig) == {}


def test_a_dynamic_registration_that_never_connected_goes_when_its_broker_states_what_there_is() -> None:
    rig = abc()
    register(rig, "AY", "dynamic", "A")
    rig.say("restate", name="B", identity="id-B", links=[])
    assert kinds(rig) == {"AY": "dynamic"}
    rig.say("restate", name="A", identity="id-A", links=[["AY", "dynamic", {"identity": "one", "broker": "A"}]])
    assert kinds(rig) == {"AY": "dynamic"}
    register(rig, "AW", "dynamic", "A")
    rig.say("restate", name="A", identity="id-A", links=[])
    assert kinds(rig) == {}


@pytest.mark.requirement("DIR-29", state="half", note="the machine")
def test_registering_again_changes_the_kind_in_place_and_keeps_the_rows() -> None:
    rig = abc()
    for name in "ABC":
        rig.open(name, name)
    register(rig, "AX", "static", "B")
    assert kinds(rig) == {"AX": "static"}
    assert rig.rows() == {"AX-1": "A", "AX-2": "B", "AX-3": "C"}
    rig.open("A", "four", kind="dynamic")
    assert kinds(rig) == {"AX": "static"}, "a connection alone does not change it"
    register(rig, "AX", "dynamic", "B")
    assert kinds(rig) == {"AX": "dynamic"}
    assert len(rig.rows()) == 4
    for broker, identity in [*zip("ABC", "ABC", strict=True), ("A", "four")]:
        rig.close(broker, identity)
    assert kinds(rig) == {}


def test_messages_of_a_static_application_wait_where_it_is() -> None:
    rig = abc()

    def home() -> str:
        app = rig.app("AZ")
        assert app is not None
        return str(app["broker"])

    rig.open("C", "one", "AZ", kind="static")
    assert home() == "C"
    register(rig, "AZ", "static", "B")
    assert home() == "C", "it has a connection there"
    rig.open("B", "two", "AZ")
    rig.close("C", "one", "AZ")
    register(rig, "AZ", "static", "B")
    assert home() == "B"
    written = len(rig.log)
    register(rig, "AZ", "static", "B")
    assert len(rig.log) == written


@pytest.mark.requirement("DIR-29", state="half", note="the machine; that brokers close connections is shown elsewhere")
def test_deregistering_with_open_connections_is_refused_or_closes_them() -> None:
    rig = abc()
    register(rig, "AZ", "static", "C")
    rig.open("C", "one", "AZ")
    rig.open("B", "two", "AZ")
    rig.open("B", "other", "AX")
    with pytest.raises(Refused, match="2 open connections"):
        rig.say("deregister_app", app="AZ")
    assert rig.renew("C")["close"] == []
    assert rig.say("deregister_app", app="AZ", links="close")["deregistered"]
    assert rig.say("deregister_app", app="AZ", links="close")["deregistered"], "said again"
    assert (rig.renew("B")["close"], rig.renew("C")["close"]) == (["two"], ["one"])
    rig.fail_over()
    rig.close("C", "one", "AZ")
    assert "AZ" in kinds(rig)
    assert rig.renew("B")["close"] == ["two"]
    rig.close("B", "two", "AZ")
    assert kinds(rig) == {"AX": "dynamic"}
    assert not rig.say("deregister_app", app="AZ")["deregistered"]


def test_deregistering_without_connections_forgets_everything_about_it() -> None:
    rig = abc()
    register(rig, "AX", "static")
    rig.say("publish_key", app="AX", key={"id": "k", "public": "00"})
    assert [rig.connect()[0], rig.connect()[0]] == ["A", "B"]
    rig.close("A", "i1")
    rig.close("B", "i2")
    rig.say("deregister_app", app="AX")
    assert rig.app() is None
    assert rig.connect() == ("A", "AX-1")
    app = rig.app()
    assert app is not None
    assert not app.get("keys")


@pytest.mark.requirement("DIR-80", state="half", note="published keys are kept in the record")
def test_keys_are_kept_in_the_record_and_outlive_a_dynamic_registration() -> None:
    rig = abc()
    keys = [{"id": f"k{number}", "public": "00" * 32, "signature": "ff"} for number in range(2)]
    for key in keys:
        rig.say("publish_key", app="AX", key=key, may=("app.AX",))
    rig.open("A", "one")
    rig.close("A", "one")
    rig.fail_over()
    rig.open("A", "two")

    def told() -> list[dict[str, str]]:
        app = rig.app()
        assert app is not None
        return list(app.get("keys", ()))

    assert told() == keys
    written = len(rig.log)
    rig.say("publish_key", app="AX", key=keys[0])
    assert len(rig.log) == written
    rig.say("publish_key", app="AX", key={"id": "k0"})
    rig.say("publish_key", app="AX", key={"id": "never was"})
    assert told() == keys[1:]


@pytest.mark.parametrize("key", [{}, {"public": "00"}, {"id": "k", "x": "y" * 1024}, {"id": "", "x": "y"}])
def test_a_key_that_is_none_is_refused(key: dict[str, str]) -> None:
    with pytest.raises(BadParameter):
        abc().say("publish_key", app="AX", key=key)


def test_an_application_has_a_bounded_number_of_keys() -> None:
    rig = abc()
    for number in range(64):
        rig.say("publish_key", app="AX", key={"id": f"k{number}", "public": "00"})
    with pytest.raises(TooMany):
        rig.say("publish_key", app="AX", key={"id": "one more", "public": "00"})
    rig.say("publish_key", app="AX", key={"id": "k5", "public": "01"})
    with pytest.raises(BadParameter):
        rig.say("publish_key", app="AX", key={"id": "k5", **{f"f{number}": "" for number in range(16)}})
