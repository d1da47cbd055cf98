"""Plots as SVG to be set into a page: they take their colours from the page, light or dark, and fetch nothing.

Matplotlib draws in stand-in colours, which become the page's variables (`--ink`, `--c1` …). What is written in a plot
comes from strangers: it is text, not mathematics, and of bounded length.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["SERIES", "bars", "ladder", "map_of_faults", "plain", "stacked", "timeline"]

SERIES: Final = 10
"""Different colours; more series than that are drawn as one, `others`."""

LABEL_MAX: Final = 28
YEARS_S: Final = 200 * 365.25 * 86_400
"""So far from 1970 a time is taken for one; a clock that says more is shown as a number."""

INK, MUTED, GRID = "#010101", "#020202", "#030303"
_COLOURS: Final = tuple(f"#0{number:x}0a0b" for number in range(1, SERIES + 1))
_VARIABLES: Final = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    **{colour: f"var(--c{number})" for number, colour in enumerate(_COLOURS, 1)},
}
_ORDER: Final = (
    *("delivered", "doubled", "lost", "expired", "waiting", "altered", "reordered", "dead", "late", "unsent"),
)
_KINDS: Final = {**dict(zip(_ORDER, _COLOURS, strict=True)), "overlap": _COLOURS[0]}
"""The same colour for the same kind of fault in every plot."""

_STYLE: Final[Any] = {
    "svg.fonttype": "none",  # text stays text: the page's font, and it can be searched
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


def plain(text: Any, length: int = LABEL_MAX) -> str:
    """A stranger's word fit for a label: one line, nothing that cannot be seen, cut in the middle where it is long."""
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(text)[:4096])
    if len(shown) <= length:
        return shown
    half = (length - 1) // 2
    return f"{shown[: length - 1 - half]}…{shown[-half:]}"


