"""The users file: who may connect, with which password, and to do what.

::

    [users."pricing"]
    hash = "scrypt$32768$8$1$…$…"
    publish = ["prices.>"]      # these patterns only
    subscribe = []              # nothing
    consume = [">", "_DMQ"]     # every queue and topic, and the dead messages
                                # no `serve`: everything

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
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from fairlead import topics
from fairlead.errors import ConfigError, FairleadError
from fairlead.security.passwords import DUMMY_HASH, parse_hash, verify_password
from fairlead.security.rules import ACTIONS, ANONYMOUS, Rights, Rules

NAME_MAX = 64


class User(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry. Without a hash nobody can log in under this name."""

    hash: str = ""
    certificates: list[str] | None = None  # names in certificates that stand for this user
    publish: list[str] | None = None
    subscribe: list[str] | None = None
    serve: list[str] | None = None
    send: list[str] | None = None
    consume: list[str] | None = None
    browse: list[str] | None = None
    create: list[str] | None = None
    admin: list[str] | None = None

    def rights(self) -> Rights:
        lists = (getattr(self, action) for action in ACTIONS)
        return Rights(*(None if patterns is None else tuple(patterns) for patterns in lists))


class Users:
    """All entries, as values: changing one gives a new `Users`."""

    def __init__(self, entries: Mapping[str, User] | None = None) -> None:
        self.entries: dict[str, User] = dict(entries or {})

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
        return Rules({name: user.rights() for name, user in self.entries.items()})

    def with_user(self, name: str, user: User) -> Users:
        check_name(name)
        return Users(self.entries | {name: user})

    def without(self, name: str) -> Users:
        return Users({other: user for other, user in self.entries.items() if other != name})


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
    if unknown := sorted(document.keys() - {"users"}):
        raise ConfigError(f"{path}: there is no section [{unknown[0]}] in a users file; write [users.NAME]")
    users = Users({name: _entry(path, name, table) for name, table in document.get("users", {}).items()})
    _check_certificates(path, users)
    return users


def _check_certificates(path: Path, users: Users) -> None:
    """A certificate is one user's, or nobody knows whose."""
    owners: dict[str, str] = {}
    for name, user in users.entries.items():
        for said in user.certificates or ():
            if owners.setdefault(said, name) != name:
                raise ConfigError(f"{path}: the certificate {said!r} stands for {owners[said]} and for {name}")
            if not said or not said.isprintable():
                raise ConfigError(f"{path}: [users.{name}]: {said!r} is no name of a certificate")


def _entry(path: Path, name: str, table: Any) -> User:
    try:
        check_name(name)
        user = msgspec.convert(table, User)
        if user.hash:
            parse_hash(user.hash)
        for action in ACTIONS:
            for pattern in getattr(user, action) or ():
                topics.validate_pattern(pattern)
    except (msgspec.ValidationError, FairleadError, ValueError) as error:
        raise ConfigError(f"{path}: [users.{name}]: {error}") from None
    if name == ANONYMOUS and user.hash:
        raise ConfigError(f"{path}: `{ANONYMOUS}` stands for clients without a name and cannot have a password")
    return user


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
    for name, user in sorted(users.entries.items()):
        lines.append(f"\n[users.{_quoted(name)}]\n")
        if user.hash:
            lines.append(f"hash = {_quoted(user.hash)}\n")
        if user.certificates is not None:
            lines.append(f"certificates = [{', '.join(_quoted(said) for said in user.certificates)}]\n")
        for action in ACTIONS:
            patterns = getattr(user, action)
            if patterns is not None:
                lines.append(f"{action} = [{', '.join(_quoted(pattern) for pattern in patterns)}]\n")
    return "".join(lines)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
