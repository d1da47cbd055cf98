"""The member node's poller: signals are answered between turns, never inside what they interrupt."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from fairlead.runtime.member_node.poller import Poller


@pytest.fixture
def poller() -> Iterator[Poller]:
    before = signal.getsignal(signal.SIGUSR1)
    made = Poller()
    yield made
    made.close()
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_waits_for_the_next_turn(poller: Poller) -> None:
    told: list[str] = []
    poller.on_signal(signal.SIGUSR1, lambda: told.append("told"))
    reading, writing = os.pipe()

    def work() -> None:
        os.read(reading, 1)
        os.kill(os.getpid(), signal.SIGUSR1)
        for _ in range(1000):
            pass  # the handler has run by now
        assert told == []
        told.append("worked")

    poller.watch(reading, work)
    os.write(writing, b"x")
    began_s = time.monotonic()
    poller.turn(30.0)
    assert told == ["worked"]
    poller.turn(30.0)
    assert told == ["worked", "told"]
    assert time.monotonic() - began_s < 20.0
    for fd in (reading, writing):
        os.close(fd)
