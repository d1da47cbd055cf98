"""Whatever is asked, by whomever: an answer or a clear error, tables that are alike everywhere and not too large."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.directory.operations import OPERATIONS
from fairlead.errors import FairleadError, TooMany

from .rig import Rig, abc

texts = (
    st.sampled_from(["", "A", "B", "AX", "c", "id-A", "one", "AX-1", "\ud800", "\x00", "x" * 300, "a b", "_x"])
    | st.text()
)
numbers = st.sampled_from([0, 1, -1, 7, 65536, 2**31, 2**63, 2**70, -(2**70)])
links = st.fixed_dictionaries(
    {"identity": texts, "broker": texts},
    optional={"label": texts, "client": texts, "user": texts, "cluster": texts, "secure": st.booleans()},
)
rows = st.fixed_dictionaries(
    {"name": texts, "ip": st.sampled_from(["127.0.0.1", "::1", "0.0.0.0"]) | texts, "port": numbers},
    optional={"limit": numbers, "identity": texts, "store": texts, "secure_port": numbers, "host": texts},
)
kinds = st.sampled_from(["static", "dynamic"])
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "broker": texts,
    "clusters": st.none() | st.lists(texts, max_size=3),
    "links": st.lists(st.tuples(texts, kinds, links), max_size=3),
    "link": links,
    "position": st.none() | numbers,
    "kind": kinds,
    "newer_than": st.none() | numbers,
    "exclude": st.lists(texts, max_size=3),
    "secure": st.booleans(),
    "key": st.dictionaries(texts, texts, max_size=3),
    "state": st.sampled_from(["up", "full", "draining", "disabled"]),
    "heuristic": st.none() | st.sampled_from(["centralised", "decentralised", "auto"]),
    "rule": st.none() | st.sampled_from(["rotation", "least_connections"]),
}
SPECIAL: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "put_broker": {"broker": rows},
    "deregister_app": {"links": st.sampled_from(["refuse", "close"])},
}


CODES = {
    *("bad-parameter", "bad-name", "refused"),
    *("unknown-broker", "unknown-cluster", "none-available", "name-taken"),
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    op = draw(st.sampled_from(sorted(OPERATIONS)))
    fields = msgspec.structs.fields(OPERATIONS[op].arguments)
    fields_of = {field.name: texts for field in fields} | FIELDS | SPECIAL.get(op, {})
    return op, {field.name: draw(fields_of[field.name]) for field in fields}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(requests(), min_size=5, max_size=25))
def test_any_request_is_answered_or_refused(asked: list[tuple[str, dict[str, Any]]]) -> None:
    rig = abc()
    rig.connect()
    for op, arguments in asked:
        try:
            answer = rig.say(op, **arguments)
        except FairleadError as refusal:
            assert refusal.code in CODES
            msgspec.json.encode(str(refusal))
            assert len(str(refusal)) < 2000
        else:
            msgspec.json.encode(answer)
    for change in rig.log:
        msgspec.json.encode(change)
    assert rig.replayed().snapshot() == rig.tables.snapshot()
    msgspec.json.encode(rig.tables.snapshot())


def opened(rig: Rig, number: int) -> None:
    rig.open("A", f"i{number}")


def application(rig: Rig, number: int) -> None:
    rig.say("register_app", app=f"app-{number}", kind="static", broker="A")


def broker(rig: Rig, number: int) -> None:
    rig.broker(f"B{number}", port=7000)


def cluster(rig: Rig, number: int) -> None:
    rig.say("join_cluster", cluster=f"c{number}", broker="ABC"[number % 3])


def settings_of_cluster(rig: Rig, number: int) -> None:
    rig.say("set_cluster", cluster=f"c{number}", rule="rotation")


def member(rig: Rig, number: int) -> None:
    rig.broker(f"B{number}", "c", port=7000)


def key(rig: Rig, number: int) -> None:
    rig.say("publish_key", app=f"app-{number}", key={"id": "k", "public": "00"})


def stated(rig: Rig, number: int) -> None:
    links = [["AX", "dynamic", {"identity": f"i{one}", "broker": "A"}] for one in range(number + 1)]
    rig.say("restate", name="A", identity="id-A", links=links)


def stated_applications(rig: Rig, number: int) -> None:
    links = [[f"app-{one}", "dynamic", {"identity": f"i{one}", "broker": "A"}] for one in range(number + 1)]
    rig.say("restate", name="A", identity="id-A", links=links)


@pytest.mark.parametrize(
    ("bound", "more"),
    [
        ("linking.LINKS_MAX", opened),
        ("linking.LINKS_MAX", stated),
        ("linking.APPS_MAX", application),
        ("linking.APPS_MAX", stated_applications),
        ("linking.KEYS_OF_ALL_MAX", key),
        ("deciding.BROKERS_MAX", broker),
        ("deciding.CLUSTERS_MAX", cluster),
        ("deciding.CLUSTERS_MAX", settings_of_cluster),
        ("deciding.MEMBERS_MAX", member),
    ],
)
def test_tables_are_bounded(monkeypatch: pytest.MonkeyPatch, bound: str, more: Callable[[Rig, int], None]) -> None:
    monkeypatch.setattr(f"fairlead.directory.{bound}", 10)
    rig = abc()
    with pytest.raises(TooMany, match="10") as refusal:
        for number in range(20):
            more(rig, number)
    assert "remove" in str(refusal.value)
    assert rig.replayed().snapshot() == rig.tables.snapshot()


def test_reports_and_reasons_are_bounded() -> None:
    rig = abc()
    for number in range(200):
        rig.say("report_failure", app="AX", broker="A", client=f"client-{number}", reason="\n\ud800" + "x" * 10_000)
    told = rig.say("status")["failures_by_broker"]["A"]
    assert told["failures"] == 200
    assert len(told["reporters"]) == 100
    assert told["reason"] == "??" + "x" * 198
    assert len(json.dumps(rig.tables.snapshot())) < 10_000


def test_numbers_of_applications_that_went_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.directory.applying.FADED_MAX", 3)
    rig = abc()
    for number in range(5):
        rig.open("A", "one", f"app-{number}")
    rig.time(15)
    assert len(rig.tables.snapshot()["faded"]) == 3
    rig.renew("A")
    assert (rig.open("A", "two", "app-0"), rig.open("A", "two", "app-4")) == ("app-0-1", "app-4-2")
