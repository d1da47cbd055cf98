"""How Spark finds us, and that it does not stumble over us where the extra is not installed."""

from __future__ import annotations

import subprocess
import sys

import pyspark_fairlead
from fairlead.pipeline.source import FairleadSource


def test_spark_finds_the_source_by_its_module() -> None:
    assert pyspark_fairlead.DefaultSource is FairleadSource
    assert FairleadSource.name() == "fairlead"


def test_without_pyarrow_there_is_no_source_and_no_error() -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = None; import pyspark_fairlead as m; print(hasattr(m, 'DefaultSource'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
    assert "Install fairlead[spark]" in done.stderr
