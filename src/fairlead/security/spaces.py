"""Name spaces of tenants: how a name of a tenant's user is written inside the server, and back.

`orders` of the tenant `acme` is `_T.acme.orders` inside. The prefix is one of the server's reserved names, so that no
pattern of anybody else stands for it (CLU-175), and a client of the tenant never sees it. The surprising one is
`regex:`: the expression is put in a group of its own behind the prefix, after it was found to be an expression by
itself; so no alternative in it reaches around the prefix.
"""

from __future__ import annotations

import re
from typing import Final

from fairlead import topics
from fairlead.errors import ConfigError

ROOT: Final = "_T."
NAME_MAX: Final = 32
TEMPORARY: Final = "temporary:"  # begins the names the message manager makes

_NAME: Final = re.compile(rf"[a-z0-9][a-z0-9-]{{0,{NAME_MAX - 1}}}")
_TEMPORARY_OF: Final = re.compile(r"temporary:(?:([a-z0-9-]+):)?[0-9a-f]+:[0-9]+")


def check_tenant(name: str) -> None:
    """Raise a ConfigError unless this can be the name of a tenant: it stands in patterns of every style as it is."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be a tenant: 1 to {NAME_MAX} small letters, digits and hyphens, no hyphen in front"
        )


def prefix_of(tenant: str) -> str:
    """What stands before every name of the tenant; nothing for those who belong to none."""
    return f"{ROOT}{tenant}." if tenant else ""


def inside(tenant: str, name: str) -> str:
    """A topic, destination or pattern of the tenant's user, as the server keeps it. BadPattern if it is no pattern."""
    if not tenant:
        return name
    if name.startswith(TEMPORARY):
        return name  # whose it is stands in it
    if name.startswith(topics.GLOB):
        return f"{topics.GLOB}{prefix_of(tenant)}{name.removeprefix(topics.GLOB)}"
    if name.startswith(topics.REGEX):
        topics.validate_pattern(name)
        return f"{_regex_head(tenant)}{name.removeprefix(topics.REGEX)})"
    return prefix_of(tenant) + name


def bare(tenant: str, name: str) -> str | None:
    """The same as the tenant's user says it; None: it is no name of this tenant."""
    if not tenant:
        return None if owner(name) else name
    prefix = prefix_of(tenant)
    if name.startswith(prefix):
        return name.removeprefix(prefix)
    if name.startswith(topics.GLOB + prefix):
        return topics.GLOB + name.removeprefix(topics.GLOB + prefix)
    if name.startswith(_regex_head(tenant)) and name.endswith(")"):
        return topics.REGEX + name.removeprefix(_regex_head(tenant))[:-1]
    return None


def owner(name: str) -> str:
    """The tenant whose topic or destination this is; empty: nobody's. A pattern across tenants is `?`."""
    plain = name.removeprefix(topics.GLOB).removeprefix(topics.REGEX)
    if not plain.startswith("_"):
        return ""
    if plain.startswith(ROOT):
        return plain.removeprefix(ROOT).partition(".")[0]
    if name is not plain:
        return "?"  # an expression that begins with an underscore: what it stands for has no short answer
    first, _, _ = plain.partition(".")
    return "?" if len(first) == 2 and first[1] == "?" else ""


def is_servers(name: str) -> bool:
    """Is it one of the names the server keeps for itself: outside, or in a tenant's name space?"""
    tenant = owner(name)
    return name.startswith("_") if not tenant else name.removeprefix(prefix_of(tenant)).startswith("_") or "?" in tenant


def temporary_stem(tenant: str, session_hex: str) -> str:
    """What the names of a session's temporary destinations begin with."""
    return f"{TEMPORARY}{tenant}:{session_hex}" if tenant else f"{TEMPORARY}{session_hex}"


def temporary_owner(name: str) -> str | None:
    """The tenant a temporary destination belongs to, empty for none; None: this is no such name."""
    found = _TEMPORARY_OF.fullmatch(name)
    return None if found is None else found[1] or ""


def _regex_head(tenant: str) -> str:
    return f"{topics.REGEX}{re.escape(ROOT)}{tenant}\\.(?:".replace("\\-", "-")
