"""`fairlead trace`: the life of one stored message, as the message managers know it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import click

from fairlead.cli import terminal
from fairlead.cli.admin import PIPE_WIDTH, Target, targeted
from fairlead.cli.options import EXIT_ERROR, fail
from fairlead.cluster.lives import merged, merged_search, not_found
from fairlead.errors import ConfigError

Facts = dict[str, Any]

WORDS: Final = {
    "received": "taken from its sender",
    "stored": "written to the journal",
    "synced": "on stable storage by then",
    "copied": "copied by compaction",
    "committed": "its transaction was committed",
    "rolled-back": "its transaction was rolled back",
    "prepared": "ready to be committed",
    "published": "its batch was published",
    "offered": "may be delivered from here on",
    "delivered": "given to a consumer",
    "browsed": "looked at",
    "replayed": "read again",
    "reserved": "reserved for a named cursor",
    "acknowledged": "done with",
    "returned": "given back",
    "expired": "its time was up",
    "dropped": "purged, or no longer retained",
    "dead": "moved to the dead messages",
    "redriven": "moved back from the dead messages",
    "moved": "moved by an administrator",
    "deleted": "gone with its destination",
}


@click.command("trace", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("message_id", metavar="MESSAGE-ID", required=False)
@click.option("--trace-id", metavar="HEX", help="Messages of this OpenTelemetry trace, rather than one message.")
@targeted
def trace(target: Target, message_id: str | None, trace_id: str | None) -> None:
    """Tell the life of one stored message: received, stored, delivered, acknowledged, dead.

    Told is what is on record: in the journal, whose files go when nothing in them is needed any more, and in the memory
    of the message managers. MESSAGE-ID has 40 hexadecimal digits, as `fairlead browse` prints them.

    \b
    Examples:
      fairlead trace 7f0000010000a3f1…
      fairlead trace --trace-id 4bf92f3577b34da6a3ce929d0e0e4736
    """
    if (message_id is None) == (trace_id is None):
        raise ConfigError("Say which message, MESSAGE-ID, or which trace, --trace-id.")
    if trace_id is not None:
        found = merged_search(target.ask("find-trace", trace=trace_id))
        if not found["messages"]:
            nothing(found, f"the trace {trace_id}", target.as_json)
        if target.as_json:
            click.echo(terminal.as_json(found, indent=2))
        else:
            show_messages(found)
        return
    story = merged(target.ask("trace", id=message_id))
    if not story["found"]:
        nothing(story, f"the message {message_id}", target.as_json)
    if target.as_json:
        click.echo(terminal.as_json(story, indent=2))
    else:
        show_story(story)


def nothing(story: Facts, what: str, as_json: bool) -> None:
    if as_json:
        click.echo(terminal.as_json(story, indent=2))
    fail(not_found(story, what), EXIT_ERROR)


def show_messages(found: Facts) -> None:
    rows = [
        (clock(one["arrival_ms"]), one["id"], str(one["destination"]), number(one["order"]))
        for one in found["messages"]
    ]
    table(("arrived", "id", "destination", "order"), rows)
    for sentence in found["unknown"]:
        click.echo(f"unknown: {sentence}")


def show_story(story: Facts) -> None:
    click.echo(terminal.plain(headline(story)))
    events = story["events"]
    began_ms = min(event["ms"] for event in events)
    several = len({event["group"] for event in events}) > 1
    rows = []
    for event in events:
        where = f"{event['destination']}" + (f" {number(event['order'])}" if event.get("order") else "")
        if several:
            where += f" ({event['group']})"
        rows.append((since(event["ms"] - began_ms), clock(event["ms"]), event["what"], where, details(event)))
    table(("", "time", "what", "where", ""), rows)
    for now in story["now"]:
        click.echo(terminal.plain(f"now: {state(now)}"))
    for copy in story["copies"]:
        click.echo(terminal.plain(f"copies: {copies(copy)}"))
    for line in story["log"]:
        click.echo(terminal.plain(f"log: {clock(line.get('ms', 0))} {line.get('code', '')}: {line.get('text', '')}"))
    for sentence in story["unknown"]:
        click.echo(f"unknown: {sentence}")


def headline(story: Facts) -> str:
    message = story["message"] or {}
    said = [f"{story['id']}", f"{message.get('bytes', 0):,} bytes"]
    for name in ("key", "type", "correlation", "traceparent", "user"):
        if message.get(name):
            said.append(f"{name} {message[name]}")
    return ", ".join(said)


def details(event: Facts) -> str:
    said = [WORDS.get(event["what"], "")]
    if event["what"] == "stored" and event.get("batch", 1) > 1:
        said[0] += f", one of {event['batch']} together"
    if event.get("to") is not None:
        said.append(f"to {event['to']} {number(event['to_order'])}")
    if event.get("reason"):
        said.append(f"because of {event['reason']!r}")
    if event.get("count"):
        said.append(f"delivery {event['count']}")
    if event.get("subscription"):
        said.append(f"subscription {event['subscription']}")
    if event.get("by"):
        said.append(f"by {event['by']}")
    if event.get("client") or event.get("user"):
        said.append(" ".join(str(event[key]) for key in ("client", "user") if event.get(key)))
    elif event.get("session"):
        said.append(f"session {event['session']}")
    if event.get("transaction"):
        said.append(f"transaction {event['transaction']}")
    if event.get("due_ms"):
        said.append(f"comes again at {clock(event['due_ms'])}")
    if event.get("segment"):
        said.append(f"index {event['index']:,} in segment {event['segment']}")
    return ", ".join(one for one in said if one)


def state(now: Facts) -> str:
    if now["destination"] is None:
        return "gone, and its destination too"
    said = [f"{now['state']} {'from' if now['state'] == 'gone' else 'in'} {now['destination']} {number(now['order'])}"]
    if now.get("deliveries"):
        said.append(f"delivered {now['deliveries']} times")
    for holder in now.get("held_by", ()):
        said.append("held by " + str(holder["client"] or holder["user"] or f"session {holder['session']}"))
    if now.get("due_ms"):
        said.append(f"due at {clock(now['due_ms'])}")
    return ", ".join(said)


def copies(copy: Facts) -> str:
    said = [f"record {copy['index']:,} of group {copy['group']} is {'' if copy['confirmed'] else 'not '}confirmed"]
    for node in copy.get("nodes", ()):
        word = "has it on stable storage" if node["synced"] else f"is at {node['upto']:,}"
        said.append(f"{node['node']} {word}{'' if node['in_sync'] else ' and is not in sync'}")
    return "; ".join(said)


def since(ms: int) -> str:
    """So long after the first event."""
    if ms < 60_000:
        return f"+{ms / 1000:.3f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return "+" + (f"{days} d " if days else "") + f"{hours:02d}:{minutes:02d}:{seconds:02d}"


def clock(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % 1000:03d}"


def number(order: int | None) -> str:
    return "-" if order is None else f"{order:,}"


def table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    made = Table(box=None, pad_edge=False, show_edge=False)
    for place, title in enumerate(titles):
        made.add_column(title, justify="right" if place == 0 and not title else "left", no_wrap=place < len(titles) - 1)
    for row in rows:
        made.add_row(*map(terminal.plain, row))
    console.print(made)
