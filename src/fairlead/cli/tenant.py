"""`fairlead tenant`: name spaces of their own for groups of users, and how much each may use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.table import Table

from fairlead.cli.config import console
from fairlead.cli.user import change_or_exit, check_or_exit, json_option, read_or_exit, users_file_options, users_path
from fairlead.security.quotas import KINDS, SENTENCES, Quota
from fairlead.security.spaces import check_tenant
from fairlead.security.users import Users


def quota_options(command: Any) -> Any:
    for kind in reversed(KINDS):
        command = click.option(
            f"--{kind.replace('_', '-')}", kind, type=click.IntRange(0), help=f"{SENTENCES[kind]} 0: no limit."
        )(command)
    return command


@click.group("tenant")
def tenant_group() -> None:
    """Add, limit and list tenants.

    The users of a tenant have a name space of their own: they see no name of anybody else, and nobody else sees
    theirs. A user belongs to a tenant from the start: `fairlead user add ann --tenant acme`.
    """


@tenant_group.command("add")
@click.argument("name")
@quota_options
@json_option
@users_file_options
def add(name: str, as_json: bool, **given: Any) -> None:
    """Add the tenant NAME: small letters, digits and hyphens.

    \b
    Example:
      fairlead tenant add acme --connections 100 --messages-per-s 5000 --storage-bytes 1000000000
    """
    quotas, place = _split(given)
    check_or_exit(lambda: check_tenant(name))
    path = users_path(**place)

    def change(current: Users) -> Users:
        if name in current.tenants:
            raise click.ClickException(f"there is a tenant {name} already; `fairlead tenant set {name}` changes it")
        return current.with_tenant(name, Quota(**quotas))

    change_or_exit(path, change)
    _report(as_json, f"Added the tenant {name} to {path}.", name, path)


@tenant_group.command("set")
@click.argument("name")
@quota_options
@json_option
@users_file_options
def set_quota(name: str, as_json: bool, **given: Any) -> None:
    """Change quotas of the tenant NAME; those not given stay.

    \b
    Example:
      fairlead tenant set acme --connections 200 --messages-per-s 0
    """
    quotas, place = _split(given)
    if not quotas:
        raise click.UsageError("say which quota: see --help.")
    path = users_path(**place)

    def change(current: Users) -> Users:
        return current.with_tenant(name, msgspec.structs.replace(_known(current, name, path), **quotas))

    change_or_exit(path, change)
    _report(as_json, f"Changed the tenant {name} in {path}.", name, path)


@tenant_group.command("remove")
@click.argument("name")
@json_option
@users_file_options
def remove(name: str, as_json: bool, **place: Any) -> None:
    """Remove the tenant NAME, once it has no users. What is in its queues stays until an administrator deletes it.

    \b
    Example:
      fairlead tenant remove acme
    """
    path = users_path(**place)

    def change(current: Users) -> Users:
        _known(current, name, path)
        return current.without_tenant(name)

    change_or_exit(path, change)
    _report(as_json, f"Removed the tenant {name} from {path}.", name, path)


@tenant_group.command("list")
@json_option
@users_file_options
def list_tenants(as_json: bool, **place: Any) -> None:
    """List the tenants, their users and their quotas.

    \b
    Example:
      fairlead tenant list --json
    """
    path = users_path(**place)
    current = read_or_exit(path) if path.exists() else Users()
    members = {
        name: sorted(user for user, entry in current.entries.items() if entry.tenant == name)
        for name in sorted(current.tenants)
    }
    if as_json:
        rows = [
            {"name": name, "users": members[name], **{kind: getattr(current.tenants[name], kind) for kind in KINDS}}
            for name in members
        ]
        click.echo(json.dumps({"file": str(path), "tenants": rows}, ensure_ascii=False))
        return
    if not members:
        click.echo(f"There are no tenants in {path}; `fairlead tenant add NAME` adds one.")
        return
    table = Table("tenant", "users", *(kind.replace("_", " ") for kind in KINDS), box=None, pad_edge=False)
    for name, users in members.items():
        quota = current.tenants[name]
        table.add_row(name, str(len(users)), *(str(getattr(quota, kind) or "-") for kind in KINDS))
    console().print(table)


def _split(given: dict[str, Any]) -> tuple[dict[str, int], dict[str, Any]]:
    """The quotas that were given, and which file is meant."""
    quotas = {kind: given.pop(kind) for kind in KINDS}
    return {kind: value for kind, value in quotas.items() if value is not None}, given


def _known(current: Users, name: str, path: Path) -> Quota:
    if name not in current.tenants:
        raise click.ClickException(f"there is no tenant {name} in {path}; `fairlead tenant list` shows them")
    return current.tenants[name]


def _report(as_json: bool, sentence: str, name: str, path: Path) -> None:
    click.echo(json.dumps({"ok": True, "tenant": name, "file": str(path)}) if as_json else sentence)
