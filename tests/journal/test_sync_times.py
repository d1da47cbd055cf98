"""How long flushes took; the writers' own counting is tested with them."""

from __future__ import annotations

from fairlead.journal.sync_times import SPANS_US, SyncTimes


def test_each_time_is_in_one_span_and_the_ends_belong_to_them() -> None:
    times = SyncTimes()
    for us in (1, 500, 501, 1000, 999_999, 1_000_000, 1_000_001, 60_000_000):
        times.took(us * 1000)
    assert times.at_most() == [2, 4, 4, 4, 4, 4, 4, 4, 4, 4, 6]
    assert (times.count, times.last_ns) == (8, 60_000_000_000)
    assert times.total_ns == (1 + 500 + 501 + 1000 + 999_999 + 1_000_000 + 1_000_001 + 60_000_000) * 1000


def test_numbers_make_the_same_again() -> None:
    times = SyncTimes()
    assert times.numbers() == [0] * (4 + len(SPANS_US))
    times.took(3_000_000)
    assert SyncTimes(times.numbers()).numbers() == times.numbers()
