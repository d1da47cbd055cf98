"""`fairlead admin`: looking at queues, topics, sessions and the journal of a running server, and changing them.

With a URL the commands travel as messages on `_ADMIN`, from anywhere, with the rights of the user. With --data they go
through the local socket of the server, which needs no user and works while no connection can be made.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar

import click

from fairlead.cli import terminal
from fairlead.cli.messages import property_of
from fairlead.cli.options import as_json_option, one_sentence
from fairlead.cli.traffic import connecting, open_connection
from fairlead.errors import ConfigError
from fairlead.runtime.admin import answer_of, run_directory

F = TypeVar("F", bound=Callable[..., Any])
Facts = dict[str, Any]
PATIENCE_S: Final = 60.0
BYTES_WIDTH: Final = 100
PIPE_WIDTH: Final = 1000  # of what is not shown on a terminal: nothing is folded
COLUMNS: Final = {
    "destinations": (
        *("name", "kind", "depth", "bytes", "ready", "locked", "delayed", "consumers", "subscriptions"),
        *("blocked", "paused"),
    ),
}
"""What a table shows of records that have more to say; --json has everything."""


# --- Asking -----------------------------------------------------------------------------------------------------
class Target:
    """Which server is asked, and how."""

    def __init__(
        self, server: str, user: str | None, password: str | None, ca: str | None, data: str | None, as_json: bool
    ) -> None:
        self._server, self._user, self._password, self._ca, self._data = server, user, password, ca, data
        self.as_json = as_json

    def ask(self, name: str, /, **arguments: Any) -> Facts:
        """What the server answers to an administration command; arguments that are None are not sent."""
        arguments = {key: value for key, value in arguments.items() if value is not None}
        if self._data:
            run = run_directory(data=self._data)
            answer = answer_of(run, "admin", name=name, args=arguments, timeout_s=PATIENCE_S)
            facts: Facts = answer.get("result", {key: value for key, value in answer.items() if key != "ok"})
            return facts
        return asyncio.run(self._ask(name, arguments))

    async def _ask(self, name: str, arguments: Facts) -> Facts:
        async with open_connection("fairlead-admin", self._server, self._user, self._password, self._ca) as connection:
            facts: Facts = await connection.admin.execute(name, timeout=PATIENCE_S, **arguments)
            return facts

    def show(self, name: str, /, **arguments: Any) -> None:
        show(self.ask(name, **arguments), self.as_json)


def targeted(command: Callable[..., None]) -> Callable[..., None]:
    """The options every administration command has; the command gets a `Target` first."""

    @one_sentence
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        server: str,
        user: str | None,
        password: str | None,
        ca: str | None,
        data: str | None,
        as_json: bool,
        **options: Any,
    ) -> Any:
        return command(Target(server, user, password, ca, data, as_json), *args, **options)

    found = as_json_option(wrapped)
    found = click.option("--data", metavar="DIR", help="The data directory of a server on this host, not its URL.")(
        found
    )
    return connecting(found)


def yes_option(command: F) -> F:
    return click.option("--yes", "-y", is_flag=True, help="Do not ask first.")(command)


def confirm(yes: bool, question: str) -> None:
    """Ask before something is lost. Without a terminal nobody can answer, so --yes is needed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Say --yes to do it without being asked.")
    click.confirm(question, abort=True)