def timeline(name: str, times_s: Sequence[float], series: Mapping[str, Sequence[float]], label: str) -> str:
    """Areas on top of one another, over time."""

    def draw(axes: Axes) -> None:
        import matplotlib.dates as dates

        is_calendar = all(abs(at_s) < YEARS_S for at_s in times_s)
        when: Any = [datetime.fromtimestamp(at_s, UTC) for at_s in times_s] if is_calendar else times_s
        if len(when) == 1:
            axes.bar([str(when[0])], [sum(one[0] for one in series.values())], width=0.2, color=_COLOURS[0])
        else:
            labels = [plain(one) for one in series]
            axes.stackplot(
                when, *series.values(), labels=labels, colors=_COLOURS[: len(series)], alpha=0.85, linewidth=0
            )
            axes.margins(x=0)
            if is_calendar:
                locator = dates.AutoDateLocator(minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
                axes.xaxis.set_major_locator(locator)
                axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
            else:
                axes.set_xlabel("seconds since 1970")
            if len(series) > 1:
                axes.legend(loc="upper left", bbox_to_anchor=(0, -0.12), ncols=3)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(_short())
        axes.grid(axis="x", visible=False)

    return _drawn(name, draw, height=3.0 + 0.22 * (len(series) // 3))


def bars(name: str, values: Mapping[str, float], label: str) -> str:
    """One bar for each, lying, with its value at the end."""

    def draw(axes: Axes) -> None:
        names = [plain(one) for one in values]
        drawn = axes.barh(range(len(names)), list(values.values()), color=_COLOURS[0], height=0.62)
        axes.bar_label(drawn, labels=[_in_short(value) for value in values.values()], padding=4, fontsize=8.5)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel(label)
        axes.xaxis.set_major_formatter(_short())
        axes.grid(axis="y", visible=False)

    return _drawn(name, draw, height=0.9 + 0.3 * len(values))


def stacked(name: str, rows: Mapping[str, Mapping[str, float]], kinds: Sequence[str], label: str) -> str:
    """One lying bar for each row, made of its parts: fates of messages."""

    def draw(axes: Axes) -> None:
        names = [plain(one) for one in rows]
        left = [0.0] * len(names)
        for kind in kinds:
            widths = [float(row.get(kind, 0)) for row in rows.values()]
            if any(widths):
                axes.barh(range(len(names)), widths, left=left, color=_KINDS[kind], height=0.62, label=kind)
            left = [at + width for at, width in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_xlabel(label)
        axes.xaxis.set_major_formatter(_short())
        axes.grid(axis="y", visible=False)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=6)

    return _drawn(name, draw, height=1.3 + 0.3 * len(rows))


def ladder(name: str, rows: Mapping[str, Mapping[str, float]], label: str) -> str:
    """Percentiles of each row as points on a line, on a logarithmic scale; what is 0 or less is left out."""

    def draw(axes: Axes) -> None:
        kinds = list(next(iter(rows.values()), {}))
        for line, row in enumerate(rows.values()):
            seen = [value for value in row.values() if value > 0]
            if seen:
                axes.plot([min(seen), max(seen)], [line, line], color=GRID, linewidth=2.5, zorder=1)
        for kind, colour in zip(kinds, _COLOURS, strict=False):
            points = [(row[kind], line) for line, row in enumerate(rows.values()) if row.get(kind, 0) > 0]
            if points:
                across, down = zip(*points, strict=True)
                axes.scatter(across, down, color=colour, s=34, label=kind, zorder=2)
        if any(value > 0 for row in rows.values() for value in row.values()):
            axes.set_xscale("log")
        axes.xaxis.set_major_formatter(_short())
        axes.set_yticks(range(len(rows)), [plain(one) for one in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel(label)
        axes.grid(axis="y", visible=False)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=6)

    return _drawn(name, draw, height=1.3 + 0.3 * len(rows))


def map_of_faults(
    name: str, streams: Mapping[str, tuple[int, int]], faults: Sequence[Mapping[str, Any]], kinds: Sequence[str]
) -> str:
    """Each stream from its first number to its last, and where in it there is a fault."""

    def draw(axes: Axes) -> None:
        lines = {stream: line for line, stream in enumerate(streams)}
        axes.barh(range(len(streams)), [100.0] * len(streams), color=GRID, height=0.5, zorder=1)
        for kind in kinds:
            shown, colour = False, _KINDS[kind]
            for fault in faults:
                if fault["kind"] != kind or fault["stream"] not in lines:
                    continue
                first, last = streams[fault["stream"]]
                length = max(1, last - first + 1)
                start = 100 * (fault["first"] - first) / length
                width = max(0.35, 100 * (fault["last"] - fault["first"] + 1) / length)  # thin ones must be seen too
                label = None if shown else kind
                axes.barh(lines[fault["stream"]], width, left=start, color=colour, height=0.5, label=label, zorder=2)
                shown = True
        axes.set_yticks(range(len(streams)), [plain(one) for one in streams])
        axes.set_ylim(len(streams) - 0.5, -0.5)
        axes.set_xlim(0, 100.4)
        axes.set_xlabel("place in the stream, per cent of its numbers")
        axes.grid(visible=False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=7)

    return _drawn(name, draw, height=1.3 + 0.3 * len(streams))


def _drawn(name: str, draw: Any, *, height: float) -> str:
    """The SVG element of a plot. `name` keeps its inner names apart from those of others on the page."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    out = io.StringIO()
    with rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter the font has not: the page's font may have it
        figure: Figure = Figure(figsize=(7.6, min(height, 14.0)))
        FigureCanvasSVG(figure)
        draw(figure.add_subplot())
        figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None})
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r"(?<=: )#0[0-9a-f]{5}", lambda found: _VARIABLES.get(found[0], found[0]), text)
    # The page's fonts, at the size of the plot; and the plot as wide as there is room.
    text = re.sub(r"font: (?:[^;'\"]*?)([0-9.]+px)[^;\"]*", r"font-size: \1", text)
    head, _, rest = text.partition(">")
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    return f'{head} role="img">{rest}'


def _short() -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: _in_short(value))


def _in_short(value: float) -> str:
    """1,500,000 as 1.5M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
