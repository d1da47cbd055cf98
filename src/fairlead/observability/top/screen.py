"""Drawing: a head with the whole server in two lines, one view below it, the keys in the last line.

Everything is cut to the height there is, so that nothing moves when a row comes or goes. What clients chose (names,
peers) is put in as plain text, never as markup.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairlead.observability.health import ready
from fairlead.observability.top.rows import Pair, Row
from fairlead.observability.top.state import COLUMNS, TEXTS, State

BARS: Final = frozenset(("up", "down", "arena"))
BAR_CELLS: Final = 4
HEAD_LINES: Final = 3
KEYS: Final = "[o]verview [d]estinations [c]onnections [p]rocesses [u]pdates ←→[s]ort [q]uit"
REST: Final = {"destinations": 64, "connections": 66, "updates": 46}
"""Characters that the columns of figures take; names, and whatever else has no end, get what is left."""
LONG: Final = frozenset(("destination", "instance", "reason"))
NARROW: Final = {
    "in": "in/s",
    "out": "out/s",
    "consumers": "cons",
    "connections": "conns",
    "bytes": "bytes/s",
    "manager": "mgr",
    "under way": "held",
    "acknowledged": "acks/s",
}


def screen(pair: Pair, state: State, width: int, height: int) -> RenderableType:
    """The whole screen, with the keys in its last line."""
    body = view(pair, state, width, height - 1)
    padding = [Text("")] * max(height - 1 - sum(_lines(part) for part in body), 0)
    return Group(*body, *padding, Text(KEYS[:width].ljust(width), style="reverse", no_wrap=True))


def view(pair: Pair, state: State, width: int, height: int) -> list[RenderableType]:
    """Head and rows."""
    room = height - HEAD_LINES
    if state.view == "overview":
        body = overview(pair, width, room)
    else:
        rows = ordered(getattr(pair, state.view)(), state)
        state.offset = max(min(state.offset, len(rows) - 1), 0)
        shown = rows[state.offset : state.offset + room - 1]
        body = [table(state.view, shown, state, width)]
        if not rows:
            body.append(Text(f"No {state.view}.", style="dim"))
    return [*head(pair, width), *body]


def head(pair: Pair, width: int) -> list[Text]:
    status, totals = pair.now.status, pair.totals()
    verdict = ready(status)
    first = Text(no_wrap=True, overflow="ellipsis")
    first.append(f"Fairlead {status['version']} ", style="bold")
    first.append(f"{', '.join(status['listen'])}  up {span(status['uptime_s'])}  ")
    first.append("ready" if verdict.ok else "NOT READY", style="green" if verdict.ok else "bold red")
    first.append(f"  flush {totals['sync_ms']:.0f} ms")
    second = Text(
        f"in {count(totals['in'])}/s out {count(totals['out'])}/s  stored {count(totals['stored'])}/s "
        f"acks {count(totals['acknowledged'])}/s  waiting {count(totals['depth'])}  conns {totals['connections']:,}",
        no_wrap=True,
        overflow="ellipsis",
    )
    words = [*verdict.reasons, *(f"No answer: {one}" for one in pair.now.unanswered)]
    third = Text(" ".join(words), style="bold red", no_wrap=True, overflow="ellipsis")
    for line in (first, second, third):
        line.truncate(width, overflow="ellipsis")
    return [first, second, third]


def overview(pair: Pair, width: int, room: int) -> list[RenderableType]:
    """Managers, the busiest destinations, the newest updates: as much as there is room for."""
    state = State(view="destinations")
    managers, destinations = pair.managers(), ordered(pair.destinations(), state)
    updates = ordered(pair.updates(), State(view="updates"))
    some = min(len(managers), max(room // 4, 2))
    new = min(len(updates), 3) if room >= 12 else 0
    left = room - (some + 1) - 1 - 1 - (new + 2 if new else 0)
    parts: list[RenderableType] = [table("managers", managers[:some], None, width), Text("")]
    parts.append(table("destinations", destinations[: max(left, 1)], state, width))
    if new:
        parts += [Text(""), table("updates", updates[:new], None, width)]
    return parts


def ordered(rows: list[Row], state: State) -> list[Row]:
    key = state.sorted_by
    first = next(iter(COLUMNS[state.view]))
    rows = sorted(rows, key=lambda row: str(row[first]))
    return sorted(rows, key=lambda row: row[key], reverse=state.descending) if key else rows


def table(view: str, rows: Iterable[Row], state: State | None, width: int) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), expand=False)
    for name in COLUMNS[view]:
        title = NARROW.get(name, name)
        if state is not None and name == state.sorted_by:
            title += "▼" if state.descending else "▲"
        side: Literal["left", "right"] = "left" if name in TEXTS or name in BARS else "right"
        made.add_column(title, justify=side, no_wrap=True, overflow="ellipsis", header_style="bold")
    letters = max(width - REST.get(view, 0), 12)
    for row in rows:
        cells = [cell(name, row[name]) for name in COLUMNS[view]]
        for name, text in zip(COLUMNS[view], cells, strict=True):
            if name in LONG:
                text.truncate(letters, overflow="ellipsis")
        made.add_row(*cells)
    return made


def cell(name: str, value: Any) -> Text:
    if name in BARS:
        return bar(value)
    if name in ("age", "oldest"):
        return Text(span(value) if value else "–")
    if name == "pause":
        return Text(f"{value * 1000:.1f} ms")
    if name == "cpu":
        return Text(f"{100 * value:.0f} %", style="bold" if value > 0.5 else "")
    if name == "memory":
        return Text(size(value))
    if name == "bytes":
        return Text(size(value))
    if name in TEXTS:
        style = "bold red" if value in ("STOPPED", "blocked", "failed", "rolled back") else ""
        return Text("".join(one if one.isprintable() else "\ufffd" for one in str(value)), style=style)
    if name in ("pid", "connection", "manager"):
        return Text(str(value))
    style = "bold red" if name in ("dead", "restarts") and value else "dim" if not value else ""
    return Text(count(value), style=style)


def bar(share: float) -> Text:
    """How full, as a bar and in words."""
    full = min(round(share * BAR_CELLS), BAR_CELLS)
    style = "red" if share > 0.9 else "yellow" if share > 0.5 else "green"
    made = Text("█" * full, style=style)
    made.append("░" * (BAR_CELLS - full), style="dim")
    made.append(f"{100 * min(share, 1.0):3.0f}%")
    return made


def count(value: float) -> str:
    """A number in few letters."""
    if value < 10 and value != int(value):
        return f"{value:.1f}"
    for limit, divisor, letter in ((1e5, 1, ""), (1e7, 1e3, "k"), (1e10, 1e6, "M")):
        if value < limit:
            return f"{value / divisor:,.0f}{letter}"
    return f"{value / 1e9:,.0f}G"


def size(value: float) -> str:
    for limit, divisor, letter in ((1e4, 1, " B"), (1e7, 1e3, " kB"), (1e10, 1e6, " MB")):
        if value < limit:
            return f"{value / divisor:,.0f}{letter}"
    return f"{value / 1e9:,.0f} GB"


def span(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def away(sentence: str, where: str) -> RenderableType:
    """Instead of everything, while nobody answers."""
    return Group(
        Text(sentence, style="bold red"),
        Text(""),
        Text(f"Looking again at {where}. Is it started?  fairlead serve"),
        Text("Another one is named with --server URL or --data DIR; [q] quits."),
    )


def _lines(part: RenderableType) -> int:
    return part.row_count + 1 if isinstance(part, Table) else 1
