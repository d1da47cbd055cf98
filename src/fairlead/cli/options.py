"""Options several commands share: which server is meant, and how failures become exit codes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from fairlead.cli import terminal
from fairlead.errors import ConfigError, FairleadError, NoReceiver, RequestTimeout
from fairlead.runtime.admin import run_directory

EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_NO_ANSWER: Final = 3  # timed out, or nobody there to answer

F = TypeVar("F", bound=Callable[..., Any])


def which_server(command: F) -> F:
    """--server URL or --data DIR of a server on this host."""
    command = click.option(
        "--data",
        metavar="DIR",
        help="The data directory of the server, instead of its URL.",
        envvar="FAIRLEAD_SERVER_DATA",
    )(command)
    return click.option(
        "--server",
        metavar="URL",
        help="Its URL, on this host; fairlead://127.0.0.1:7400 if nothing is said.",
        envvar="FAIRLEAD_URL",
    )(command)


def run_of(server: str | None, data: str | None) -> Path:
    """Where to reach the server meant: a --server that was typed, else --data, else the server of the environment."""
    context = click.get_current_context(silent=True)
    typed = context is None or context.get_parameter_source("server") is ParameterSource.COMMANDLINE
    return run_directory(data=None if server and typed else data, server=server)


def as_json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="For programs: JSON on standard output.")(command)


def one_sentence(command: F) -> F:
    """Turn our own errors into one sentence on standard error and an exit code."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except (RequestTimeout, NoReceiver) as error:
            fail(str(error), EXIT_NO_ANSWER)
        except ConfigError as error:
            fail(str(error), EXIT_USAGE)
        except FairleadError as error:
            fail(str(error), EXIT_ERROR)
        except BrokenPipeError:
            sys.stderr.close()  # whoever read our output has had enough
            sys.exit(EXIT_ERROR)

    return wrapped  # type: ignore[return-value]


def fail(text: str, code: int) -> None:
    click.echo(f"fairlead: {terminal.plain(text, keep=chr(10))}", err=True)
    sys.exit(code)
