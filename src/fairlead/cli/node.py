"""`fairlead node`: one node of a cluster, its files and its process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TypeVar

import click

from fairlead.cli.options import fail, one_sentence
from fairlead.cluster.configuration.types import Kind
from fairlead.errors import ConfigError

F = TypeVar("F")
FILE = click.Path(dir_okay=False, path_type=Path)


@click.group("node")
def node_group() -> None:
    """Prepare and run one node of a cluster.

    A node has three files: cluster.toml (the same bytes on all nodes), settings.toml (the same values on all nodes,
    changed with `fairlead cluster set`) and node.toml (its own). `fairlead cluster up` makes a whole cluster on
    this host.

    \b
    A cluster of three hosts, step by step:
      fairlead cluster init ./conf --name prod --voter cm1 --voter mm1 --voter mm2 --group a=mm1,mm2
      fairlead node secret ./conf/secret          copy ./conf to all hosts, then on each host:
      fairlead node init ./conf --name mm1 --kind mm --data /var/lib/fairlead --founding \\
          --bus main=10.0.0.1:7404 --seed main=10.0.0.2:7404 --seed main=10.0.0.3:7404 --secret ./conf/secret
      fairlead node mm --node ./conf/node.toml
    """


def node_files(command: Any) -> Any:
    command = click.option("--settings", type=FILE, help="settings.toml, if it is not beside node.toml.")(command)
    command = click.option("--cluster", type=FILE, help="cluster.toml, if it is not beside node.toml.")(command)
    return click.option("--node", "node_file", type=FILE, required=True, help="The node.toml.")(command)


@node_group.command("init")
@click.argument("directory", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.option("--name", required=True, help="Its name in the cluster.")
@click.option("--kind", type=click.Choice(["cm", "mm", "witness"]), required=True, help="What it is for.")
@click.option("--data", required=True, metavar="DIR", help="Directory of everything it keeps.")
@click.option(
    "--bus", "buses", multiple=True, required=True, metavar="NAME=HOST:PORT", help="Where it listens on a bus."
)
@click.option("--seed", "seeds", multiple=True, metavar="NAME=HOST:PORT", help="Another node on that bus.")
@click.option("--listen", multiple=True, metavar="ADDRESS", help="Of a cm: where clients connect.")
@click.option("--secret", metavar="FILE", default="", help="File with the secret of the cluster.")
@click.option("--founding", is_flag=True, help="This node begins with the cluster: it has never voted.")
@click.option("--no-vote", is_flag=True, help="It does not vote, even if the electorate names it.")
@one_sentence
def init(
    directory: Path,
    name: str,
    kind: Kind,
    data: str,
    buses: tuple[str, ...],
    seeds: tuple[str, ...],
    listen: tuple[str, ...],
    secret: str,
    founding: bool,
    no_vote: bool,
) -> None:
    """Write node.toml into DIRECTORY, which has cluster.toml and settings.toml, and check all three.

    With --founding the data directory is made as well, with notes that this node has never voted. Say it for the nodes
    a cluster begins with, and for no other: a node without these notes counts as one that lost them, joins without
    harm, and is made a voter by `fairlead cluster add-voter`.

    \b
    Examples:
      fairlead node init ./conf --name cm1 --kind cm --data ./data --founding \\
          --bus main=127.0.0.1:7404 --listen 127.0.0.1:7400
      fairlead node init ./conf --name w1 --kind witness --data ./data \\
          --bus main=10.0.0.3:7404 --seed main=10.0.0.1:7404 --secret ./conf/secret
    """
    from fairlead.cluster.configuration.documents import to_toml
    from fairlead.cluster.configuration.edge.files import NodeFiles, write_file
    from fairlead.cluster.configuration.edge.founding import found_node
    from fairlead.cluster.configuration.types import NodeConfig
    from fairlead.runtime.settings import Server

    path = directory / "node.toml"
    if path.exists():
        raise ConfigError(f"{path} is there already; edit it, or remove it first")
    server = Server(listen=list(listen)) if listen else Server()
    by_bus: dict[str, list[str]] = {}
    for bus, address in map(_pair, seeds):
        by_bus.setdefault(bus, []).append(address)
    node = NodeConfig(
        name=name,
        kind=kind,
        data=str(Path(data).expanduser().absolute()),
        buses=dict(map(_pair, buses)),
        seeds=by_bus,
        vote=not no_vote,
        secret_file=str(Path(secret).expanduser().absolute()) if secret else "",
        server=server,
    )
    write_file(path, to_toml(node, "This node's own; see docs/configuration.md.").encode())
    try:
        files = NodeFiles(path)
        if founding:
            found_node(files)
    except ConfigError:
        path.unlink()
        raise
    click.echo(f"{path} is good; start the node with: fairlead node {kind} --node {path}")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise ConfigError(f"{text!r} is not NAME=HOST:PORT, such as main=127.0.0.1:7404")
    return name, value


@node_group.command("secret")
@click.argument("file", type=FILE)
@one_sentence
def secret_command(file: Path) -> None:
    """Make a secret for the cluster; copy the file to all nodes and name it as secret_file in their node.toml.

    \b
    Example:
      fairlead node secret ./conf/secret
    """
    from fairlead.cluster.configuration.edge.files import write_secret

    write_secret(file)
    click.echo(f"{file} is for your account only; copy it to all nodes")


@node_group.command("check")
@node_files
@one_sentence
def check(node_file: Path, cluster: Path | None, settings: Path | None) -> None:
    """Say whether a node would start with these files, as far as it can know alone; exit code 2 if not.

    \b
    Example:
      fairlead node check --node ./conf/node.toml
    """
    from fairlead.cluster.configuration.checks import voters_warning
    from fairlead.cluster.configuration.edge.files import NodeFiles

    files = NodeFiles(node_file, cluster, settings)
    if warning := voters_warning(files.cluster, files.settings):
        click.echo(f"Note: {warning}")
    click.echo(f"The files are good. cluster.toml has SHA-256 {files.essential}, settings are revision "
               f"{files.settings.revision}.")  # fmt: skip


@node_group.command("cm")
@node_files
@click.option("--ready-fd", type=int, metavar="N", help="Write `READY URL` to this descriptor when ready.")
@one_sentence
def cm(node_file: Path, cluster: Path | None, settings: Path | None, ready_fd: int | None) -> None:
    """Run a client manager's node: clients connect here, messages are kept by the groups.

    It is a server like that of `fairlead serve`; `fairlead status`, `update` and `stop` work with it.

    \b
    Example:
      fairlead node cm --node ./cm1/node.toml
    Exit codes: 0 stopped in order, 1 a component does not work or its files are not the others', 2 its files or ports.
    """
    from fairlead.runtime.nodes import run_cm

    _run("cm", run_cm, node_file, cluster, settings, ready_fd=ready_fd)


@node_group.command("mm")
@node_files
@one_sentence
def mm(node_file: Path, cluster: Path | None, settings: Path | None) -> None:
    """Run a message manager's node: it keeps a copy of every group it is a member of.

    The process started here only keeps the node running: it starts it again when it ends, and tells the others at once
    when it died. TERM hands over what the node leads, then stops it.

    \b
    Example:
      fairlead node mm --node ./mm1/node.toml
    Exit codes: 0 stopped in order, 1 it does not work or its files are not the others', 2 its files.
    """
    from fairlead.runtime.nodes import run_mm

    _run("mm", run_mm, node_file, cluster, settings)


@node_group.command("witness")
@node_files
@one_sentence
def witness(node_file: Path, cluster: Path | None, settings: Path | None) -> None:
    """Run a witness: it has a vote on who leads, and nothing else. For the third of three machines.

    \b
    Example:
      fairlead node witness --node ./w1/node.toml
    """
    from fairlead.runtime.nodes import run_witness

    _run("witness", run_witness, node_file, cluster, settings)


def _run(kind: str, run: Any, node_file: Path, cluster: Path | None, settings: Path | None, **more: Any) -> None:
    from fairlead.cluster.configuration.edge.files import NodeFiles

    files = NodeFiles(node_file, cluster, settings)
    if files.node.kind != kind:
        fail(f"{node_file} says that {files.node.name} is a `{files.node.kind}`: fairlead node {files.node.kind}", 2)
    files.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.remember()
    sys.exit(run(files, **more))
