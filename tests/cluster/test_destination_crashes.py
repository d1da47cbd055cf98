"""Random work with crashes at every point: the books agree, a restart finds all there was, planted bugs are noticed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from fairlead.cluster import dispatch, intake, records
from fairlead.cluster.cursor import Cursor
from fairlead.cluster.destination import Destination

from .rig import Rig, text, texts
from .simulation import Simulation, caught

KINDS = ("queue", "topic", "keys", "priorities")


@pytest.mark.requirement("CLU-14", "CLU-25", "CLU-118", "CLU-125", "CLU-134", "CLU-155")
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_confirmed_is_lost_and_nothing_settled_comes_back(kind: str) -> None:
    assert caught(kind, range(60), 150) is None


class Crashes(RuleBasedStateMachine):
    """The same, with steps and crash points chosen by hypothesis."""

    @initialize(kind=st.sampled_from(KINDS), seed=st.integers(0, 1 << 16))
    def begin(self, kind: str, seed: int) -> None:
        self.simulation = Simulation(kind, seed)

    @rule(name=st.sampled_from(Simulation.STEPS))
    def step(self, name: str) -> None:
        getattr(self.simulation, name)()

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.finish()


TestCrashes = Crashes.TestCase
TestCrashes.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)


def lasting(destination: Destination) -> dict[str, Any]:
    """What a restart must find again; what was handed out may count as delivered."""
    state = destination.snapshot()
    for cursor in state["cursors"]:
        for name in ("again_below", "counts", "mark"):
            del cursor[name]
    for name in ("index", "low", "first", "consumed", "recent", "bytes", "kept_bytes"):
        del state[name]
    return state


@pytest.mark.requirement("CLU-134")
@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_by_records_or_by_checkpoint_finds_the_same(kind: str) -> None:
    for seed in range(15):
        simulation = Simulation(kind, seed)
        for step in range(80):
            getattr(simulation, simulation.rng.choice(Simulation.STEPS))()
            if step == 40:
                simulation.snapshot()
        for number in list(simulation.transactions):
            simulation._abort(number)
        rig = simulation.rig
        checkpoint = simulation.checkpoint
        rig.run()
        if checkpoint is not None and checkpoint[0] > len(rig.log):
            checkpoint = None
        live, plain, quick = rig, rig.crash(), rig.crash(checkpoint)
        for name in ("d", "_DMQ"):
            before = lasting(live.destinations[name])
            before["parts"] = []
            assert lasting(plain.destinations[name]) == before
            assert lasting(quick.destinations[name]) == before


def no_mark(simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    def mark(home: Destination, cursor: Cursor, shares: object) -> None:
        cursor.mark = cursor.mark_safe = home.next  # and nothing is written

    monkeypatch.setattr(dispatch, "_mark", mark)


def confirm_too_early(simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rig, "after", lambda self, index, action, *, patient=False: action())


def forget_resend_keys(simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_again", lambda *_: None)
    monkeypatch.setattr(
        Destination, "accepted", lambda self, session, first, count, order: session.accepted.pop(self.number, None)
    )


def lose_acknowledgements(simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Rig.append

    def without_settle(self: Rig, kind: int, head: bytes, payload: bytes = b"") -> tuple[int, int]:
        return append(self, 0 if kind == records.SETTLE else kind, head, payload)

    monkeypatch.setattr(Rig, "append", without_settle)


def lock_nothing(simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    hand = dispatch._hand

    def leave_ready(
        home: Any, cursor: Cursor, share: Any, priority: int, low: int, high: int, *rest: Any, **more: Any
    ) -> None:
        hand(home, cursor, share, priority, low, high, *rest, **more)
        cursor.open(low, high, priority)

    monkeypatch.setattr(dispatch, "_hand", leave_ready)


def keys_for_anybody(simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.cluster.groups.Groups.choose", lambda self, key, order, share, can_take: share)


def counts_forgotten(simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cursor, "count", lambda self, order: 0)


PLANTS: list[tuple[str, Callable[[Simulation, pytest.MonkeyPatch], None]]] = [
    ("queue", no_mark),
    ("queue", confirm_too_early),
    ("queue", forget_resend_keys),
    ("topic", lose_acknowledgements),
    ("queue", lock_nothing),
    ("keys", keys_for_anybody),
    ("queue", counts_forgotten),
]


@pytest.mark.parametrize(("kind", "plant"), PLANTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_planted_bug_is_noticed(
    kind: str, plant: Callable[[Simulation, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert caught(kind, range(80), 150, partial(_plant, plant, monkeypatch)) is not None


def _plant(plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch, simulation: Simulation) -> None:
    monkeypatch.undo()
    plant(simulation, monkeypatch)


@pytest.mark.requirement("CLU-134")
def test_a_checkpoint_holds_everything_out_of_the_ordinary() -> None:
    rig = Rig()
    queue = rig.make("q", redelivery_delay_s=5)
    producer = rig.producer(queue)
    rig.send(producer, *(text(n, priority=n % 10, ttl_ms=60_000 * (n % 2), delay_ms=1000 * (n % 3)) for n in range(30)))
    consumer = rig.consumer(queue, 5)
    rig.run()
    rig.retry(consumer, rig.take(consumer)[:3])
    queue.lost(consumer)
    rig.send(producer, texts(range(3)), transaction=9, first=1)
    checkpoint = rig.snapshots()
    rig.run()
    new = rig.crash(checkpoint)
    before, after = lasting(queue), lasting(new.destinations["q"])
    before["parts"] = []
    assert after == before
    assert new.destinations["q"].bytes == queue.bytes
    new.wait(120_000)
    assert new.destinations["q"].depth == 15
