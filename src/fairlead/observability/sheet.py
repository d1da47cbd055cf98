"""One moment's figures, filled in metric by metric, then handed to prometheus-client's own classes to be written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from fairlead.observability.catalogue import Metric

Labels = tuple[str, ...]


class Sheet(Collector):
    """Two figures for the same labels are added up: two standbys of one role, say."""

    def __init__(self, order: Iterable[Metric]) -> None:
        self._values: dict[Metric, dict[Labels, float]] = {metric: {} for metric in order}
        self._spans: dict[Metric, dict[Labels, tuple[list[tuple[str, float]], float]]] = {}

    def put(self, metric: Metric, value: float | None, *labels: str) -> None:
        """None: it is not known just now, and so not told."""
        if value is not None:
            assert len(labels) == len(metric.labels), f"{metric.name} has the labels {metric.labels}"
            row = self._values[metric]
            row[labels] = row.get(labels, 0.0) + value

    def spans(
        self, metric: Metric, ends_s: Sequence[float], at_most: Sequence[int], count: int, total_s: float, *labels: str
    ) -> None:
        """A histogram; `at_most` says of each end how many were no longer."""
        buckets = [(str(float(end)), float(many)) for end, many in zip(ends_s, at_most, strict=True)]
        buckets.append(("+Inf", float(count)))
        self._spans.setdefault(metric, {})[labels] = buckets, total_s

    def collect(self) -> Iterator[Family]:
        for metric, row in self._values.items():
            if metric.kind == "histogram":
                found = self._spans.get(metric, {})
                if found:
                    yield _histogram(metric, found)
            elif row:
                yield _plain(metric, row)


def _plain(metric: Metric, row: dict[Labels, float]) -> Family:
    name, text, labels = metric.name, metric.sentence, metric.labels
    if metric.kind == "info":
        info = InfoMetricFamily(name, text)
        for values in row:
            info.add_metric((), dict(zip(labels, values, strict=True)))
        return info
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = make(name, text, labels=labels)
    for values, value in row.items():
        family.add_metric(values, value)
    return family


def _histogram(metric: Metric, found: dict[Labels, tuple[list[tuple[str, float]], float]]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.sentence, labels=metric.labels)
    for values, (buckets, total_s) in found.items():
        family.add_metric(values, buckets, total_s)
    return family
