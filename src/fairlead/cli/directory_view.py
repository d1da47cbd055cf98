"""The tables of `fairlead directory`: brokers, clusters, applications and what else it tells."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.table import Table

from fairlead.cli.cluster_view import console
from fairlead.cli.terminal import cell
from fairlead.directory.answers import Apps, Brokers, Clusters, Counted, Found, Status
from fairlead.directory.rows import Application, Broker

__all__ = ["apps", "brokers", "clusters", "console", "found", "plain", "status", "totals"]

NUMBERS = {"port", "tls port", "connections", "reserved", "limit", "value"}


def plain(value: Any) -> Any:
    """Rows and answers for programs: every field is there, also one that has its usual value."""
    match value:
        case msgspec.Struct():
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        case dict():
            return {name: plain(one) for name, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
    return value


ADDRESS = ("broker", "ip", "port", "tls port", "host", "state", "available")


def brokers(answer: Brokers) -> Table:
    table = _table("Brokers", *ADDRESS, "clusters", "connections", "reserved", "limit")
    for row in answer.brokers:
        counts = (str(row.connections), str(row.reserved), str(row.limit))
        table.add_row(*_address(row), cell(", ".join(row.clusters)), *counts)
    return table


def _address(row: Broker) -> tuple[str, ...]:
    return (
        cell(row.name),
        cell(row.ip),
        str(row.port or ""),
        str(row.secure_port or ""),
        cell(row.host),
        "[red]missing[/red]" if row.missing else row.state,
        "yes" if row.available else "[yellow]no[/yellow]",
    )


def clusters(answer: Clusters) -> Table:
    table = _table("Clusters", "cluster", "brokers, in order", "heuristic", "rule")
    for row in answer.clusters:
        table.add_row(cell(row.name), cell(", ".join(row.brokers)), row.heuristic or "default", row.rule or "default")
    return table


def apps(answer: Apps) -> Table:
    return _apps("Applications", answer.apps)


def _apps(title: str, rows: tuple[Application, ...]) -> Table:
    """One row per connection; an application that is away has one too."""
    table = _table(title, "application", "type", "connection", "broker", "mode", "secure", "client", "user", "cluster")
    for row in rows:
        if not row.links:
            table.add_row(cell(row.name), row.kind, "none", cell(row.broker), "", "", "", cell(row.user), "")
        for number, link in enumerate(row.links):
            table.add_row(
                cell(row.name) if not number else "",
                row.kind if not number else "",
                cell(link.label),
                cell(link.broker),
                link.kind,
                "yes" if link.secure else "no",
                cell(link.client),
                cell(link.user),
                cell(link.cluster),
            )
    return table


def found(answer: Found) -> list[Table]:
    """A look-up does not count: only where it is."""
    if answer.app is None:
        return []
    where = _table("Where it is", *ADDRESS)
    for row in answer.brokers:
        where.add_row(*_address(row))
    return [_apps("Application", (answer.app,)), where]


def totals(app: str, answer: Counted) -> Table:
    table = _table(f"Connections of {cell(app)}", "broker", "connections")
    for name, count in answer.brokers.items():
        table.add_row(cell(name), str(count))
    table.add_row("total", str(answer.total), style="bold")
    return table


def status(answer: Status) -> list[Table]:
    """Single facts in one table, each group of facts in one of its own."""
    single = _table("Directory", "", "value")
    groups = []
    for name, value in answer.facts.items():
        title = name.replace("_", " ")
        if isinstance(value, dict):
            if value:
                groups.append(_group(title, value))
        elif isinstance(value, list):
            if value:
                groups.append(_group(title, {str(number): one for number, one in enumerate(value, 1)}))
        else:
            single.add_row(cell(title), cell(_text(value)))
    return [single, *groups]


def _group(title: str, facts: dict[str, Any]) -> Table:
    if all(isinstance(value, dict) for value in facts.values()):
        columns = list(dict.fromkeys(column for value in facts.values() for column in value))
        table = _table(cell(title), "", *(column.replace("_", " ") for column in columns))
        for name, value in facts.items():
            table.add_row(cell(str(name)), *(cell(_text(value.get(column))) for column in columns))
        return table
    table = _table(cell(title), "", "value")
    for name, value in facts.items():
        table.add_row(cell(str(name)), cell(_text(value)))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in NUMBERS else "left")
    return table


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3f}".rstrip("0").rstrip(".")
        case list() | tuple():
            return ", ".join(_text(one) for one in value)
        case dict():
            return ", ".join(f"{name} {_text(one)}" for name, one in value.items())
    return str(value)
