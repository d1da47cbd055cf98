"""Plots of the tour as SVG for a page: rates over time, pauses, latencies. They take their colours from the page.

Written by hand rather than by a plotting library, so that the tour needs none: a few lines, bars and points.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from html import escape
from typing import Final, NamedTuple

from fairlead.demo.findings import Chart
from fairlead.demo.words import spell

__all__ = ["ladder", "pauses", "rates", "ticks"]

WIDTH: Final = 760
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 34, 34
COLOURS: Final = ("var(--c1)", "var(--c2)", "var(--c5)", "var(--c4)")
BAND: Final = "var(--bad)"
HALO: Final = ";paint-order:stroke;stroke:var(--card);stroke-width:3px"
HEADROOM: Final = 1.4
"""Above the curves is room for the words about them."""
LETTER: Final = 6.2
"""About as wide as a letter of the small text is."""


class Box(NamedTuple):
    """Where values lie in a plot: x from 0 to `x_max`, y from 0 to `y_max`."""

    x_max: float
    y_max: float
    height: float

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, value / self.x_max))

    def y(self, value: float) -> float:
        return TOP + (self.height - TOP - BOTTOM) * (1 - min(1.0, max(0.0, value / self.y_max)))


def rates(chart: Chart) -> str:
    """Lines of messages a second; what was done as dashed lines, pauses as bands."""
    x_max = max((len(one.rates) * one.bin_s for one in chart.curves), default=0.0) or 1.0
    steps = ticks(max((max(one.rates, default=0.0) for one in chart.curves), default=0.0) or 1.0)
    box = Box(x_max, HEADROOM * steps[-1], 250)
    parts = list(_grid(box, steps, "messages/s"))
    for pause in chart.pauses:
        at, wide = box.x(pause.at_s), max(1.5, box.x(pause.at_s + pause.length_s) - box.x(pause.at_s))
        parts.append(
            _rect(at, TOP, wide, box.height - TOP - BOTTOM, BAND, 0.22, f"{pause.text}: {spell(pause.length_s)}")
        )
    for colour, curve in zip(COLOURS, chart.curves, strict=False):
        points = [(box.x((place + 0.5) * curve.bin_s), box.y(rate)) for place, rate in enumerate(curve.rates)]
        if points:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            floor = f"{points[-1][0]:.1f},{box.y(0):.1f} {points[0][0]:.1f},{box.y(0):.1f}"
            parts.append(f'<polygon points="{line} {floor}" style="fill:{colour};opacity:.12"/>')
            parts.append(
                f'<polyline points="{line}" style="fill:none;stroke:{colour};stroke-width:1.6;stroke-linejoin:round"/>'
            )
    words = [
        _beside(box, pause.at_s + pause.length_s, TOP + 13, f"{pause.text} {spell(pause.length_s)}", BAND)
        for pause in chart.pauses
    ]
    for row, mark in enumerate(chart.marks):
        x = box.x(mark.at_s)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{box.y(0):.1f}" '
            'style="stroke:var(--ink);stroke-width:1;stroke-dasharray:4 3"/>'
        )
        words.append(_beside(box, mark.at_s, TOP + 27 + 14 * (row % 2), mark.text, "var(--ink)"))
    legend = [(colour, curve.name) for colour, curve in zip(COLOURS, chart.curves, strict=False)]
    parts += words + _legend(chart.title, legend)
    return _svg(chart.title, box.height, parts)


def pauses(values: Mapping[str, float]) -> str:
    """A lying bar for each, on a logarithmic scale from a millisecond on."""
    return _rows("Pauses", {name: {"": length_s} for name, length_s in values.items()}, bars=True)


def ladder(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Percentiles of each row as points on a line, on a logarithmic scale."""
    return _rows("Latencies", rows, bars=False)


