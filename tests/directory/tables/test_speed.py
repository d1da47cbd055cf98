"""The three that are asked for every connection and message take no time worth mentioning."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from fairlead.directory.operations import GetCluster, LookupApp, PickBroker

from .rig import ADMIN, Rig

LIMIT_US = 250  # some 20 times what it takes; CPU time, so that others on the machine do not matter much


def cost_us(what: Callable[[int], object], count: int = 3000) -> float:
    begun = time.process_time()
    for number in range(count):
        what(number)
    return (time.process_time() - begun) / count * 1e6


@pytest.mark.requirement("DIR-20", state="half", note="unchanged is cheap: CPU time of the machine alone")
def test_look_ups_and_picks_are_cheap_in_a_directory_that_is_full() -> None:
    rig = Rig(lease_s=1000, reserve_s=1000)
    for number in range(20):
        rig.broker(f"B{number}", "c", limit=10_000, port=7000)
    for number in range(2000):
        rig.open(f"B{number % 20}", f"i{number}", f"app-{number % 20}")
    tables, revision = rig.tables, rig.tables.revision

    def pick(number: int) -> None:
        asked = PickBroker(app="app-7", cluster="c", request=str(number))
        decision = tables.decide("pick_broker", asked, rig.now_ms, may=ADMIN)
        for change in decision.changes:
            tables.apply(change)
        assert decision.answer()["reservation"] == str(number)

    found, known = LookupApp("app-7"), GetCluster(cluster="c", newer_than=revision)
    assert len(tables.ask("lookup_app", found, 0)["app"]["links"]) == 100
    assert cost_us(lambda _: tables.ask("lookup_app", found, 0)) < LIMIT_US
    assert tables.ask("get_cluster", known, 0)["unchanged"]
    assert cost_us(lambda _: tables.ask("get_cluster", known, 0)) < LIMIT_US
    assert cost_us(pick) < LIMIT_US
