"""Holes, sessions and strangers: a numbered source gives every message once and in order, or says what is lost."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.feeds.sources import mold
from fairlead.feeds.sources.actions import Action, Alive, Ask, Began, Limits, Lost, Ready, Silent
from fairlead.feeds.sources.mold_codec import pack
from fairlead.feeds.sources.reassembly import Reassembly
from fairlead.feeds.sources.recovery import REWIND, Recovery
from fairlead.feeds.sources.runs import Run, run_of

DAY = b"DAY1      "
NEXT = b"DAY2      "
LIMITS = Limits(reorder_s=0.01, ask_s=0.05, patience_s=1.0, silent_s=1.0, window_messages=1000, window_bytes=1 << 20)


def packet(first: int, last: int, session: bytes = DAY) -> bytes:
    run = run_of(first, [b"%d" % n for n in range(first, last + 1)])
    (made,) = pack(session, run.first, run.lengths, run.data, 1000, 60_000)
    return made


class Listener:
    """What an adapter would hear, in order."""

    def __init__(self, **arguments: object) -> None:
        self.machine = Recovery(**({"limits": LIMITS} | arguments))  # type: ignore[arg-type]
        self.now_s = 100.0
        self.machine.on_start(self.now_s)
        self.heard: list[tuple[str, int]] = []
        self.lost: list[tuple[str, int, int]] = []
        self.others: list[Action] = []
        self.asked: list[tuple[int, int]] = []

    def note(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Ready(session, run):
                    assert run.bodies() == [b"%d" % n for n in range(run.first, run.last + 1)]
                    self.heard += [(session, n) for n in range(run.first, run.last + 1)]
                case Lost(session, first, last):
                    self.lost.append((session, first, last))
                    self.heard += [(session, -n) for n in range(first, last + 1)]
                case Ask(question):
                    self.asked.append(mold.HEADER.unpack(question)[1:])
                case _:
                    self.others.append(action)

    def take(self, data: bytes, line: int = 0) -> None:
        self.note(self.machine.on_packet(line, data, self.now_s))

    def wait(self, seconds: float) -> None:
        """Time passes; the machine is woken whenever it asked to be."""
        end_s = self.now_s + seconds
        while self.machine.deadline_s <= end_s:
            self.now_s = max(self.now_s, self.machine.deadline_s)
            self.note(self.machine.on_tick(self.now_s))
        self.now_s = end_s

    def numbers(self, session: str = "DAY1") -> list[int]:
        return [n for name, n in self.heard if name == session]


def test_messages_in_order_once_from_two_lines() -> None:
    listener = Listener(lines=2)
    for first in range(1, 100, 10):
        for line in (0, 1):
            listener.take(packet(first, first + 9), line)
    assert listener.numbers() == list(range(1, 101))
    assert listener.machine.counters["duplicates"] == 100
    assert listener.others == [Began("DAY1", "", 1), Alive()]


@pytest.mark.requirement("STR-15", half="one adapter's source side alone, without a client")
def test_what_one_line_misses_the_other_has() -> None:
    listener = Listener(lines=2)
    listener.take(packet(1, 10), 0)
    listener.take(packet(21, 30), 0)
    assert listener.numbers() == list(range(1, 11))
    listener.take(packet(1, 10), 1)
    listener.take(packet(11, 20), 1)
    assert listener.numbers() == list(range(1, 31))
    assert not listener.lost


@pytest.mark.requirement("STR-15", half="one adapter's source side alone, without a client")
def test_what_no_line_has_is_asked_for_and_then_reported_with_its_exact_range() -> None:
    listener = Listener(lines=2, has_rewind=True)
    listener.take(packet(1, 10))
    listener.take(packet(21, 30))
    assert not listener.asked, "reordering is given its time"
    listener.wait(0.02)
    assert listener.asked == [(11, 10)]
    listener.take(packet(11, 15), REWIND)
    assert listener.numbers() == list(range(1, 16))
    listener.wait(0.1)
    assert listener.asked[-1] == (16, 5)
    listener.wait(1.2)
    assert listener.lost == [("DAY1", 16, 20)]
    assert listener.numbers() == [*range(1, 16), *range(-16, -21, -1), *range(21, 31)]
    assert len(listener.asked) < 30


def test_a_large_hole_is_asked_for_piece_by_piece_without_pauses() -> None:
    listener = Listener(has_rewind=True, limits=LIMITS._replace(ask_messages=100))
    listener.take(packet(1, 1))
    listener.take(packet(1001, 1001))
    listener.wait(0.015)
    begun_s = listener.now_s
    while listener.numbers()[-1] < 1001:
        first, count = listener.asked[-1]
        listener.take(packet(first, first + count - 1), REWIND)
    assert listener.numbers() == list(range(1, 1002))
    assert listener.now_s == begun_s
    assert len(listener.asked) == 10


def test_a_heartbeat_tells_of_a_loss_at_the_end() -> None:
    listener = Listener(has_rewind=True)
    listener.take(packet(1, 10))
    listener.take(mold.heartbeat(DAY, 16))
    listener.wait(0.02)
    assert listener.asked == [(11, 5)]
    listener.take(packet(11, 15), REWIND)
    assert listener.numbers() == list(range(1, 16))


def test_without_means_of_recovery_a_loss_is_reported_soon() -> None:
    listener = Listener(lines=1)
    listener.take(packet(1, 10))
    listener.take(packet(12, 20))
    listener.wait(0.02)
    assert listener.lost == [("DAY1", 11, 11)]


@pytest.mark.parametrize(("start", "first"), [(0, 51), (1, 1), (40, 40)])
def test_where_a_source_begins(start: int, first: int) -> None:
    listener = Listener(has_rewind=True, start=start)
    listener.take(packet(51, 60))
    listener.wait(0.02)
    if start:
        assert listener.asked == [(first, 51 - first)]
        listener.take(packet(first, 50), REWIND)
    assert listener.numbers() == list(range(first, 61))


def test_silence_is_told_once_and_so_is_its_end() -> None:
    listener = Listener()
    listener.wait(5)
    assert [type(one) for one in listener.others] == [Silent]
    listener.take(packet(1, 1))
    listener.take(mold.heartbeat(DAY, 2))
    assert [type(one) for one in listener.others] == [Silent, Began, Alive]
    listener.wait(0.9)
    listener.take(b"garbage is no sign of life")
    listener.wait(0.2)
    assert [type(one) for one in listener.others] == [Silent, Began, Alive, Silent]


# Sessions.


@pytest.mark.requirement("STR-22", half="the source side of one adapter, without a client")
def test_a_new_session_counts_afresh_and_nothing_of_it_is_old() -> None:
    listener = Listener()
    listener.take(packet(1, 100))
    for first in range(1, 50, 10):
        listener.take(packet(first, first + 9, NEXT))
    assert listener.others[-1] == Began("DAY2", "DAY1", 1)
    assert listener.numbers("DAY2") == list(range(1, 51))


def test_after_the_end_of_a_session_the_next_is_believed_at_once() -> None:
    listener = Listener()
    listener.take(packet(1, 100))
    listener.take(mold.heartbeat(DAY, 101, is_end=True))
    listener.take(packet(1, 1, NEXT))
    assert listener.numbers("DAY2") == [1]


def test_the_old_session_is_finished_before_the_new_one_begins() -> None:
    listener = Listener(lines=2, has_rewind=True)
    listener.take(packet(1, 10))
    listener.take(packet(21, 30))
    for first in (1, 11, 21, 31):
        listener.take(packet(first, first + 9, NEXT))
    assert listener.heard == [("DAY1", n) for n in range(1, 11)]
    listener.take(packet(11, 20), REWIND)
    assert listener.heard == [("DAY1", n) for n in range(1, 31)] + [("DAY2", n) for n in range(1, 41)]


def test_a_new_session_does_not_wait_for_ever() -> None:
    listener = Listener(lines=2, has_rewind=True)
    listener.take(packet(1, 10))
    listener.take(packet(21, 30))
    for first in (1, 11, 21):
        listener.take(packet(first, first + 9, NEXT))
    listener.wait(1.2)
    assert listener.lost == [("DAY1", 11, 20)]
    assert listener.numbers("DAY2") == list(range(1, 31))


# Strangers.


def test_stray_packets_of_other_sessions_change_nothing() -> None:
    listener = Listener()
    listener.take(packet(1, 10))
    for turn in range(100):
        listener.take(packet(1, 5, b"X%09d" % turn))
        listener.take(packet(1, 5, b"FOREIGN   "))
        listener.take(packet(11 + turn, 11 + turn))
    assert listener.numbers() == list(range(1, 111))
    assert [one for one in listener.others if isinstance(one, Began)] == [Began("DAY1", "", 1)]
    assert listener.machine.take_troubles() == {"another session than the present one": 200}


def test_a_session_that_is_over_stays_over() -> None:
    listener = Listener()
    listener.take(packet(1, 10))
    for first in (1, 2, 3, 4):
        listener.take(packet(first, first, NEXT))
    for first in range(11, 30):
        listener.take(packet(first, first))
    assert listener.machine.session == "DAY2"
    assert listener.machine.take_troubles()["a session that is over"] == 19


def test_only_the_session_that_is_configured() -> None:
    listener = Listener(session="DAY2")
    for first in range(1, 20):
        listener.take(packet(first, first))
    assert not listener.heard
    listener.take(packet(1, 3, NEXT))
    assert listener.numbers("DAY2") == [1, 2, 3]


def test_one_packet_far_ahead_is_not_believed_and_three_are() -> None:
    listener = Listener(limits=LIMITS._replace(jump_max=1000))
    listener.take(packet(1, 10))
    listener.take(packet(1 << 60, (1 << 60) + 1))
    listener.take(mold.heartbeat(DAY, 1 << 61))
    listener.take(packet(11, 20))
    listener.wait(0.05)
    assert listener.numbers() == list(range(1, 21))
    assert not listener.lost
    for first in (5000, 5010, 5020):
        listener.take(packet(first, first + 9))
    listener.wait(0.05)
    assert listener.lost == [("DAY1", 21, 4999)]
    assert listener.numbers()[-30:] == list(range(5000, 5030))


def test_sequences_that_go_back_are_dropped() -> None:
    listener = Listener()
    listener.take(packet(1, 100))
    for first in range(1, 100, 5):
        listener.take(packet(first, first + 4))
    listener.take(packet(96, 105))
    assert listener.numbers() == list(range(1, 106))
    assert listener.machine.counters["duplicates"] == 105
    listener.take(packet(106, 1100))
    listener.take(packet(1101, 2000))
    listener.take(packet(1, 10))
    assert listener.machine.take_troubles() == {"a sequence that goes back": 1}


def test_more_than_the_window_holds_is_left_to_the_rewind_server_or_ends_the_hole() -> None:
    for has_rewind in (True, False):
        listener = Listener(lines=2, has_rewind=has_rewind)
        listener.take(packet(1, 1))
        for first in range(3, 20_003, 100):
            listener.take(packet(first, first + 99))
            state = listener.machine._state
            assert state is not None
            assert state.held_messages <= LIMITS.window_messages + 100
        if has_rewind:
            assert not listener.lost
            listener.wait(0.02)
            while listener.numbers()[-1] < 20_002:
                first, count = listener.asked[-1]
                listener.take(packet(first, min(first + 499, first + count - 1)), REWIND)
                listener.wait(0.06)
        assert [abs(n) for n in listener.numbers()] == list(range(1, 20_003))
        assert listener.lost == ([] if has_rewind else [("DAY1", 2, 2)])


# Laws.

pieces = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), max_size=60)


@settings(deadline=None)
@given(pieces=pieces)
def test_reassembly_gives_everything_once_and_in_order(pieces: list[tuple[int, int]]) -> None:
    state = Reassembly(1)
    seen: set[int] = set()
    given_out: list[int] = []
    for first, size in pieces:
        for run in state.add(run_of(first, [b"%d" % n for n in range(first, first + size)])):
            assert run.bodies() == [b"%d" % n for n in range(run.first, run.last + 1)]
            given_out += range(run.first, run.last + 1)
        seen |= set(range(first, first + size))
        missing = next(n for n in range(1, 100) if n not in seen)
        assert given_out == list(range(1, missing))
        assert state.held_messages == len([n for n in seen if n > missing])
        assert state.held_bytes == sum(len(b"%d" % n) for n in seen if n > missing)
        assert (state.hole is None) == (max(seen) < missing)
    while state.hole is not None:
        hole, runs = state.give_up()
        assert not seen & set(range(hole.first, hole.last + 1))
        given_out += [n for run in runs for n in range(run.first, run.last + 1)]
    assert given_out == sorted(seen)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 30), answers=st.booleans(), loss=st.floats(0, 0.6))
@pytest.mark.requirement("STR-15", half="one adapter's source side alone, without a client")
def test_on_any_two_lines_every_message_comes_once_in_order_or_is_reported(
    seed: int, answers: bool, loss: float
) -> None:
    """Both lines lose, repeat and mix packets; garbage between; the rewind server answers or does not."""
    chance = random.Random(seed)
    listener = Listener(lines=2, has_rewind=True, start=1)
    last, queue = 400, []
    for first in range(1, last + 1, 5):
        for line in (0, 1):
            if chance.random() >= loss:
                for _ in range(chance.choice((1, 1, 1, 2))):
                    queue.append((first / 1000 + chance.random() * 0.03, line, packet(first, first + 4)))
        if chance.random() < 0.1:
            queue.append((first / 1000, 0, chance.randbytes(chance.randrange(60))))
            queue.append((first / 1000, 1, packet(1, 3, chance.randbytes(10))))
    queue += [(0.5 + turn / 2, turn % 2, mold.heartbeat(DAY, last + 1)) for turn in range(6)]
    done = 0
    for at_s, line, data in sorted(queue):
        listener.wait(max(0.0, 100.0 + at_s - listener.now_s))
        listener.take(data, line)
        if answers and done < len(listener.asked):
            first, count = listener.asked[-1]
            done = len(listener.asked)
            if chance.random() < 0.8:
                listener.take(packet(first, min(first + count - 1, last)), REWIND)
    listener.wait(1.5)
    while answers and done < len(listener.asked) and listener.machine.position < last:
        first, count = listener.asked[-1]
        done = len(listener.asked)
        listener.take(packet(first, min(first + count - 1, last)), REWIND)
        listener.wait(0.2)
    listener.wait(3)
    assert [abs(n) for n in listener.numbers()] == list(range(1, last + 1))
    assert sum(end - begin + 1 for _, begin, end in listener.lost) == listener.machine.counters["lost"]
    assert all(a[2] < b[1] for a, b in pairwise(listener.lost))


@settings(deadline=None, max_examples=300)
@given(packets=st.lists(st.one_of(st.binary(max_size=80), st.builds(packet, st.integers(1, 50), st.integers(51, 60)))))
def test_no_bytes_make_it_raise_or_grow(packets: list[bytes]) -> None:
    machine = Recovery(lines=2, has_rewind=True, limits=LIMITS)
    machine.on_start(0.0)
    for turn, data in enumerate(packets):
        machine.on_packet(turn % 3 - 1, data, turn * 0.2)
        machine.on_tick(turn * 0.2)
    assert len(machine.troubles) < 20
    assert isinstance(machine.deadline_s, float)


def test_a_flood_of_sessions_is_bounded() -> None:
    listener = Listener(lines=2, has_rewind=True, limits=LIMITS._replace(window_bytes=10_000))
    listener.take(packet(1, 10))
    listener.take(packet(21, 30))  # a hole, so that the next session has to wait
    for first in range(1, 20_000, 10):
        listener.take(packet(first, first + 9, NEXT))
    assert listener.lost == [("DAY1", 11, 20)]
    assert listener.numbers("DAY2") == list(range(1, 20_001))
    assert Run(1, b"", b"").size == 0
