"""A page of numbers, tables and plots that is one file: it asks nobody for anything, and shows light or dark.

Every word in it may come from a stranger: `Text` is escaped where it is set, plots are made by `figures`, and the page
forbids every script but its own few lines, which sort tables. A JSON file beside it has the same numbers.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from fairlead.pipeline.figures import plain
from fairlead.pipeline.registry import write_atomically

__all__ = ["Cell", "Page", "Section", "Table", "Tile", "bytes_text", "time_text", "write"]

Tone: TypeAlias = Literal["", "good", "bad"]
Cell: TypeAlias = str | int | float | None

CELL_MAX: Final = 200
SMALL: Final = 0.01


@dataclass(frozen=True)
class Tile:
    """One number large on top of the page."""

    label: str
    value: str
    tone: Tone = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells; numbers stand right and are sorted as numbers. `more` says how many rows are not shown."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    more: int = 0


@dataclass(frozen=True)
class Section:
    """A heading, a sentence, plots (SVG of `figures`), tables."""

    title: str
    text: str = ""
    plots: Sequence[str] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Page:
    """All that is to be seen."""

    title: str
    subtitle: str
    tiles: Sequence[Tile] = ()
    sections: Sequence[Section] = field(default_factory=tuple)
    footer: str = "Made by Fairlead. The same numbers are in the JSON file beside this page."

    def html(self) -> str:
        """The whole page."""
        body = "".join(_section(one) for one in self.sections)
        tiles = "".join(
            f'<div class="tile {one.tone}"><b>{escape(one.value)}</b><span>{escape(one.label)}</span></div>'
            for one in self.tiles
        )
        digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
        return PAGE.format(
            title=escape(self.title), subtitle=escape(self.subtitle), tiles=tiles, body=body, style=STYLE,
            script=SCRIPT, digest=digest, footer=escape(self.footer),
        )  # fmt: skip


def write(page: Page, facts: Mapping[str, Any], file: Path) -> tuple[Path, Path]:
    """The page and, beside it, its numbers as JSON; each is there whole or not at all."""
    numbers = file.with_suffix(".json")
    write_atomically(numbers, json.dumps(facts, ensure_ascii=True, indent=1) + "\n")
    write_atomically(file, page.html())
    return file, numbers


def bytes_text(size: float) -> str:
    """1536 as 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def time_text(us: float | None) -> str:
    """Microseconds in the unit that fits."""
    if us is None:
        return "–"
    for size, unit in ((1_000, "µs"), (1_000_000, "ms"), (120_000_000, "s"), (7_200_000_000, "min")):
        if abs(us) < size:
            scale = {"µs": 1, "ms": 1e3, "s": 1e6, "min": 6e7}[unit]
            return f"{us / scale:.3g} {unit}"
    return f"{us / 3.6e9:,.1f} h"


def _section(one: Section) -> str:
    said = f"<p>{escape(one.text)}</p>" if one.text else ""
    plots = "".join(f"<figure>{plot}</figure>" for plot in one.plots)
    return f"<section><h2>{escape(one.title)}</h2>{said}{plots}{''.join(map(_table, one.tables))}</section>"


def _table(one: Table) -> str:
    numeric = [
        any(isinstance(row[at], (int, float)) for row in one.rows)
        and all(row[at] is None or isinstance(row[at], (int, float)) for row in one.rows)
        for at in range(len(one.columns))
    ]
    head = "".join(
        f"<th{' class=n' if is_number else ''}><button>{escape(name)}</button></th>"
        for name, is_number in zip(one.columns, numeric, strict=True)
    )
    rows = "".join(f"<tr>{''.join(map(_cell, row, numeric))}</tr>" for row in one.rows)
    more = f'<p class="more">… and {one.more:,} more.</p>' if one.more else ""
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{more}'


def _cell(value: Cell, is_number: bool) -> str:
    if value is None:
        return f"<td{' class=n' if is_number else ''}>–</td>"
    if isinstance(value, str):
        return f"<td>{escape(plain(value, CELL_MAX))}</td>"
    shown = f"{value:,}" if isinstance(value, int) else f"{value:,.3f}" if abs(value) >= SMALL else f"{value:.3g}"
    return f'<td class=n data-v="{value}"{" data-zero" if not value else ""}>{shown}</td>'


PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; form-action 'none'">
<meta name="color-scheme" content="light dark"><title>{title}</title><style>{style}</style></head>
<body><header><h1>{title}</h1><p>{subtitle}</p></header>
<main><div class="tiles">{tiles}</div>{body}</main>
<footer>{footer}</footer>
<script>{script}</script></body></html>
"""

STYLE: Final = """
:root{--paper:#fbfaf7;--card:#fff;--ink:#1d2430;--muted:#667080;--grid:#e3e4e8;--good:#1b7f5c;--bad:#c2362b;
--c1:#2f6fb0;--c2:#e08a1e;--c3:#c2362b;--c4:#7a5ab5;--c5:#1f9d8b;--c6:#b5477f;--c7:#8a9a2b;--c8:#6b7685;--c9:#4aa3df;--c10:#8c5a2b}
@media (prefers-color-scheme:dark){:root{--paper:#12161c;--card:#1a2029;--ink:#e8eaee;--muted:#97a1b0;--grid:#2d3541;
--good:#4cc79b;--bad:#ff7a6b;--c1:#6aa9e9;--c2:#f2ac4f;--c3:#ff7a6b;--c4:#ab8ee6;--c5:#4fd0bd;--c6:#e582b4;--c7:#bccb58;
--c8:#97a1b0;--c9:#9fd3ff;--c10:#c99a6b}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
header,main,footer{max-width:70rem;margin:0 auto;padding:0 1.1rem}header{padding-top:1.6rem}
h1{font-size:1.7rem;margin:0;letter-spacing:-.01em;overflow-wrap:anywhere}
header p{color:var(--muted);margin:.2rem 0 1rem;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:0 0 .3rem}section{background:var(--card);border:1px solid var(--grid);border-radius:10px;
padding:1rem 1.1rem;margin:0 0 1rem}section p{color:var(--muted);margin:.1rem 0 .8rem;max-width:60rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.2rem,1fr));gap:.7rem;margin:0 0 1rem}
.tile{background:var(--card);border:1px solid var(--grid);border-radius:10px;padding:.7rem .9rem}
.tile b{display:block;font-size:1.2rem;font-variant-numeric:tabular-nums;overflow-wrap:break-word;line-height:1.3}
.tile span{color:var(--muted);font-size:.85rem}.tile.good b{color:var(--good)}.tile.bad b{color:var(--bad)}
figure{margin:.4rem 0 1rem;overflow-x:auto}
figure svg{display:block;width:100%;height:auto;min-width:33rem;max-width:56rem}
.wide{overflow-x:auto;max-height:32rem;overflow-y:auto}
table{border-collapse:collapse;width:100%;font-size:.88rem;font-variant-numeric:tabular-nums}
th{position:sticky;top:0;background:var(--card);text-align:left;border-bottom:2px solid var(--grid);padding:0}
th button{all:unset;cursor:pointer;padding:.3rem .6rem;color:var(--muted);font-weight:600;white-space:nowrap}
th button:focus-visible{outline:2px solid var(--c1)}th[aria-sort=ascending] button::after{content:" ↑"}
th[aria-sort=descending] button::after{content:" ↓"}
td{padding:.3rem .6rem;border-bottom:1px solid var(--grid);overflow-wrap:anywhere;min-width:3rem}
td:first-child{min-width:7.5rem}
.n{text-align:right;white-space:nowrap}td[data-zero]{color:var(--muted)}.more{margin:.5rem 0 0;font-size:.88rem}
footer{color:var(--muted);font-size:.82rem;padding-bottom:2rem}
@media (max-width:34rem){body{font-size:14px}section{padding:.8rem .7rem}h1{font-size:1.35rem}}
@media print{.wide{max-height:none;overflow:visible}}
"""

SCRIPT: Final = """
for (const head of document.querySelectorAll("thead tr")) head.addEventListener("click", event => {
  const th = event.target.closest("th"); if (!th) return;
  const at = [...head.children].indexOf(th), up = th.getAttribute("aria-sort") === "descending";
  for (const one of head.children) one.removeAttribute("aria-sort");
  th.setAttribute("aria-sort", up ? "ascending" : "descending");
  const body = head.closest("table").tBodies[0];
  const value = row => { const c = row.cells[at]; return c.dataset.v === undefined ? c.textContent : +c.dataset.v; };
  const rows = [...body.rows].sort((a, b) => {
    const x = value(a), y = value(b);
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
    return up ? order : -order;
  });
  body.append(...rows);
});
"""
