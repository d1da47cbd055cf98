"""Which stream administration a command means, and how it is asked."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from fairlead.cli.login import login, login_options
from fairlead.cli.options import EXIT_NO_ANSWER, as_json_option, fail, one_sentence
from fairlead.errors import ConnectionLost, NoAdapter, NoReceiver

if TYPE_CHECKING:
    from fairlead.feeds.edge.administration.operator import Operator
    from fairlead.feeds.words import Order

DEFAULT_URL: Final = "fairlead://127.0.0.1:7403"
AGAIN_S: Final = 0.1
WHAT_TO_DO: Final = (
    "Name the server with --server or FAIRLEAD_STREAMS; `fairlead streams serve --data DIR` starts one on this host."
)


class StreamsTool:
    """One stream administration, as the options name it."""

    def __init__(
        self, server: str, user: str | None, password: str | None, ca: str | None, wait_s: float, as_json: bool
    ) -> None:
        self._server, self._user, self._password, self._ca, self._wait_s = server, user, password, ca, wait_s
        self.as_json = as_json

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Operator]:
        from fairlead.client.aio import Connection
        from fairlead.feeds.edge.administration.operator import Operator

        connection = Connection(
            self._server,
            name="operator",
            user=self._user,
            **login(self._password, self._ca),
            connect_timeout_s=self._wait_s,
        )
        async with connection, Operator(connection) as operator:
            yield operator

    def order(self, order: Order) -> list[dict[str, Any]]:
        """Give one order. A server that is being started may not listen yet, or have no administration yet."""

        async def asking() -> list[dict[str, Any]]:
            now_s = asyncio.get_running_loop().time
            deadline_s = now_s() + self._wait_s
            while True:
                try:
                    async with self.open() as operator:
                        return await operator.order(order)
                except (NoReceiver, ConnectionLost, OSError):
                    if now_s() >= deadline_s:
                        raise
                await asyncio.sleep(AGAIN_S)

        return asyncio.run(asking())


def streams_command(command: Callable[..., None]) -> Callable[..., None]:
    """The options every command on a stream administration has; it gets a `StreamsTool` first."""

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
            return command(StreamsTool(server, user, password, ca, wait_s, as_json), *args, **options)
        except NoAdapter as error:
            fail(error.text, EXIT_NO_ANSWER)
        except (ConnectionLost, OSError) as error:
            fail(f"{str(error).removesuffix('.')}. {WHAT_TO_DO}", EXIT_NO_ANSWER)

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
            type=click.Path(exists=True, dir_okay=False),
            envvar="FAIRLEAD_CA",
            help="Certificates to trust, for fairleads://.",
        ),
        click.option("--password", envvar="FAIRLEAD_PASSWORD", help="Better given in FAIRLEAD_PASSWORD."),
        click.option("--user", help="Name to authenticate with."),
        click.option(
            "--server",
            metavar="URL",
            default=DEFAULT_URL,
            show_default=True,
            envvar="FAIRLEAD_STREAMS",
            help="The server that is the stream administration.",
        ),
    ):
        found = option(found)
    return found
