"""When a step has passed, and what the exit code says."""

from __future__ import annotations

from fairlead.demo.findings import Count, Findings, Outcome, State, exit_code, state_of


def outcome(state: State) -> Outcome:
    return Outcome(name="x", title="X", state=state, seconds=1.0)


def test_clean_counts_and_true_checks_pass() -> None:
    found = Findings(counts=[Count(what="x", sent=2, received=2, again=1)], checks={"it is so": True})
    assert state_of(found) == ("passed", "")


def test_a_lost_message_fails_and_is_named() -> None:
    found = Findings(counts=[Count(what="queue", sent=2, received=1, lost=1, disordered=0)])
    assert state_of(found) == ("failed", "not so: queue: 1 lost")


def test_a_check_that_does_not_hold_fails_and_is_named() -> None:
    state, why = state_of(Findings(checks={"another process routes": False, "all is well": True}))
    assert state == "failed"
    assert "another process routes" in why
    assert "all is well" not in why


def test_every_kind_of_fault_counts() -> None:
    for fault in ("lost", "doubled", "disordered", "disconnected"):
        count = Count(what="x", sent=1, received=1, **{fault: 1})
        assert state_of(Findings(counts=[count]))[0] == "failed", fault


def test_the_exit_code_is_about_failures_not_about_what_was_skipped() -> None:
    assert exit_code([outcome("passed"), outcome("skipped")]) == 0
    assert exit_code([outcome("passed"), outcome("failed")]) == 1
