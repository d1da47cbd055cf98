"""Does the simulation notice an end that is wrong?"""

from __future__ import annotations

import pytest

from tests.tunnel.end import model
from tests.tunnel.end.model import Broken, run
from tests.tunnel.end.plants import PLANTS
from tests.tunnel.end.simulate import plan_of

SEEDS = 150


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "STEPS_MAX", 5000)  # one that goes on for ever is caught sooner
    bug, likely = PLANTS[name]
    plans = sorted((plan_of(seed) for seed in range(1, SEEDS + 1)), key=likely, reverse=True)
    bug(monkeypatch)
    for plan in plans:
        try:
            run(plan)
        except Broken:
            return
    pytest.fail(f"nobody noticed in {SEEDS} tunnels")
