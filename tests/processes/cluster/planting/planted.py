"""The bugs, each as a patch of the code that does it right. See `tests/processes/cluster/plants.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fairlead.cluster import intake
from fairlead.cluster.edge.member_store import MemberStore
from fairlead.cluster.replication.member import Member
from fairlead.cluster.replication.rules import ALL_RULES


def plant(name: str) -> None:
    globals()[name]()


def _without(**rules: bool) -> None:
    """Every member of this node does without a rule of safety."""
    defaults = Member.__init__.__kwdefaults__
    assert defaults is not None
    defaults["rules"] = replace(ALL_RULES, **rules)


def confirm_alone() -> None:
    _without(count_copies=False)


def skip_epoch_check() -> None:
    _without(check_epoch=False)


def _when_it_leads(spoil: Callable[[Any], None]) -> None:
    right = MemberStore.lead

    def lead(self: MemberStore, epoch: int) -> None:
        right(self, epoch)
        spoil(self.core)

    MemberStore.lead = lead  # type: ignore[method-assign]


def forget_resend_keys() -> None:
    right = intake.store
    forgotten: set[tuple[bytes, int]] = set()

    def spoil(core: Any) -> None:
        for session in core.sessions.by_id.values():
            forgotten.update((session.id, number) for number in session.accepted)
            session.accepted.clear()

    def store(home: Any, producer: Any, first: int, *rest: Any) -> None:
        if (producer.session.id, home.number) in forgotten:
            forgotten.discard((producer.session.id, home.number))
            producer.session.accepted[home.number] = first - 1  # whatever comes first is new
        right(home, producer, first, *rest)

    intake.store = store  # type: ignore[assignment]
    _when_it_leads(spoil)


def roll_back_prepared() -> None:
    def spoil(core: Any) -> None:
        for one in list(core.prepared.by_key.values()):
            core.decisions.roll_back(one)

    _when_it_leads(spoil)
