"""`fairlead serve`: the server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from fairlead.errors import ConfigError
from fairlead.runtime import config as configuration


@click.command()
@click.option("--config", "config_file", type=click.Path(dir_okay=False, path_type=Path), help="A TOML file.")
@click.option("--data", metavar="DIR", help="Directory of everything the server keeps.")
@click.option(
    "--listen",
    metavar="ADDRESS",
    multiple=True,
    help="HOST:PORT or unix:PATH; may be given several times. Port 0: any.",
)
@click.option("--managers", type=int, help="Connection managers; 0 means one per core.")
@click.option("--insecure", is_flag=True, default=None, help="Listen beyond this host without authentication.")
@click.option("--console", metavar="HOST:PORT", help="Where browsers reach the console; 127.0.0.1:7480 if not said.")
@click.option("--no-console", is_flag=True, help="Do without the console.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="How much is logged.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Lines for people, or for programs.")
@click.option("--set", "settings", metavar="SECTION.KEY=VALUE", multiple=True, help="Any other setting.")
@click.option("--ready-fd", type=int, metavar="N", help="Write `READY URL` to this descriptor when ready.")
def serve(
    config_file: Path | None,
    data: str | None,
    listen: tuple[str, ...],
    managers: int | None,
    insecure: bool | None,
    console: str | None,
    no_console: bool,
    log_level: str | None,
    log_format: str | None,
    settings: tuple[str, ...],
    ready_fd: int | None,
) -> None:
    """Start the server and stay in the foreground; Ctrl-C stops it in order, a second one at once.

    Queues and durable topics are kept in the data directory by the message manager; `--set messages.enabled=false` does
    without. Children of a supervisor that was killed go on serving: `fairlead serve` on the same data directory adopts
    them.

    \b
    Examples:
      fairlead serve
      fairlead serve --data ./data --listen 127.0.0.1:7400 --listen unix:/run/user/1000/fairlead.sock
      fairlead serve --managers 4 --set fairness.limit=100
    Exit codes: 0 stopped in order, 1 a component does not work, 2 the configuration, the port or the directory.
    """
    overrides: dict[str, object] = {
        "server.data": data,
        "server.listen": list(listen) or None,
        "server.managers": managers,
        "server.insecure": insecure,
        "log.level": log_level,
        "log.format": log_format,
        "console.enabled": False if no_console else True if console else None,
        "console.listen": [console] if console else None,
    }
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--set wants SECTION.KEY=VALUE, not {text!r}.")
        overrides[name] = value
    try:
        config = configuration.load(config_file, os.environ, overrides)
        configuration.check(config)
    except ConfigError as error:
        click.echo(f"fairlead: {error}", err=True)
        sys.exit(2)
    for sentence in configuration.advice(config):
        click.echo(f"fairlead: note: {sentence}", err=True)
    from fairlead.runtime.supervisor import serve as run

    sys.exit(run(config, ready_fd=ready_fd))
