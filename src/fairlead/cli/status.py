"""`fairlead status`: what a running server is doing."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.options import EXIT_ERROR, as_json_option, fail, one_sentence, run_of, which_server
from fairlead.cli.terminal import cell
from fairlead.errors import Unavailable
from fairlead.runtime.admin import answer_of

CHECK_S = 5.0

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@which_server
@as_json_option
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds between two.")
@click.option("--connections", "with_connections", is_flag=True, help="Every connection, one by one.")
@click.option("--handle", metavar="H", help="What is known of one stored message.")
@click.option("--prometheus", is_flag=True, help="Metrics in the text format of Prometheus, as at /metrics.")
@click.option("--check", is_flag=True, help="One sentence, and exit code 1 unless the server is ready.")
@one_sentence
def status(
    server: str | None,
    data: str | None,
    as_json: bool,
    watch: bool,
    interval: float,
    with_connections: bool,
    handle: str | None,
    prometheus: bool,
    check: bool,
) -> None:
    """Show components, managers, connections, queues, stored messages and the updates so far.

    Works while router or managers are stopped: everything is read from the state store. `fairlead admin` says more
    about queues and topics.

    \b
    Examples:
      fairlead status
      fairlead status --connections --server fairlead://127.0.0.1:7400
      fairlead status --json | jq .stored
      fairlead status --watch
      fairlead status --check && echo serving
      fairlead status --prometheus > /var/lib/node_exporter/fairlead.prom.new
    """
    if check:
        tell_health(server, data)
    run = run_of(server, data)
    if prometheus:
        from fairlead.observability.edge.scrape import gather
        from fairlead.observability.metrics import render

        sys.stdout.buffer.write(render(gather(run))[0])
        sys.stdout.buffer.flush()
        return
    number = None if handle is None else int(handle, 0)
    try:
        while True:
            report = answer_of(run, "status", handle=number)["status"]
            if as_json:
                click.echo(json.dumps(report, indent=None if watch else 2))
            else:
                if watch:
                    click.clear()
                show(report, with_connections)
            if not watch:
                return
            time.sleep(interval)
    except KeyboardInterrupt:
        sys.exit(0)


def tell_health(server: str | None, data: str | None) -> None:
    """The sentence of a probe, and its exit code."""
    from fairlead.observability.health import ready

    try:
        report = answer_of(run_of(server, data), "status", timeout_s=CHECK_S, brief=True)["status"]
    except Unavailable as error:
        fail(str(error), EXIT_ERROR)
        return
    verdict = ready(report)
    click.echo(verdict.sentence, err=not verdict.ok)
    sys.exit(0 if verdict.ok else EXIT_ERROR)


def show(report: dict[str, Any], with_connections: bool) -> None:
    """The report as tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)

    def table(title: str, *columns: str) -> Table:
        made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, show_edge=False)
        for column in columns:
            made.add_column(column, justify="right" if column in NUMBERS else "left", no_wrap=column != "reason")
        return made

    console.print(
        f"[bold]Fairlead {report['version']}[/bold] on {', '.join(report['listen'])}, up {_span(report['uptime_s'])}, "
        f"{report['mode']} store in {report['store']}\n"
    )
    components = table("Components", "component", "state", "version", "pid", "started", "generation", "python")
    for one in report["components"]:
        name = f"{one['role']} {one['index']}" if one["role"] == "manager" else one["role"]
        components.add_row(
            name,
            one["state"],
            one["version"],
            str(one["pid"]),
            _when(one["started_ns"]),
            str(one["generation"]),
            one["python"],
        )
    console.print(components, "")
    managers = table(
        "Managers",
        "manager",
        "connections",
        "reading",
        "queue",
        "counted",
        "instructions",
        "in",
        "out",
        "stored",
        "bytes",
        "up",
        "down",
    )
    for one in report["managers"]:
        managers.add_row(
            str(one["index"]) + (" draining" if one["draining"] else ""),
            str(one["connections"]),
            "yes" if one["reading"] else "STOPPED",
            f"{one['queue']:,}",
            f"{one['counted']:,}",
            f"{one['instructions']:,}",
            f"{one['counters']['messages_in']:,}",
            f"{one['counters']['messages_out']:,}",
            f"{one['stored']:,}",
            f"{one['stored_bytes']:,}",
            _share(one["up"]),
            _share(one["down"]),
        )
    console.print(managers, "")
    show_messages(console, report["messages"])
    if report["links"]:
        links = table(
            "Links", "parent", "server", "state", "in", "out", "wanted here", "wanted there", "queued", "dropped"
        )
        for one in report["links"]:
            links.add_row(
                cell(one["parent"]),
                cell(one["server"]),
                one["state"] if one["state"] == "up" else one["state"].upper(),
                f"{one['messages_in']:,} ({one['bytes_in']:,} bytes)",
                f"{one['messages_out']:,} ({one['bytes_out']:,} bytes)",
                f"{one['subscribed']:,} + {one['served']:,}",
                f"{one['wanted_there']:,} + {one['served_there']:,}",
                f"{one['queued']:,}",
                f"{one['dropped']:,}",
            )
        console.print(links, "")
    if report.get("console", {}).get("urls"):
        show_console(console, report["console"])
    if "tunnel" in report:  # not in that of an older server
        show_tunnels(console, report["tunnel"])
    if "name" in report.get("registrar", {}):
        show_registrar(console, report["registrar"])
    if report.get("streams", {}).get("state", "switched off") != "switched off":
        show_streams(console, report["streams"])
    if report["updates"]:
        updates = table("Updates", "component", "when", "from", "to", "pause ms", "outcome", "reason")
        for one in report["updates"][-10:]:
            updates.add_row(
                one["component"],
                _when(one["when_ns"]),
                one["from_version"],
                one["to_version"],
                f"{one['pause_ms']:.1f}",
                one["outcome"],
                cell(one["reason"]),
            )
        console.print(updates, "")
    if with_connections:
        connections = table(
            "Connections", "uid", "manager", "state", "peer", "user", "type", "instance", "org", "since"
        )
        for one in report["connections"]:
            connections.add_row(
                str(one["uid"]),
                str(one["manager"]),
                one["state"],
                cell(one["peer"]),
                cell(one["user"]),
                cell(one["type"]),
                cell(one["instance"]),
                cell(one["org"]),
                _when(one["opened_ns"]),
            )
        console.print(connections, "")
    if report["message"] is not None:
        console.print("Message", cell(report["message"]))
    console.print(
        f"{len(report['connections'])} connections, {_known(report['attachments'])} attachments, "
        f"{_known(report['subscriptions'])} subscriptions, {_known(report['registrations'])} registrations, "
        f"{_known(report['requests_open'])} open requests; {report['stored']:,} messages stored "
        f"({report['stored_bytes']:,} bytes), {report['messages_given_up']:,} given up"
    )
    faults = report["accounting_faults"], report["safety_tick_finds"]
    style = "green" if faults == (0, 0) else "bold red"
    console.print(f"[{style}]{faults[0]} accounting faults, {faults[1]} lost wake-ups[/{style}]")
    for note in report["notes"]:
        console.print(f"[yellow]{cell(note)}[/yellow]")


