"""A live update: every state, every input, and a world in which the processes die at any moment."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.runtime.update import DEADLINES_S, TERMINAL, TRANSITIONS, Effect, Input, State, Update


def update_in(state: State) -> Update:
    update = Update(100.0, ready_s=10, parked_s=7)
    update.state = state
    return update


@pytest.mark.parametrize(("state", "what"), list(product(State, Input)))
def test_every_state_answers_every_input(state: State, what: Input) -> None:
    update = update_in(state)
    effects = update.on(what, 200.0)
    if (state, what) in TRANSITIONS:
        assert (update.state, effects) == TRANSITIONS[state, what]
    else:
        assert (update.state, effects) == (state, ())


def test_no_state_but_the_last_two_lasts_for_ever() -> None:
    for state in State:
        assert (state in TERMINAL) != (state in DEADLINES_S)
        assert (state in TERMINAL) != ((state, Input.TIMEOUT) in TRANSITIONS)


def test_every_state_can_be_reached_and_every_effect_happens() -> None:
    reached, effects = {State.STARTING}, set()
    for state, done in TRANSITIONS.values():
        reached.add(state)
        effects.update(done)
    assert reached == set(State)
    assert effects == set(Effect)


def test_the_usual_course() -> None:
    update = Update(0.0, ready_s=10, parked_s=7)
    assert update.on(Input.NEW_READY, 1.0) == (Effect.PARK_OLD,)
    assert update.on(Input.OLD_PARKED, 1.001) == (Effect.ACTIVATE_NEW,)
    assert not update.decided
    assert update.on(Input.NEW_ACTIVE, 1.002) == (Effect.REPORT_DONE,)
    assert update.decided
    assert not update.over
    assert update.on_tick(8.0) == ()
    assert update.on_tick(8.002) == (Effect.STOP_OLD, Effect.RENEW_SPARE)
    assert update.state is State.DONE
    assert update.on_tick(99.0) == ()


@pytest.mark.requirement("SRV-92")
def test_a_successor_that_is_never_ready_changes_nothing() -> None:
    update = Update(0.0, ready_s=10, parked_s=7)
    assert update.on_tick(9.9) == ()
    assert update.on_tick(10.0) == (Effect.KILL_NEW, Effect.REPORT_FAILED)
    assert update.state is State.FAILED


def test_an_old_one_that_does_not_park_is_reaped_before_the_new_one_serves() -> None:
    update = update_in(State.PARKING)
    update.deadline_s = 102.0
    assert update.on_tick(102.0) == (Effect.KILL_OLD,)
    assert update.on_tick(103.0) == ()
    assert update.on_tick(104.0) == (Effect.KILL_OLD,)  # it takes its time to die: a new deadline each time
    assert update.on(Input.OLD_DIED, 104.5) == (Effect.ACTIVATE_NEW,)


class World:
    """Three processes that do what they are told, or die; each serves between `activate` and `parked` or death."""

    def __init__(self) -> None:
        self.update = Update(0.0, ready_s=10, parked_s=10)
        self.now_s = 0.0
        self.alive = {"old": True, "new": True, "spare": True}
        self.serving = {"old"}
        self.asked: set[str] = set()
        self.events: list[Input] = []
        self.reports: list[Effect] = []
        self.old = "old"

    def perform(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case Effect.PARK_OLD:
                    self.events.append(Input.OLD_PARKED)
                case Effect.ACTIVATE_NEW:
                    self.activate("new", Input.NEW_ACTIVE)
                case Effect.ACTIVATE_OLD:
                    self.events = [one for one in self.events if one is not Input.OLD_PARKED]
                    self.activate(self.old, Input.OLD_ACTIVE)
                case Effect.ACTIVATE_SPARE:
                    self.old = "spare"
                    self.alive["spare"] = True  # the edge starts one if there is none
                    self.activate("spare", Input.OLD_ACTIVE)
                case Effect.KILL_OLD:
                    self.die(self.old)
                case Effect.KILL_NEW:
                    self.die("new")
                case Effect.STOP_OLD:
                    assert self.old not in self.serving
                    self.die(self.old)
                case Effect.RENEW_SPARE:
                    pass
                case Effect.REPORT_DONE | Effect.REPORT_FAILED:
                    self.reports.append(effect)
        assert len(self.serving) <= 1, f"two serve at once in {self.update.state}: {self.serving}"

    def activate(self, who: str, answer: Input) -> None:
        assert self.serving <= {who}, f"{who} is activated while {self.serving} serves"
        if self.alive[who]:
            self.serving = {who}
            self.events.append(answer)

    def die(self, who: str) -> None:
        if self.alive[who]:
            self.alive[who] = False
            self.serving.discard(who)
            self.events.append(Input.NEW_DIED if who == "new" else Input.OLD_DIED)

    def deliver(self) -> None:
        what = self.events.pop(0)
        if what is Input.OLD_PARKED:
            if not self.alive[self.old]:
                return
            self.serving.discard(self.old)
        if what is Input.NEW_ACTIVE and not self.alive["new"]:
            return
        if what is Input.OLD_ACTIVE and not self.alive[self.old]:
            return
        self.perform(self.update.on(what, self.now_s))

    def pass_time(self) -> None:
        self.now_s = max(self.now_s, self.update.deadline_s)
        self.perform(self.update.on_tick(self.now_s))


STEPS = st.sampled_from(["deliver", "deliver", "time", "kill old", "kill new", "new ready"])


@settings(max_examples=500)
@given(st.lists(STEPS, max_size=30))
def test_whatever_dies_whenever_one_serves_in_the_end_and_never_two(steps: list[str]) -> None:
    world = World()
    for step in [*steps, "settle"]:
        if world.update.over:
            break
        match step:
            case "deliver" if world.events:
                world.deliver()
            case "time":
                world.pass_time()
            case "kill old":
                world.die(world.old)
            case "kill new":
                world.die("new")
            case "new ready" if world.alive["new"]:
                world.perform(world.update.on(Input.NEW_READY, world.now_s))
    for _ in range(40):
        while world.events and not world.update.over:
            world.deliver()
        if world.update.over:
            break
        world.pass_time()
    assert world.update.over
    assert world.reports, "the operator is told"
    dead_afterwards = not world.alive["new"] and world.update.state is State.DONE
    assert len(world.serving) == 1 or dead_afterwards or Input.OLD_DIED in world.events
