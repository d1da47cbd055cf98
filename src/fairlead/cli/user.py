"""`fairlead user`: who may connect, with which password, and to do what."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.markup import escape
from rich.table import Table

from fairlead import topics
from fairlead.cli.config import console, file_option, load_or_exit
from fairlead.cli.user_token import token_command, token_key_command
from fairlead.errors import FairleadError
from fairlead.runtime import config as configuration
from fairlead.security import users
from fairlead.security.passwords import hash_password
from fairlead.security.quotas import KINDS, SENTENCES, Quota
from fairlead.security.rules import ACTIONS, ANONYMOUS, Action
from fairlead.security.users import User, Users

Command = Callable[..., None]
T = TypeVar("T")


def users_file_options(command: Command) -> Command:
    """--file, --data and --config: three ways to say which users file is meant."""
    command = click.option(
        "--file",
        "users_file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="The users file itself. Else [security] users, else users.toml in the data directory.",
    )(command)
    command = click.option("--data", help="The server's data directory.")(command)
    return file_option(command)


def password_options(command: Command) -> Command:
    return click.option(
        "--password-stdin", is_flag=True, help="Read the password from the first line of standard input."
    )(command)


def rights_options(command: Command) -> Command:
    for action in reversed(ACTIONS):
        command = click.option(
            f"--{action}",
            multiple=True,
            metavar="PATTERN",
            callback=lambda context, parameter, values: checked_patterns(values),
            help=f"Allow to {action} here only; can be given several times. Without it: everywhere.",
        )(command)
    return command


def quota_options(command: Command) -> Command:
    """One option for each kind of quota."""
    for kind in reversed(KINDS):
        if kind not in ("storage_bytes", "destinations"):  # those are of tenants
            name = f"--{kind.replace('_', '-')}"
            command = click.option(name, kind, type=click.IntRange(0), help=f"{SENTENCES[kind]} 0: no limit.")(command)
    return command


CERTIFICATE_HELP = "A name in certificates that stands for this user; can be given several times."
json_option = click.option("--json", "as_json", is_flag=True, help="For programs.")


@click.group("user")
def user_group() -> None:
    """Add, change and list the users of the server.

    As soon as there is a users file, clients need a name and a password. A user may do everything until
    `fairlead acl allow` says which topics are meant. A running server takes changes over by itself, within a
    second; whoever was removed is disconnected.
    """


@user_group.command("add")
@click.argument("name")
@rights_options
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="Be in this group; can be given several times.")
@click.option("--tenant", default="", help="Belong to this tenant, and see its names only.")
@quota_options
@password_options
@click.option("--no-password", is_flag=True, help="Without one: the user logs in with a token or a certificate.")
@click.option("--certificate", "certificates", multiple=True, metavar="NAME", help=CERTIFICATE_HELP)
@json_option
@users_file_options
def add(
    name: str,
    password_stdin: bool,
    no_password: bool,
    certificates: tuple[str, ...],
    groups: tuple[str, ...],
    tenant: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Add the user NAME; the password is asked for and not shown.

    \b
    Examples:
      fairlead user add pricing --publish 'prices.>' --subscribe 'orders.>'
      fairlead user add ann --group desk --tenant acme
      fairlead user add operator --admin _ADMIN --consume '>' --consume _DMQ --consume _LOG
      echo "$SECRET" | fairlead user add robot --password-stdin
      fairlead user add gateway --no-password --certificate gateway.example.org
    """
    if name == ANONYMOUS:
        raise click.UsageError(f"`{ANONYMOUS}` stands for clients without a name; see `fairlead user allow --help`.")
    check_or_exit(lambda: users.check_name(name))
    rights: dict[str, Any] = {action: given.pop(action) or None for action in ACTIONS}
    quota = Quota(**{kind: value for kind in KINDS if (value := given.pop(kind, None))})
    path = users_path(**given)
    if path.exists() and name in read_or_exit(path).entries:
        raise click.ClickException(
            f"there is a user {name} already; `fairlead user password {name}` changes the password"
        )
    hashed = "" if no_password else hash_password(ask_password(password_stdin))
    user = User(
        hash=hashed, certificates=list(certificates) or None, groups=list(groups), tenant=tenant, quota=quota, **rights
    )
    change_or_exit(path, lambda current: checked(current.with_user(name, user)))
    report(as_json, f"Added {name} to {path}.", name, path)


