"""The users file: who may connect, with which password, and to do what.

::

    [users."pricing"]
    hash = "scrypt$32768$8$1$…$…"
    publish = ["prices.>"]      # these patterns only
    subscribe = []              # nothing
    consume = [">", "_DMQ"]     # every queue and topic, and the dead messages
                                # no `serve`: everything
    groups = ["desk"]
    tenant = "acme"

    [users."pricing".deny]
    publish = ["prices.secret.>"]

    [groups."desk"]
    subscribe = ["orders.>"]

    [tenants."acme"]
    connections = 100

The file is read whole and replaced whole: a reader sees the old one or the new one, never half of one, also
after a power cut. Two commands that change it at once wait for each other. The entry `anonymous` has no
password; it holds the rights of clients that gave no name, where those are let in.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from fairlead import topics
from fairlead.errors import ConfigError, FairleadError
from fairlead.security.passwords import DUMMY_HASH, parse_hash, verify_password
from fairlead.security.quotas import Quota
from fairlead.security.rules import ACTIONS, ANONYMOUS, Rights, Rules
from fairlead.security.spaces import check_tenant

NAME_MAX = 64
VERSION: Final = 2
"""Of the file. 1 had users with lists only; what it says means the same in 2. An unknown one is refused."""
_FIELDS_1: Final = frozenset({"hash", "certificates", *ACTIONS})


class Lists(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one user or group is denied."""

    publish: list[str] = []
    subscribe: list[str] = []
    serve: list[str] = []
    send: list[str] = []
    consume: list[str] = []
    browse: list[str] = []
    create: list[str] = []
    admin: list[str] = []


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all its members may do, and what they are denied."""

    publish: list[str] | None = None
    subscribe: list[str] | None = None
    serve: list[str] | None = None
    send: list[str] | None = None
    consume: list[str] | None = None
    browse: list[str] | None = None
    create: list[str] | None = None
    admin: list[str] | None = None
    deny: Lists = Lists()

    def rights(self) -> Rights:
        lists: dict[str, Any] = {
            action: None if (patterns := getattr(self, action)) is None else tuple(patterns) for action in ACTIONS
        }
        deny = tuple((action, pattern) for action in ACTIONS for pattern in getattr(self.deny, action))
        return Rights(deny=deny, **lists)


class User(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry. Without a hash nobody can log in with a password under this name."""

    hash: str = ""
    certificates: list[str] | None = None  # names in certificates that stand for this user
    groups: list[str] = []
    tenant: str = ""
    quota: Quota = Quota()

    def rights(self) -> Rights:
        return super().rights()._replace(groups=tuple(self.groups), tenant=self.tenant)


class Users:
    """All entries, as values: changing one gives a new `Users`."""

    def __init__(
        self,
        entries: Mapping[str, User] | None = None,
        groups: Mapping[str, Group] | None = None,
        tenants: Mapping[str, Quota] | None = None,
    ) -> None:
        self.entries: dict[str, User] = dict(entries or {})
        self.groups: dict[str, Group] = dict(groups or {})
        self.tenants: dict[str, Quota] = dict(tenants or {})

    def verify(self, name: str, password: str) -> bool:
        """Right name and password? Takes about as long, and as much memory, when there is no such user."""
        user = self.entries.get(name)
        known = user is not None and bool(user.hash)
        matches = verify_password(password, user.hash if user is not None and user.hash else DUMMY_HASH)
        return known and matches

    def certificates(self) -> dict[str, str]:
        """Names in certificates, and the users they stand for where that is said."""
        return {said: name for name, user in self.entries.items() for said in user.certificates or ()}

    def rules(self) -> Rules:
        return Rules(
            {name: user.rights() for name, user in self.entries.items()},
            groups={name: group.rights() for name, group in self.groups.items()},
            tenants=self.tenants,
            quotas={name: user.quota for name, user in self.entries.items() if user.quota.said()},
        )

    def with_user(self, name: str, user: User) -> Users:
        check_name(name)
        return Users(self.entries | {name: user}, self.groups, self.tenants)

    def without(self, name: str) -> Users:
        return Users(_without(self.entries, name), self.groups, self.tenants)

    def with_group(self, name: str, group: Group) -> Users:
        check_name(name)
        return Users(self.entries, self.groups | {name: group}, self.tenants)

    def without_group(self, name: str) -> Users:
        """Its members are in it no more."""
        entries = {
            user: msgspec.structs.replace(entry, groups=[one for one in entry.groups if one != name])
            for user, entry in self.entries.items()
        }
        return Users(entries, _without(self.groups, name), self.tenants)

    def with_tenant(self, name: str, quota: Quota) -> Users:
        check_tenant(name)
        return Users(self.entries, self.groups, self.tenants | {name: quota})

    def without_tenant(self, name: str) -> Users:
        """ConfigError while somebody belongs to it: as a user of no tenant they would see everybody else's names."""
        members = sorted(user for user, entry in self.entries.items() if entry.tenant == name)
        if members:
            raise ConfigError(f"{', '.join(members[:5])} still belong to the tenant {name}; remove them first")
        return Users(self.entries, self.groups, _without(self.tenants, name))

    def check(self) -> None:
        """Raise a ConfigError if an entry speaks of a group or tenant that is not there."""
        self._check_certificates()
        for name, user in self.entries.items():
            for group in user.groups:
                if group not in self.groups:
                    raise ConfigError(f"[users.{name}] is in the group {group!r}, and there is no [groups.{group}]")
            if user.tenant and user.tenant not in self.tenants:
                raise ConfigError(f"[users.{name}] is of the tenant {user.tenant!r}; there is no such [tenants] entry")

    def _check_certificates(self) -> None:
        """A certificate is one user's, or nobody knows whose."""
        owners: dict[str, str] = {}
        for name, user in self.entries.items():
            for said in user.certificates or ():
                if owners.setdefault(said, name) != name:
                    raise ConfigError(f"the certificate {said!r} stands for {owners[said]} and for {name}")
                if not said or not said.isprintable():
                    raise ConfigError(f"[users.{name}]: {said!r} is no name of a certificate")


