"""Which directory a command means, and how it is asked."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from fairlead.cli.login import login, login_options
from fairlead.cli.options import EXIT_NO_ANSWER, as_json_option, fail, one_sentence
from fairlead.errors import NoDirectory

if TYPE_CHECKING:
    from fairlead.directory.answers import Answer
    from fairlead.directory.edge.client import DirectoryClient

A = TypeVar("A", bound="Answer")

DEFAULT_URL: Final = "fairlead+directory://127.0.0.1:7402"
WHAT_TO_DO: Final = (
    "Name its servers with --server or FAIRLEAD_DIRECTORY; `fairlead directory serve` starts one on this host."
)
STALE: Final = "warning: this server is cut off from the majority of the directory; what it says may be old."


class DirectoryTool:
    """The servers of one directory, as the options name them."""

    def __init__(
        self, server: str, user: str | None, password: str | None, ca: str | None, wait_s: float, as_json: bool
    ) -> None:
        self._server, self._user, self._password, self._ca, self._wait_s = server, user, password, ca, wait_s
        self.as_json = as_json

    def open(self) -> DirectoryClient:
        from fairlead.directory import open_directory

        said = login(self._password, self._ca)
        return open_directory(self._server, user=self._user, deadline_s=self._wait_s, **said)

    def ask(self, question: Callable[[DirectoryClient], Awaitable[A]]) -> A:
        """Put one question."""

        async def asking() -> A:
            async with self.open() as directory:
                return await question(directory)

        return asyncio.run(asking())

    def told(self, sentence: str, answer: Answer) -> None:
        """What was done: a sentence, or JSON."""
        from fairlead.cli.directory_view import plain

        click.echo(json.dumps(plain(answer), ensure_ascii=False) if self.as_json else sentence)


def warn_if_stale(answer: Answer) -> None:
    if answer.stale:
        click.echo(STALE, err=True)


def directory_command(command: Callable[..., None]) -> Callable[..., None]:
    """The options every command on a directory has; it gets a `DirectoryTool` first."""

    @one_sentence
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        server: str,
        user: str | None,
        password: str | None,
        ca: str | None,
        wait_s: float,
        as_json: bool,
        **options: Any,
    ) -> Any:
        try:
            return command(DirectoryTool(server, user, password, ca, wait_s, as_json), *args, **options)
        except NoDirectory as error:
            sys.stdout.flush()
            fail(f"{error.text.removesuffix('.')}. {WHAT_TO_DO}", EXIT_NO_ANSWER)

    found = as_json_option(wrapped)
    for option in (
        click.option(
            "--wait",
            "wait_s",
            type=click.FloatRange(min=0),
            default=3.0,
            show_default=True,
            help="Seconds to go on trying when no server answers.",
        ),
        login_options,
        click.option(
            "--ca",
            envvar="FAIRLEAD_CA",
            type=click.Path(exists=True, dir_okay=False),
            help="Certificates to trust, for fairleads+directory://.",
        ),
        click.option("--password", envvar="FAIRLEAD_PASSWORD", help="Better given in FAIRLEAD_PASSWORD."),
        click.option("--user", help="Name to authenticate with."),
        click.option(
            "--server",
            metavar="URL",
            default=DEFAULT_URL,
            show_default=True,
            envvar="FAIRLEAD_DIRECTORY",
            help="The servers of the directory, fairlead+directory://d1,d2,d3.",
        ),
    ):
        found = option(found)
    return found
