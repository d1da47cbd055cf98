"""`fairlead update`, `drain`, `reload` and `stop`: telling a running server what to do."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from fairlead.cli.options import as_json_option, fail, one_sentence, run_of, which_server
from fairlead.runtime.admin import answer_of, ask

PATIENCE_S = 120.0


@click.command()
@click.argument(
    "component",
    type=click.Choice(
        ["router", "dispatcher", "managers", "message-manager", "agent", "registrar", "streams", "all", "supervisor"]
    ),
)
@which_server
@click.option("--python", metavar="PATH", help="The interpreter of another environment, with the version to change to.")
@as_json_option
@one_sentence
def update(component: str, server: str | None, data: str | None, python: str | None, as_json: bool) -> None:
    """Replace programs of a running server; clients stay connected.

    The successor loads before the old program stops, and the old one takes over again if the successor fails. Managers
    are replaced one after the other: their clients are asked to move to another one, and lose nothing by it. The
    message manager is stopped and started again, since its journal has one owner; clients stay connected meanwhile.

    \b
    Examples:
      fairlead update router
      fairlead update all --python /opt/fairlead-0.2/bin/python
      fairlead update dispatcher --data ./data --json
    Exit codes: 0 done, 1 failed (the old version goes on), 2 usage.
    """
    answer: dict[str, Any] = {}
    for answer in ask(run_of(server, data), "update", component=component, python=python, timeout_s=PATIENCE_S):
        if not as_json and "update" in answer:
            click.echo(sentence(answer["update"]))
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    elif not answer["ok"]:
        fail(answer["error"], 1)
    elif component == "supervisor":
        click.echo(f"supervisor: executed in place as process {answer['pid']}")
    if not answer["ok"]:
        sys.exit(1)


def sentence(record: dict[str, Any]) -> str:
    """One update in words."""
    pause = f", pause {record['pause_ms']:.1f} ms" if record["pause_ms"] else ""
    reason = f" ({record['reason']})" if record["reason"] else ""
    versions = f"{record['from_version']} -> {record['to_version'] or '?'}"
    return f"{record['component']}: {record['outcome']}, {versions}{pause}{reason}"


@click.command()
@click.argument("manager", type=int)
@which_server
@click.option("--move", is_flag=True, help="Ask its clients to move to another manager, instead of waiting for them.")
@click.option("--python", metavar="PATH", help="The interpreter for its successor.")
@as_json_option
@one_sentence
def drain(manager: int, server: str | None, data: str | None, move: bool, python: str | None, as_json: bool) -> None:
    """Take connection manager number MANAGER out of service.

    It gets no new connections, ends after its last one, and a fresh one takes its place.

    \b
    Examples:
      fairlead drain 0
      fairlead drain 1 --move
    """
    command = "move" if move else "drain"
    answer = answer_of(run_of(server, data), command, manager=manager, python=python, timeout_s=PATIENCE_S)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    elif move:
        click.echo(sentence(answer["updates"][0]))
    else:
        click.echo(f"manager {manager} takes no new connections and ends after its last one")


@click.command("reload")
@which_server
@one_sentence
def reload_command(server: str | None, data: str | None) -> None:
    """Have users, rules, certificates and keys of tokens read again (so does SIGHUP)."""
    answer_of(run_of(server, data), "reload")


@click.command()
@which_server
@one_sentence
def stop(server: str | None, data: str | None) -> None:
    """Stop a running server in order: clients are told, then everything ends (so does SIGTERM)."""
    answer_of(run_of(server, data), "stop", timeout_s=PATIENCE_S)
