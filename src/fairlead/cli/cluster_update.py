"""`fairlead cluster update`: a cluster on this host changes to another version, one node after the other."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import click

from fairlead.cli.options import one_sentence
from fairlead.cluster.configuration.overview import overview
from fairlead.errors import ConfigError, Unavailable
from fairlead.runtime.admin import ask
from fairlead.runtime.local_cluster import LocalCluster

PATIENCE_S = 120.0


@click.command("update")
@click.option("--data", "directory", type=click.Path(file_okay=False, path_type=Path), required=True,
              help="The directory of `cluster up`.")  # fmt: skip
@click.option("--python", metavar="PATH", default=sys.executable, help="The interpreter with the version to change to.")
@click.option("--node", "only", multiple=True, help="Only this node; may be given several times.")
@one_sentence
def update(directory: Path, python: str, only: tuple[str, ...]) -> None:
    """Change all nodes to another version without an outage, one after the other.

    Client managers replace their router, dispatcher, agent and connection managers live. A message manager's node
    hands over what it leads, is started again, and the next one waits until it is in sync.

    On several hosts, do the same by hand: `fairlead update all` on each client manager's host, and on each message
    manager's host a restart of its service (TERM hands over), waiting for `fairlead cluster status` in between.

    \b
    Example:
      fairlead cluster update --data ./cluster --python /opt/fairlead-0.2/bin/python
    """
    cluster = LocalCluster(directory, python)
    names = [name for name in cluster.running() if not only or name in only]
    if unknown := sorted(set(only) - set(cluster.names())):
        raise ConfigError(f"there is no node {', '.join(unknown)}; there are {', '.join(cluster.names())}")
    if not names:
        raise Unavailable(f"no node of the cluster in {cluster.directory} runs")
    for name in names:
        if cluster.files(name).node.kind == "cm":
            _update_cm(cluster, name, python)
        else:
            _restart(cluster, name)
        click.echo(f"{name}: updated")


def _update_cm(cluster: LocalCluster, name: str, python: str) -> None:
    run = cluster.data(name) / "run"
    components = ["router", "dispatcher", "agent"]
    if cluster.files(name).node.server.managers > 1:
        components.append("managers")
    else:
        click.echo(f"{name}: its one connection manager goes on with the old version; clients have nowhere to move to")
    for component in components:
        *_, answer = ask(run, "update", component=component, python=python, timeout_s=PATIENCE_S)
        if not answer.get("ok"):
            raise Unavailable(f"{name}: {component} was not updated: {answer.get('error')}; the old one goes on")


def _restart(cluster: LocalCluster, name: str) -> None:
    """TERM hands over what it leads; then it is waited for until it answers and is in sync again everywhere."""
    hosts = [group["group"] for group in overview(cluster.ask({"do": "status"}))["groups"]
             if name in {member["node"] for member in group["members"]}]  # fmt: skip
    if killed := cluster.stop([name]):
        raise Unavailable(f"{', '.join(killed)} did not stop in time and was killed; look at its log before going on")
    cluster.start(name)
    until_s = time.monotonic() + PATIENCE_S
    while True:
        groups: dict[str, Any] = {}
        state = "does not answer"
        with contextlib.suppress(Unavailable):
            status = overview(cluster.ask({"do": "status"}))
            groups = {group["group"]: group for group in status["groups"]}
            state = next((str(node["state"]) for node in status["nodes"] if node["node"] == name), state)
        behind = [
            group
            for group in hosts
            if group not in groups
            or not groups[group]["primary"]
            or not any(member["node"] == name and member["in_sync"] for member in groups[group]["members"])
        ]
        if not behind and state == "checked":
            return
        if time.monotonic() >= until_s:
            raise Unavailable(
                f"{name} ({state}) is not in sync in {', '.join(behind) or 'any group'} after {PATIENCE_S:g} s; "
                "nothing more is updated"
            )
        time.sleep(0.2)
