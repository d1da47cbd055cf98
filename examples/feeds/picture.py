"""The picture of a trading day: who was how far when, from whom the program took its messages, what it dropped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

COLOURS: Final = {"a": "#1f6fb4", "b": "#d9731a"}
ZOOM_S: Final = 0.25


class Taken(NamedTuple):
    """Messages the program took at one time from one adapter."""

    at_s: float
    line: str
    first: int
    last: int


def draw(
    taken: Sequence[Taken],
    events: Sequence[tuple[float, Any]],
    adapters: Sequence[tuple[float, str, int]],
    counters: Sequence[tuple[float, dict[str, int]]],
    marks: Sequence[tuple[float, str]],
    file: Path,
) -> None:
    """Three panels: the day, the moment of the failover, what was dropped as a duplicate."""
    figure, (day, moment, dropped) = pyplot.subplots(
        3, 1, figsize=(11, 12), height_ratios=(3, 2, 1), layout="constrained"
    )
    for panel in (day, moment):
        _numbers(panel, taken, adapters)
        panel.set_ylabel("message number")
    day.set_title("A trading day through two adapters")
    day.margins(x=0.06)
    for at_s, what in marks:
        day.axvline(at_s, color="#b01030", linewidth=1)
        day.annotate(what, (at_s, 0.02), xycoords=("data", "axes fraction"), rotation=90, color="#b01030",
                     ha="right", va="bottom", fontsize=8)  # fmt: skip
    for place, (at_s, event) in enumerate(events):
        day.axvline(at_s, color="#808080", linewidth=0.7, linestyle=":")
        day.annotate(type(event).__name__, (at_s, 0.98 - 0.045 * (place % 8)), xycoords=("data", "axes fraction"),
                     ha="left", va="top", fontsize=8, color="#404040")  # fmt: skip
    day.legend(loc="center left", fontsize=8)

    killed_s = marks[0][0]
    before = max((one for one in taken if one.at_s <= killed_s), key=lambda one: one.at_s)
    after = min((one for one in taken if one.at_s > killed_s), key=lambda one: one.at_s)
    moment.axvline(killed_s, color="#b01030", linewidth=1)
    moment.axvspan(before.at_s, after.at_s, color="#b01030", alpha=0.12, linewidth=0)
    moment.set_xlim(killed_s - ZOOM_S, max(after.at_s, killed_s) + ZOOM_S)
    near = [one for one in taken if moment.get_xlim()[0] <= one.at_s <= moment.get_xlim()[1]]
    moment.set_ylim(min(one.first for one in near) - 50, max(one.last for one in near) + 50)
    pause_ms = 1000 * (after.at_s - before.at_s)
    moment.set_title(
        f"The moment of the failover: the program waited {pause_ms:.0f} ms, and went on with the next number"
    )

    dropped.step([at_s for at_s, _ in counters], [found.get("duplicates", 0) for _, found in counters], where="post",
                 color="#404040")  # fmt: skip
    dropped.set_ylabel("dropped as duplicates")
    dropped.set_xlabel("seconds since the exchange began")
    dropped.sharex(day)
    figure.savefig(file, dpi=90)
    figure.savefig(file.with_suffix(".svg"))
    pyplot.close(figure)


def _numbers(panel: Any, taken: Sequence[Taken], adapters: Sequence[tuple[float, str, int]]) -> None:
    for name, colour in COLOURS.items():
        own = [(at_s, last) for at_s, whose, last in adapters if whose == name]
        panel.plot(*zip(*_with_holes(own), strict=True), color=colour, alpha=0.35, linewidth=5, drawstyle="steps-post",
                   label=f"adapter {name}, as it reported")  # fmt: skip
        panel.vlines([one.at_s for one in taken if one.line == name], [one.first for one in taken if one.line == name],
                     [one.last + 1 for one in taken if one.line == name], color=colour, linewidth=1.5,
                     label=f"taken by the program from {name}")  # fmt: skip


def _with_holes(points: Sequence[tuple[float, int]], hole_s: float = 0.4) -> list[tuple[float, float]]:
    """The line is broken where an adapter said nothing."""
    found: list[tuple[float, float]] = []
    for at_s, last in points:
        if found and at_s - found[-1][0] > hole_s:
            found.append((found[-1][0] + hole_s / 2, float("nan")))
        found.append((at_s, float(last)))
    return found or [(float("nan"), float("nan"))]
