"""The list of metrics: complete, without doubles, and named as Prometheus wants names."""

from __future__ import annotations

import re

from fairlead.observability.catalogue import NOT_SHOWN, ROWS, SO_NOW, everything, metric_of
from fairlead.runtime.counters import COUNTERS


def test_every_counter_is_shown_or_left_out_on_purpose() -> None:
    assert {row.role: row.counters for row in ROWS} == COUNTERS
    for row in ROWS:
        for counter in row.counters:
            assert (metric_of(row, counter) is None) == ((row.counters, int(counter)) in NOT_SHOWN)
    assert not SO_NOW & NOT_SHOWN


def test_what_its_sentence_calls_now_or_a_share_of_time_is_a_gauge() -> None:
    for row in ROWS:
        for counter in row.counters:
            metric = metric_of(row, counter)
            if metric is not None and re.search(r"\bnow\b|^1 while", counter.sentence):
                assert metric.kind == "gauge", counter


def test_names_are_legal_and_single_and_say_their_unit() -> None:
    metrics = list(everything())
    assert len({metric.shown for metric in metrics}) == len(metrics)
    for metric in metrics:
        assert re.fullmatch(r"fairlead_[a-z0-9_]+", metric.name)
        assert not metric.name.endswith(("_total", "_info", "_count", "_sum", "_bucket", "_ns", "_ms"))
        assert metric.sentence.endswith(".")
        if metric.kind == "histogram":
            assert metric.name.endswith("_seconds")
        assert not re.match(r"(Bytes|How many|How long) (of )?(these|them|the same)\b", metric.sentence), "stands alone"
