"""`fairlead directory state`: whether the directory sends applications to a broker, said at the broker itself."""

from __future__ import annotations

import json

import click

from fairlead.cli.options import as_json_option, fail, one_sentence, run_of, which_server
from fairlead.runtime.admin import answer_of


@click.command("state")
@click.argument("state", type=click.Choice(["up", "draining", "disabled"]))
@which_server
@as_json_option
@one_sentence
def state_command(state: str, server: str | None, data: str | None, as_json: bool) -> None:
    """Let the broker on this host be chosen for new connections, or not.

    `draining` and `disabled` ask the applications that are connected there to go elsewhere; a disabled broker also
    refuses those that come all the same. It holds until it is changed or the server is stopped.

    \b
    Examples:
      fairlead directory state draining --data ./broker-a
      fairlead directory state up --data ./broker-a
    """
    answer = answer_of(run_of(server, data), "broker-state", state=state)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    elif answer["ok"]:
        click.echo(f"The broker is {answer['state']}.")
    if not answer["ok"]:
        fail(answer["error"], 1)
