"""The command `fairlead`. Each sub-command is imported only when it is used, so that `fairlead --help` is quick."""

from __future__ import annotations

import importlib
from typing import Any, Final

import click

from fairlead.runtime.version import VERSION

# Name of the sub-command: (module, object in it, what `fairlead --help` says).
COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "serve": ("fairlead.cli.serve", "serve", "Start the server."),
    "status": ("fairlead.cli.status", "status", "Show what a running server is doing."),
    "top": ("fairlead.cli.top", "top", "Watch a running server on the terminal."),
    "update": ("fairlead.cli.update", "update", "Replace programs of a running server, connections kept."),
    "drain": ("fairlead.cli.update", "drain", "Take a connection manager out of service."),
    "reload": ("fairlead.cli.update", "reload_command", "Have users, rules and certificates read again."),
    "stop": ("fairlead.cli.update", "stop", "Stop a running server in order."),
    "pub": ("fairlead.cli.traffic", "pub", "Publish messages to a topic."),
    "sub": ("fairlead.cli.traffic", "sub", "Print the messages of topics."),
    "request": ("fairlead.cli.traffic", "request", "Send requests and print the answers."),
    "respond": ("fairlead.cli.traffic", "respond", "Serve requests for a topic."),
    "send": ("fairlead.cli.messages", "send", "Send messages to a queue, to be kept."),
    "receive": ("fairlead.cli.messages", "receive", "Take messages from a queue."),
    "browse": ("fairlead.cli.messages", "browse", "Print the messages of a queue, and leave them there."),
    "admin": ("fairlead.cli.admin", "admin_group", "Look at queues, topics and sessions, and change them."),
    "trace": ("fairlead.cli.trace", "trace", "Tell the life of one stored message."),
    "log": ("fairlead.cli.log", "log", "Show the events of a server."),
    "journal": ("fairlead.cli.journal", "journal_group", "Check and print the files of stored messages."),
    "backup": ("fairlead.cli.backup", "backup", "Copy everything stored, while the server runs."),
    "restore": ("fairlead.cli.backup", "restore", "Put such a copy in place."),
    "cluster": ("fairlead.cli.cluster", "cluster_group", "Several hosts as one server: start, look, change."),
    "node": ("fairlead.cli.node", "node_group", "Prepare and run one node of a cluster."),
    "tunnel": ("fairlead.cli.tunnel", "tunnel_group", "Connections through HTTP: run a gateway, look at one."),
    "directory": ("fairlead.cli.directory", "directory_group", "Brokers, clusters and applications: look, change."),
    "feed": ("fairlead.cli.feed", "feed_group", "Feed adapters: make redundant streams of sources."),
    "streams": ("fairlead.cli.streams", "streams_group", "Feeds that fail over: look, switch, read, record."),
    "pipeline": ("fairlead.cli.pipeline", "pipeline_group", "Archive, replay and check messages by the million."),
    "demo": ("fairlead.cli.demo", "demo", "Take a tour: see all of it work on this machine, and counted."),
    "bench": ("fairlead.cli.bench", "bench", "Measure this server on this machine."),
    "config": ("fairlead.cli.config", "config_group", "Show and check the settings of the server."),
    "user": ("fairlead.cli.user", "user_group", "Who may connect, and to do what."),
    "acl": ("fairlead.cli.acl", "acl_group", "Who may do what, line by line, and which line decides."),
    "tenant": ("fairlead.cli.tenant", "tenant_group", "Name spaces of their own, and how much each may use."),
    "key": ("fairlead.cli.key", "key_group", "Keys for messages that only their addressee can read."),
}


class LazyGroup(click.Group):
    """Knows the names of its commands, and imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, _, sentence) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(error.message + _nearest(args[0]), ctx) from None


def _nearest(word: str) -> str:
    import difflib

    close = difflib.get_close_matches(word, COMMANDS, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="fairlead")
def main(**_: Any) -> None:
    """Message-oriented middleware: one install, every message accounted for, updated under load.

    \b
    Begin with:
      fairlead serve                     the server, on 127.0.0.1:7400
      fairlead sub 'demo.>'              in a second terminal
      fairlead pub demo.hello world      in a third
      fairlead send orders 'one book'    kept until somebody takes it:
      fairlead receive orders
    """
