"""This Python for Spark's workers, without the archive in which they would find PySpark, to be compiled by each anew.

They start three times as fast (0.5 s of processor time instead of 1.5). That matters where a machine is busy: Spark
gives some of them ten seconds to say that they are there, and no setting changes that.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path


def quick_python(folder: Path, *also: Path) -> Path:
    """What PYSPARK_PYTHON should name; modules are looked for in `also`, too."""
    path = os.pathsep.join([*map(str, also), *filter(None, [os.environ.get("PYTHONPATH")])])
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(path)} exec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o755)
    return script
