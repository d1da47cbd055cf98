"""Is a process frozen? It is when it has work before it and makes no progress for `frozen_s`.

Neither idleness nor a long queue is a sign of it: only work *and* standstill, seen at every look for the whole time.
"""

from __future__ import annotations


class Watch:
    """One process, looked at now and then."""

    def __init__(self, frozen_s: float) -> None:
        self._frozen_s = frozen_s
        self._progress: int | None = None
        self._since_s = 0.0

    def look(self, progress: int, has_work: bool, now_s: float) -> bool:
        """True when it is frozen; it is asked about anew from then on."""
        if not has_work or progress != self._progress:
            self._progress = progress
            self._since_s = now_s
            return False
        if now_s - self._since_s < self._frozen_s:
            return False
        self._progress = None
        return True
