"""The laws hold, and each rule that is switched off breaks one: the laws would notice if the code did not obey it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from fairlead.directory.rules import ALL_RULES, Rules
from fairlead.errors import FairleadError

from .even import Even
from .laws import Directory

QUIET: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


@pytest.mark.requirement("DIR-13", state="half", note="the machine, under everything that can be said to it")
@pytest.mark.requirement("DIR-16", state="half", note="the machine")
@pytest.mark.requirement("DIR-17", state="half", note="the machine")
@pytest.mark.requirement("DIR-18", state="half", note="the machine")
def test_the_tables_keep_their_laws() -> None:
    run_state_machine_as_test(Directory, settings=settings(max_examples=30, stateful_step_count=40, **QUIET))


@pytest.mark.requirement("DIR-52", state="half", note="the machine; with real clients elsewhere")
def test_connections_stay_even() -> None:
    run_state_machine_as_test(Even, settings=settings(max_examples=30, stateful_step_count=40, **QUIET))


@pytest.mark.long
@pytest.mark.parametrize("machine", [Directory, Even])
def test_the_laws_hold_for_long(machine: type[Directory | Even]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=600, stateful_step_count=60, **QUIET))


EVENNESS = {"rotation_of_app", "give_turns_back", "use_reservation", "two_reporters"}


@pytest.mark.parametrize("rule", [field.name for field in fields(Rules)])
def test_a_rule_that_is_switched_off_is_noticed(rule: str) -> None:
    base = Even if rule in EVENNESS else Directory
    broken = type(base.__name__, (base,), {"switches": replace(ALL_RULES, **{rule: False})})
    search = settings(max_examples=300, stateful_step_count=40, derandomize=True, phases=(Phase.generate,), **QUIET)
    with pytest.raises((AssertionError, LookupError, FairleadError, ExceptionGroup)):
        run_state_machine_as_test(broken, settings=search)
