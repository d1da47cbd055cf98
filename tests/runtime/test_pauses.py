"""Counts of replacements and of their pauses."""

from __future__ import annotations

from fairlead.runtime.pauses import EXPECTED, PAUSE_ENDS_MS, Pauses


def test_everything_expected_is_told_from_the_beginning() -> None:
    facts = Pauses().facts()
    assert {(role, outcome) for role, outcome, _ in facts["outcomes"]} == {
        (role, outcome) for role, outcomes in EXPECTED.items() for outcome in outcomes
    }
    assert all(count == 0 for *_, count in facts["outcomes"])
    assert set(facts["pauses"]) == set(EXPECTED)


def test_managers_are_counted_together_and_pauses_sorted_into_spans() -> None:
    pauses = Pauses()
    pauses.add("manager 0", "moved", 0.5)
    pauses.add("manager 7", "moved", 1.0)
    pauses.add("manager 7", "drained", 99_999.0)
    facts = pauses.facts()
    assert ["manager", "moved", 2] in facts["outcomes"]
    assert ["manager", "drained", 1] in facts["outcomes"]
    spans = facts["pauses"]["manager"]["spans"]
    assert (spans[0], spans[-1], len(spans)) == (2, 1, len(PAUSE_ENDS_MS) + 1)
    assert facts["pauses"]["manager"]["total_ms"] == 100_000.5
