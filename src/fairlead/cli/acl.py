"""`fairlead acl`: who may do what, line by line, and which line decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import click
import msgspec
from rich.markup import escape
from rich.table import Table

from fairlead.cli.config import console
from fairlead.cli.user import (
    change_or_exit,
    check_or_exit,
    checked_patterns,
    json_option,
    known,
    read_or_exit,
    users_file_options,
    users_path,
)
from fairlead.security import spaces
from fairlead.security.rules import ACTIONS, ANONYMOUS, Action
from fairlead.security.users import Group, Lists, User, Users

Verb = Literal["allow", "deny"]
ALIASES = {"administer": "admin"}
"""Other words for an action."""

action_argument = click.argument(
    "action",
    type=click.Choice([*ACTIONS, *ALIASES]),
    callback=lambda context, parameter, value: ALIASES.get(value, value),
)
patterns_argument = click.argument(
    "patterns", nargs=-1, required=True, callback=lambda context, parameter, values: checked_patterns(values)
)


@click.group("acl")
def acl_group() -> None:
    """Allow and deny: for a user, or for a group written @GROUP.

    A line allows or denies one action for the names of a pattern. What one line denies is denied, whatever others
    allow. Actions: publish, subscribe, serve (transient messages); send, consume, browse, create, admin (queues and
    durable topics). A running server takes changes over by itself, within a second, also for those who are connected.

    \b
    Examples:
      fairlead acl allow @desk subscribe 'prices.>'
      fairlead acl deny  @desk subscribe 'prices.secret.>'
      fairlead acl list
      fairlead acl test ann subscribe prices.secret.eur
    """


@acl_group.command("allow")
@click.argument("who")
@action_argument
@patterns_argument
@json_option
@users_file_options
def allow(who: str, action: Action, patterns: list[str], as_json: bool, **place: Any) -> None:
    """Let WHO, a user or @GROUP, do ACTION with names that match one of PATTERNS.

    Who could do everything can do only this afterwards; a group that is not there yet is made.

    \b
    Examples:
      fairlead acl allow ann send 'orders.>'
      fairlead acl allow @operators admin _ADMIN
      fairlead acl allow @desk admin 'orders.>'      # purge, pause, delete … these, and no others
    """
    _add("allow", who, action, patterns, as_json, place)


@acl_group.command("deny")
@click.argument("who")
@action_argument
@patterns_argument
@json_option
@users_file_options
def deny(who: str, action: Action, patterns: list[str], as_json: bool, **place: Any) -> None:
    """Deny WHO, a user or @GROUP, to do ACTION with names that match one of PATTERNS, whatever is allowed.

    To deny publish is to deny send too; to deny subscribe is to deny consume and browse, to deny consume is to deny
    browse.

    \b
    Example:
      fairlead acl deny @desk publish 'prices.secret.>'
    """
    _add("deny", who, action, patterns, as_json, place)


@acl_group.command("remove")
@click.argument("verb", type=click.Choice(["allow", "deny"]))
@click.argument("who")
@action_argument
@click.argument("patterns", nargs=-1)
@json_option
@users_file_options
def remove(verb: Verb, who: str, action: Action, patterns: tuple[str, ...], as_json: bool, **place: Any) -> None:
    """Take lines away: those of PATTERNS, or all WHO has of this kind.

    When the last pattern of an allowance goes by name, nothing is allowed; without PATTERNS the restriction is lifted.

    \b
    Examples:
      fairlead acl remove deny @desk publish 'prices.secret.>'
      fairlead acl remove allow ann subscribe
    """
    path = users_path(**place)

    def change(current: Users) -> Users:
        entry = _entry(current, who, path, makes=False)
        before = _lines(entry, verb, action)
        if missing := [one for one in patterns if one not in (before or ())]:
            raise click.ClickException(f"{who} has no line `{verb} {action} {missing[0]}`; `fairlead acl list {who}`")
        left = [one for one in before or () if patterns and one not in patterns]
        return _with(current, who, _changed(entry, verb, action, left if patterns or verb == "deny" else None))

    _report(change_or_exit(path, change), who, verb, action, as_json, path)


@acl_group.command("list")
@click.argument("who", required=False)
@json_option
@users_file_options
def list_lines(who: str | None, as_json: bool, **place: Any) -> None:
    """List the lines of everybody, or of WHO with those of the groups WHO is in.

    \b
    Examples:
      fairlead acl list
      fairlead acl list ann --json
    """
    path = users_path(**place)
    current = read_or_exit(path) if path.exists() else Users()
    shown: list[tuple[str, Group]] = [(f"@{name}", group) for name, group in sorted(current.groups.items())]
    shown += sorted(current.entries.items())
    if who is not None:
        entry = _entry(current, who, path, makes=False)
        wanted = {who, *(f"@{group}" for group in getattr(entry, "groups", ()))}
        shown = [(name, entry) for name, entry in shown if name in wanted]
    rows = [
        {"who": name, "verb": verb, "action": action, "pattern": pattern}
        for name, entry in shown
        for verb in ("deny", "allow")
        for action in ACTIONS
        for pattern in (_lines(entry, verb, action) or ())
    ]
    if as_json:
        click.echo(json.dumps({"file": str(path), "lines": rows}, ensure_ascii=False))
        return
    if not rows:
        click.echo(f"No line in {path} restricts anybody{' of these' if who else ''}.")
        return
    table = Table("who", "verb", "action", "pattern", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(escape(value) for value in row.values()))
    console().print(table)


@acl_group.command("test")
@click.argument("user")
@action_argument
@click.argument("name")
@json_option
@users_file_options
def test(user: str, action: Action, name: str, as_json: bool, **place: Any) -> None:
    """May USER do ACTION with NAME, a name or a pattern? Says which line decides; the exit status is 1 if not.

    NAME is as USER would say it: for somebody of a tenant, a name of that tenant. `anonymous` stands for clients that
    give no name.

    \b
    Examples:
      fairlead acl test ann publish prices.eur
      fairlead acl test ann admin orders && echo "may purge it"
    """
    path = users_path(**place)
    current = read_or_exit(path)
    if user != ANONYMOUS:
        known(current, user, path)
    rules = current.rules()
    who = "" if user == ANONYMOUS else user
    verdict = check_or_exit(lambda: rules.verdict(who, action, spaces.inside(rules.tenant_of(who), name)))
    line = str(verdict.line) if verdict.line else ""
    if as_json:
        facts = {"user": user, "action": action, "name": name, "allowed": verdict.allowed, "why": verdict.why}
        click.echo(json.dumps(facts | {"line": line or None}, ensure_ascii=False))
    else:
        answer = "may" if verdict.allowed else "may not"
        click.echo(f"{user} {answer} {action} {name}: {verdict.why}{f' ({line})' if line else ''}")
    click.get_current_context().exit(0 if verdict.allowed else 1)


def _add(verb: Verb, who: str, action: Action, patterns: list[str], as_json: bool, place: dict[str, Any]) -> None:
    path = users_path(**place)

    def change(current: Users) -> Users:
        entry = _entry(current, who, path, makes=True)
        before = _lines(entry, verb, action) or []
        after = before + [one for one in patterns if one not in before]
        return _with(current, who, _changed(entry, verb, action, after))

    _report(change_or_exit(path, change), who, verb, action, as_json, path)


def _entry(current: Users, who: str, path: Path, *, makes: bool) -> Group:
    """The user or @group that is meant."""
    if who.startswith("@"):
        found = current.groups.get(who[1:])
        if found is None and not makes:
            raise click.ClickException(f"there is no group {who} in {path}; `fairlead acl list` shows them")
        return found or Group()
    if who == ANONYMOUS and makes:
        return current.entries.get(who, User())
    return known(current, who, path).entries[who]


def _with(current: Users, who: str, entry: Group) -> Users:
    if who.startswith("@"):
        return current.with_group(who[1:], entry)
    assert isinstance(entry, User)
    return current.with_user(who, entry)


def _lines(entry: Group, verb: str, action: Action) -> list[str] | None:
    found: list[str] | None = getattr(entry if verb == "allow" else entry.deny, action)
    return found


def _changed(entry: Group, verb: Verb, action: Action, patterns: list[str] | None) -> Group:
    if verb == "allow":
        return msgspec.structs.replace(entry, **{action: patterns})
    deny: Lists = msgspec.structs.replace(entry.deny, **{action: patterns or []})
    return msgspec.structs.replace(entry, deny=deny)


def _report(current: Users, who: str, verb: Verb, action: Action, as_json: bool, path: Path) -> None:
    patterns = _lines(_entry(current, who, path, makes=False), verb, action)
    if as_json:
        facts = {"ok": True, "who": who, "verb": verb, "action": action, "patterns": patterns, "file": str(path)}
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    what = "everything" if patterns is None else " ".join(patterns) or "nothing"
    click.echo(f"{who}: {verb} {action}: {what}")
