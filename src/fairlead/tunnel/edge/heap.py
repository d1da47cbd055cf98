"""Bodies come and go by the megabyte: memory that is handed back each time costs more than all that is done with them.

glibc keeps as much freed memory as the program was seen to free in one piece, twice over, and gives the rest back to
the system page by page. So it is shown one large piece, of which no page is ever touched. Elsewhere this does nothing.
"""

from __future__ import annotations

from functools import cache

__all__ = ["keep_freed_memory"]

SHOWN_BYTES = 8 << 20


@cache
def keep_freed_memory() -> None:
    """From now on up to 16 MiB that were freed wait for the next body. Once per process."""
    bytes(SHOWN_BYTES)
