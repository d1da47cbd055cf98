"""What a SETTLE frame says of those who wait for its answer."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from fairlead.client.durable.settlement import Settlements
from fairlead.wire.codec import Parser
from fairlead.wire.durable import ACKNOWLEDGE, FLAG_PATIENT, KIND_SETTLE, RELEASE, RETURN, SETTLE_ITEM


def test_only_what_nobody_waits_for_is_patient() -> None:
    frames: list[bytes] = []
    consumer: Any = SimpleNamespace(part=SimpleNamespace(road=SimpleNamespace(send=frames.append)), touch=int)
    settlements = Settlements(consumer, answered=True)
    settlements.handle = 5
    settlements.acknowledged += [1, 2]
    settlements.flush()
    settlements.acknowledged.append(3)
    settlements.ask(3, Future())
    settlements.flush()
    found = [message for frame in frames for run in Parser().runs(frame) for message in run]
    assert [(one.kind, one.flags) for one in found] == [(KIND_SETTLE, FLAG_PATIENT), (KIND_SETTLE, 0)]


def test_of_what_came_again_only_the_last_word_is_said_on_the_next_line() -> None:
    frames: list[bytes] = []
    consumer: Any = SimpleNamespace(part=SimpleNamespace(road=SimpleNamespace(send=frames.append)), touch=int)
    settlements = Settlements(consumer, answered=True)
    settlements.handle = 5
    settlements.settle(3, 9, RELEASE)
    settlements.settle(2, 3, RETURN, 50)
    settlements.flush()
    settlements.acknowledged += [4, 3]  # they have come again, and so have 6, which the application has, and 8
    settlements.settle(8, 9, RETURN, 7)
    assert settlements.on_lost(held=[6]) == {3, 4}
    frames.clear()
    settlements.handle = 6
    settlements.flush()
    ((message,),) = Parser().runs(frames[0])
    assert list(SETTLE_ITEM.iter_unpack(message.body)) == [
        (5, 6, RELEASE, 0),
        (7, 8, RELEASE, 0),
        (2, 3, RETURN, 50),
        (8, 9, RETURN, 7),
        (3, 5, ACKNOWLEDGE, 0),
    ]