V = TypeVar("V")


def _without(table: Mapping[str, V], name: str) -> dict[str, V]:
    return {other: entry for other, entry in table.items() if other != name}


def check_name(name: str) -> None:
    """Raise a ConfigError unless this can be the name of a user."""
    if not 1 <= len(name.encode()) <= NAME_MAX or not name.isprintable() or name != name.strip():
        raise ConfigError(
            f"{name!r} cannot be a user name: 1 to {NAME_MAX} bytes of printable text, no spaces around it"
        )


def read(path: Path) -> Users:
    """The users in this file; a ConfigError says what is wrong with it, and where."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            document = tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"there is no users file {path}; make it with `fairlead user add NAME`") from None
    except OSError as error:
        raise ConfigError(f"cannot read the users file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    if stat.S_IMODE(mode) & 0o007:
        raise ConfigError(f"everybody on this host can open the users file {path}; run `chmod 600 {path}`")

    try:
        return parse(document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse(document: Mapping[str, Any]) -> Users:
    """The users of a file that was read; a ConfigError says what is wrong with it."""
    if unknown := sorted(document.keys() - {"users", "groups", "tenants", "version"}):
        raise ConfigError(f"there is no section [{unknown[0]}] in a users file; write [users.NAME]")
    version = document.get("version", 1)
    if type(version) is not int or not 1 <= version <= VERSION:
        raise ConfigError(f"this is version {version!r} of the users file; this fairlead reads up to {VERSION}")
    found = Users(
        {name: _entry(name, table) for name, table in document.get("users", {}).items()},
        {name: _listed(f"groups.{name}", name, table, Group) for name, table in document.get("groups", {}).items()},
        {name: _tenant(name, table) for name, table in document.get("tenants", {}).items()},
    )
    found.check()
    return found


def _entry(name: str, table: Any) -> User:
    user = _listed(f"users.{name}", name, table, User)
    try:
        if user.hash:
            parse_hash(user.hash)
    except ValueError as error:
        raise ConfigError(f"[users.{name}]: {error}") from None
    if name == ANONYMOUS and user.hash:
        raise ConfigError(f"`{ANONYMOUS}` stands for clients without a name and cannot have a password")
    return user


G = TypeVar("G", bound=Group)


def _listed(section: str, name: str, table: Any, kind: type[G]) -> G:
    try:
        check_name(name)
        found = msgspec.convert(table, kind)
        for action in ACTIONS:
            for pattern in (*(getattr(found, action) or ()), *getattr(found.deny, action)):
                topics.validate_pattern(pattern)
    except (msgspec.ValidationError, FairleadError) as error:
        raise ConfigError(f"[{section}]: {error}") from None
    return found


def _tenant(name: str, table: Any) -> Quota:
    try:
        check_tenant(name)
        return msgspec.convert(table, Quota)
    except (msgspec.ValidationError, FairleadError) as error:
        raise ConfigError(f"[tenants.{name}]: {error}") from None


def write(path: Path, users: Users) -> None:
    """Replace the file at once and durably; only its owner may read it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(to_toml(users))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def update(path: Path, change: Callable[[Users], Users]) -> Users:
    """Read, change and write with nobody else doing so meanwhile; a missing file counts as empty."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        users = change(read(path) if path.exists() else Users())
        write(path, users)
    finally:
        os.close(directory)
    return users


def to_toml(users: Users) -> str:
    """The file's text. Names and patterns hold no control characters, so JSON's quoting is TOML's."""
    lines = ["# Written by `fairlead user`, which keeps no comments. After an edit by hand: `fairlead config check`.\n"]
    tables = [*_tables(users)]
    if any(section != "users" or set(fields) - _FIELDS_1 for section, _, fields in tables):
        lines.append(f"version = {VERSION}\n")  # one that needs nothing new is still read by older servers
    for section, name, fields in tables:
        lines.append(f"\n[{section}.{_quoted(name)}]\n")
        deny = fields.pop("deny", {})
        lines += [f"{field} = {_value(value)}\n" for field, value in fields.items()]
        if deny:
            lines.append(f"\n[{section}.{_quoted(name)}.deny]\n")
            lines += [f"{action} = {_value(patterns)}\n" for action, patterns in deny.items()]
    return "".join(lines)


def _tables(users: Users) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Section, name and what differs from the default, of everything there is."""
    for name, quota in sorted(users.tenants.items()):
        yield "tenants", name, quota.said()
    for name, group in sorted(users.groups.items()):
        yield "groups", name, _said(group)
    for name, user in sorted(users.entries.items()):
        fields: dict[str, Any] = {
            "hash": user.hash,
            "tenant": user.tenant,
            "groups": user.groups,
            "quota": user.quota.said(),
        }
        fields["certificates"] = user.certificates
        yield "users", name, {field: value for field, value in fields.items() if value} | _said(user)


def _said(group: Group) -> dict[str, Any]:
    lists: dict[str, Any] = {action: patterns for action in ACTIONS if (patterns := getattr(group, action)) is not None}
    deny = {action: patterns for action in ACTIONS if (patterns := getattr(group.deny, action))}
    return lists | ({"deny": deny} if deny else {})


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_quoted(one) for one in value)}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{field} = {_value(one)}' for field, one in value.items())} }}"
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
