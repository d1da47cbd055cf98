"""`fairlead streams serve`: a server whose work is the stream administration."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click

from fairlead.cli.options import one_sentence

LISTEN: Final = "127.0.0.1:7403"


@click.command("serve")
@click.option(
    "--listen", multiple=True, metavar="ADDRESS", help=f"Where it is asked; {LISTEN} if not said. Port 0: any."
)
@click.option("--data", metavar="DIR", required=True, help="Directory of everything the server keeps.")
@click.option("--config", "config_file", type=click.Path(dir_okay=False, path_type=Path), help="A TOML file.")
@click.option("--managers", type=int, default=1, show_default=True, help="Connection managers.")
@click.option("--insecure", is_flag=True, default=None, help="Listen beyond this host without authentication.")
@click.option("--set", "settings", metavar="SECTION.KEY=VALUE", multiple=True, help="Any other setting.")
@click.option("--ready-fd", type=int, metavar="N", help="Write `READY URL` to this descriptor when ready.")
@one_sentence
def serve(
    listen: tuple[str, ...],
    data: str,
    config_file: Path | None,
    managers: int,
    insecure: bool | None,
    settings: tuple[str, ...],
    ready_fd: int | None,
) -> None:
    """Be the stream administration, in the foreground; Ctrl-C stops it in order.

    Adapters and programs find each other through it, and it says which adapter of a stream is active. No message of a
    stream passes through it: streams that are running go on while it is stopped, and it takes up where it was. It is a
    whole server; any other server does the same with [streams] serve = true.

    \b
    Examples:
      fairlead streams serve --data ./streams
      fairlead streams serve --data ./streams --listen 10.0.0.1:7403 --set security.users=users.toml
    Then `fairlead feed run` (twice) and `fairlead streams status`.
    Exit codes: 0 stopped in order, 1 a component does not work, 2 the options, the ports or the directory.
    """
    from fairlead.runtime import config as configuration
    from fairlead.runtime.supervisor import serve as run

    overrides: dict[str, object] = {
        "server.data": data,
        "server.listen": list(listen) or [LISTEN],
        "server.managers": managers,
        "server.insecure": insecure,
        "streams.serve": True,
        "console.enabled": False,  # `--set console.enabled=true` for one
    }
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--set wants SECTION.KEY=VALUE, not {text!r}.")
        overrides[key] = value
    config = configuration.load(config_file, os.environ, overrides)
    configuration.check(config)
    for sentence in configuration.advice(config):
        click.echo(f"fairlead: note: {sentence}", err=True)
    sys.exit(run(config, ready_fd=ready_fd))
