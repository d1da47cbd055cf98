"""`fairlead streams`: looking at message streams and changing them. Running their administration: `streams_serve`."""

from __future__ import annotations

import importlib
import json
import time
from typing import Any, Final

import click

from fairlead.cli.admin import confirm, yes_option
from fairlead.cli.streams_target import StreamsTool, streams_command
from fairlead.errors import ConfigError, FairleadError

# Commands that need more than this file: (module, object in it, what `fairlead streams --help` says).
ELSEWHERE: Final[dict[str, tuple[str, str, str]]] = {
    "serve": ("fairlead.cli.streams_serve", "serve", "Be the stream administration."),
    "tail": ("fairlead.cli.streams_tail", "tail", "Print the messages of a stream."),
    "record": ("fairlead.cli.streams_record", "record", "Record a stream into files that Spark reads."),
}


class StreamsGroup(click.Group):
    """Imports the larger commands when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*ELSEWHERE, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, name, _ = ELSEWHERE[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        here = [(name, one.get_short_help_str(100)) for name, one in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl([*((name, sentence) for name, (_, _, sentence) in ELSEWHERE.items()), *here])


@click.group("streams", cls=StreamsGroup)
def streams_group() -> None:
    """Feeds with two adapters: look at them, switch between adapters, send administrative messages, take rights away.

    \b
    A stream on this host, and a look at it:
      fairlead streams serve --data ./streams
      fairlead feed run --config a.toml        and with b.toml for the other adapter
      fairlead streams status --watch
      fairlead streams tail prices.emea
    The option --server may be given once and for all in FAIRLEAD_STREAMS.
    """


# --- Looking ----------------------------------------------------------------------------------------------------
@streams_group.command("status")
@click.argument("stream", default="")
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option(
    "--interval", type=click.FloatRange(min=0.2), default=1.0, show_default=True, help="Seconds, with --watch."
)
@streams_command
def status(tool: StreamsTool, stream: str, watch: bool, interval: float) -> None:
    """Show all streams, or STREAM: adapters, roles, positions, how far backups are behind, failovers, gaps, clients.

    \b
    Examples:
      fairlead streams status
      fairlead streams status prices.emea --watch
      fairlead streams status --json
    Exit codes: 0 shown, 1 refused, 3 nobody answers.
    """
    from fairlead.cli import streams_view
    from fairlead.feeds.words import Order

    order = Order(do="status", stream=stream)
    if not watch:
        show(tool, tool.order(order))
        return
    if tool.as_json:
        raise ConfigError("Say --watch or --json, not both.")
    import asyncio

    async def watching() -> None:
        from rich.console import Group
        from rich.live import Live

        with Live(console=streams_view.console(), auto_refresh=False) as live:
            async with tool.open() as operator:
                while True:
                    try:
                        seen = streams_view.status(await operator.order(order))
                        live.update(Group(*seen, time.strftime("%H:%M:%S")), refresh=True)
                    except FairleadError as error:
                        if not error.retryable:
                            raise
                        live.update(f"nobody answers: {error}", refresh=True)
                    await asyncio.sleep(interval)

    try:
        asyncio.run(watching())
    except KeyboardInterrupt:
        pass


def show(tool: StreamsTool, streams: list[dict[str, Any]]) -> None:
    from fairlead.cli import streams_view

    if tool.as_json:
        click.echo(json.dumps(streams, indent=2, ensure_ascii=False))
        return
    for table in streams_view.status(streams):
        streams_view.console().print(table)


# --- Changing ---------------------------------------------------------------------------------------------------
@streams_group.command("switch")
@click.argument("stream")
@click.option("--to", "adapter", default="", metavar="ADAPTER", help="Which adapter; the best backup if not said.")
@streams_command
def switch(tool: StreamsTool, stream: str, adapter: str) -> None:
    """Make a backup of STREAM active, at an exact place of the stream: programs lose nothing and get nothing twice.

    It is also how one switches back after a failover, since nothing does so by itself.

    \b
    Examples:
      fairlead streams switch prices.emea
      fairlead streams switch prices.emea --to feed-b
    Exit codes: 0 done, 1 refused or not done in time (the roles are as they were), 3 no adapter or nobody answers.
    """
    from fairlead.feeds.words import Order

    (found,) = tool.order(Order(do="switch", stream=stream, adapter=adapter))
    told(tool, found, f"{found['active']} is active on {stream}, epoch {found['epoch']}")


@streams_group.command("send")
@click.argument("stream")
@click.argument("message")
@click.option(
    "--kind",
    type=click.Choice(["text", "phase", "directory", "format", "entitlement", "opening", "closing"]),
    default="text",
    show_default=True,
    help="What it is about; of kind format a backup sends it at its exact place or not at all.",
)
@streams_command
def send(tool: StreamsTool, stream: str, message: str, kind: Any) -> None:
    """Send MESSAGE on STREAM through its active adapter, at the same place for every program.

    \b
    Examples:
      fairlead streams send prices.emea 'maintenance at 18:00'
      fairlead streams send prices.emea --kind phase 'closing auction'
    Exit codes: 0 handed to the active adapter, 1 refused, 3 no adapter or nobody answers.
    """
    import secrets

    from fairlead.feeds.words import Admin, Order

    admin = Admin(id=f"{kind}-{secrets.token_hex(8)}", kind=kind, body=message.encode())
    (found,) = tool.order(Order(do="send", stream=stream, admin=admin))
    told(tool, found, f"{admin.id} is handed to {found['active']}")


@streams_group.command("revoke")
@click.argument("stream", default="")
@click.option("--client", default="", help="One client, by its name.")
@click.option("--of-user", default="", metavar="USER", help="All clients of a user.")
@yes_option
@streams_command
def revoke(tool: StreamsTool, stream: str, client: str, of_user: str, yes: bool) -> None:
    """End STREAM, or all streams, for a client or a user, now and until it is permitted again.

    To take a right away for good, take it out of the users file and run `fairlead reload`: that ends streams as well.

    \b
    Examples:
      fairlead streams revoke prices.emea --client desk-7 --yes
      fairlead streams revoke --of-user alice --yes
    Exit codes: 0 done, 1 refused, 2 usage, 3 nobody answers.
    """
    whom = chosen(client, of_user)
    confirm(yes, f"End {stream or 'all streams'} for {whom}?")
    from fairlead.feeds.words import Order

    found = tool.order(Order(do="revoke", stream=stream, client=client, user=of_user))
    told(tool, found, f"{stream or 'every stream'} has ended for {whom}")


@streams_group.command("permit")
@click.argument("stream", default="")
@click.option("--client", default="", help="One client, by its name.")
@click.option("--of-user", default="", metavar="USER", help="All clients of a user.")
@streams_command
def permit(tool: StreamsTool, stream: str, client: str, of_user: str) -> None:
    """Take a `revoke` back: whoever it was may subscribe again, if the users file says so.

    \b
    Example:
      fairlead streams permit prices.emea --client desk-7
    Exit codes: 0 done, 1 refused, 2 usage, 3 nobody answers.
    """
    whom = chosen(client, of_user)
    from fairlead.feeds.words import Order

    found = tool.order(Order(do="permit", stream=stream, client=client, user=of_user))
    told(tool, found, f"{whom} may have {stream or 'every stream'} again")


@streams_group.command("forget")
@click.argument("stream")
@click.option("--adapter", default="", help="An adapter that will not come back; without it the whole stream.")
@yes_option
@streams_command
def forget(tool: StreamsTool, stream: str, adapter: str, yes: bool) -> None:
    """Take an adapter that is gone for good, or a stream that has no adapters any more, out of the administration.

    \b
    Examples:
      fairlead streams forget prices.emea --adapter feed-c --yes
      fairlead streams forget prices.old --yes
    Exit codes: 0 done, 1 refused, 3 nobody answers.
    """
    what = f"{adapter} of {stream}" if adapter else stream
    confirm(yes, f"Forget {what}?")
    from fairlead.feeds.words import Order

    found = tool.order(Order(do="forget", stream=stream, adapter=adapter))
    told(tool, found, f"{what} is forgotten")


def chosen(client: str, user: str) -> str:
    if bool(client) == bool(user):
        raise ConfigError("Say whom: --client NAME or --of-user USER.")
    return f"client {client}" if client else f"user {user}"


def told(tool: StreamsTool, found: Any, sentence: str) -> None:
    """What was done: a sentence, or JSON."""
    click.echo(json.dumps(found, ensure_ascii=False) if tool.as_json else sentence)
