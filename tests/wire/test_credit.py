"""The law of credit: it is spent or given back, never negative; what is unread stays bounded; nothing stalls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.wire.credit import STRETCH, ReceiverCredit, SenderCredit

STEPS = st.lists(st.tuples(st.sampled_from(["send", "consume", "ask", "wait"]), st.integers(0, 40)), max_size=80)


@given(st.integers(1, 64), STEPS)
def test_credit_is_never_negative_and_what_is_held_is_bounded(window: int, steps: list[tuple[str, int]]) -> None:
    sender, receiver = SenderCredit(window), ReceiverCredit(window)
    held = 0
    for step, count in steps:
        if step == "send":
            sent = sender.may_send(count)
            sender.on_sent(sent)
            receiver.on_messages(sent)
            held += sent
        elif step == "consume":
            held -= min(held, count)
        else:
            sender.on_credit(receiver.give_back(held, waiting=step == "wait"))
        assert sender.left == receiver.open >= 0
        assert held + sender.left <= window + STRETCH
    # Once everything is read, the sender can go on.
    sender.on_credit(receiver.give_back(0))
    assert sender.left > 0


@given(st.integers(1, 64), st.integers(0, 200))
def test_without_waiting_the_window_bounds_what_is_held(window: int, rounds: int) -> None:
    receiver = ReceiverCredit(window)
    held = 0
    for _ in range(rounds):
        held += receiver.open
        receiver.on_messages(receiver.open)
        assert held <= window
        held -= min(held, 3)
        receiver.give_back(held)


def test_no_window_means_no_limit() -> None:
    sender, receiver = SenderCredit(0), ReceiverCredit(0)
    assert sender.may_send(10**9) == 10**9
    sender.on_sent(10**9)
    receiver.on_messages(10**9)
    assert not receiver.is_worth_asking
    assert receiver.give_back(0) == 0


def test_small_amounts_are_gathered_into_portions() -> None:
    receiver = ReceiverCredit(100)
    receiver.on_messages(24)
    assert not receiver.is_worth_asking
    assert receiver.give_back(0) == 0
    receiver.on_messages(1)
    assert receiver.is_worth_asking
    assert receiver.give_back(0) == 25


def test_whoever_waits_for_an_answer_reaches_it_behind_everything_the_server_keeps() -> None:
    receiver = ReceiverCredit(40)
    held = 0
    while held < 40 + 100_000:
        received = receiver.open
        receiver.on_messages(received)
        held += received
        assert receiver.give_back(held) == 0
        assert receiver.give_back(held, waiting=True) == 40