def _rows(title: str, rows: Mapping[str, Mapping[str, float]], *, bars: bool) -> str:
    seen = [value for row in rows.values() for value in row.values() if value > 0] or [0.001]
    low, high = math.floor(math.log10(min(seen))), math.ceil(math.log10(max(seen)) + 1e-9)
    high = max(high, low + 1)
    left = 24 + LETTER * max(len(name) for name in rows)
    top = 10 if bars else TOP  # where the other one has its legend
    height = top + 26 * len(rows) + BOTTOM
    floor = height - BOTTOM + 4

    def x(value: float) -> float:
        part = (math.log10(value) - low) / (high - low) if value > 0 else 0.0
        return left + (WIDTH - left - 70) * min(1.0, max(0.0, part))

    parts = []
    for power in range(low, high + 1):
        at = x(10.0**power)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top - 6}" y2="{floor}" style="stroke:var(--grid)"/>')
        parts.append(_text(at, floor + 16, _decade(power), "middle"))
    kinds = list(next(iter(rows.values())))
    for number, (name, row) in enumerate(rows.items()):
        y = top + 26 * number + 12
        parts.append(_text(left - 10, y + 4, name, "end", "var(--ink)"))
        if bars:
            value = row[""]
            parts.append(_rect(left, y - 7, max(2.0, x(value) - left), 14, COLOURS[0], 0.85, spell(value)))
            parts.append(_text(x(value) + 6, y + 4, spell(value), "start", "var(--ink)"))
            continue
        found = [value for value in row.values() if value > 0]
        if found:
            parts.append(
                f'<line x1="{x(min(found)):.1f}" x2="{x(max(found)):.1f}" y1="{y}" y2="{y}" '
                'style="stroke:var(--grid);stroke-width:3"/>'
            )
        for colour, kind in zip(COLOURS, kinds, strict=False):
            if row.get(kind, 0) > 0:
                parts.append(
                    f'<circle cx="{x(row[kind]):.1f}" cy="{y}" r="4.5" style="fill:{colour}">'
                    f"<title>{escape(kind)}: {spell(row[kind])}</title></circle>"
                )
    if not bars:
        parts += _legend("", list(zip(COLOURS, kinds, strict=False)))
    return _svg(title, height, parts)


def ticks(highest: float, wanted: int = 4) -> list[float]:
    """Round numbers from 0 to at least `highest`."""
    rough = highest / wanted
    size = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)
    count = math.ceil(highest / step - 1e-9)
    return [step * number for number in range(count + 1)]


def _grid(box: Box, steps: list[float], label: str) -> Iterable[str]:
    for value in steps:
        y = box.y(value)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" style="stroke:var(--grid)"/>'
        yield _text(LEFT - 7, y + 4, f"{value:,.0f}", "end")
    for value in ticks(box.x_max, 6):
        if value <= box.x_max:
            yield _text(box.x(value), box.height - BOTTOM + 18, f"{value:g} s", "middle")
    yield _text(WIDTH - RIGHT, TOP - 18, label, "end")


def _beside(box: Box, at_s: float, y: float, text: str, colour: str) -> str:
    """A word right of a place, or left of it where it would not fit."""
    x = box.x(at_s)
    fits = x + 6 + LETTER * len(text) < WIDTH - RIGHT
    return _text(x + 5 if fits else x - 5, y, text, "start" if fits else "end", colour + HALO)


def _legend(title: str, names: list[tuple[str, str]]) -> list[str]:
    parts = [_text(LEFT, TOP - 18, title, "start", "var(--ink)")] if title else []
    x = LEFT + (LETTER * len(title) + 22 if title else 0)
    for colour, name in names:
        parts.append(f'<circle cx="{x:.1f}" cy="{TOP - 22}" r="4.5" style="fill:{colour}"/>')
        parts.append(_text(x + 9, TOP - 18, name, "start"))
        x += 9 + LETTER * len(name) + 18
    return parts


def _rect(x: float, y: float, width: float, height: float, colour: str, opacity: float, title: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1.5" '
        f'style="fill:{colour};opacity:{opacity}"><title>{escape(title)}</title></rect>'
    )


def _text(x: float, y: float, text: str, anchor: str, colour: str = "var(--muted)") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" style="fill:{colour};font-size:11.5px">'
        f"{escape(text)}</text>"
    )


def _decade(power: int) -> str:
    unit, scale = ("s", 0) if power >= 0 else ("ms", 3) if power >= -3 else ("µs", 6)
    return f"{10 ** (power + scale):,} {unit}"


def _svg(title: str, height: float, parts: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'aria-label="{escape(title, quote=True)}">{"".join(parts)}</svg>'
    )