# --- Showing ----------------------------------------------------------------------------------------------------
def show(facts: Facts, as_json: bool) -> None:
    """A table for each list of records in it, and the rest as name and value."""
    if as_json:
        click.echo(terminal.as_json(facts, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    plain = {key: value for key, value in facts.items() if not is_records(value)}
    if plain:
        table = Table(box=None, show_header=False, pad_edge=False)
        for key, value in plain.items():
            table.add_row(key.replace("_", " "), text_of(key, value))
        console.print(table)
    for key, records in facts.items():
        if not is_records(records):
            continue
        columns = COLUMNS.get(key) or tuple(dict.fromkeys(column for record in records for column in record))
        table = Table(title=key.replace("_", " "), title_justify="left", box=None, pad_edge=False, show_edge=False)
        for column in columns:
            is_number = all(isinstance(record.get(column, 0), int | float) for record in records)
            table.add_column(column.replace("_", " "), justify="right" if is_number else "left")
        for record in records:
            table.add_row(*(text_of(column, record.get(column)) for column in columns))
        console.print(table)


def is_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def text_of(name: str, value: Any) -> str:
    match value:
        case None | [] | {}:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int() if name.endswith("_ms") and value > 1_000_000_000_000:
            return datetime.fromtimestamp(value / 1000).strftime("%Y-%m-%d %H:%M:%S")
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.3f}".rstrip("0").rstrip(".")
        case dict():
            return " ".join(f"{terminal.plain(key)}={text_of(key, one)}" for key, one in value.items())
        case list():
            return ", ".join(text_of(name, one) for one in value)
        case _:
            text = terminal.plain(value)
            return text if len(text) <= BYTES_WIDTH else text[: BYTES_WIDTH - 1] + "…"


# --- Destinations -----------------------------------------------------------------------------------------------
@click.group("admin", context_settings={"help_option_names": ["-h", "--help"]})
def admin_group() -> None:
    """Look at queues, topics, sessions and the journal of a running server, and change them.

    \b
    Examples:
      fairlead admin list
      fairlead admin show orders
      fairlead admin set orders max_messages=1000000 delivery_limit=5
      fairlead admin redrive --reason delivery-limit --dry-run
      fairlead admin purge orders --yes
    """


@admin_group.command("list")
@click.argument("pattern", required=False)
@click.option("--kind", type=click.Choice(["queue", "topic"]), help="Only these.")
@click.option("--sort", metavar="COLUMN", help="By name unless said otherwise, e.g. depth.")
@click.option("--descending", is_flag=True, help="The largest first.")
@click.option("--count", type=click.IntRange(min=1, max=1000), help="So many on a page; 100 if nothing is said.")
@click.option("--page", type=click.IntRange(min=0), help="Which page; the first is 0.")
@targeted
def list_command(target: Target, descending: bool, **choice: Any) -> None:
    """Queues and topics, all or those whose names match PATTERN."""
    target.show("destinations", descending=descending or None, **choice)


@admin_group.command("show")
@click.argument("name")
@targeted
def show_command(target: Target, name: str) -> None:
    """Everything about one destination: depth, rates, consumers, parameters."""
    target.show("destination", destination=name)


@admin_group.command()
@click.argument("name")
@click.argument("parameters", metavar="[PARAMETER=VALUE]...", nargs=-1)
@click.option("--kind", type=click.Choice(["queue", "topic"]), default="queue", show_default=True)
@targeted
def create(target: Target, name: str, parameters: tuple[str, ...], kind: str) -> None:
    """Make a queue or topic; nothing happens if there is one of that kind already."""
    target.show("create", destination=name, kind=kind, parameters=pairs(parameters))


@admin_group.command("set")
@click.argument("name")
@click.argument("parameters", metavar="PARAMETER=VALUE...", nargs=-1, required=True)
@targeted
def set_command(target: Target, name: str, parameters: tuple[str, ...]) -> None:
    """Change parameters of a destination; they hold at once and after every restart."""
    target.show("set", destination=name, parameters=pairs(parameters))


@admin_group.command()
@click.argument("name")
@yes_option
@targeted
def delete(target: Target, name: str, yes: bool) -> None:
    """Remove a destination with everything in it."""
    confirm(yes, f"Delete {name} and all its messages?")
    target.show("delete", destination=name)


@admin_group.command()
@click.argument("name")
@click.option("--selector", metavar="CONDITION", help="Only messages for which it is true.")
@yes_option
@targeted
def purge(target: Target, name: str, selector: str | None, yes: bool) -> None:
    """Drop the waiting messages of a destination."""
    confirm(yes, f"Drop {'the selected' if selector else 'all'} messages of {name}?")
    target.show("purge", destination=name, selector=selector)


@admin_group.command()
@click.argument("name")
@targeted
def pause(target: Target, name: str) -> None:
    """Deliver nothing from it until it is resumed; sending goes on."""
    target.show("pause", destination=name)


@admin_group.command()
@click.argument("name")
@targeted
def resume(target: Target, name: str) -> None:
    """Deliver again."""
    target.show("resume", destination=name)


# --- Messages ---------------------------------------------------------------------------------------------------
@admin_group.command("browse")
@click.argument("name")
@click.option("--selector", metavar="CONDITION", help="Only messages for which it is true.")
@click.option("--count", type=click.IntRange(min=1, max=1000), help="So many on a page; 50 if nothing is said.")
@click.option("--start", type=int, metavar="ORDER", help="From this order number on: `next` of the page before.")
@targeted
def browse_command(target: Target, name: str, **choice: Any) -> None:
    """Messages of a destination, with their state: waiting, with a consumer, delayed."""
    target.show("browse", destination=name, **choice)


@admin_group.command()
@click.argument("name")
@click.argument("order", type=int)
@targeted
def message(target: Target, name: str, order: int) -> None:
    """One message, by its order number."""
    target.show("message", destination=name, order=order)


@admin_group.command()
@click.argument("name")
@click.argument("orders", type=int, nargs=-1, required=True)
@yes_option
@targeted
def drop(target: Target, name: str, orders: tuple[int, ...], yes: bool) -> None:
    """Drop single messages, by their order numbers."""
    confirm(yes, f"Drop {len(orders)} messages of {name}?")
    target.show("drop", destination=name, orders=list(orders))


@admin_group.command()
@click.argument("name")
@click.argument("to")
@click.argument("orders", type=int, nargs=-1)
@click.option("--selector", metavar="CONDITION", help="Those for which it is true, instead of order numbers.")
@yes_option
@targeted
def move(target: Target, name: str, to: str, orders: tuple[int, ...], selector: str | None, yes: bool) -> None:
    """Move messages from destination NAME to destination TO: those with these order numbers, selected ones, or all."""
    if not orders and not selector:
        confirm(yes, f"Move all messages of {name} to {to}?")
    target.show("move", destination=name, to=to, orders=list(orders) or None, selector=selector)


@admin_group.command()
@click.argument("name", default="_DMQ")
@click.option("--reason", help="Only those that died of this: delivery-limit, expired, rejected, deleted.")
@click.option("--selector", metavar="CONDITION", help="Only messages for which it is true.")
@click.option("--order", "orders", type=int, multiple=True, help="Only this one; may be given several times.")
@click.option("--to", metavar="NAME", help="There, instead of where each of them came from.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@yes_option
@targeted
def redrive(
    target: Target,
    name: str,
    reason: str | None,
    selector: str | None,
    orders: tuple[int, ...],
    to: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Send dead messages back to where they came from.

    \b
    Examples:
      fairlead admin redrive --dry-run
      fairlead admin redrive --reason expired --yes
      fairlead admin redrive --order 17 --to orders.repaired
    """
    if not dry_run and not orders:
        confirm(yes, f"Send back the dead messages of {name}{f' that died of {reason}' if reason else ''}?")
    target.show(
        "redrive",
        destination=name,
        reason=reason,
        selector=selector,
        orders=list(orders) or None,
        to=to,
        dry_run=dry_run,
    )


@admin_group.command()
@click.argument("name")
@targeted
def schedules(target: Target, name: str) -> None:
    """Delayed messages and schedules of a destination."""
    target.show("schedules", destination=name)


@admin_group.command()
@click.argument("name")
@click.argument("order", type=int)
@yes_option
@targeted
def cancel(target: Target, name: str, order: int, yes: bool) -> None:
    """End a schedule."""
    confirm(yes, f"Cancel schedule {order} of {name}?")
    target.show("cancel-schedule", destination=name, order=order)


# --- Subscriptions ----------------------------------------------------------------------------------------------
@admin_group.command()
@click.argument("name")
@targeted
def consumers(target: Target, name: str) -> None:
    """Consumers of a destination, what they hold, and their credit."""
    target.show("consumers", destination=name)


@admin_group.command()
@click.argument("client")
@click.argument("name")
@yes_option
@targeted
def unsubscribe(target: Target, client: str, name: str, yes: bool) -> None:
    """End a durable subscription; what waited for it is gone."""
    confirm(yes, f"End subscription {name} of {client}?")
    target.show("unsubscribe", client=client, name=name)


# --- Sinks ------------------------------------------------------------------------------------------------------
@admin_group.group("sink")
def sink_group() -> None:
    """What programs that write in bulk have published last, and what they have staged and not published."""


@sink_group.command("list")
@click.argument("query", required=False)
@click.option("--count", type=click.IntRange(min=1, max=1000), help="So many on a page; 100 if nothing is said.")
@click.option("--page", type=click.IntRange(min=0), help="Which page; the first is 0.")
@targeted
def sink_list(target: Target, **choice: Any) -> None:
    """The last batch of each query, the newest first; of QUERY only."""
    target.show("sinks", **choice)


@sink_group.command("stages")
@click.argument("query", required=False)
@click.option("--count", type=click.IntRange(min=1, max=1000), help="So many on a page; 100 if nothing is said.")
@click.option("--page", type=click.IntRange(min=0), help="Which page; the first is 0.")
@targeted
def sink_stages(target: Target, **choice: Any) -> None:
    """What is staged and not published, of all queries or of QUERY."""
    target.show("stages", **choice)


@sink_group.command("forget")
@click.argument("query")
@yes_option
@targeted
def sink_forget(target: Target, query: str, yes: bool) -> None:
    """Forget which batch QUERY published last: whatever it publishes next is taken, also what was published before."""
    confirm(yes, f"Forget the last batch of {query}? If it comes again it is published twice.")
    target.show("forget-sink", query=query)


@sink_group.command("drop")
@click.argument("query")
@click.argument("batch", type=click.IntRange(min=0))
@click.argument("stage")
@yes_option
@targeted
def sink_drop(target: Target, query: str, batch: int, stage: str, yes: bool) -> None:
    """Drop a stage with its messages."""
    confirm(yes, f"Drop the stage {stage} of batch {batch} of {query}?")
    target.show("drop-stage", query=query, batch=batch, stage=stage)


# --- Cursors ----------------------------------------------------------------------------------------------------
@admin_group.group("cursor")
def cursor_group() -> None:
    """Named cursors: what programs that read in bulk have reserved of queues, and how far they are in topics.

    \b
    Examples:
      fairlead admin cursor list
      fairlead admin cursor list --destination orders
      fairlead admin cursor release archive --destination orders
    """


@cursor_group.command("list")
@click.option("--destination", "-d", metavar="NAME", help="Only those of this queue or topic.")
@targeted
def cursor_list(target: Target, destination: str | None) -> None:
    """All cursors: their positions, and the messages and bytes that are reserved and not committed.

    \b
    Example:
      fairlead admin cursor list --destination orders
    """
    target.show("cursors", destination=destination)


@cursor_group.command("release")
@click.argument("name")
@click.option("--destination", "-d", metavar="NAME", required=True, help="The queue or topic it belongs to.")
@yes_option
@targeted
def cursor_release(target: Target, name: str, destination: str, yes: bool) -> None:
    """End a cursor whose program will not come back: what it has reserved goes to others.

    \b
    Example:
      fairlead admin cursor release archive --destination orders --yes
    """
    confirm(yes, f"Release the cursor {name} of {destination}? A program that uses it fails.")
    target.show("release-cursor", destination=destination, name=name)


# --- The rest: commands that only show, or need no argument -------------------------------------------------------
PLAIN: Final = {
    "status": "The message manager in one page.",
    "sessions": "Sessions, and who holds them.",
    "subscriptions": "Durable subscriptions, and how far they are behind.",
    "connections": "Connections that use queues or topics.",
    "flow": "Who is blocked, and by what.",
    "tasks": "Command queues and how full they are.",
    "counters": "Everything that is counted.",
    "transactions": "Open transactions.",
    "transfers": "Very large messages on their way in or out.",
    "journal": "Figures of the journal.",
    "checkpoint": "Write a checkpoint now.",
    "compact": "Rewrite sparse segments now.",
    "commands": "All commands this server knows, with their arguments.",
}


def plain_command(name: str, sentence: str) -> click.Command:
    @targeted
    def command(target: Target) -> None:
        target.show(name)

    return click.command(name, help=sentence)(command)


for _name, _sentence in PLAIN.items():
    admin_group.add_command(plain_command(_name, _sentence))


@admin_group.command("do")
@click.argument("name")
@click.argument("arguments", metavar="[ARGUMENT=VALUE]...", nargs=-1)
@targeted
def do(target: Target, name: str, arguments: tuple[str, ...]) -> None:
    """Any command the server knows (see `fairlead admin commands`), by its own name."""
    target.show(name, **(pairs(arguments) or {}))


def pairs(texts: tuple[str, ...]) -> Facts | None:
    return dict(property_of(text) for text in texts) or None
