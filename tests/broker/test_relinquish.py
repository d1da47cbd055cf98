"""Instructions are finished once, after their last recipient; the message is freed once, after its last instruction."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.broker.outstanding import OutstandingTable, finish_all, format_outstanding, outstanding_bytes
from fairlead.broker.relinquish import Finish, Relinquish
from fairlead.store import layout
from fairlead.store.arena import Arena, format_arena


@pytest.mark.requirement("SRV-62")
@pytest.mark.requirement("SRV-77")
@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers())
def test_each_instruction_is_finished_exactly_once_and_not_before_its_last_recipient(
    recipients: list[int], seed: int
) -> None:
    machine = Relinquish()
    shares: list[int] = []
    for touch, count in enumerate(recipients):
        instruction = machine.begin(1000 + touch, touch, 0)
        for _ in range(count):
            machine.add_recipient(instruction)
        shares += [instruction] * (count + 1)
    left = {number: shares.count(number) for number in shares}
    random.Random(seed).shuffle(shares)
    finished = []
    for number in shares:
        left[number] -= 1
        found = machine.share_done(number)
        assert (found is not None) == (left[number] == 0)
        if found is not None:
            finished.append(found.touch)
    assert sorted(finished) == list(range(len(recipients)))
    assert len(machine) == 0


@given(st.integers(1, 6), st.integers(0, 6), st.integers())
@pytest.mark.requirement("SRV-115")
def test_a_death_at_any_moment_leaves_a_successor_exactly_what_is_missing(
    instructions: int, done: int, seed: int
) -> None:
    """Some instructions finished, some recorded, some both (the predecessor died in between): all end freed once."""
    data = bytearray(layout.arena_plan(8).size + (1 << 17))
    format_arena(data, 8)
    arena = Arena(data, owner=True)
    handle = arena.alloc(10)
    arena.refer(handle, 0)
    buffer = bytearray(outstanding_bytes(16))
    format_outstanding(buffer, 16)
    table = OutstandingTable(buffer)
    chance = random.Random(seed)
    for touch in range(instructions):
        limit = instructions if touch == instructions - 1 else 0
        finish = Finish(handle, touch, limit)
        recorded = chance.random() < 0.7
        if recorded:
            table.add(finish)
        if not recorded or touch < done:
            arena.finish(handle, touch, limit)

    class Nothing:
        def next(self) -> None:
            return None

        def publish(self, low: int) -> bool:
            return False

    faults: list[int] = []
    successor = OutstandingTable(buffer)
    finish_all(successor, Nothing(), {0: arena}, lambda: faults.append(1))
    assert arena.census() == (0, 0)
    assert not faults
    assert successor.used == 0


def test_records_are_kept_until_they_are_removed() -> None:
    buffer = bytearray(outstanding_bytes(2))
    format_outstanding(buffer, 2)
    table = OutstandingTable(buffer)
    first = table.add(Finish(7, 1, 0))
    table.add(Finish(8, 2, 3))
    assert table.full
    assert [finish for _, finish in OutstandingTable(buffer).records()] == [Finish(7, 1, 0), Finish(8, 2, 3)]
    table.remove(first)
    assert [finish for _, finish in OutstandingTable(buffer).records()] == [Finish(8, 2, 3)]
    assert table.used == 1


def test_instructions_without_a_record_are_known_in_their_order() -> None:
    machine = Relinquish()
    first, second = machine.begin(1, 0, 0), machine.begin(2, 0, 1)
    assert [number for number, _ in machine.unrecorded()] == [first, second]
    machine.recorded(first)
    assert machine.unrecorded() == [(second, Finish(2, 0, 1))]
