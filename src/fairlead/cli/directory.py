"""`fairlead directory`: looking at a directory and changing it. Running a server of one is in `directory_serve`."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

import click

from fairlead.cli.admin import confirm, yes_option
from fairlead.cli.directory_serve import serve
from fairlead.cli.directory_state import state_command
from fairlead.cli.directory_target import DirectoryTool, directory_command, warn_if_stale
from fairlead.cli.directory_up import up
from fairlead.cli.options import EXIT_ERROR, fail
from fairlead.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairlead.directory.answers import Answer
    from fairlead.directory.edge.client import DirectoryClient

    Question = Callable[[DirectoryClient], Awaitable[Answer]]


@click.group("directory")
def directory_group() -> None:
    """Which brokers there are, which clusters they form, and where applications are connected.

    \b
    A directory on this host, and a look at it:
      fairlead directory serve --data ./directory
      fairlead directory brokers
      fairlead directory apps --server fairlead+directory://d1,d2,d3
    The option --server may be given once and for all in FAIRLEAD_DIRECTORY.
    """


directory_group.add_command(serve)
directory_group.add_command(up)
directory_group.add_command(state_command)


# --- Looking ----------------------------------------------------------------------------------------------------
def watched(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option(
        "--interval", type=click.FloatRange(min=0.2), default=1.0, show_default=True, help="Seconds, with --watch."
    )(command)
    return click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")(command)


@directory_group.command("brokers")
@watched
@directory_command
def brokers(tool: DirectoryTool, watch: bool, interval: float) -> None:
    """Show all brokers: where they are, whether one can connect to them now, and how many connections they have.

    \b
    Examples:
      fairlead directory brokers
      fairlead directory brokers --watch
      fairlead directory brokers --server fairlead+directory://d1,d2 --json
    """
    from fairlead.cli import directory_view

    look(tool, lambda directory: directory.list_brokers(), directory_view.brokers, interval if watch else None)


@directory_group.command("clusters")
@watched
@directory_command
def clusters(tool: DirectoryTool, watch: bool, interval: float) -> None:
    """Show all clusters: their brokers in the order of rotation, and how one of them is chosen.

    \b
    Example:
      fairlead directory clusters
    """
    from fairlead.cli import directory_view

    look(tool, lambda directory: directory.list_clusters(), directory_view.clusters, interval if watch else None)


@directory_group.command("apps")
@click.argument("app", default="")
@watched
@directory_command
def apps(tool: DirectoryTool, app: str, watch: bool, interval: float) -> None:
    """Show all applications, or APP, with one row for each connection.

    \b
    Examples:
      fairlead directory apps
      fairlead directory apps AX --watch
    """
    from fairlead.cli import directory_view

    look(tool, lambda directory: directory.list_apps(app), directory_view.apps, interval if watch else None)


@directory_group.command("status")
@watched
@directory_command
def status(tool: DirectoryTool, watch: bool, interval: float) -> None:
    """Show revision, counters, rotations, reservations, failures and leases.

    \b
    Example:
      fairlead directory status --json
    """
    from fairlead.cli import directory_view

    look(
        tool,
        lambda directory: directory.status(),
        lambda answer: directory_view.status(answer),
        interval if watch else None,
    )


@directory_group.command("lookup")
@click.argument("app")
@directory_command
def lookup(tool: DirectoryTool, app: str) -> None:
    """Show where APP is: its connections, and the addresses of their brokers.

    \b
    Example:
      fairlead directory lookup AZ
    Exit codes: 0 it is registered, 1 nobody is under that name.
    """
    from fairlead.cli import directory_view

    answer = tool.ask(lambda directory: directory.lookup_app(app))
    show(tool, answer, directory_view.found(answer))
    if answer.app is None:
        fail(f"no application is registered as {app}; `fairlead directory apps` shows those that are.", EXIT_ERROR)


@directory_group.command("totals")
@click.argument("app")
@click.argument("cluster", default="")
@directory_command
def totals(tool: DirectoryTool, app: str, cluster: str) -> None:
    """Count the connections of APP in CLUSTER, or anywhere, and at which brokers they are.

    \b
    Example:
      fairlead directory totals AX cluster-A
    """
    from fairlead.cli import directory_view

    answer = tool.ask(lambda directory: directory.totals(app, cluster))
    show(tool, answer, directory_view.totals(app, answer))


def look(tool: DirectoryTool, question: Question, view: Callable[[Any], Any], interval_s: float | None) -> None:
    """Show an answer once, or the newest one again and again."""
    if interval_s is None:
        answer = tool.ask(question)
        show(tool, answer, view(answer))
        return
    if tool.as_json:
        raise ConfigError("Say --watch or --json, not both.")
    import asyncio

    try:
        asyncio.run(_watch(tool, question, view, interval_s))
    except KeyboardInterrupt:
        pass


async def _watch(tool: DirectoryTool, question: Question, view: Callable[[Any], Any], interval_s: float) -> None:
    import asyncio

    from rich.console import Group
    from rich.live import Live

    from fairlead.cli import directory_view

    with Live(console=directory_view.console(), auto_refresh=False) as live:
        async with tool.open() as directory:
            while True:
                try:
                    answer = await question(directory)
                    seen = view(answer)
                    remark = f"revision {answer.revision}, {time.strftime('%H:%M:%S')}"
                    remark += ", stale: this server is cut off" if answer.stale else ""
                    live.update(Group(*(seen if isinstance(seen, list) else [seen]), remark), refresh=True)
                except Unavailable as error:
                    live.update(f"nobody answers: {error}", refresh=True)
                await asyncio.sleep(interval_s)


def show(tool: DirectoryTool, answer: Answer, tables: RenderableType | list[Any]) -> None:
    from fairlead.cli import directory_view

    if tool.as_json:
        click.echo(json.dumps(directory_view.plain(answer), indent=2, ensure_ascii=False))
        return
    warn_if_stale(answer)
    for table in tables if isinstance(tables, list) else [tables]:
        directory_view.console().print(table)


# --- Changing ---------------------------------------------------------------------------------------------------
@directory_group.command("join")
@click.argument("broker")
@click.argument("cluster")
@click.option("--position", type=click.IntRange(min=0), help="Place in the order, from 0; the end if not given.")
@directory_command
def join(tool: DirectoryTool, broker: str, cluster: str, position: int | None) -> None:
    """Put BROKER into CLUSTER, which is made if there is none.

    \b
    Examples:
      fairlead directory join D cluster-A
      fairlead directory join D cluster-A --position 0
    """
    answer = tool.ask(lambda directory: directory.join_cluster(cluster, broker, position=position))
    tool.told(f"{broker} is in {cluster}", answer)


@directory_group.command("leave")
@click.argument("broker")
@click.argument("cluster")
@directory_command
def leave(tool: DirectoryTool, broker: str, cluster: str) -> None:
    """Take BROKER out of CLUSTER: it gets no new connections through it, and keeps those it has.

    \b
    Example:
      fairlead directory leave D cluster-A
    """
    answer = tool.ask(lambda directory: directory.leave_cluster(cluster, broker))
    tool.told(f"{broker} is not in {cluster} any more", answer)


@directory_group.command("remove-broker")
@click.argument("broker")
@yes_option
@directory_command
def remove_broker(tool: DirectoryTool, broker: str, yes: bool) -> None:
    """Take BROKER out of all tables; one that still runs comes back when it renews its lease.

    \b
    Example:
      fairlead directory remove-broker D --yes
    """
    confirm(yes, f"Remove {broker} from all clusters, with the rows of its connections?")
    answer = tool.ask(lambda directory: directory.remove_broker(broker))
    tool.told(f"{broker} is removed", answer)


@directory_group.command("set")
@click.argument("cluster", default="")
@click.option(
    "--heuristic",
    type=click.Choice(["centralised", "decentralised", "auto", "default"]),
    help="Who chooses the broker: the directory, each client, or as it is quicker; default: as the directory says.",
)
@click.option(
    "--rule",
    type=click.Choice(["rotation", "least_connections", "default"]),
    help="In turn, or the one with the fewest connections.",
)
@directory_command
def set_cluster(tool: DirectoryTool, cluster: str, heuristic: Any, rule: Any) -> None:
    """Say how brokers of CLUSTER are chosen; without CLUSTER, of all clusters that say nothing themselves.

    What is not given stays as it is.

    \b
    Examples:
      fairlead directory set cluster-A --heuristic centralised
      fairlead directory set cluster-A --rule least_connections
      fairlead directory set --heuristic auto
    """
    if heuristic is None and rule is None:
        raise ConfigError("Say what to set: --heuristic, --rule, or both.")

    answer = tool.ask(lambda directory: directory.set_cluster(cluster, heuristic=heuristic, rule=rule))
    tool.told(f"{cluster or 'the default'} is set", answer)


@directory_group.command("deregister")
@click.argument("app")
@click.option("--broker", default="", help="Only its registration at this broker.")
@click.option(
    "--close", "close_links", is_flag=True, help="Close its open connections, too; otherwise they prevent it."
)
@yes_option
@directory_command
def deregister(tool: DirectoryTool, app: str, broker: str, close_links: bool, yes: bool) -> None:
    """Take APP out of the directory, also a static one.

    \b
    Examples:
      fairlead directory deregister AZ --yes
      fairlead directory deregister AZ --close --yes
    """
    confirm(yes, f"Deregister {app}{' and close its connections' if close_links else ''}?")
    links: Literal["refuse", "close"] = "close" if close_links else "refuse"
    answer = tool.ask(lambda directory: directory.deregister_app(app, broker=broker, links=links))
    tool.told(f"{app} is deregistered", answer)


@directory_group.command("rebalance")
@click.argument("cluster")
@directory_command
def rebalance(tool: DirectoryTool, cluster: str) -> None:
    """Ask connections of CLUSTER to move, when it suits them, until its brokers have about as many each.

    \b
    Example:
      fairlead directory rebalance cluster-A
    """
    answer = tool.ask(lambda directory: directory.rebalance(cluster))
    moves = ", ".join(f"{count} from {broker}" for broker, count in answer.moves.items() if count)
    tool.told(f"asked to move: {moves or 'none, it is even'}", answer)
