"""The tables of `fairlead streams status`."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from fairlead.cli.cluster_view import console
from fairlead.cli.terminal import cell

__all__ = ["adapters", "clients", "console", "status"]

COUNTERS = ("delivered", "duplicates", "gaps_found", "lost", "failovers")  # of a client, in this order
NUMBERS = {"epoch", "number", "lag", "failovers", "gaps", "lost", "delivered", "clients", "dropped"}


def status(streams: list[dict[str, Any]]) -> list[Table | str]:
    """Adapters of all streams, then the clients of those that have any."""
    if not streams:
        return ["No adapter has registered yet; `fairlead feed run` is one."]
    shown: list[Table | str] = [adapters(streams)]
    if any(stream["clients"] for stream in streams):
        shown.append(clients(streams))
    for stream in streams:
        for kind in ("clients", "users"):
            if stream[f"barred_{kind}"]:
                shown.append(cell(f"{stream['name']}: revoked {kind}: {', '.join(stream[f'barred_{kind}'])}"))
    return shown


def adapters(streams: list[dict[str, Any]]) -> Table:
    table = _table(
        "Streams",
        *("stream", "epoch", "adapter", "role", "state", "address", "number", "lag", "positions"),
        *("failovers", "gaps", "clients"),
    )
    for stream in streams:
        whole = (str(stream["failovers"]), str(stream["gaps"]), str(stream["clients_total"]))
        for number, one in enumerate(stream["adapters"]):
            table.add_row(
                cell(stream["name"]) if not number else "",
                str(stream["epoch"]) if not number else "",
                cell(one["name"]),
                f"[bold]{one['role']}[/bold]" if one["role"] == "active" else one["role"],
                _state(stream, one),
                cell(one["address"]),
                f"{one['last']:,}",
                f"{one['lag']:,}" if one["role"] != "active" else "",
                cell(_positions(one["positions"])),
                *(whole if not number else ("", "", "")),
            )
    return table


def _state(stream: dict[str, Any], one: dict[str, Any]) -> str:
    if not one["alive"]:
        return "[yellow]expected[/yellow]" if stream["settling"] else "[red]gone[/red]"
    if not one["source_alive"]:
        return "[red]no source[/red]"
    if one["name"] == stream["switching_to"]:
        return "[yellow]switching[/yellow]"
    if one["role"] == "active":
        return "[green]alive[/green]"
    return "[green]synchronised[/green]" if one["synchronised"] else "[yellow]not synchronised[/yellow]"


def _positions(positions: dict[str, Any]) -> str:
    shown = [f"{source} {place[0]:,}" for source, place in list(positions.items())[-3:]]
    return ", ".join(shown) + (" …" if len(positions) > 3 else "")


def clients(streams: list[dict[str, Any]]) -> Table:
    table = _table(
        "Clients", "stream", "client", "user", "takes from", "delivered", "dropped", "gaps", "lost", "failovers"
    )
    for stream in streams:
        for one in stream["clients"]:
            counters = one["counters"]
            line = cell(one["line"]) or "[yellow]none[/yellow]"
            table.add_row(
                cell(stream["name"]),
                cell(one["client"]),
                cell(one["user"]),
                f"{line} (by itself)" if one["local"] else line,
                *(f"{counters.get(name, 0):,}" for name in COUNTERS),
            )
        if (more := stream["clients_total"] - len(stream["clients"])) > 0:
            table.add_row(cell(stream["name"]), f"and {more:,} more", "", "", "", "", "", "", "")
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in NUMBERS else "left")
    return table
