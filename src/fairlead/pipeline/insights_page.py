"""What `insights` found, as a page: numbers in, sections out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from fairlead.pipeline import figures
from fairlead.pipeline.report import Page, Section, Table, Tile, bytes_text, time_text

__all__ = ["page_of"]

PLOTTED: Final = 14
NOBODY: Final = "(not said)"


def page_of(facts: Mapping[str, Any]) -> Page:
    """The report, of its facts."""
    totals = facts["totals"]
    read = "; ".join(f"{name}: {text}" for name, text in facts["inputs"].items() if text)
    span = f" Messages from {_when(totals['first_us'])} to {_when(totals['last_us'])}." if totals["messages"] else ""
    redelivered = sum(row["redelivered"] for row in facts["destinations"])
    slowest = max((row["wait_us"].get("p99", 0) for row in facts["destinations"]), default=0)
    dead = facts["dead"]["messages"] if facts["dead"] else None
    tiles = [
        Tile("messages", f"{totals['messages']:,}"),
        Tile("of bodies", bytes_text(totals["bytes"])),
        Tile("destinations", f"{totals['destinations']:,}"),
        Tile("producers", f"{facts['producers']['producers']:,}"),
        Tile("99 % arrived within, slowest", time_text(slowest)),
        Tile("handed out more than once", f"{redelivered:,}", "bad" if redelivered else ""),
        *([] if dead is None else [Tile("dead", f"{dead:,}", "bad" if dead else "good")]),
    ]
    sections = [_traffic(facts), _latency(facts), _sizes(facts), _fairness(facts), _keys(facts), _gaps(facts)]
    for optional in (_dead(facts), _events(facts), _broker(facts)):
        if optional is not None:
            sections.append(optional)
    return Page("Insights", f"{read}.{span} {facts['made']}", tiles, sections)


def _when(us: int | None) -> str:
    if us is None:
        return "–"
    try:
        return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{us / 1e6:.0f} s after 1970"


def _traffic(facts: Mapping[str, Any]) -> Section:
    traffic = facts["traffic"]
    plots = []
    if traffic["times_s"]:
        step_s = traffic["step_s"]
        for name, label in (("messages", "messages a second"), ("bytes", "bytes a second")):
            rates = {one: [value / step_s for value in values] for one, values in traffic[name].items()}
            plots.append(figures.timeline(f"traffic-{name}", traffic["times_s"], rates, label))
    rows = [
        (row["destination"], row["messages"], row["bytes"], _when(row["first_us"]), _when(row["last_us"]),
         row["redelivered"], row["deliveries_max"])
        for row in facts["destinations"]
    ]  # fmt: skip
    columns = ("destination", "messages", "bytes", "first", "last", "redelivered", "most deliveries")
    more = facts["totals"]["destinations"] - len(rows)
    text = f"By time of arrival, in steps of {traffic['step_s']} s." if plots else "There were no messages."
    return Section("Traffic", text, plots, [Table(columns, rows, more)])


def _latency(facts: Mapping[str, Any]) -> Section:
    shown = {
        row["destination"]: {**row["wait_us"], "max": row["wait_max_us"]}
        for row in facts["destinations"]
        if row["wait_us"]
    }
    plotted = {name: {kind: us / 1000 for kind, us in row.items()} for name, row in list(shown.items())[:PLOTTED]}
    kinds = tuple(next(iter(shown.values()), {}))
    table = Table(
        ("destination", *(f"{kind}, ms" for kind in kinds), "arrived before sent"),
        [
            (row["destination"], *(us / 1000 for us in shown[row["destination"]].values()), row["before_sent"])
            for row in facts["destinations"]
            if row["destination"] in shown
        ],
    )
    text = (
        "From being published, by the sender's clock, to arriving, by the broker's. Clocks that differ show here: "
        "what arrived before it was sent is counted."
    )
    plots = [figures.ladder("latency", plotted, "milliseconds")] if plotted else []
    return Section("Latency", text, plots, [table])


def _sizes(facts: Mapping[str, Any]) -> Section:
    counts = {f"≤ {bytes_text(int(size))}": count for size, count in facts["sizes"].items()}
    rows = [
        (row["destination"], *(row["sizes"].get(kind) for kind in ("p50", "p90", "p99")), row["size_max"])
        for row in facts["destinations"]
    ]
    plots = [figures.bars("sizes", counts, "messages")] if counts else []
    return Section(
        "Sizes", "Of bodies, in bytes.", plots, [Table(("destination", "p50", "p90", "p99", "largest"), rows)]
    )


def _fairness(facts: Mapping[str, Any]) -> Section:
    producers = facts["producers"]
    top = {(row["producer"] or NOBODY): 100 * row["share"] for row in producers["top"][:PLOTTED]}
    rows = [
        (row["producer"] or NOBODY, row["messages"], row["bytes"], 100 * row["share"], time_text(row["wait_p99_us"]))
        for row in producers["top"]
    ]
    even = "" if producers["evenness"] is None else f" Evenness (Jain's index) {producers['evenness']:.3f} of 1."
    text = f"Who sent how much, by the user the server vouches for: {producers['producers']:,} in all.{even}"
    columns = ("producer", "messages", "bytes", "share, %", "99 % arrived within")
    plots = [figures.bars("producers", top, "share of all messages, per cent")] if top else []
    return Section("Producers", text, plots, [Table(columns, rows, producers["producers"] - len(rows))])


def _keys(facts: Mapping[str, Any]) -> Section:
    keys = facts["keys"]
    rows = [(row["key"], row["destination"], row["messages"], row["bytes"], 100 * row["share"]) for row in keys["top"]]
    text = f"{keys['messages_with_key']:,} messages have a key; there are {keys['keys']:,} of them."
    table = Table(("key", "destination", "messages", "bytes", "share of all, %"), rows, keys["keys"] - len(rows))
    return Section("Keys with most traffic", text, (), [table] if rows else [])


def _gaps(facts: Mapping[str, Any]) -> Section:
    gaps = facts["gaps"]
    rows = [
        (row["destination"], _when(row["from_us"]), _when(row["to_us"]), row["length_us"] / 1e6) for row in gaps["top"]
    ]
    text = f"Times of {facts['gap_s']:g} s and more in which nothing arrived, the longest first: {gaps['gaps']:,}."
    table = Table(("destination", "from", "to", "seconds"), rows, gaps["gaps"] - len(rows))
    return Section("Silences", text, (), [table] if rows else [])


def _dead(facts: Mapping[str, Any]) -> Section | None:
    if not facts["dead"]:
        return None
    rows = [
        (row["destination"] or NOBODY, row["reason"] or NOBODY, row["messages"], row["deliveries_max"])
        for row in facts["dead"]["by"]
    ]
    reasons: dict[str, float] = {}
    for _, reason, count, _ in rows:
        reasons[reason] = reasons.get(reason, 0) + count
    largest = dict(sorted(reasons.items(), key=lambda one: -one[1])[:PLOTTED])
    plots = [figures.bars("dead", largest, "messages")] if rows else []
    table = Table(("sent to", "reason", "messages", "most deliveries"), rows)
    text = "In the dead message queue, by where they were sent and why they died."
    return Section("Dead messages", text, plots, [table])


def _events(facts: Mapping[str, Any]) -> Section | None:
    events = facts["events"]
    if events is None:
        return None
    codes = [
        (row["code"], row["level"], row["count"], _when(row["first_ms"] * 1000), _when(row["last_ms"] * 1000))
        for row in events["codes"]
    ]
    latest = [(_when(row["ms"] * 1000), row["level"], row["code"], row["text"]) for row in events["latest"]]
    tables = [Table(("code", "level", "events", "first", "last"), codes)]
    if latest:
        tables.append(Table(("when", "level", "code", "text"), latest))
    strange = f" {events['strange']:,} lines are no events." if events["strange"] else ""
    text = f"{events['lines']:,} of the event log.{strange} Below: the last warnings and errors."
    return Section("Events", text, (), tables)


def _broker(facts: Mapping[str, Any]) -> Section | None:
    if not facts["broker"]:
        return None
    columns = ("name", "kind", "depth", "bytes", "ready", "locked", "delayed", "aside", "consumers", "next")
    rows = [tuple(_plain(one.get(name)) for name in columns) for one in facts["broker"]]
    return Section("The broker's counters", "As it told them when this page was made.", (), [Table(columns, rows)])


def _plain(value: Any) -> str | int | None:
    return value if isinstance(value, (str, int)) and not isinstance(value, bool) else None
