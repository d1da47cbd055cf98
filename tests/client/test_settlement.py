"""What a SETTLE frame says of those who wait for its answer."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from fairlead.client.durable.settlement import Settlements
from fairlead.wire.codec import Parser
from fairlead.wire.durable import FLAG_PATIENT, KIND_SETTLE


def test_only_what_nobody_waits_for_is_patient() -> None:
    frames: list[bytes] = []
    consumer: Any = SimpleNamespace(session=SimpleNamespace(road=SimpleNamespace(send=frames.append)), touch=int)
    settlements = Settlements(consumer, answered=True)
    settlements.handle = 5
    settlements.acknowledged += [1, 2]
    settlements.flush()
    settlements.acknowledged.append(3)
    settlements.ask(3, Future())
    settlements.flush()
    found = [message for frame in frames for run in Parser().runs(frame) for message in run]
    assert [(one.kind, one.flags) for one in found] == [(KIND_SETTLE, FLAG_PATIENT), (KIND_SETTLE, 0)]
