"""`fairlead backup` and `fairlead restore`: the stored messages of a server, copied while it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import click

from fairlead.cli.admin import Target, show, targeted
from fairlead.cli.options import as_json_option, one_sentence
from fairlead.errors import ConfigError

STORE: Final = "mm-0"  # of a data directory: where the message manager keeps its journal


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@targeted
def backup(server: Target, target: Path) -> None:
    """Copy everything stored to directory TARGET, on the server's host, while it runs.

    What was confirmed before the command began is in the copy. A manifest with checksums is part of it.

    \b
    Examples:
      fairlead backup /var/backups/fairlead/monday
      fairlead backup ./copy --data ./data
    """
    server.show("backup", target=str(target.absolute()))


@click.command()
@click.argument("source", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--data", required=True, type=click.Path(path_type=Path), help="The data directory of the new server.")
@as_json_option
@one_sentence
def restore(source: Path, data: Path, as_json: bool) -> None:
    """Put a backup in place, for a server that is started afterwards. The copy is checked first.

    \b
    Example:
      fairlead restore /var/backups/fairlead/monday --data ./data && fairlead serve --data ./data
    """
    from fairlead.journal.edge.backup import restore as restore_journal

    target = data.absolute() / STORE
    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"{target} is not empty: a restored server begins with an empty data directory.")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = restore_journal(source.absolute(), target)
    if as_json:
        click.echo(json.dumps(facts))
    else:
        show(facts, as_json=False)
