"""What the client driver makes of answers and failures: pure decisions, taken one at a time.

HTTP failures are packet loss (TUN-35). Only a gateway's own word ends a tunnel; a proxy's page, whatever its number, is
weather. What certainly never arrived (503, 413, no connection) was not sent and may be sent again.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from math import isfinite

from fairlead.tunnel.packets import PAYLOAD_MAX
from fairlead.tunnel.rules import BODY_MAX, HOLD_S

__all__ = [
    "PACKETS",
    "Backoff",
    "BodyLimit",
    "Hold",
    "Outage",
    "Patience",
    "StreamPauses",
    "Verdict",
    "judge",
    "pull_pause_s",
    "retry_after_s",
]

PACKETS = "application/octet-stream"
RETRY_AFTER_MAX_S = 10.0


class Verdict(Enum):
    TAKE = "take"
    """The gateway has it; the body holds packets, or nothing."""
    LOSS = "loss"
    """Perhaps it arrived, perhaps not."""
    LATER = "later"
    """It did not arrive: not now (503, 429)."""
    SMALLER = "smaller"
    """It did not arrive: too much at once (413)."""
    GONE = "gone"
    """The tunnel has ended (410)."""
    DENIED = "denied"
    """The token is not that of the tunnel (401, 403)."""
    PROXY_LOGIN = "proxy-login"
    """A proxy on the way wants a login (407)."""


def judge(status: int, content_type: str, body_bytes: int) -> Verdict:
    """What an answer to a push or a pull means (TUN-36). `content_type` is lower case, without parameters."""
    ours = content_type == PACKETS or not (content_type or body_bytes)
    if status == 407:
        return Verdict.PROXY_LOGIN
    if status == 413:
        return Verdict.SMALLER
    if status in (429, 503):
        return Verdict.LATER
    if not ours:
        return Verdict.LOSS
    if status == 200:
        return Verdict.TAKE
    if status == 410:
        return Verdict.GONE
    if status in (401, 403):
        return Verdict.DENIED
    return Verdict.LOSS


def retry_after_s(text: str) -> float | None:
    """What Retry-After says, in seconds; None for a date and for nonsense."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return min(max(seconds, 0.0), RETRY_AFTER_MAX_S) if isfinite(seconds) else None


def pull_pause_s(pull_period_s: float, *, was_empty: bool) -> float:
    """How long to sleep between two pulls (TUN-30)."""
    return pull_period_s if was_empty and pull_period_s > 0 else 0.0


class Backoff:
    """Growing pauses after failures, between half and all of their turn. `random` gives a number from 0 to 1."""

    FIRST_S, LONGEST_S = 0.1, 3.0

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._turn_s = self.FIRST_S

    def next_s(self, at_least_s: float | None = None) -> float:
        """`at_least_s` is what the other side asked for, and then this is about that long."""
        turn_s = self._turn_s
        self._turn_s = min(turn_s * 2, self.LONGEST_S)
        chance = self._random()
        if at_least_s:
            return at_least_s * (1 + chance / 4)
        return turn_s * (0.5 + chance / 2)

    def well(self) -> None:
        self._turn_s = self.FIRST_S


class Outage:
    """Whether the way was shut: nothing but failures for a while. Single failures among successes are just loss."""

    LEAST_S = 0.5

    def __init__(self) -> None:
        self._since_s: float | None = None

    def failed(self, now_s: float) -> None:
        if self._since_s is None:
            self._since_s = now_s

    def well(self, now_s: float) -> bool:
        """Is the way open again with this, after it was shut?"""
        since_s, self._since_s = self._since_s, None
        return since_s is not None and now_s - since_s >= self.LEAST_S


class BodyLimit:
    """How much one push may hold: halved at every 413, at last one packet a push (TUN-23)."""

    TRIES_MAX = 5

    def __init__(self, limit: int = BODY_MAX, payload_max: int = PAYLOAD_MAX) -> None:
        self.bytes = limit
        self._least = min(payload_max + 64, limit)
        self._failed = 0

    def on_too_large(self, body_bytes: int) -> None:
        self.bytes = max(min(self.bytes, body_bytes) // 2, self._least)
        self._failed = self._failed + 1 if body_bytes <= self._least else 0

    def on_taken(self) -> None:
        self._failed = 0

    @property
    def is_hopeless(self) -> bool:
        """Not even a single packet is let through."""
        return self._failed >= self.TRIES_MAX


class Hold:
    """How long to let the gateway hold a pull: halved when pulls are cut off, tried longer after many whole ones."""

    LEAST_S = 1.0
    GROW_AFTER = 64

    def __init__(self, wanted_s: float = HOLD_S) -> None:
        self._wanted_s = wanted_s
        self._whole = 0
        self.s = wanted_s

    def want(self, wanted_s: float) -> None:
        if wanted_s != self._wanted_s:
            self._wanted_s = self.s = wanted_s
            self._whole = 0

    def on_failure(self, after_s: float) -> None:
        """A pull was cut off or answered by somebody else, so long after it was sent."""
        self._whole = 0
        if after_s >= min(self.LEAST_S, self.s):  # else it was no matter of waiting
            self.s = max(self.s / 2, min(self.LEAST_S, self._wanted_s))

    def on_whole(self) -> None:
        """A pull was held to the end and came back empty."""
        self._whole += 1
        if self._whole >= self.GROW_AFTER:
            self._whole = 0
            self.s = min(self.s * 2, self._wanted_s)


class Patience:
    """For how long a request may make no progress: doubled when that was not enough, for slow lines."""

    LONGEST_S = 60.0

    def __init__(self, first_s: float = 5.0) -> None:
        self._first_s = self.s = first_s

    def on_timeout(self) -> None:
        self.s = min(self.s * 2, self.LONGEST_S)

    def well(self) -> None:
        self.s = self._first_s


class StreamPauses:
    """When to try a WebSocket again: soon after a cut of one that worked, ever more rarely where it is refused."""

    SOON_S, REFUSED_S, LONGEST_S = 1.0, 30.0, 900.0
    PROVEN_S = 60.0

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._turn_s = 0.0

    def next_s(self, worked_s: float) -> float:
        """`worked_s`: how long the last one was in use; 0: it never was."""
        if worked_s >= self.PROVEN_S:
            self._turn_s = 0.0
        least_s = self.SOON_S if worked_s else self.REFUSED_S
        turn_s = max(self._turn_s, least_s)
        self._turn_s = min(2 * turn_s, self.LONGEST_S)
        return turn_s * (0.75 + self._random() / 2)
