"""`fairlead config`: which settings are in force, where each came from, and whether they make sense."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fairlead.errors import ConfigError
from fairlead.runtime import config as configuration
from fairlead.runtime.settings import SETTINGS, Config, Setting, value_of
from fairlead.security import users

file_option = click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The TOML file. Else $FAIRLEAD_CONFIG, else ~/.config/fairlead/fairlead.toml if it exists.",
)


def load_or_exit(config_file: Path | None, **overrides: object) -> Config:
    """The configuration, or one clear sentence and exit code 1. `server__data` overrides server.data."""
    given = {name.replace("__", "."): value for name, value in overrides.items()}
    try:
        return configuration.load(config_file, os.environ, given)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


@click.group("config")
def config_group() -> None:
    """Show and check the settings of the server.

    Each setting has a default, can be set in a TOML file, by an environment variable (FAIRLEAD_SERVER_MANAGERS=4
    is `managers` of [server]) and, the common ones, on the command line; the later of these wins.
    docs/configuration.md explains them all.
    """


@config_group.command("show")
@file_option
@click.option("--changed", is_flag=True, help="Only what is not the default.")
@click.option("--json", "as_json", is_flag=True, help="For programs: every value with its origin.")
def show(config_file: Path | None, changed: bool, as_json: bool) -> None:
    """Print every setting in force and where its value came from.

    \b
    Examples:
      fairlead config show --changed
      fairlead config show --config fairlead.toml --json
    """
    config = load_or_exit(config_file)
    chosen = [s for s in SETTINGS.values() if not changed or s.name in config.origins]
    if as_json:
        report = {s.name: {"value": value_of(config, s), "origin": origin_of(config, s)} for s in chosen}
        click.echo(json.dumps(report, indent=2, ensure_ascii=False))
        return
    table = Table("setting", "value", "from", box=None, pad_edge=False)
    for setting in chosen:
        table.add_row(setting.name, escape(shown(value_of(config, setting))), escape(origin_of(config, setting)))
    console().print(table)


@config_group.command("check")
@file_option
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def check(config_file: Path | None, as_json: bool) -> None:
    """Say whether the server would start with this configuration; exit code 1 if not.

    Also reads the users file and reports what works but may not be meant.

    \b
    Examples:
      fairlead config check
      fairlead config check --config /etc/fairlead.toml && systemctl restart fairlead
    """
    problem, advice = "", []
    try:
        config = configuration.load(config_file, os.environ)
        configuration.check(config)
        if (users_file := configuration.users_path(config)) is not None:
            users.read(users_file)
        advice = configuration.advice(config)
    except ConfigError as error:
        problem = str(error)
    if as_json:
        click.echo(json.dumps({"ok": not problem, "problem": problem or None, "advice": advice}, ensure_ascii=False))
    elif problem:
        click.echo(f"Error: {problem}", err=True)
    else:
        for sentence in advice:
            click.echo(f"Note: {sentence}")
        click.echo("The configuration is good.")
    if problem:
        sys.exit(1)


def origin_of(config: Config, setting: Setting) -> str:
    return config.origins.get(setting.name, "default")


def shown(value: object) -> str:
    """A value as it would stand in the TOML file; `-` where nothing is set."""
    return "-" if value is None else json.dumps(value, ensure_ascii=False)


def console() -> Console:
    """Tables keep their columns when they are piped into a file or a pager."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)
