"""Each measurement runs, at a tiny scale, and finds something to say."""

from __future__ import annotations

import importlib

import pytest

from benchmarks.durable.common import run

pytestmark = pytest.mark.processes

SCALES = {
    "latency": 0.005,
    "recovery": 0.001,
    "queues": 0.002,
    "backlog": 0.001,
    "subscriptions": 0.0002,
    "large": 0.002,
}


@pytest.mark.parametrize("name", SCALES)
def test_a_measurement_runs(name: str) -> None:
    measurement = importlib.import_module(f"benchmarks.durable.{name}").measure
    rows = run(measurement, SCALES[name])
    assert len(rows) >= 3
    assert all(value for _, value in rows)
