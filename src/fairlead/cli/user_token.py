"""`fairlead user token-key` and `token`: logins by token for installations without an identity provider."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from fairlead.cli.config import file_option, load_or_exit
from fairlead.cluster.configuration.edge.files import write_file
from fairlead.errors import FairleadError
from fairlead.runtime import config as configuration
from fairlead.security import issuing, users

__all__ = ["token_command", "token_key_command"]

UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LIFE_MAX_S: Final = 366 * 86400


def seconds(context: click.Context, parameter: click.Parameter, text: str) -> float:
    found = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", text)
    if found is None or (value := int(found[1]) * UNITS[found[2]]) > LIFE_MAX_S:
        raise click.BadParameter("write a number and s, m, h or d, up to a year: 90s, 15m, 1h, 7d.")
    return value


def keys_options(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option("--data", help="The server's data directory.")(command)
    return file_option(command)


json_option = click.option("--json", "as_json", is_flag=True, help="For programs.")


@click.command("token-key")
@json_option
@keys_options
def token_key_command(as_json: bool, data: str | None, config_file: Path | None) -> None:
    """Make the key that signs the server's own tokens, or a new one in front of it.

    It lies in the data directory as token-keys.json, readable by its owner only. The key before it is kept, so that its
    tokens stay good until they expire; run it twice to make them worthless at once. A running server takes it over with
    `fairlead reload`; without a users file it lets nobody in without a token from then on.

    \b
    Example:
      fairlead user token-key && fairlead reload
    """
    path = configuration.token_keys_path(load_or_exit(config_file, server__data=data))
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        before = path.read_bytes() if path.exists() else b""
        write_file(path, issuing.rotated(before, secrets.token_bytes(issuing.SECRET_BYTES)))
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path}: {error}") from None
    sentence = f"{'A new key is at the front of' if before else 'Made'} {path}; `fairlead reload` has a server use it."
    click.echo(json.dumps({"ok": True, "file": str(path)}) if as_json else sentence)


@click.command("token")
@click.argument("name")
@click.option("--for", "life_s", default="1h", show_default=True, callback=seconds, help="How long it is good.")
@click.option("--group", "groups", multiple=True, help="A group of the user; can be given several times.")
@click.option("--tenant", default="", help="The user's tenant.")
@json_option
@keys_options
def token_command(name: str, life_s: float, groups: tuple[str, ...], tenant: str, as_json: bool, **place: Any) -> None:
    """Print a token with which NAME can log in, signed with the server's own key.

    Whoever has it is NAME until it expires: keep it in a file that only its owner can read.

    \b
    Examples:
      fairlead user token pricing --for 8h > pricing.token
      fairlead pub demo.hello world --token-file pricing.token
    """
    config = load_or_exit(place["config_file"], server__data=place["data"])
    path, users_file = configuration.token_keys_path(config), configuration.users_path(config)
    try:
        if not path.exists():
            raise click.ClickException(f"there is no key {path}; make it with `fairlead user token-key`")
        if users_file is not None and not groups and name not in users.read(users_file).entries:
            raise click.ClickException(
                f"there is no user {name} in {users_file}: add one with `fairlead user add {name} "
                "--no-password`, or name a --group"
            )
        number, now_s = secrets.token_hex(8), time.time()
        token = issuing.issue(
            path.read_bytes(), name, now_s=now_s, for_s=life_s, number=number, groups=groups, tenant=tenant
        )
    except (OSError, ValueError, FairleadError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(json.dumps({"token": token, "user": name, "expires_s": int(now_s + life_s)}) if as_json else token)
