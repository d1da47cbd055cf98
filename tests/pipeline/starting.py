"""Spark gives the Python of a streaming source ten seconds to start, and has no setting for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyspark.errors import StreamingQueryException

T = TypeVar("T")

TRIES = 4


def patiently(start: Callable[[], T]) -> T:
    """Do it, and again while a query ended for nothing but that."""
    for _ in range(TRIES - 1):
        try:
            return start()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
    return start()
