"""Counters in a row of words that everybody reads alike."""

from __future__ import annotations

import pytest

from fairlead.runtime.counters import COUNTERS, Counters, ManagerCounter, RouterCounter
from fairlead.store.layout import COUNTERS_BYTES, COUNTERS_FIRST


def test_a_counter_is_a_word_at_its_number() -> None:
    buffer = bytearray(COUNTERS_BYTES)
    counters = Counters("manager", buffer)
    counters.add(ManagerCounter.MESSAGES_IN, 3)
    counters.add(ManagerCounter.MESSAGES_IN)
    counters.set(ManagerCounter.READING_STOPPED, 1)
    place = COUNTERS_FIRST + 8 * ManagerCounter.MESSAGES_IN
    assert int.from_bytes(buffer[place : place + 8], "little") == 4
    assert counters.get(ManagerCounter.READING_STOPPED) == 1


def test_all_are_told_by_name() -> None:
    counters = Counters("router", bytearray(COUNTERS_BYTES))
    counters.add(RouterCounter.COMMITS, 2)
    told = counters.as_dict()
    assert told["commits"] == 2
    assert told["loop_progress"] == 0
    assert len(told) == len(RouterCounter)


@pytest.mark.parametrize("role", COUNTERS)
def test_numbers_are_dense_and_every_counter_has_its_sentence(role: str) -> None:
    assert [int(counter) for counter in COUNTERS[role]] == list(range(len(COUNTERS[role])))
    assert all(counter.sentence.endswith(".") for counter in COUNTERS[role])
