"""`fairlead demo`: the tour."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli.options import as_json_option, one_sentence
from fairlead.demo.outline import STEPS, Step, chosen
from fairlead.demo.words import summary, wrapped
from fairlead.errors import ConfigError
from fairlead.runtime.version import VERSION

if TYPE_CHECKING:
    from fairlead.demo.findings import Outcome

EXIT_INTERRUPTED = 130
FILE = click.Path(dir_okay=False, path_type=Path)
DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.option("--step", "names", multiple=True, metavar="NAME", help="Only this step; may be repeated.")
@click.option("--list", "listed", is_flag=True, help="Say which steps there are, and end.")
@click.option("--no-spark", is_flag=True, help="Leave out the step that needs Spark and Java.")
@click.option("--pause", is_flag=True, help="Wait for Enter between the steps.")
@click.option("--keep", type=DIRECTORY, metavar="DIR", help="Work in this empty directory, and leave the files there.")
@click.option(
    "--output", type=FILE, default="fairlead-tour.html", show_default=True, metavar="FILE", help="The page of the run."
)
@click.option("--open", "is_opened", is_flag=True, help="Show the page in a browser afterwards.")
@as_json_option
@one_sentence
def demo(
    names: tuple[str, ...],
    listed: bool,
    no_spark: bool,
    pause: bool,
    keep: Path | None,
    output: Path,
    is_opened: bool,
    as_json: bool,
) -> None:
    """Take a tour: a server, its updates, its crashes and its neighbours, done for real on this machine.

    Every step starts what it needs on free ports of 127.0.0.1 and in a temporary directory, counts every message by its
    number, and shows the commands that would do the same. Afterwards nothing runs and nothing is left but the page.

    \b
    Examples:
      fairlead demo
      fairlead demo --no-spark --pause
      fairlead demo --step router --step cluster --output ./failures.html
    Exit codes: 0 all that was done went well, 1 a step failed or something was lost, 2 usage, 130 stopped by Ctrl-C.
    """
    steps = chosen(names, spark=not no_spark)
    if listed:
        show_list(steps, as_json)
        return
    if pause and not sys.stdin.isatty():
        raise ConfigError("--pause waits for Enter, and there is no terminal to press it at.")
    if not os.access(output.absolute().parent, os.W_OK):
        raise ConfigError(f"the page cannot be written to {output.absolute().parent}; choose a place with --output")
    from fairlead.demo.edge.screen import Screen
    from fairlead.demo.edge.tour import tour
    from fairlead.demo.findings import exit_code

    screen = Screen(
        sys.stdout, width=shutil.get_terminal_size().columns, colour="NO_COLOR" not in os.environ, quiet=as_json
    )
    screen.lines(f"Fairlead {VERSION}: the tour, on this machine only; Ctrl-C ends it and cleans up", "")
    began_s = time.monotonic()
    beside: list[Path] = []

    def after(outcome: Outcome) -> None:
        for file in outcome.findings.files:  # the directory they are in is about to go
            beside.append(output.with_name(f"{output.stem}-{outcome.name}{Path(file).suffix}"))
            shutil.copyfile(file, beside[-1])

    try:
        outcomes = tour(steps, screen, keep=keep, after=after, pause=pause)
    except KeyboardInterrupt:
        click.echo("\nfairlead: stopped; everything that was started has ended and is removed", err=True)
        sys.exit(EXIT_INTERRUPTED)
    seconds = time.monotonic() - began_s
    write(outcomes, seconds, output)
    if as_json:
        show_json(outcomes, seconds, output)
    screen.lines(*wrapped(summary(outcomes, seconds), ""), f"{output} shows it, with figures and plots")
    for file in beside:
        screen.lines(f"{file} is the report of the job")
    if is_opened:
        webbrowser.open(output.absolute().as_uri())
    sys.exit(exit_code(outcomes))


def show_list(steps: list[Step], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([{"name": one.name, "title": one.title, "commands": one.commands} for one in steps]))
        return
    width = max(len(one.name) for one in STEPS)
    for step in steps:
        click.echo(f"{step.name:{width}}  {step.title}")


def write(outcomes: list[Outcome], seconds: float, output: Path) -> None:
    import platform
    from datetime import datetime

    from fairlead.demo.report import page_of
    from fairlead.pipeline.registry import write_atomically

    when = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    write_atomically(output.absolute(), page_of(outcomes, seconds, f"Fairlead {VERSION}, {when}, {machine}").html())


def show_json(outcomes: list[Outcome], seconds: float, output: Path) -> None:
    import msgspec

    facts = {"version": VERSION, "seconds": seconds, "page": str(output), "steps": msgspec.to_builtins(outcomes)}
    click.echo(json.dumps(facts, ensure_ascii=False))
