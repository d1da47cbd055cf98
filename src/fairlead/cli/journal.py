"""`fairlead journal`: looking into the files of stored messages, of a running server or of one that is down."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from fairlead.cli import terminal
from fairlead.cli.options import EXIT_ERROR, as_json_option, one_sentence
from fairlead.errors import ConfigError


@click.group("journal", context_settings={"help_option_names": ["-h", "--help"]})
def journal_group() -> None:
    """Look into the journal of stored messages. Nothing is changed; a server may be running on it.

    \b
    Examples:
      fairlead journal check ./data
      fairlead journal dump ./data --kind STORE --limit 20
    """


def directory_of(text: str) -> Path:
    """The journal: DIR itself, or the one in a server's data directory."""
    given = Path(text).expanduser()
    if given.is_file():
        return given  # what a cut has set aside
    for candidate in (given / "mm-0", given):
        if any(candidate.glob("**/*.seg")):
            return candidate
    raise ConfigError(f"There is no journal in {given}.")


@journal_group.command()
@click.argument("directory", metavar="DIR")
@as_json_option
@one_sentence
def check(directory: str, as_json: bool) -> None:
    """Read everything and say what is damaged. Exit code 1 if something is; a torn tail is no damage."""
    from fairlead.journal.edge.inspect import check as findings

    bad = 0
    for finding in findings(directory_of(directory)):
        bad += finding["level"] == "damage"
        say(finding, as_json)
    if bad:
        sys.exit(EXIT_ERROR)


@journal_group.command()
@click.argument("directory", metavar="DIR")
@click.option("--kind", help="Only records of this kind, e.g. STORE or SETTLE.")
@click.option("--first", type=int, default=0, help="From this index on.")
@click.option("--limit", type=click.IntRange(min=1), help="Not more than that.")
@as_json_option
@one_sentence
def dump(directory: str, kind: str | None, first: int, limit: int | None, as_json: bool) -> None:
    """Print the records, one a line."""
    from fairlead.journal.edge.inspect import dump as records

    shown = 0
    for record in records(directory_of(directory), kinds()):
        if record["index"] < first or (kind and record["kind"] != kind.upper()):
            continue
        say(record, as_json)
        shown += 1
        if shown == limit:
            return


def kinds() -> dict[int, str]:
    """Words for the kinds of records: those the message manager gives them."""
    from fairlead.cluster import records

    settled = ("GONE", "RAISED", "EXPIRED", "DROPPED", "DEAD")  # of the lines of one of them
    named = {name: number for name, number in vars(records).items() if name.isupper() and isinstance(number, int)}
    return {number: name for name, number in named.items() if name not in settled}


def say(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(facts, default=str))
    else:
        click.echo(
            "  ".join(f"{key}={terminal.plain(value)}" for key, value in facts.items() if value not in (None, ""))
        )
