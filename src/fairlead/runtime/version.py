"""The version of this program, written down so that a child process need not look for its own metadata."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