@user_group.command("remove")
@click.argument("name")
@json_option
@users_file_options
def remove(name: str, as_json: bool, **place: Any) -> None:
    """Remove the user NAME.

    \b
    Example:
      fairlead user remove pricing
    """
    path = users_path(**place)
    change_or_exit(path, lambda current: known(current, name, path).without(name))
    report(as_json, f"Removed {name} from {path}.", name, path)


@user_group.command("password")
@click.argument("name")
@password_options
@json_option
@users_file_options
def password(name: str, password_stdin: bool, as_json: bool, **place: Any) -> None:
    """Give the user NAME another password; the rights stay.

    \b
    Example:
      fairlead user password pricing
    """
    path = users_path(**place)
    if name == ANONYMOUS:
        raise click.UsageError(f"`{ANONYMOUS}` stands for clients without a name and has no password.")
    known(read_or_exit(path), name, path)
    hashed = hash_password(ask_password(password_stdin))
    change_or_exit(path, lambda current: with_changes(known(current, name, path), name, hash=hashed))
    report(as_json, f"Changed the password of {name} in {path}.", name, path)


@user_group.command("allow")
@click.argument("name")
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("patterns", nargs=-1, callback=lambda context, parameter, values: checked_patterns(values))
@click.option("--only", "how", flag_value="only", help="These patterns and no others.")
@click.option("--everything", "how", flag_value="everything", help="Lift the restriction.")
@click.option("--nothing", "how", flag_value="nothing", help="Forbid it altogether.")
@json_option
@users_file_options
def allow(name: str, action: Action, patterns: list[str], how: str | None, as_json: bool, **place: Any) -> None:
    """Let the user NAME do this with the topics, queues and durable topics of these PATTERNS too.

    `publish`, `subscribe` and `serve` are about transient messages; `send`, `consume`, `browse` and `create` about
    queues and durable topics, where `publish` and `subscribe` stand for them if nothing is said. Names with an
    underscore need a pattern with one: `admin _ADMIN` makes an administrator.

    A user who could do everything can do only this afterwards. NAME `anonymous` means clients that give no
    name, where the server lets those in.

    \b
    Examples:
      fairlead user allow pricing publish 'prices.>' 'status.*'
      fairlead user allow pricing subscribe --everything
      fairlead user allow anonymous publish --nothing
    """
    if bool(patterns) == (how in ("everything", "nothing")):
        raise click.UsageError("give either patterns, or --everything, or --nothing.")
    path = users_path(**place)

    def change(current: Users) -> Users:
        if name != ANONYMOUS:
            known(current, name, path)
        before: list[str] = getattr(current.entries.get(name, User()), action) or []
        after: dict[str | None, list[str] | None] = {
            "everything": None,
            "nothing": [],
            "only": patterns,
            None: before + [pattern for pattern in patterns if pattern not in before],
        }
        return with_changes(current, name, **{action: after[how]})

    entry = change_or_exit(path, change).entries[name]
    report(as_json, f"{name} may {action}: {shown_rights(getattr(entry, action))}", name, path)


@user_group.command("join")
@click.argument("name")
@click.argument("groups", nargs=-1, required=True)
@click.option("--leave", is_flag=True, help="Be in these groups no more.")
@json_option
@users_file_options
def join(name: str, groups: tuple[str, ...], leave: bool, as_json: bool, **place: Any) -> None:
    """Put the user NAME into GROUPS, or with --leave take NAME out of them.

    \b
    Examples:
      fairlead user join ann desk night-shift
      fairlead user join ann desk --leave
    """
    path = users_path(**place)

    def change(current: Users) -> Users:
        before = known(current, name, path).entries[name].groups
        kept = [group for group in before if group not in groups]
        return checked(with_changes(current, name, groups=kept if leave else [*kept, *groups]))

    entry = change_or_exit(path, change).entries[name]
    report(as_json, f"{name} is in: {' '.join(entry.groups) or 'no group'}", name, path)


