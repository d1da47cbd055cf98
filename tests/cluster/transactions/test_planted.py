"""Faults of the kind these tests are for, planted one by one: each is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.cluster.client_manager.coordinator import Commit, Coordinator, Effect, Phase
from fairlead.cluster.core import Core
from fairlead.cluster.decisions import Decisions
from fairlead.cluster.parts import Parts
from fairlead.cluster.prepared import Preparations, Prepared
from tests.cluster.transactions.money import play
from tests.cluster.transactions.world import World

Plant = Callable[[pytest.MonkeyPatch], None]


def everybody_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """FINAL goes to all groups at once."""

    def final(self: Coordinator, one: Commit, now_s: float) -> list[Effect]:
        self._enter(one, Phase.SPREADING, now_s, self.final_s)
        return self._push(one, one.parts, now_s)

    monkeypatch.setattr(Coordinator, "_final", final)
    monkeypatch.setattr(World, "_check_order", lambda self: None)  # it has to show in what became of the money


def forgotten_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decider forgets its commits after a second."""
    look = Decisions._look

    def forget(self: Decisions) -> None:
        self.unfinished.clear()
        self._known.clear()
        self._core.transactions._ended.clear()
        look(self)

    monkeypatch.setattr(Decisions, "_look", forget)


def rolled_back_at_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was prepared is over after a restart, as everything else that was open."""

    def forget(self: Preparations) -> None:
        self.by_id.clear()
        self.by_key.clear()

    monkeypatch.setattr(Parts, "recovered", lambda self: self._open.clear())
    monkeypatch.setattr(Preparations, "recovered", forget)


def before_it_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    """READY, COMMITTED and everything else is said before it is safe."""
    monkeypatch.setattr(Core, "after", lambda self, index, action, patient=False: action())


def decides_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A participant in doubt rolls back."""

    def doubt(self: Decisions, one: Prepared) -> None:
        if one.id in self._core.prepared.by_id:
            self.roll_back(one)

    monkeypatch.setattr(Decisions, "_doubt", doubt)


def rollback_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback of what was prepared is not understood when it is read again."""
    monkeypatch.setattr(Preparations, "apply_rollback", lambda self, one, wants: self.ended(one))


def abandons_after_final(monkeypatch: pytest.MonkeyPatch) -> None:
    """An abandoned part is rolled back at once, and a coordinator abandons although FINAL was sent."""
    lost = Coordinator.lost

    def give_up(self: Coordinator, group: str, now_s: float) -> list[Effect]:
        effects = lost(self, group, now_s)
        for one in [commit for commit in self._commits.values() if commit.phase is Phase.FINAL]:
            effects += self._tell_aborted(one)
        return effects

    monkeypatch.setattr(Coordinator, "lost", give_up)


@pytest.mark.parametrize(
    "plant",
    [
        *(everybody_first, forgotten_early, rolled_back_at_recovery, before_it_is_safe, decides_alone),
        *(rollback_unread, abandons_after_final),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(500):
            play(tmp_path / str(seed), seed)
