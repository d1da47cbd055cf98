"""How long something is tried again: growing pauses, within the caller's patience; and what is raised in the end."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.client.pauses import Pauses
from fairlead.errors import ConnectionLost, DuplicateInstance, FairleadError, OutOfOrder, RemoteProtocolError

__all__ = ["Attempts", "is_passing"]


def is_passing(error: Exception) -> bool:
    """May another try help? Also when rubbish came, or rows before those they follow: another line, another try."""
    if isinstance(error, FairleadError):
        return error.retryable or isinstance(error, (RemoteProtocolError, DuplicateInstance, OutOfOrder))
    return isinstance(error, OSError)


class Attempts:
    """`random` gives a number from 0 to 1."""

    def __init__(self, patience_s: float, now_s: float, random: Callable[[], float]) -> None:
        self._patience_s = patience_s
        self._random = random
        self._pauses = Pauses(random)
        self.until_s = now_s + patience_s
        self._begun_s = now_s
        self._attempt_s = now_s
        self._before: Exception | None = None
        self._failed = 0

    def on_progress(self, now_s: float) -> None:
        """Something came of it: patience begins anew."""
        self.until_s = now_s + self._patience_s
        self._pauses = Pauses(self._random)
        self._before = None

    def on_failed(self, error: Exception, now_s: float) -> float:
        """Seconds to wait before the next attempt; or the error is raised, and says how often it was tried."""
        self._failed += 1
        if not is_passing(error):
            raise error
        if self._before is not None and self._was_cut_short(now_s):
            raise self._last(self._before, now_s) from error
        pause_s = self._pauses.next_s()
        if now_s + pause_s >= self.until_s:
            raise self._last(error, now_s) from error
        self._before, self._attempt_s = error, now_s + pause_s
        return pause_s

    def _was_cut_short(self, now_s: float) -> bool:
        """Did the attempt end with the patience, after a small part of it? What ended the one before tells more."""
        return now_s >= self.until_s and now_s - self._attempt_s < self._patience_s / 2

    def _last(self, error: Exception, now_s: float) -> FairleadError:
        times = "once" if self._failed == 1 else f"{self._failed} times"
        text = f"{error} (Tried {times} in {now_s - self._begun_s:.1f} s.)"
        if not isinstance(error, FairleadError):
            return ConnectionLost(text)
        kind = type(error) if type(error).__init__ is FairleadError.__init__ else FairleadError
        return kind(text, code=error.code)