def show_registrar(console: Console, found: dict[str, Any]) -> None:
    """What this server is in the directory."""
    trouble = f"; [red]{cell(found['error'])}[/]" if found["error"] else ""
    console.print(
        f"Broker [bold]{cell(found['name'])}[/] of the directory at {cell(found['directory'])}: "
        f"{found['broker_state'] if found['registered'] else 'not registered'}, {found['connections']:,} of "
        f"{found['limit']:,} connections, {found['applications_total']:,} applications, {found['pending']:,} reports "
        f"pending{trouble}\n"
    )


def show_streams(console: Console, found: dict[str, Any]) -> None:
    """What the stream administration of this server looks after."""
    if "streams" not in found:
        console.print(f"Stream administration: {cell(found['state'])}\n")
        return
    trouble = f"; [red]{cell(found['error'])}[/]" if found["error"] else ""
    without = f", [red]{found['without_active']:,} without an active one[/]" if found["without_active"] else ""
    console.print(
        f"Stream administration: {found['streams']:,} streams{without}, {found['without_backup']:,} without a backup, "
        f"{found['adapters']:,} adapters, {found['clients']:,} clients, {found['failovers']:,} failovers, "
        f"{found['switches']:,} switches{trouble}\n"
    )


def show_console(console: Console, found: dict[str, Any]) -> None:
    """Where browsers look."""
    note = f" [yellow]({cell(found['note'])})[/]" if found["note"] else ""
    looking_on = f"{found.get('looking_on', 0)} look on"
    console.print(f"Console: {cell(', '.join(found['urls']))} {cell(found['state'])}, {looking_on}{note}\n")


def show_tunnels(console: Console, found: dict[str, Any]) -> None:
    """What came through HTTP, once anything has."""
    gateway, broker = found["gateway"], found["broker"]
    if not found["passed_on"] and gateway["state"] in ("not needed yet", "switched off"):
        return
    console.print(
        f"[bold]Tunnels[/bold]\n"
        f"{broker.get('tunnels', 0):,} to {found['name']!r} over {broker.get('linked', 0)} of {broker.get('links', 0)} "
        f"links; gateway {gateway['state']}, {gateway.get('connections', 0):,} HTTP connections; broker "
        f"{broker['state']}; {found['passed_on']:,} connections passed on, {found['turned_away']:,} turned away\n"
    )


def show_messages(console: Console, found: dict[str, Any]) -> None:
    """Queues and durable topics, in a few lines."""
    if not found["enabled"]:
        return
    sync = "on stable storage" if found["sync"] == "always" else "IN MEMORY ONLY"
    flow = f"{found['blocked']:,} destinations blocked" if found["blocked"] else "nothing blocked"
    if found["store_full"]:
        flow = "NO ROOM TO STORE, " + flow
    console.print(
        f"[bold]Messages[/bold]\n"
        f"message manager {found['state']}; {found['destinations']:,} destinations with {found['depth']:,} messages "
        f"({found['depth_bytes']:,} bytes), {flow}\n"
        f"{found['sessions']:,} sessions, {found['producers']:,} producers, {found['consumers']:,} consumers; "
        f"{found['stored']:,} stored, {found['delivered']:,} delivered, {found['settled']:,} settled, "
        f"{found['dead']:,} dead\n"
        f"journal: record {found['safe_index']:,} is safe, {found['pending_records']:,} pending; {found['syncs']:,} "
        f"flushes, the last took {found['last_sync_ns'] / 1e6:.1f} ms; {found['segments']:,} files "
        f"({found['journal_bytes']:,} bytes); confirmed means {sync}\n"
    )


NUMBERS = {
    "pid",
    "generation",
    "connections",
    "queue",
    "counted",
    "instructions",
    "in",
    "out",
    "stored",
    "bytes",
    "up",
    "down",
    "pause ms",
}


def _known(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{len(value) if isinstance(value, list) else value:,}"


def _share(ring: dict[str, int]) -> str:
    return f"{100 * ring['bytes'] / ring['capacity']:.0f} %"


def _when(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns / 1e9).strftime("%m-%d %H:%M:%S")


def _span(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{int(seconds):02d}"
