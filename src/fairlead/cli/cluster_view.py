"""The tables of `fairlead cluster status` and `watch`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table

from fairlead.cli.terminal import cell

PIPE_WIDTH = 160


def console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def tables(found: dict[str, Any]) -> RenderableType:
    """Nodes, members of groups, warnings."""
    return Group(*_parts(found))


def _parts(found: dict[str, Any]) -> Iterator[RenderableType]:
    nodes = _table("Nodes", "node", "kind", "pid", "carrier", "machine", "settings", "cluster.toml", "state")
    for node in found["nodes"]:
        nodes.add_row(
            node["node"],
            node["kind"],
            _text(node["pid"]),
            _text(node["carrier"]),
            _text(node["machine"]),
            f"{_text(node['revision'])} {node['settings']}",
            node["essential"],
            cell(str(node["state"])),
        )
    for name in found["missing"]:
        nodes.add_row(name, "?", "", "", "", "", "", "[red]no answer[/red]")
    yield nodes
    groups = _table("Groups", "group", "node", "role", "epoch", "in sync", "behind", "messages", "")
    for group in found["groups"]:
        for number, member in enumerate(group["members"]):
            role = f"[bold]{member['role']}[/bold]" if member["serving"] else str(member["role"])
            groups.add_row(
                group["group"] if not number else "",
                member["node"],
                role,
                _text(member["epoch"]),
                "yes" if member["in_sync"] else "[yellow]no[/yellow]",
                _text(member["lag"]),
                _text(member["depth"]),
                cell(_remark(member)),
            )
    yield groups
    for warning in found["warnings"]:
        yield f"[yellow]warning:[/yellow] {cell(warning)}"


def _remark(member: dict[str, Any]) -> str:
    return str(member["sync"] or member["waiting"])


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in ("pid", "epoch", "behind", "messages") else "left")
    return table


def _text(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) and value > 99_999 else str(value)
