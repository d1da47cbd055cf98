"""The page of a tour: whole, in one file, and without a word that could do harm."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from fairlead.demo.figures import ladder, pauses, rates, ticks
from fairlead.demo.findings import Chart, Count, Curve, Findings, Mark, Outcome, Pause
from fairlead.demo.report import page_of

CHART = Chart(
    title="Rates & more",
    curves=[Curve("confirmed", 0.05, [0.0, 2000.0, 1500.0]), Curve("received", 0.05, [0.0, 0.0])],
    marks=[Mark(0.05, "kill -9"), Mark(0.149, "a long word close to the right end")],
    pauses=[Pause(0.05, 0.03, "nothing <confirmed>")],
)


def outcomes() -> list[Outcome]:
    found = Findings(
        said=["router: done", "it paused"],
        counts=[Count(what="queue", sent=4711, received=4710, lost=1, disordered=None, disconnected=0)],
        charts=[CHART],
        latencies={"one way": {"p50": 0.0004, "longest": 0.02}},
    )
    return [
        Outcome(name="router", title="The router", state="failed", seconds=1.5, why="not so: queue: 1 lost",
                findings=found),
        Outcome(name="archive", title="Spark", state="skipped", seconds=0.0, why="There is no pyspark here."),
    ]  # fmt: skip


def test_everything_that_was_found_is_on_the_page() -> None:
    html = page_of(outcomes(), 12.0, "Fairlead, today").html()
    for text in ("4,711", "The router: FAILED after 1.5 s", "Router: done. It paused. Not so: queue: 1 lost.",
                 "Spark: skipped", "There is no pyspark here.", "0 of 2", "400 µs", "30.0 ms"):  # fmt: skip
        assert text in html, text
    assert "nothing <confirmed>" not in html
    assert '<div class="tile bad"><b>1</b><span>lost</span>' in html
    assert "–" in html, "an order nobody promised is not a zero"


def test_the_page_fetches_nothing() -> None:
    html = page_of(outcomes(), 12.0, "Fairlead, today").html()
    assert not re.search(r"""(?:src|href)\s*=|url\(|@import""", html)
    assert "JSON file" not in html


def test_a_tour_without_figures_has_a_page_too() -> None:
    html = page_of([Outcome(name="a", title="A", state="failed", seconds=0.1, why="OSError: no")], 0.1, "x").html()
    assert "OSError: no." in html


@pytest.mark.parametrize(
    "svg",
    [rates(CHART), rates(Chart(title="none", curves=[])), rates(Chart(title="0", curves=[Curve("x", 0.05, [0.0])])),
     pauses({"a: b": 0.012, "c": 0.0}), pauses({"zero": 0.0}),
     ladder({"a": {"p50": 0.0001, "longest": 12.0}, "b": {}})],
    ids=["rates", "no curves", "flat", "pauses", "no pause", "ladder"],
)  # fmt: skip
def test_plots_are_svg_within_their_frame(svg: str) -> None:
    root = ElementTree.fromstring(svg)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for one in root.iter():
        for key, limit in (("x", width), ("x1", width), ("x2", width), ("cx", width), ("y", height), ("cy", height)):
            if key in one.attrib:
                assert 0 <= float(one.attrib[key]) <= limit, (one.tag, one.attrib)


@pytest.mark.parametrize("highest", [0.37, 1.0, 9.99, 4321.0, 60_000.0])
def test_scales_end_above_what_they_show(highest: float) -> None:
    found = ticks(highest)
    assert found[0] == 0
    assert found[-1] >= highest * 0.999
    assert 3 <= len(found) <= 7
