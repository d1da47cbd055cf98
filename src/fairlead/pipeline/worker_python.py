"""Which Python Spark starts its workers with, where they run on this machine: this one, without Spark's archive.

Spark puts an archive of PySpark before what is installed, and of an archive nothing is kept compiled: each of the five
or six Python processes of a query compiles all it needs anew. The same files are installed, and compiled, beside it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import MutableMapping
from pathlib import Path

import pyspark

from fairlead.pipeline import java

__all__ = ["NAME", "use"]

NAME = "PYSPARK_PYTHON"

LAUNCHER = """#!/bin/sh
# Fairlead made this: Python that finds the installed PySpark before the archive in which Spark brings the same.
rest=
IFS=:
set -f
for one in $PYTHONPATH; do
    case $one in
    {archives}/*.zip) ;;
    *) rest=$rest${{rest:+:}}$one ;;
    esac
done
PYTHONPATH=$rest
export PYTHONPATH
exec {python} "$@"
"""


def use(master: str, environ: MutableMapping[str, str] | None = None) -> None:
    """Say so in the environment, unless somebody has said something else; other machines have it elsewhere."""
    environ = os.environ if environ is None else environ
    plain, quick = sys.executable, str(_launcher(environ))
    if environ.get(NAME, plain) not in (plain, quick):
        return
    is_here = master.startswith("local") and not master.startswith("local-cluster")
    environ[NAME] = quick if is_here and os.access(quick, os.X_OK) else plain


def _launcher(environ: MutableMapping[str, str]) -> Path:
    archives = Path(pyspark.__file__).parent / "python" / "lib"
    text = LAUNCHER.format(archives=shlex.quote(str(archives)), python=shlex.quote(sys.executable))
    name = f"python-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    file = java.cache_directory(environ) / name
    java.write_once(file, text, mode=0o755)
    return file
