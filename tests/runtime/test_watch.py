"""Frozen is work and standstill, and nothing else."""

from __future__ import annotations

from fairlead.runtime.watch import Watch


def test_idle_is_not_frozen() -> None:
    watch = Watch(5.0)
    assert not any(watch.look(7, False, now_s) for now_s in range(100))


def test_busy_is_not_frozen() -> None:
    watch = Watch(5.0)
    assert not any(watch.look(now_s, True, now_s) for now_s in range(100))


def test_work_without_progress_is_frozen_after_the_time_and_told_once() -> None:
    watch = Watch(5.0)
    assert [watch.look(7, True, now_s) for now_s in range(8)] == [False] * 5 + [True, False, False]


def test_a_moment_without_work_begins_the_time_anew() -> None:
    watch = Watch(5.0)
    looks = [watch.look(7, now_s != 4, now_s) for now_s in range(10)]
    assert looks == [False] * 9 + [True]
