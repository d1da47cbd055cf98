"""Dashboard and alert rules: they ask only for what there is, and in a way that fits its kind."""

from __future__ import annotations

import re

from fairlead.observability.catalogue import everything
from tests.observability.shipped import RULES, dashboard, expressions, names

KINDS = {metric.shown: metric.kind for metric in everything()}
PARTS = {
    f"{metric.name}_{part}": "counter"
    for metric in everything()
    if metric.kind == "histogram"
    for part in ("bucket", "sum", "count")
}
ZERO_OR_NOT = re.compile(r"fairlead_(manager_accounting_faults|(manager|router)_safety_tick_finds)_total")


def test_every_name_is_in_the_catalogue() -> None:
    assert len(names()) > 50
    assert names() <= KINDS.keys() | PARTS.keys()


def test_counters_are_only_asked_for_their_growth_and_gauges_never() -> None:
    kinds = KINDS | PARTS
    for expression in expressions():
        for name in set(re.findall(r"\bfairlead_[a-z0-9_]+", expression)):
            grown = re.search(rf"\b(rate|increase|changes)\({name}\b", expression)
            if kinds[name] == "counter":
                assert grown or ZERO_OR_NOT.fullmatch(name), expression
            elif grown:
                assert grown[1] == "changes", expression


def test_panels_lie_side_by_side_and_each_says_what_it_shows() -> None:
    taken: dict[tuple[int, int], str] = {}
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["targets"]


def test_every_alert_says_how_grave_it_is_and_what_happened() -> None:
    alerts = RULES.read_text(encoding="utf-8").split("- alert: ")[1:]
    assert len(alerts) > 15
    for alert in alerts:
        assert re.search(r"severity: (critical|warning)", alert), alert
        assert "summary:" in alert
    assert len({alert.split()[0] for alert in alerts}) == len(alerts)
