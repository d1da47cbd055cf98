"""The wake-up protocol of docs/store.md under every interleaving, on a machine that delays stores (as x86 and ARM do).

Producer and consumer are lists of steps; each has a store buffer that drains whenever the machine likes. A full fence
drains one's own buffer first. The law: nobody sleeps on an entry. Each step of the protocol, left out, is noticed. The
code has these steps in `_store.pyx` (`publish_c`, `sleep_c`); room is waited for by the same ones the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest


class State(NamedTuple):
    """Shared words, both sides' store buffers, where each side is, and what each has seen."""

    tail: int = 0
    sleeping: int = 0
    rung: int = 0  # the eventfd was written
    buffers: tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]] = ((), ())
    at: tuple[int, int] = (0, 0)
    producer_saw: int = 0
    consumer_saw: int = 0


PRODUCER = ["publish", "fence", "look", "ring"]
CONSUMER = ["announce", "fence", "look", "decide"]


def read(state: State, side: int, word: str) -> int:
    """A side sees its own stores at once, the other side's when they have drained."""
    for name, value in reversed(state.buffers[side]):
        if name == word:
            return value
    return int(getattr(state, word))


def store(state: State, side: int, word: str, value: int) -> State:
    buffers = list(state.buffers)
    buffers[side] = (*buffers[side], (word, value))
    return state._replace(buffers=(buffers[0], buffers[1]))


def drain(state: State, side: int) -> State:
    (word, value), *rest = state.buffers[side]
    buffers = list(state.buffers)
    buffers[side] = tuple(rest)
    return state._replace(buffers=(buffers[0], buffers[1]), **{word: value})


def step(state: State, side: int, name: str) -> State | None:
    """The state after one step of a side, or None when it cannot be taken yet."""
    match side, name:
        case _, "fence":
            if state.buffers[side]:
                return None
        case 0, "publish":
            state = store(state, 0, "tail", 1)
        case 0, "look":
            state = state._replace(producer_saw=read(state, 0, "sleeping"))
        case 0, "ring":
            if state.producer_saw:
                state = store(state, 0, "sleeping", 0)._replace(rung=1)
        case 1, "announce":
            state = store(state, 1, "sleeping", 1)
        case 1, "look":
            state = state._replace(consumer_saw=read(state, 1, "tail"))
    at = list(state.at)
    at[side] += 1
    return state._replace(at=(at[0], at[1]))


def ends(programs: tuple[list[str], list[str]]) -> Iterator[State]:
    """Every state in which both sides are done, over all interleavings of steps and drains."""
    seen: set[State] = set()
    pending = [State()]
    while pending:
        state = pending.pop()
        if state in seen:
            continue
        seen.add(state)
        following: list[State] = []
        for side in (0, 1):
            if state.buffers[side]:
                following.append(drain(state, side))
            if state.at[side] < len(programs[side]):
                after = step(state, side, programs[side][state.at[side]])
                following += [after] if after is not None else []
        if not following:
            yield state
        pending += following


def lost_wake_ups(programs: tuple[list[str], list[str]]) -> int:
    """Ends in which the consumer sleeps, an entry is there, and nobody rang."""
    return sum(1 for end in ends(programs) if end.tail and not end.consumer_saw and not end.rung)


@pytest.mark.requirement("SRV-21")
def test_no_interleaving_loses_a_wake_up() -> None:
    assert lost_wake_ups((PRODUCER, CONSUMER)) == 0
    assert len(set(ends((PRODUCER, CONSUMER)))) == 3, "the entry was seen, or the bell rung, or both"


@pytest.mark.parametrize(
    ("side", "left_out"),
    [(0, "fence"), (1, "fence"), (0, "look"), (1, "announce"), (1, "look")],
    ids=lambda value: str(value),
)
def test_planted_bugs_in_the_wake_up_are_noticed(side: int, left_out: str) -> None:
    """Without a fence a side's look may overtake its own store; without look or announcement nothing is seen."""
    programs = (list(PRODUCER), list(CONSUMER))
    programs[side].remove(left_out)
    assert lost_wake_ups(programs) > 0


def test_planted_bug_looking_before_announcing_is_noticed() -> None:
    assert lost_wake_ups((PRODUCER, ["look", "announce", "fence", "decide"])) > 0
