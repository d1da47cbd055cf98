"""The soak itself, for a few seconds: does it hurt the server, and does it notice what comes of it?"""

from __future__ import annotations

import time

import pytest

from fairlead.testing import Server
from tests.processes.numbered import STAMP, Book
from tests.processes.soak import soak
from tests.processes.tools import NEVER_FROZEN

pytestmark = pytest.mark.processes


@pytest.mark.requirement(
    "SRV-77", "SRV-88", "SRV-115", state="scaled", note="some seconds of random injuries; `make soak` runs for minutes"
)
async def test_a_short_soak_ends_with_balanced_books() -> None:
    with Server(managers=3, **NEVER_FROZEN) as server:
        report = await soak(server, seconds=8, seed=4, connections=30, rate=1500)
    assert report.faults == []
    assert sum(report.deeds.values()) >= 3
    assert report.result.arrived > 1000
    assert min(report.exchanges[mode] for mode in ("request", "fan-out", "conversation", "one-way")) > 0


def test_a_book_tells_lost_doubled_and_reordered_apart() -> None:
    book = Book()
    book.enter(STAMP.pack(1, number, time.monotonic_ns()) for number in (0, 1, 3, 2, 2, 6))
    assert (book.count, book.missing, book.duplicated, book.reordered) == (6, 2, 1, 1)
    assert [(gap.first, gap.after) for gap in book.gaps] == [(2, 3), (4, 6)]
