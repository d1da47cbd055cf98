"""Whether, and when, a child that ended is started again.

Only *quick* ends count against it: never ready, or gone within seconds of being ready. They are tried again with
doubling pauses and then no more, so a child that cannot boot is not retried for ever. A kill from outside of a
child that had been ready says nothing about the program and is answered at once, however often it happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CANNOT_START: Final = 3  # a child's exit status: bad layout, bad configuration
REFUSED: Final = 4  # the same: its configuration is not that of the other nodes, and trying again changes nothing
KILLED: Final = (-9, -15)  # SIGKILL, SIGTERM: not by its own doing
QUICK_S: Final = 2.0  # a shorter life after `ready` is a quick end
QUICK_ENDS_MAX: Final = 6
CANNOT_STARTS_MAX: Final = 3
PAUSE_FIRST_S: Final = 0.1
PAUSE_LAST_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Start:
    """Start another one after a pause; `attempts` quick ends in a row are to be remembered."""

    after_s: float
    attempts: int


@dataclass(frozen=True, slots=True)
class Halt:
    """Do not start it again."""

    reason: str


def on_exit(status: int, lived_s: float, attempts: int) -> Start | Halt:
    """What to do about an end nobody asked for.

    `status` is negative for a signal; `lived_s` counts from `ready` (0: it never was); `attempts` are the quick ends
    so far.
    """
    if status == REFUSED:
        return Halt("its configuration is not that of the other nodes")
    was_ready = lived_s > 0
    if lived_s >= QUICK_S or (was_ready and status in KILLED):
        return Start(0.0, 0)
    attempts += 1
    if status == CANNOT_START and not was_ready:
        if attempts >= CANNOT_STARTS_MAX:
            return Halt(f"it could not start, {attempts} times in a row")
        return Start(PAUSE_LAST_S, attempts)
    if attempts >= QUICK_ENDS_MAX:
        return Halt(f"it ended {attempts} times in a row as soon as it was started (last {describe(status)})")
    return Start(min(PAUSE_FIRST_S * 2 ** (attempts - 1), PAUSE_LAST_S), attempts)


def describe(status: int) -> str:
    """A status in words."""
    return f"by signal {-status}" if status < 0 else f"with status {status}"
