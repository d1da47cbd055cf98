"""`fairlead feed`: a feed adapter, which makes a stream of a source."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli.options import EXIT_ERROR, EXIT_USAGE, as_json_option, fail
from fairlead.errors import ConfigError, FairleadError

if TYPE_CHECKING:
    from fairlead.feeds.settings import FeedSettings

FILE = click.Path(dir_okay=False, path_type=Path)
config_option = click.option("--config", "config_file", type=FILE, required=True, help="The TOML file.")
set_option = click.option("--set", "sets", metavar="SECTION.KEY=VALUE", multiple=True, help="Over what the file says.")
insecure_option = click.option("--insecure", is_flag=True, help="Listen beyond this host without TLS.")


class FeedGroup(click.Group):
    """Brings in `generate`, and what it needs, only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), "generate"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "generate":
            from fairlead.cli.feed_generate import generate

            return generate
        return super().get_command(ctx, cmd_name)


@click.group("feed", cls=FeedGroup)
def feed_group() -> None:
    """Feed adapters: make a stream of a source, redundantly. docs/feeds.md explains them.

    \b
    Begin with:
      fairlead streams serve                        the stream administration, on 127.0.0.1:7403
      fairlead feed example > feed.toml
      fairlead feed run --config feed.toml          one adapter
      fairlead feed run --config feed.toml --set feed.name=b --set listen.address=127.0.0.1:7501
      fairlead streams tail prices.emea             what programs see
    """


@feed_group.command("run")
@config_option
@set_option
@insecure_option
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
@click.option("--ready-fd", type=int, metavar="N", help="Write `READY HOST:PORT` to this descriptor when it listens.")
@click.option("--faults", type=click.Path(path_type=Path), hidden=True, help="A unix socket that orders faults.")
def run_command(
    config_file: Path,
    sets: tuple[str, ...],
    insecure: bool,
    log_level: str,
    ready_fd: int | None,
    faults: Path | None,
) -> None:
    """Run a feed adapter in the foreground; Ctrl-C or SIGTERM stops it, and its programs go on with the other one.

    \b
    Examples:
      fairlead feed run --config feed.toml
      fairlead feed run --config feed.toml --set feed.name=b --set listen.address=127.0.0.1:7501
    Exit codes: 0 stopped in order, 1 the administration refuses it, 2 the configuration or the port.
    """
    import logging

    from fairlead.feeds.settings import advice

    settings = load_or_exit(config_file, sets, insecure)
    for sentence in advice(settings):
        click.echo(f"fairlead: note: {sentence}", err=True)
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from fairlead.feeds.edge.running import run

    def ready(address: str) -> None:
        name, stream = settings.feed.name, settings.feed.stream
        click.echo(f"Adapter {name} of {stream}: lines and links at {address}", err=True)
        if ready_fd is not None:
            with open(ready_fd, "w", encoding="utf-8") as pipe:
                pipe.write(f"READY {address}\n")

    try:
        run(settings, ready=ready, faults=faults)
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)
    except FairleadError as error:
        fail(str(error), EXIT_ERROR)


@feed_group.command("check")
@config_option
@set_option
@insecure_option
@as_json_option
def check_command(config_file: Path, sets: tuple[str, ...], insecure: bool, as_json: bool) -> None:
    """Say whether an adapter would start with this file; exit code 1 if not.

    \b
    Example:
      fairlead feed check --config feed.toml
    """
    from fairlead.feeds.settings import advice

    problem, notes = "", []
    try:
        settings = load(config_file, sets, insecure)
        notes = advice(settings)
    except ConfigError as error:
        problem = str(error)
    if as_json:
        click.echo(json.dumps({"ok": not problem, "problem": problem or None, "advice": notes}, ensure_ascii=False))
    elif problem:
        click.echo(f"Error: {problem}", err=True)
    else:
        for sentence in notes:
            click.echo(f"Note: {sentence}")
        click.echo("The configuration is good.")
    if problem:
        sys.exit(1)


@feed_group.command("example")
def example_command() -> None:
    """Print a whole feed.toml, to begin with; its made-up day begins now.

    \b
    Example:
      fairlead feed example > feed.toml
    """
    from fairlead.feeds.settings import EXAMPLE

    now = f"{int(time.time()):<12d}"
    click.echo(EXAMPLE.replace("start_at = 0           ", f"start_at = {now}"), nl=False)


def load(config_file: Path, sets: tuple[str, ...], insecure: bool) -> FeedSettings:
    """The settings in force, judged; ConfigError."""
    from fairlead.feeds.edge.checking import check_all
    from fairlead.feeds.settings import parse

    overrides = {}
    for text in sets:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set wants SECTION.KEY=VALUE, not {text!r}")
        overrides[name] = value
    if insecure:
        overrides["listen.insecure"] = "true"
    try:
        content = config_file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"there is no configuration file {config_file}; begin with `fairlead feed example > feed.toml`"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration file {config_file}: {error}") from None
    settings = parse(content, str(config_file), overrides)
    check_all(settings)
    return settings


def load_or_exit(config_file: Path, sets: tuple[str, ...], insecure: bool) -> FeedSettings:
    try:
        return load(config_file, sets, insecure)
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)
        raise AssertionError from None
