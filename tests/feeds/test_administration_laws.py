"""The laws hold under everything that can happen, and mistakes in the code break one of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from fairlead.feeds.administration.adapters import AdapterDesk
from fairlead.feeds.administration.clients import ClientDesk
from fairlead.feeds.administration.group import Group
from fairlead.feeds.administration.office import Office
from fairlead.feeds.administration.passes import Passes
from fairlead.feeds.administration.roles import Roles

from .administration_laws import Upheaval

QUIET: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


@pytest.mark.requirement("STR-5", half="the machine, under everything that can happen to it")
@pytest.mark.requirement("STR-7", half="the machine, under everything that can happen to it")
def test_the_administration_keeps_its_laws() -> None:
    run_state_machine_as_test(Upheaval, settings=settings(max_examples=100, stateful_step_count=30, **QUIET))


def nothing(*arguments: Any, **more: Any) -> None:
    """What a part does when it is taken out."""


def without_keeping(self: Office) -> None:
    self.unsaved_s = 0.0


def by_name(self: Group, *, but: str = "") -> Any:
    """Also those that are dead."""
    return min((one for one in self.members.values() if one.name != but), key=lambda one: one.name, default=None)


def epochs_of_their_own(self: Group, member: Any) -> Any:
    role = member_role(self, member)
    return type(role)(**{name: getattr(role, name) for name in role.__struct_fields__} | {"epoch": 1})


def forget_highest(self: Group, wall_offset_s: float) -> Any:
    kept = group_kept(self, wall_offset_s)
    return type(kept)(**{name: getattr(kept, name) for name in kept.__struct_fields__} | {"highest": 0, "epoch": 0})


member_role, group_kept = Group.role_of, Group.kept

MISTAKES: dict[str, tuple[type, str, Any]] = {
    "nothing is kept": (Office, "keep", without_keeping),
    "clients hear no notices": (Office, "tell_clients", nothing),
    "a dead adapter is promoted": (Group, "best", by_name),
    "all epochs are the first": (Group, "role_of", epochs_of_their_own),
    "epochs are forgotten": (Group, "kept", forget_highest),
    "a lost conversation is nothing": (AdapterDesk, "on_lost", nothing),
    "adapters are not told whom to let in": (AdapterDesk, "_admissions", nothing),
    "what adapters say they are is not looked at": (Roles, "heard", nothing),
    "revoking ends nothing": (ClientDesk, "revoke", lambda *_: 0),
    "a revocation is not remembered": (Passes, "revoke", Passes.drop),
    "a former active adapter stays active": (AdapterDesk, "_enter", None),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_noticed(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, instead = MISTAKES[mistake]
    if instead is None:
        enter = AdapterDesk._enter
        instead = lambda *arguments: (True, enter(*arguments)[1])  # noqa: E731
    monkeypatch.setattr(owner, name, instead)
    search = settings(max_examples=400, stateful_step_count=30, derandomize=True, phases=(Phase.generate,), **QUIET)
    with pytest.raises((AssertionError, LookupError, AttributeError, ExceptionGroup)):
        run_state_machine_as_test(Upheaval, settings=search)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_administration_keeps_its_laws_for_long() -> None:
    run_state_machine_as_test(Upheaval, settings=settings(max_examples=600, stateful_step_count=50, **QUIET))
