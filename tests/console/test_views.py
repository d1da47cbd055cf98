from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.console import views
from fairlead.console.alarms import alarms, health
from fairlead.console.counting import counters_of
from fairlead.console.rates import Rates, rate
from fairlead.console.shapes_server import Overview
from fairlead.console.topology import talks
from tests.console.reports import component, counters, manager, report, ring


def rates_of(*reports: dict[str, Any]) -> Rates:
    rates = Rates()
    for second, one in enumerate(reports):
        rates.sample(float(second), counters_of(one))
    return rates


def test_an_overview_survives_json() -> None:
    found = views.overview(report(), rates_of(report()), 20_000, arena_bytes=1000)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Overview) == found
    assert found.health == "ok"
    assert found.totals.messages_in is None  # one sample says nothing about a rate


def test_rates_are_differences_of_two_reports() -> None:
    before = report(managers=[manager(0, messages_in=100), manager(1, messages_in=0)])
    after = report(managers=[manager(0, messages_in=130), manager(1, messages_in=10)])
    found = views.overview(after, rates_of(before, after), 20_000, arena_bytes=1000)
    assert found.totals.messages_in == 40
    assert [one.share for one in found.managers] == [0.75, 0.25]


def test_a_counter_that_began_anew_has_no_rate() -> None:
    assert rate(100, 5, 1.0) is None
    assert rate(None, 5, 1.0) is None
    assert rate(5, 5, 0.0) is None
    assert rate(5, 7, 2.0) == 1.0


def test_a_standby_is_listed_and_talks_to_nobody() -> None:
    one = report()
    found = views.overview(one, rates_of(one), 20_000, arena_bytes=1000)
    assert [p.state for p in found.processes if p.role == "router"] == ["active", "standby"]
    lines = talks(one, rates_of(one))
    assert [(t.source, t.target) for t in lines if t.by == "ring"] == [("manager 0", "router"), ("manager 1", "router")]
    assert {(t.source, t.target) for t in lines if t.by == "link"} == {
        ("manager 0", "message-manager"),
        ("manager 1", "message-manager"),
    }


def test_lines_to_other_servers_begin_at_the_bridge() -> None:
    one = report(components=[*report()["components"], component("bridge")], links=[{"url": "fairlead://hub:7400"}])
    assert ("bridge", "fairlead://hub:7400") in {(t.source, t.target) for t in talks(one, rates_of(one))}


def test_rings_and_arenas_say_how_full_they_are() -> None:
    one = report(managers=[manager(0, up=ring(250), stored=3, stored_bytes=500)])
    (found,) = views.overview(one, rates_of(one), 20_000, arena_bytes=1000).managers
    assert (found.up.fill, found.arena.fill, found.arena.messages) == (0.25, 0.5, 3)


def test_updates_come_with_the_newest_first() -> None:
    made = {"from_version": "1", "to_version": "2", "pause_ms": 1.5, "outcome": "done"}
    one = report(
        updates=[{"component": name, "when_ns": 10**9 * n, **made} for n, name in enumerate(("router", "dispatcher"))]
    )
    found = views.overview(one, rates_of(one), 20_000, arena_bytes=1000).updates
    assert [(u.component, u.when_ms) for u in found] == [("dispatcher", 1000), ("router", 0)]


@pytest.mark.parametrize(
    ("changes", "code", "level"),
    [
        ({"accounting_faults": 1}, "accounting-faults", "error"),
        ({"safety_tick_finds": 2}, "safety-tick-finds", "error"),
        ({"messages_given_up": 3}, "messages-given-up", "warning"),
        ({"notes": ["odd"]}, "report", "warning"),
        ({"console": {"note": "7480 is taken", "urls": []}}, "console-port", "warning"),
        ({"managers": [manager(0, reading=False), manager(1)]}, "reading-stopped", "warning"),
        ({"managers": [manager(0, down=ring(900)), manager(1)]}, "ring-full", "warning"),
        ({"managers": [manager(0, draining=True), manager(1)]}, "draining", "warning"),
        ({"streams": {"state": "given up"}}, "not-served", "warning"),
        ({"streams": {"state": "active", "without_active": 1}}, "no-adapter", "error"),
        ({"components": [component("router")]}, "no-standby", "warning"),
        ({"components": []}, "not-served", "error"),
    ],
)
def test_what_is_wrong_is_an_alarm(changes: dict[str, Any], code: str, level: str) -> None:
    found = alarms(report(**changes))
    assert (code, level) in {(one.code, one.level) for one in found}
    assert found[0].level == health(found)


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"state": "none: given up"}, "no-message-manager"),
        ({"store_full": 1}, "store-full"),
        ({"blocked": 2}, "blocked"),
        ({"sync": "memory"}, "sync-memory"),
    ],
)
def test_what_is_wrong_with_stored_messages_is_an_alarm(facts: dict[str, Any], code: str) -> None:
    messages = {"enabled": True, "state": "active", "sync": "always", **counters("message-manager"), **facts}
    assert code in {one.code for one in alarms(report(messages=messages))}
    assert alarms(report(messages=messages | {"enabled": False})) == []


def test_all_well_is_no_alarm() -> None:
    assert alarms(report()) == []
