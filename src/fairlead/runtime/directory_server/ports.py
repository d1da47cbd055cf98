"""Ports for directory servers on one host: each needs two in a row on the bus."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Final

TRIES: Final = 1000


def free_pairs(count: int) -> list[int]:
    """Ports nobody has just now, nor the ones above them."""
    with ExitStack() as held:
        found: list[int] = []
        for _ in range(TRIES):
            if len(found) == count:
                return found
            low = held.enter_context(socket.socket())
            low.bind(("127.0.0.1", 0))
            port = int(low.getsockname()[1])
            high = held.enter_context(socket.socket())
            try:
                high.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            found.append(port)
    raise OSError(f"there are no {count} pairs of free ports")
