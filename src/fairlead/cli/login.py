"""As whom a command connects: secrets from files, the environment or standard input, never only from the command line.

The list of processes of a host is open to everybody on it, and so is what is said on a command line. A file with a
token is read again for every connection, so that whoever renews it need not know of us.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from fairlead.errors import ConfigError

__all__ = ["login", "login_options"]

F = TypeVar("F", bound=Any)
META: Final = "fairlead.login"
FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
OR_STDIN: Final = click.Path(dir_okay=False, allow_dash=True)
SECRET_IN_URL: Final = re.compile(r"^[^/]*://[^/@]*:[^/@]+@")
READ_MAX: Final = 65_536


def login_options(command: F) -> F:
    """Files with secrets and certificates, for a command that has --user, --password and --ca already."""

    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        context.meta.setdefault(META, {})[parameter.name] = value

    for option in (
        click.option(
            "--certificate-key",
            type=FILE,
            envvar="FAIRLEAD_CERTIFICATE_KEY",
            expose_value=False,
            callback=keep,
            help="Private key of the certificate (PEM), if it is in a file of its own.",
        ),
        click.option(
            "--certificate",
            type=FILE,
            envvar="FAIRLEAD_CERTIFICATE",
            expose_value=False,
            callback=keep,
            help="Certificate of this client (PEM), for fairleads://.",
        ),
        click.option(
            "--token-file",
            type=OR_STDIN,
            envvar="FAIRLEAD_TOKEN_FILE",
            expose_value=False,
            callback=keep,
            help="File with a token to log in with (`-`: standard input). Or give the token in FAIRLEAD_TOKEN.",
        ),
        click.option(
            "--password-file",
            type=OR_STDIN,
            envvar="FAIRLEAD_PASSWORD_FILE",
            expose_value=False,
            callback=keep,
            help="File with the password in its first line (`-`: standard input).",
        ),
    ):
        command = option(command)
    return command


def login(password: str | None, ca: str | None) -> dict[str, Any]:
    """The options of `fairlead.connect` that say who we are, out of those of the command that runs."""
    context = click.get_current_context(silent=True)
    if context is None:
        return {"password": password, "ca": ca}
    _warn(context)
    said = context.meta.get(META, {})
    if said.get("password_file"):
        if password and context.get_parameter_source("password") is ParameterSource.COMMANDLINE:
            raise ConfigError("Give --password or --password-file, not both.")
        password = _first_line(said["password_file"])
    return {
        "password": password,
        "token": _token(said.get("token_file")),
        "certificate": said.get("certificate"),
        "key": said.get("certificate_key"),
        "ca": ca,
    }


def _token(file: str | None) -> str | Callable[[], str] | None:
    if file == "-":
        return _first_line(file)
    if file:
        named: str = file
        return lambda: _first_line(named)
    return os.environ.get("FAIRLEAD_TOKEN") or None


def _first_line(file: str) -> str:
    """Of a file, or of standard input; only its owner should be able to read it, which is not ours to judge."""
    try:
        text = sys.stdin.read(READ_MAX) if file == "-" else Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read {file}: {error}") from None
    line = text.partition("\n")[0].strip("\r")
    if not line:
        raise ConfigError(f"There is nothing in the first line of {'standard input' if file == '-' else file}.")
    return line


def _warn(context: click.Context) -> None:
    """Once, on standard error, if the list of processes has a secret of ours in it."""
    if context.meta.get(f"{META}.warned"):
        return
    context.meta[f"{META}.warned"] = True
    given = ParameterSource.COMMANDLINE
    in_option = context.get_parameter_source("password") is given
    url = str(context.params.get("server") or "")
    in_url = context.get_parameter_source("server") is given and SECRET_IN_URL.match(url) is not None
    if in_option or in_url:
        where = "--password" if in_option else "the URL"
        click.echo(
            f"warning: everybody on this host can see the password in {where} while this runs; use --password-file or "
            "FAIRLEAD_PASSWORD.",
            err=True,
        )
