"""Connections that tasks of one Python worker share: it serves task after task, and a login is not free."""

from __future__ import annotations

import os

from fairlead.client.bulk import BulkConnection
from fairlead.pipeline.options import Access

__all__ = ["line"]

LINES_MAX = 8

_lines: dict[tuple[int, Access], BulkConnection] = {}


def line(access: Access) -> BulkConnection:
    """This process's connection there. A worker runs one task at a time; a forked one makes its own."""
    here = (os.getpid(), access)
    if here not in _lines:
        while len(_lines) >= LINES_MAX:
            oldest = next(iter(_lines))
            connection = _lines.pop(oldest)
            if oldest[0] == here[0]:
                connection.close()
        _lines[here] = access.connect()
    return _lines[here]
