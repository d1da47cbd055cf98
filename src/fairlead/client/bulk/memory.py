"""Memory for batches, used again once nobody looks at a batch any more.

Getting megabytes from the system and clearing them costs more than receiving what goes there. Whether anybody still
looks is what the buffer protocol knows: a bytearray that is looked at refuses to change its size.
"""

from __future__ import annotations

__all__ = ["Memory"]

KEPT_MAX = 4
STEP_BYTES = 1 << 18  # sizes differ a little from batch to batch


class Memory:
    """Of one scan."""

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """So many bytes that nobody else has; what is in them is of no account."""
        for buffer in self._kept:
            if len(buffer) >= size and _is_free(buffer):
                return memoryview(buffer)[:size]
        buffer = bytearray(-(-size // STEP_BYTES) * STEP_BYTES)
        self._kept = [*self._kept[1 - KEPT_MAX :], buffer]
        return memoryview(buffer)[:size]


def _is_free(buffer: bytearray) -> bool:
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