@user_group.command("list")
@json_option
@users_file_options
def list_users(as_json: bool, **place: Any) -> None:
    """List the users and what they may do. Password hashes are not shown.

    \b
    Example:
      fairlead user list --json
    """
    path = users_path(**place)
    entries = read_or_exit(path).entries if path.exists() else {}
    if as_json:
        rows = [
            {"name": name, "groups": entries[name].groups, "tenant": entries[name].tenant}
            | {action: getattr(entries[name], action) for action in ACTIONS}
            | {"deny": {action: lines for action in ACTIONS if (lines := getattr(entries[name].deny, action))}}
            | {"quota": entries[name].quota.said()}
            for name in sorted(entries)
        ]
        click.echo(json.dumps({"file": str(path), "users": rows}, ensure_ascii=False))
        return
    if not entries:
        click.echo(f"There are no users in {path}; `fairlead user add NAME` adds one.")
        return
    table = Table("user", "groups", "tenant", *ACTIONS, box=None, pad_edge=False)
    for name in sorted(entries):
        entry = entries[name]
        rights = (shown_rights(getattr(entry, action)) for action in ACTIONS)
        table.add_row(escape(name), escape(" ".join(entry.groups) or "-"), entry.tenant or "-", *map(escape, rights))
    console().print(table)


user_group.add_command(token_command)
user_group.add_command(token_key_command)


def users_path(users_file: Path | None, data: str | None, config_file: Path | None) -> Path:
    """The users file that is meant; it need not exist yet."""
    if users_file is not None:
        return users_file
    config = load_or_exit(config_file, server__data=data)
    return configuration.users_path(config) or configuration.data_path(config) / "users.toml"


def ask_password(from_stdin: bool) -> str:
    if from_stdin:
        given = sys.stdin.readline().rstrip("\r\n")
    else:
        given = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    if not given:
        raise click.ClickException("an empty password would let anybody in; nothing was changed")
    return given


def checked_patterns(patterns: tuple[str, ...]) -> list[str]:
    """The patterns as given, or a complaint about the first that is none."""
    try:
        for pattern in patterns:
            topics.validate_pattern(pattern)
    except FairleadError as error:
        raise click.BadParameter(str(error)) from None
    return list(patterns)


def known(current: Users, name: str, path: Path) -> Users:
    if name not in current.entries:
        raise click.ClickException(f"there is no user {name} in {path}; `fairlead user list` shows them")
    return current


def checked(current: Users) -> Users:
    """The users, if all groups and tenants they speak of are there."""
    current.check()
    return current


def with_changes(current: Users, name: str, **changes: Any) -> Users:
    entry = current.entries.get(name, User())
    fields = {field: getattr(entry, field) for field in User.__struct_fields__}
    return current.with_user(name, User(**(fields | changes)))


def read_or_exit(path: Path) -> Users:
    return check_or_exit(lambda: users.read(path))


def change_or_exit(path: Path, change: Callable[[Users], Users]) -> Users:
    return check_or_exit(lambda: users.update(path, change))


def check_or_exit(action: Callable[[], T]) -> T:
    """What the action gives, or its complaint as the command's one sentence."""
    try:
        return action()
    except (FairleadError, OSError) as error:
        raise click.ClickException(str(error)) from None


def shown_rights(patterns: list[str] | None) -> str:
    if patterns is None:
        return "everything"
    return " ".join(patterns) if patterns else "nothing"


def report(as_json: bool, sentence: str, name: str, path: Path) -> None:
    click.echo(json.dumps({"ok": True, "user": name, "file": str(path)}) if as_json else sentence)
