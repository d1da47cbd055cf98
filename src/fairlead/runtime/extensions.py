"""Which of the compiled modules are here, and whether this process uses them.

Every `_name.pyx` in the package has a plain-Python twin that does the same, slowly. A server that runs on
the twins because nobody had a compiler should say so once, loudly; one that was told to (FAIRLEAD_PURE=1)
need not. `python -m fairlead.runtime.extensions` prints the state.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def is_pure() -> bool:
    """Was this process told to use the twins?"""
    return os.environ.get("FAIRLEAD_PURE", "") not in ("", "0")


def expected() -> list[str]:
    """The dotted names of all compiled modules the sources here would give."""
    sources = sorted(PACKAGE.glob("**/_*.pyx"))
    return [".".join(("fairlead", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in sources]


def missing() -> list[str]:
    """Those that were not built."""
    return [name for name in expected() if not _is_built(name)]


def sentence() -> str:
    """The state in one line, for people."""
    if is_pure():
        return "plain-Python twins in use (FAIRLEAD_PURE is set)"
    lacking = missing()
    if lacking:
        return (
            f"NOT COMPILED: {', '.join(lacking)}; the slow plain-Python twins are in use. "
            "Install a C compiler and run `make build`, or reinstall fairlead"
        )
    return f"compiled extensions in use: {', '.join(expected()) or 'none exist'}"


def _is_built(name: str) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except ImportError:
        return False
    return spec is not None and spec.origin is not None and spec.origin.endswith(tuple(EXTENSION_SUFFIXES))


if __name__ == "__main__":
    print(f"fairlead: {sentence()}")
    sys.exit(0)
