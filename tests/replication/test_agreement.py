"""A few probes find the place where two logs part; the plain way is to compare them one by one."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster.replication.agreement import agreed, back_up
from fairlead.cluster.replication.log import Batch
from tests.simulation.disk import SimLog

histories = st.tuples(
    st.lists(st.integers(1, 4), max_size=12).map(sorted),
    st.lists(st.integers(5, 8), max_size=12).map(sorted),
    st.lists(st.integers(9, 12), max_size=12).map(sorted),
)


def log_of(epochs: list[int]) -> SimLog:
    log = SimLog(Random(0))
    for epoch in epochs:
        log.push(epoch, b"%d" % epoch)
    return log


def whole(epochs: list[int]) -> Batch:
    return Batch(1, 0, tuple((1, epoch) for epoch in epochs), b"")


@given(histories)
def test_the_place_where_logs_part(parts: tuple[list[int], list[int], list[int]]) -> None:
    common, ours, theirs = parts
    assert agreed(log_of(common + ours), whole(common + theirs), 0) == len(common)


@given(histories, st.booleans())
def test_backing_up_ends_where_logs_part(parts: tuple[list[int], list[int], list[int]], swap: bool) -> None:
    common, ours, theirs = parts
    log, other = log_of(common + ours), common + theirs
    if swap:
        log, other = log_of(common + theirs), common + ours
    first, steps = min(log.last, len(other)) + 1, 0
    while log.epoch_at(first - 1) != (other[first - 2] if first > 1 else 0):
        following = back_up(log, first - 1, other[first - 2], 1)
        assert following < first, "every step goes back"
        first, steps = following, steps + 1
    assert first - 1 <= len(common)
    assert steps <= len(set(common + ours + theirs)) + 1, "by runs, not one by one"
