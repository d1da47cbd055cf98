"""Arenas: a body is there until its last instruction is finished, then gone, once, whatever the order (SRV 4.8)."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.store import layout
from fairlead.store.arena import COUNTED, FAULT, FREED, STALE, finished
from tests.store.twins import TWINS, both_twins, new_arena


def owner_and_others(twin: Any, blocks: int = 4, others: int = 2) -> tuple[bytearray, Any, list[Any]]:
    buffer = new_arena(blocks)
    return buffer, twin.Arena(buffer, owner=True), [twin.Arena(buffer) for _ in range(others)]


@both_twins
@pytest.mark.requirement("SRV-68")
def test_a_stored_message_waits_with_no_count_and_no_limit(twin: Any) -> None:
    _, owner, (other, _) = owner_and_others(twin)
    handle = owner.alloc(5, 3, 77)
    assert owner.write(handle, b"hello")
    assert other.read(handle) == b"hello"
    facts = other.describe(handle)
    assert (facts["relinquish_count"], facts["relinquish_limit"]) == (0, -1)
    assert (facts["uid"], facts["index"], facts["bytes"]) == (77, 3, 5)
    assert owner.census() == (1, 5)


ORDERS: list[tuple[str, list[tuple[int, int]]]] = [
    ("a: sends, then a separate delete", [(0, 0), (1, 0), (2, 3)]),
    ("b: the delete first", [(2, 3), (0, 0), (1, 0)]),
    ("c: the delete between", [(0, 0), (2, 3), (1, 0)]),
    ("d: condition on the only send", [(0, 1)]),
    ("e: condition known early, others slower", [(1, 2), (0, 0)]),
    ("f: no recipient, a lone delete", [(0, 1)]),
]


@both_twins
@pytest.mark.requirement("SRV-70")
@pytest.mark.requirement("SRV-73")
@pytest.mark.requirement("SRV-75")
@pytest.mark.parametrize(("case", "order"), ORDERS, ids=[case[0] for case, _ in ORDERS])
def test_every_ordering_case_ends_with_one_deletion_by_the_last(
    twin: Any, case: str, order: list[tuple[int, int]]
) -> None:
    _, owner, others = owner_and_others(twin)
    handle = owner.alloc(10)
    for step, (touch, limit) in enumerate(order, start=1):
        manager = (owner, *others)[step % 3]
        answer = manager.finish(handle, touch, limit)
        assert answer == (FREED if step == len(order) else COUNTED), case
        assert (manager.read(handle) is None) == (step == len(order))
    assert owner.census() == (0, 0)


@both_twins
@pytest.mark.requirement("SRV-69")
@pytest.mark.requirement("SRV-71")
def test_all_orders_of_all_counts_up_to_five(twin: Any) -> None:
    _, owner, others = owner_and_others(twin)
    for final in range(1, 6):
        for order in itertools.permutations(range(final)):
            handle = owner.alloc(1)
            answers = [others[touch % 2].finish(handle, touch, final if touch == final - 1 else 0) for touch in order]
            assert answers == [COUNTED] * (final - 1) + [FREED]
    assert owner.census() == (0, 0)


@both_twins
@pytest.mark.requirement("SRV-77")
def test_an_instruction_read_twice_counts_once(twin: Any) -> None:
    _, owner, (other, _) = owner_and_others(twin)
    handle = owner.alloc(1)
    assert other.finish(handle, 0, 0) == COUNTED
    assert other.finish(handle, 0, 0) == STALE
    assert owner.finish(handle, 1, 2) == FREED
    assert other.finish(handle, 0, 0) == STALE
    again = owner.alloc(1)
    assert other.finish(handle, 1, 2) == STALE, "a late repetition never touches the slot's next message"
    assert owner.describe(again)["relinquish_count"] == 0


@both_twins
@pytest.mark.requirement("SRV-77")
def test_a_count_above_the_limit_is_a_fault_and_frees_nothing(twin: Any) -> None:
    _, owner, (other, _) = owner_and_others(twin)
    handle = owner.alloc(1)
    owner.finish(handle, 0, 0)
    owner.finish(handle, 1, 0)
    assert other.finish(handle, 2, 2) == FAULT
    assert owner.read(handle) is not None


@both_twins
@pytest.mark.requirement("SRV-13")
def test_a_handle_is_not_mistaken_for_the_next_message_in_its_place(twin: Any) -> None:
    _, owner, (other, _) = owner_and_others(twin, blocks=1)
    seen = set()
    for _ in range(2000):
        handle = owner.alloc(20_000)
        assert handle not in seen
        seen.add(handle)
        assert other.finish(handle, 0, 1) == FREED
        assert other.read(handle) is None
    assert owner.census() == (0, 0)


@both_twins
@pytest.mark.requirement("SRV-14")
def test_a_full_arena_refuses_and_takes_again_when_anybody_frees(twin: Any) -> None:
    _, owner, (other, _) = owner_and_others(twin, blocks=2)
    handles = []
    while handle := owner.alloc(1000):
        handles.append(handle)
    assert len(handles) == 2 * ((layout.BLOCK_BYTES - 64) // 1536)
    assert owner.alloc(1000) == 0
    other.finish(handles[5], 0, 1)
    assert owner.alloc(1000) != 0
    assert owner.alloc(1000) == 0


@both_twins
def test_blocks_go_to_another_size_when_they_are_empty(twin: Any) -> None:
    _, owner, (other, _) = owner_and_others(twin, blocks=2)
    small = []
    while handle := owner.alloc(10):
        small.append(handle)
    assert owner.alloc(100_000) == 0
    for handle in small:
        other.finish(handle, 0, 1)
    large = owner.alloc(100_000)
    assert large
    assert owner.write(large, bytes(100_000))
    owner.finish(large, 0, 1)
    again = owner.alloc(10)
    assert again
    assert again not in small
    assert all(other.read(handle) is None for handle in small)


@both_twins
@pytest.mark.requirement("SRV-115")
def test_a_successor_frees_what_the_router_never_heard_of(twin: Any) -> None:
    buffer, owner, (other, _) = owner_and_others(twin)
    referred, unpublished, never = owner.alloc(5, 1, 11), owner.alloc(6, 2, 22), owner.alloc(90_000, 3, 33)
    freed = owner.alloc(5)
    other.finish(freed, 0, 1)
    owner.refer(referred, 128)
    owner.refer(unpublished, 256)
    successor = twin.Arena(buffer, owner=True)
    given_up = successor.recover(256)
    assert sorted(slot["uid"] for slot in given_up) == [22, 33]
    assert successor.read(referred) is not None
    assert successor.read(unpublished) is None
    assert successor.read(never) is None
    assert successor.census()[0] == 1
    assert other.finish(referred, 0, 1) == FREED
    for _ in range(500):  # nothing is handed out twice
        handle = successor.alloc(5)
        assert successor.finish(handle, 0, 1) == FREED
    assert successor.census() == (0, 0)


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
@given(st.integers(0, 2**32), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_law_freed_exactly_once_in_whatever_order_the_news_comes(twin: Any, seed: int, blocks: int) -> None:
    """Random allocations of all sizes, instructions finished by anybody, some repeated, owners that die."""
    random_ = random.Random(seed)
    buffer, owner, others = owner_and_others(twin, blocks)
    pending: dict[int, list[tuple[int, int]]] = {}
    bodies: dict[int, bytes] = {}
    for _ in range(300):
        action = random_.random()
        if action < 0.5:
            length = random_.choice([0, 1, 60, 96, 97, 500, 5000, 32_672, 32_673, 70_000])
            handle = owner.alloc(length)
            if handle:
                assert handle not in bodies
                body = random_.randbytes(length)
                owner.write(handle, body)
                owner.refer(handle, 0)
                final = random_.randint(1, 5)
                order = [(touch, final if touch == final - 1 else 0) for touch in range(final)]
                random_.shuffle(order)
                pending[handle], bodies[handle] = order, body
        elif action < 0.97 and pending:
            handle = random_.choice(list(pending))
            assert others[0].read(handle) == bodies[handle]
            manager = random_.choice([owner, *others])
            touch, limit = pending[handle].pop()
            answer = manager.finish(handle, touch, limit)
            assert answer == (COUNTED if pending[handle] else FREED)
            assert manager.finish(handle, touch, limit) == STALE
            if not pending[handle]:
                del pending[handle], bodies[handle]
        elif action >= 0.97:
            owner = twin.Arena(buffer, owner=True)
            assert owner.recover(1) == []
        assert owner.census() == (len(bodies), sum(map(len, bodies.values())))
    for handle in list(pending):
        for touch, limit in pending[handle]:
            others[1].finish(handle, touch, limit)
    assert owner.census() == (0, 0)


@pytest.mark.skipif(len(TWINS) < 2, reason="the extension is not built")
@given(st.integers(0, 0xFFFFFF), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), max_size=10))
def test_the_compiled_word_agrees_with_its_twin(generation: int, steps: list[tuple[int, int]]) -> None:
    buffer = new_arena(1)
    arena = TWINS[1].Arena(buffer, owner=True)
    handle = arena.alloc(1)
    offset = (handle >> 24 & 0xFFFFFFFF) * 64
    words = memoryview(buffer).cast("Q")
    words[offset // 8] = generation << 40 | layout.WORD_LIVE
    handle = handle & ~0xFFFFFF | generation
    word = words[offset // 8]
    for touch, limit in steps:
        answer, word = finished(word, generation, touch, limit)
        assert arena.finish(handle, touch, limit) == answer
        assert words[offset // 8] & ~layout.WORD_LISTED == word


# -- planted bugs: each of these rules, left out, is noticed by the law above


def finished_counting_twice(word: int, generation: int, touch: int, limit: int) -> tuple[int, int]:
    """Wrong on purpose: a counter instead of touch numbers, so a repetition counts again."""
    count = (word & 0xFFFFFFFF) + 1
    known = word >> 32 & 63 or limit
    if known and count == known:
        return FREED, (generation + 1) << 40
    return COUNTED, generation << 40 | layout.WORD_LIVE | known << 32 | count


def finished_without_generation(word: int, generation: int, touch: int, limit: int) -> tuple[int, int]:
    """Wrong on purpose: whatever lies in the slot now is counted."""
    return finished(word, word >> 40, touch, limit)


@pytest.mark.parametrize("wrong", [finished_counting_twice, finished_without_generation])
def test_planted_bugs_in_the_accounting_are_noticed(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.store.arena.finished", wrong)
    with pytest.raises(AssertionError):
        test_an_instruction_read_twice_counts_once(TWINS[0])
