"""`fairlead cluster up`, `down` and `init`: a whole cluster on this host, and the files of one on several."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.options import one_sentence
from fairlead.errors import ConfigError, FairleadError

if TYPE_CHECKING:
    from fairlead.runtime.local_cluster import LocalCluster

DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.command("up")
@click.option("--data", "directory", type=DIRECTORY, required=True, help="Directory of everything: files, data, logs.")
@click.option("--cm", "cms", type=click.IntRange(1, 16), default=2, show_default=True, help="Client managers' nodes.")
@click.option("--groups", type=click.IntRange(1, 26), default=2, show_default=True, help="Groups of message managers.")
@click.option("--backups", type=click.IntRange(0, 6), default=1, show_default=True, help="Further copies per group.")
@click.option("--witnesses", type=click.IntRange(0, 9), default=0, show_default=True, help="Nodes that only vote.")
@click.option("--own-nodes", is_flag=True, help="Nodes of its own for each group, instead of nodes that host all.")
@click.option("--carrier", type=click.Choice(["tcp", "udp", "local"]), default="tcp", show_default=True)
@click.option("--port", type=int, default=7400, show_default=True, help="Of the first client manager; 0: any free one.")
@click.option(
    "--managers", type=int, default=1, show_default=True, help="Connection managers per client manager's node."
)
@click.option("--faults", is_flag=True, help="Let `fairlead cluster fault` disturb the bus.")
@click.option("--detach", is_flag=True, help="Leave it running in the background; `fairlead cluster down` stops it.")
@click.option("--wait", "wait_s", type=float, default=60.0, show_default=True, help="Seconds until all must serve.")
@one_sentence
def up(
    directory: Path,
    cms: int,
    groups: int,
    backups: int,
    witnesses: int,
    own_nodes: bool,
    carrier: Any,
    port: int,
    managers: int,
    faults: bool,
    detach: bool,
    wait_s: float,
) -> None:
    """Start a cluster on this host: every node a process of its own. Made at the first time, found again later.

    A directory that has a cluster already is started as it is; the numbers then say nothing.

    \b
    Examples:
      fairlead cluster up --data ./cluster
      fairlead cluster up --data ./cluster --cm 3 --groups 4 --backups 2 --detach
    Then, with the URL it prints:
      fairlead send orders 'one book' --server fairlead://127.0.0.1:7400,127.0.0.1:7401
    Exit codes: 0 stopped in order, 1 it does not come up, 2 the directory or the ports.
    """
    from fairlead.runtime.local_cluster import LocalCluster, Shape

    cluster = LocalCluster(directory)
    if not cluster.exists:
        cluster.found(
            Shape(
                cms=cms,
                groups=groups,
                backups=backups,
                witnesses=witnesses,
                shared=not own_nodes,
                carrier=carrier,
                port=port,
                managers=managers,
                links=True,
                faults=faults,
            )
        )
        click.echo(f"made a cluster in {cluster.directory}: {', '.join(cluster.names())}")
    if running := cluster.running():
        raise ConfigError(f"{', '.join(running)} of this cluster run already; `fairlead cluster down` stops them")
    try:
        for name in reversed(cluster.names()):  # members first, so that client managers find groups
            cluster.start(name)
        cluster.wait_serving(wait_s)
    except (FairleadError, KeyboardInterrupt):
        cluster.stop()
        raise
    _show(cluster)
    if not detach:
        _stay(cluster)


def _show(cluster: LocalCluster) -> None:
    from fairlead.cli.cluster_view import console, tables
    from fairlead.cluster.configuration.overview import overview

    console().print(tables(overview(cluster.ask({"do": "status"}))))
    click.echo(f"\nclients connect to {cluster.url}")
    click.echo(f"fairlead cluster status --data {cluster.directory}")


def _stay(cluster: LocalCluster) -> None:
    """Until Ctrl-C or TERM, or until nothing runs any more; then all nodes are stopped in order."""
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    click.echo("Ctrl-C stops all nodes in order")
    while not over.wait(1.0):
        if not cluster.running():
            click.echo("all nodes have ended", err=True)
            sys.exit(1)
    for name in (killed := cluster.stop()):
        click.echo(f"{name} did not stop in time and was killed", err=True)
    sys.exit(1 if killed else 0)


@click.command("down")
@click.option("--data", "directory", type=DIRECTORY, required=True, help="The directory of `cluster up`.")
@one_sentence
def down(directory: Path) -> None:
    """Stop all nodes of a cluster on this host in order: client managers, then message managers.

    \b
    Example:
      fairlead cluster down --data ./cluster
    """
    from fairlead.runtime.local_cluster import LocalCluster

    cluster = LocalCluster(directory)
    if not cluster.exists:
        raise ConfigError(f"there is no cluster in {cluster.directory}")
    running = cluster.running()
    killed = cluster.stop()
    click.echo(f"stopped {', '.join(running)}" if running else "nothing was running")
    for name in killed:
        click.echo(f"{name} did not stop in time and was killed", err=True)
    if killed:
        sys.exit(1)


@click.command("init")
@click.argument("directory", type=DIRECTORY)
@click.option("--name", required=True, help="Of the cluster.")
@click.option("--voter", "voters", multiple=True, required=True, help="A founding voter; an odd number is best.")
@click.option("--group", "groups", multiple=True, required=True, metavar="NAME=NODE,NODE", help="A group, its members.")
@click.option("--carrier", type=click.Choice(["tcp", "udp", "local"]), default="tcp", show_default=True)
@click.option("--form", type=click.Choice(["single", "a", "b"]), default="single", show_default=True)
@click.option("--bus", "buses", multiple=True, metavar="NAME[=MULTICAST:PORT]", help="A bus; `main` if none is said.")
@click.option("--site-id", type=int, default=0, help="Part of all message ids.")
@one_sentence
def init(
    directory: Path,
    name: str,
    voters: tuple[str, ...],
    groups: tuple[str, ...],
    carrier: Any,
    form: Any,
    buses: tuple[str, ...],
    site_id: int,
) -> None:
    """Write cluster.toml and settings.toml of a new cluster into DIRECTORY; copy them to all hosts.

    \b
    Example:
      fairlead cluster init ./conf --name prod --voter cm1 --voter mm1 --voter mm2 --group a=mm1,mm2 --group b=mm2,mm1
    Then `fairlead node init ./conf …` on each host.
    """
    from fairlead.cluster.configuration.checks import check_cluster, check_settings, voters_warning
    from fairlead.cluster.configuration.documents import parse_cluster, parse_settings, to_toml
    from fairlead.cluster.configuration.edge.files import COMMENT, write_file
    from fairlead.cluster.configuration.types import BusSpec, ClusterConfig, ClusterSettings, GroupSpec

    for file in ("cluster.toml", "settings.toml"):
        if (directory / file).exists():
            raise ConfigError(f"{directory / file} is there already; edit it, or choose another directory")
    specs = [_bus(text) for text in buses] or [
        BusSpec(name="main", multicast="239.255.74.1" if carrier == "udp" else "")
    ]
    cluster = ClusterConfig(
        name=name, voters=list(voters), carrier=carrier, form=form, buses=specs, site_id=site_id
    )  # fmt: skip
    found = []
    for text in groups:
        group, _, members = text.partition("=")
        found.append(GroupSpec(name=group, members=[member for member in members.split(",") if member]))
    settings = ClusterSettings(groups=found)
    essential = to_toml(cluster, "Essential: the same bytes on all nodes; never changed while one runs.")
    acquirable = to_toml(settings, COMMENT)
    check_cluster(parse_cluster(essential))
    check_settings(parse_settings(acquirable))
    write_file(directory / "cluster.toml", essential.encode())
    write_file(directory / "settings.toml", acquirable.encode())
    if warning := voters_warning(cluster, settings):
        click.echo(f"Note: {warning}")
    click.echo(f"{directory / 'cluster.toml'} and settings.toml are written; copy both to every host, then there:")
    click.echo(f"  fairlead node init {directory} --name NODE --kind cm|mm|witness --data DIR --bus … --founding")


def _bus(text: str) -> Any:
    from fairlead.cluster.configuration.types import BusSpec

    name, _, address = text.partition("=")
    if not address:
        return BusSpec(name=name)
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        raise ConfigError(f"{text!r} is not NAME=MULTICAST:PORT, such as main=239.255.74.1:7404")
    return BusSpec(name=name, multicast=host, port=int(port))
