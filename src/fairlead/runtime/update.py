"""A live update of router or dispatcher, from the command to the standby of the new version (docs/processes.md).

Three processes play: the *old* one that serves, the *new* one that shall, and the *spare*, the warm standby of the
old version. Whatever fails at whatever moment, one of them ends up serving, and never two at once: who has served is
parked or reaped before another is activated.

`TRANSITIONS` is the whole machine: (state, input) to (next state, effects in order). What is not in it changes
nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    STARTING = "starting"  # the new one loads; the old one serves
    PARKING = "parking"  # the old one finishes at a message boundary; from here clients wait
    KILLING = "killing"  # the old one did not park: it is being killed and reaped
    REAPING = "reaping"  # the same, and the new one has died meanwhile
    ACTIVATING = "activating"  # the new one takes over; the old one is parked
    ACTIVATING_ALONE = "activating alone"  # the new one takes over; the old one is dead
    REVOKING = "revoking"  # the new one did not take over in time: it is being killed and reaped
    REVOKING_ALONE = "revoking alone"  # the same, the old one being dead
    RETURNING = "returning"  # the old one takes over again
    SETTLING = "settling"  # the new one serves; the old one stays parked for a while
    DONE = "done"
    FAILED = "failed"


class Input(Enum):
    NEW_READY = "new ready"
    NEW_ACTIVE = "new active"
    NEW_DIED = "new died"
    OLD_PARKED = "old parked"
    OLD_ACTIVE = "old active"
    OLD_DIED = "old died"
    TIMEOUT = "timeout"


class Effect(Enum):
    PARK_OLD = "park the old one"
    ACTIVATE_NEW = "activate the new one"
    ACTIVATE_OLD = "activate the old one again"
    ACTIVATE_SPARE = "activate the standby of the old version"
    KILL_OLD = "kill the old one"
    KILL_NEW = "kill the new one"
    STOP_OLD = "stop the old one"
    RENEW_SPARE = "replace the standby by one of the version that serves now"
    REPORT_DONE = "report the update as done"
    REPORT_FAILED = "report that the old version goes on"


TERMINAL: Final = frozenset({State.DONE, State.FAILED})

# How long each state may last before it gets a TIMEOUT; None is "as configured": ready_s, parked_s.
DEADLINES_S: Final[dict[State, float | None]] = {
    State.STARTING: None,
    State.PARKING: 2.0,
    State.KILLING: 2.0,
    State.REAPING: 2.0,
    State.ACTIVATING: 5.0,
    State.ACTIVATING_ALONE: 5.0,
    State.REVOKING: 2.0,
    State.REVOKING_ALONE: 2.0,
    State.RETURNING: 5.0,
    State.SETTLING: None,
}

_S, _I, _E = State, Input, Effect
TRANSITIONS: Final[dict[tuple[State, Input], tuple[State, tuple[Effect, ...]]]] = {
    (_S.STARTING, _I.NEW_READY): (_S.PARKING, (_E.PARK_OLD,)),
    (_S.STARTING, _I.NEW_DIED): (_S.FAILED, (_E.REPORT_FAILED,)),
    (_S.STARTING, _I.TIMEOUT): (_S.FAILED, (_E.KILL_NEW, _E.REPORT_FAILED)),
    # The old one dies of itself while the new one loads: its standby serves, and is from now on "the old one".
    (_S.STARTING, _I.OLD_DIED): (_S.STARTING, (_E.ACTIVATE_SPARE,)),
    (_S.PARKING, _I.OLD_PARKED): (_S.ACTIVATING, (_E.ACTIVATE_NEW,)),
    (_S.PARKING, _I.OLD_DIED): (_S.ACTIVATING_ALONE, (_E.ACTIVATE_NEW,)),
    (_S.PARKING, _I.NEW_DIED): (_S.RETURNING, (_E.ACTIVATE_OLD,)),
    (_S.PARKING, _I.TIMEOUT): (_S.KILLING, (_E.KILL_OLD,)),
    (_S.KILLING, _I.OLD_DIED): (_S.ACTIVATING_ALONE, (_E.ACTIVATE_NEW,)),
    (_S.KILLING, _I.NEW_DIED): (_S.REAPING, ()),
    (_S.KILLING, _I.TIMEOUT): (_S.KILLING, (_E.KILL_OLD,)),
    (_S.REAPING, _I.OLD_DIED): (_S.FAILED, (_E.ACTIVATE_SPARE, _E.REPORT_FAILED)),
    (_S.REAPING, _I.TIMEOUT): (_S.REAPING, (_E.KILL_OLD,)),
    (_S.ACTIVATING, _I.NEW_ACTIVE): (_S.SETTLING, (_E.REPORT_DONE,)),
    (_S.ACTIVATING, _I.NEW_DIED): (_S.RETURNING, (_E.ACTIVATE_OLD,)),
    (_S.ACTIVATING, _I.OLD_DIED): (_S.ACTIVATING_ALONE, ()),
    (_S.ACTIVATING, _I.TIMEOUT): (_S.REVOKING, (_E.KILL_NEW,)),
    (_S.ACTIVATING_ALONE, _I.NEW_ACTIVE): (_S.DONE, (_E.REPORT_DONE, _E.RENEW_SPARE)),
    (_S.ACTIVATING_ALONE, _I.NEW_DIED): (_S.FAILED, (_E.ACTIVATE_SPARE, _E.REPORT_FAILED)),
    (_S.ACTIVATING_ALONE, _I.TIMEOUT): (_S.REVOKING_ALONE, (_E.KILL_NEW,)),
    (_S.REVOKING, _I.NEW_DIED): (_S.RETURNING, (_E.ACTIVATE_OLD,)),
    (_S.REVOKING, _I.OLD_DIED): (_S.REVOKING_ALONE, ()),
    (_S.REVOKING, _I.TIMEOUT): (_S.REVOKING, (_E.KILL_NEW,)),
    (_S.REVOKING_ALONE, _I.NEW_DIED): (_S.FAILED, (_E.ACTIVATE_SPARE, _E.REPORT_FAILED)),
    (_S.REVOKING_ALONE, _I.TIMEOUT): (_S.REVOKING_ALONE, (_E.KILL_NEW,)),
    (_S.RETURNING, _I.OLD_ACTIVE): (_S.FAILED, (_E.REPORT_FAILED,)),
    (_S.RETURNING, _I.OLD_DIED): (_S.FAILED, (_E.ACTIVATE_SPARE, _E.REPORT_FAILED)),
    (_S.RETURNING, _I.TIMEOUT): (_S.RETURNING, (_E.KILL_OLD,)),
    # The new one served, and dies within the time the old one is kept for exactly that.
    (_S.SETTLING, _I.NEW_DIED): (_S.RETURNING, (_E.ACTIVATE_OLD,)),
    (_S.SETTLING, _I.OLD_DIED): (_S.DONE, (_E.RENEW_SPARE,)),
    (_S.SETTLING, _I.TIMEOUT): (_S.DONE, (_E.STOP_OLD, _E.RENEW_SPARE)),
}


class Update:
    """One update under way. Told what happened, it answers with what to do, in order."""

    def __init__(self, now_s: float, *, ready_s: float, parked_s: float) -> None:
        self._ready_s = ready_s
        self._parked_s = parked_s
        self.state = State.STARTING
        self.deadline_s = now_s + ready_s

    @property
    def over(self) -> bool:
        return self.state in TERMINAL

    @property
    def decided(self) -> bool:
        """Is it known which version serves from now on?"""
        return self.over or self.state is State.SETTLING

    def on(self, what: Input, now_s: float) -> tuple[Effect, ...]:
        """Something happened."""
        if (self.state, what) not in TRANSITIONS:
            return ()
        before = self.state
        self.state, effects = TRANSITIONS[self.state, what]
        if self.state not in TERMINAL and (self.state is not before or what is Input.TIMEOUT):
            seconds = DEADLINES_S[self.state]
            if seconds is None:
                seconds = self._ready_s if self.state is State.STARTING else self._parked_s
            self.deadline_s = now_s + seconds
        return effects

    def on_tick(self, now_s: float) -> tuple[Effect, ...]:
        """Time has passed."""
        if self.over or now_s < self.deadline_s:
            return ()
        return self.on(Input.TIMEOUT, now_s)
