"""What changed in the users file, in sentences for the event log: names and rights, never hashes."""

from __future__ import annotations

from fairlead.security.rights import ACTIONS
from fairlead.security.users import Group, User, Users

NOBODY = Users()


def differences(before: Users | None, after: Users | None) -> list[str]:
    """One sentence for each user, group and tenant that came, went or changed."""
    old, new = before or NOBODY, after or NOBODY
    found = []
    if (before is None) != (after is None):
        found.append("There is a users file now." if before is None else "The users file is gone.")
    for word, was, there in (
        ("tenant", old.tenants, new.tenants),
        ("group", old.groups, new.groups),
        ("user", old.entries, new.entries),
    ):
        for name in sorted(was.keys() | there.keys()):
            if name not in there:
                found.append(f"The {word} {name} was removed.")
            elif name not in was:
                found.append(f"The {word} {name} was added.")
            elif was[name] != there[name]:
                what = _changed(was[name], there[name]) if word != "tenant" else ["quotas"]
                found.append(f"The {word} {name} was changed: {', '.join(what)}.")
    return found


def _changed(was: object, there: object) -> list[str]:
    """Which parts of an entry are different."""
    assert isinstance(was, Group)
    assert isinstance(there, Group)
    parts: list[str] = [action for action in ACTIONS if getattr(was, action) != getattr(there, action)]
    parts += [f"deny {action}" for action in ACTIONS if getattr(was.deny, action) != getattr(there.deny, action)]
    if isinstance(was, User) and isinstance(there, User):
        if was.hash != there.hash:
            parts.append("password")
        parts += [part for part in ("groups", "tenant", "quota") if getattr(was, part) != getattr(there, part)]
    return parts
