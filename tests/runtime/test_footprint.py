"""What the processes of a server load before they are asked to: nothing they may never need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fairlead.runtime.child import MODULES

HEAVY = {"cryptography", "email", "http", "httpx", "jwt", "matplotlib", "numpy", "pandas", "pyarrow", "pyspark", "rich"}
SPEAKS_HTTP = {"console", "tunnel-gateway", "tunnel-broker"}


@pytest.mark.parametrize("role", sorted(MODULES.keys() - SPEAKS_HTTP))
def test_a_child_loads_nothing_heavy(role: str) -> None:
    program = f"import sys, {MODULES[role]}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert not HEAVY & set(loaded.stdout.split())
