"""`fairlead directory serve`: one server of a directory, alone or one of several."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click

from fairlead.cli.options import one_sentence

LISTEN: Final = "127.0.0.1:7402"


@click.command("serve")
@click.option("--name", default="", help="Its name among the servers of the directory, such as d1.")
@click.option(
    "--listen", multiple=True, metavar="ADDRESS", help=f"Where it is asked; {LISTEN} if not said. Port 0: any."
)
@click.option("--data", metavar="DIR", required=True, help="Directory of everything the server keeps.")
@click.option(
    "--bus", default="", metavar="HOST:PORT", help="Where the other servers reach it; the next port is used too."
)
@click.option("--peers", default="", metavar="NAME=HOST:PORT,…", help="All servers of the directory, the same at each.")
@click.option("--secret", default="", metavar="FILE", help="Secret of the servers: `fairlead node secret FILE`.")
@click.option(
    "--rejoin", is_flag=True, help="The data directory of this server was lost: take everything from the others."
)
@click.option("--config", "config_file", type=click.Path(dir_okay=False, path_type=Path), help="A TOML file.")
@click.option("--managers", type=int, default=1, show_default=True, help="Connection managers.")
@click.option("--insecure", is_flag=True, default=None, help="Listen beyond this host without authentication.")
@click.option("--set", "settings", metavar="SECTION.KEY=VALUE", multiple=True, help="Any other setting.")
@click.option("--ready-fd", type=int, metavar="N", help="Write `READY URL` to this descriptor when ready.")
@click.option("--faults", is_flag=True, hidden=True, help="For tests: lets the bus be disturbed.")
@one_sentence
def serve(
    name: str,
    listen: tuple[str, ...],
    data: str,
    bus: str,
    peers: str,
    secret: str,
    rejoin: bool,
    config_file: Path | None,
    managers: int,
    insecure: bool | None,
    settings: tuple[str, ...],
    ready_fd: int | None,
    faults: bool,
) -> None:
    """Keep a directory, in the foreground; Ctrl-C stops it in order.

    Without --peers it is alone: everything works, and nothing does while it is stopped. With --peers several of them
    keep the same directory. Changes need a majority of them, so three is the number that survives the loss of one; with
    two, the loss of one leaves reads only. Every server answers everything.

    \b
    Examples:
      fairlead directory serve --data ./directory
      fairlead directory serve --name d1 --data ./d1 --listen 10.0.0.1:7402 --secret ./secret \\
          --bus 10.0.0.1:7412 --peers d1=10.0.0.1:7412,d2=10.0.0.2:7412,d3=10.0.0.3:7412
      fairlead directory serve --data ./directory --set directory.lease_s=5 --set security.users=users.toml
    Then `fairlead directory brokers --server fairlead+directory://10.0.0.1,10.0.0.2,10.0.0.3`.
    Exit codes: 0 stopped in order, 1 a component does not work, 2 the options, the ports or the directory.
    """
    from fairlead.runtime import config as configuration

    overrides: dict[str, object] = {
        "server.data": data,
        "server.listen": list(listen) or [LISTEN],
        "server.managers": managers,
        "server.insecure": insecure,
        "directory.serve": True,
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
    if not peers:
        from fairlead.runtime.supervisor import serve as run

        sys.exit(run(config, ready_fd=ready_fd))
    from fairlead.runtime.directory_server.files import ServerFiles, read_peers
    from fairlead.runtime.directory_server.server import DirectoryServer
    from fairlead.runtime.logbook import Logbook

    files = ServerFiles(Path(data), read_peers(name, bus, peers))
    secret_file = str(Path(secret).expanduser().absolute()) if secret else ""
    for sentence in files.write(config, secret=secret_file, faults=faults, rejoin=rejoin):
        click.echo(f"fairlead: note: {sentence}", err=True)
    logbook = Logbook.of(files.data / "log" / "fairlead.log", config.log)
    sys.exit(DirectoryServer(files, logbook, ready_fd).run())
