"""Many idle connections, at a tenth of the scale of `benchmarks/flows/connections.py`."""

from __future__ import annotations

import pytest

from benchmarks.flows.connections import measure

pytestmark = pytest.mark.processes


@pytest.mark.requirement("SRV-17", state="scaled", note="500 connections; benchmarks/flows/connections.py has 5,000")
def test_five_hundred_connections_come_fast_and_cost_little() -> None:
    found = measure(500, managers=2, idle_s=1.0)
    print(
        f"\nready after {found.start_s:.2f} s; {found.connects_per_s:,.0f} connects/s, worst "
        f"{1e3 * found.connect_worst_s:.0f} ms; {found.per_connection_bytes / 1024:.1f} KiB a connection; idle "
        f"{100 * found.full_cpu:.1f} % of a core, {found.empty_bytes >> 20} MiB in {found.processes} processes"
    )
    assert found.connects_per_s > 250
    assert found.per_connection_bytes < 32 * 1024
    assert found.full_cpu < 0.25
    assert found.after_bytes < found.full_bytes + (8 << 20)
