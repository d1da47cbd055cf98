"""Which cluster a command means, and how its nodes are asked.

Through a client manager by its URL, with the rights of the user; with --data through the local socket of any node,
which works while no client can connect. --data may also be the directory of `fairlead cluster up`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from fairlead.cli.options import as_json_option, one_sentence
from fairlead.cli.traffic import connecting, open_connection
from fairlead.cluster.configuration.overview import facts_of, overview
from fairlead.errors import Unavailable
from fairlead.runtime.admin import answer_of, run_directory

Facts = dict[str, Any]
PATIENCE_S: Final = 30.0


class ClusterTarget:
    """The nodes of one cluster."""

    def __init__(
        self, server: str, user: str | None, password: str | None, ca: str | None, data: str | None, as_json: bool
    ) -> None:
        self._server, self._user, self._password, self._ca, self._data = server, user, password, ca, data
        self.as_json = as_json

    def ask(self, do: str, nodes: list[str] | None = None, patience_s: float = PATIENCE_S, **more: Any) -> Facts:
        """Put a question to all nodes, or these: {"nodes": {name: answer}, "expected", "missing"}."""
        question: Facts = {"do": do, "patience_s": patience_s, **more}
        if nodes is not None:
            question["nodes"] = nodes
        if not self._data:
            return asyncio.run(self._ask(question, patience_s))
        directory = Path(self._data).expanduser()
        if (directory / "cluster.toml").is_file():
            from fairlead.runtime.local_cluster import LocalCluster

            return LocalCluster(directory).ask(question, timeout_s=patience_s + 5)
        run = run_directory(data=self._data)
        answer = answer_of(run, "admin", name="cluster", args=question, timeout_s=patience_s + 5)
        found: Facts = answer["result"]
        return found

    async def _ask(self, question: Facts, patience_s: float) -> Facts:
        async with open_connection("fairlead-cluster", self._server, self._user, self._password, self._ca) as opened:
            facts: Facts = await opened.admin.execute("cluster", timeout=patience_s + 5, **question)
            return facts

    def ask_one(self, do: str, node: str, patience_s: float = PATIENCE_S, **more: Any) -> Facts:
        """The answer of one node; Unavailable with its sentence if it is a no."""
        found = self.ask(do, [node], patience_s, **more)
        if node not in found["nodes"]:
            raise Unavailable(f"{node} does not answer; `fairlead cluster status` shows who is there.")
        answer = facts_of(found["nodes"][node])
        if not answer.get("ok", True):
            raise Unavailable(f"{node}: {answer.get('error', 'it said no')}")
        return answer

    def status(self) -> Facts:
        """As `overview` tells it."""
        return overview(self.ask("status", patience_s=10.0))

    def primary(self, group: str) -> str:
        """The node that leads a group; Unavailable if nobody does or there is no such group."""
        groups = {found["group"]: found for found in self.status()["groups"]}
        if group not in groups:
            raise Unavailable(f"There is no group {group}; there are {', '.join(groups) or 'none that answer'}.")
        if not groups[group]["primary"]:
            raise Unavailable(f"Nobody leads group {group} just now; `fairlead cluster status` says why.")
        return str(groups[group]["primary"])

    def settings(self) -> Facts:
        """Those in force, as some node has them."""
        found = self.ask("settings", patience_s=10.0)
        for answer in found["nodes"].values():
            if answer.get("ok", True) and "settings" in answer:
                settings: Facts = answer["settings"]
                return settings
        raise Unavailable("No node tells its settings; `fairlead cluster status` shows who is there.")

    def change(self, changes: Facts) -> Facts:
        """Have settings changed by whichever node takes it on."""
        status = self.status()
        ready = [node["node"] for node in status["nodes"] if node["state"] == "checked"]
        if not ready:
            raise Unavailable("No node has been checked yet; ask again in a moment.")
        return self.ask_one("settings", ready[0], changes=changes)


def cluster_command(command: Callable[..., None]) -> Callable[..., None]:
    """The options every command on a running cluster has; it gets a `ClusterTarget` first."""

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
        return command(ClusterTarget(server, user, password, ca, data, as_json), *args, **options)

    found = as_json_option(wrapped)
    found = click.option(
        "--data",
        metavar="DIR",
        help="The data directory of a node on this host, or the directory of `cluster up`, instead of a URL.",
    )(found)
    return connecting(found)
