"""The lists of one user or group, and what somebody with several of them holds altogether.

A list that is absent says nothing, an empty one allows nothing. Who is in no group and has no list may do everything;
who is in groups may do what one of the lists allows, and everything only where none of them says anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

Action = Literal["publish", "subscribe", "serve", "send", "consume", "browse", "create", "admin"]
ACTIONS: tuple[Action, ...] = ("publish", "subscribe", "serve", "send", "consume", "browse", "create", "admin")
INSTEAD: Mapping[Action, Action] = {"send": "publish", "consume": "subscribe", "browse": "consume"}
"""Which list is asked where a user has none for the action; and what is denied with it."""


class Rights(NamedTuple):
    """The lists of one user or group; None means everything, except names with an underscore."""

    publish: tuple[str, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    serve: tuple[str, ...] | None = None
    send: tuple[str, ...] | None = None
    consume: tuple[str, ...] | None = None
    browse: tuple[str, ...] | None = None
    create: tuple[str, ...] | None = None
    admin: tuple[str, ...] | None = None
    deny: tuple[tuple[Action, str], ...] = ()
    groups: tuple[str, ...] = ()
    tenant: str = ""


class Line(NamedTuple):
    """One line of the users file: what a refusal or a permission rests on."""

    who: str  # `user NAME` or `group NAME`
    verb: Literal["allow", "deny"]
    action: Action
    pattern: str  # empty: the list is there and allows nothing

    def __str__(self) -> str:
        return f"{self.who}: {self.verb} {self.action} {self.pattern or '(nothing)'}"


class Held(NamedTuple):
    """All the lines somebody has, by action; an action that is not in `allows` is not restricted by any list."""

    allows: Mapping[Action, tuple[Line, ...]]
    denies: Mapping[Action, tuple[Line, ...]]
    tenant: str = ""

    def list_of(self, action: Action) -> tuple[Line, ...] | None:
        """The list that decides about this action."""
        while action not in self.allows and action in INSTEAD:
            action = INSTEAD[action]
        return self.allows.get(action)


def held_by(sources: Iterable[tuple[str, Rights]], tenant: str) -> Held:
    """What these, each with its name, add up to."""
    allows: dict[Action, list[Line]] = {}
    denies: dict[Action, list[Line]] = {}
    for who, rights in sources:
        for action in ACTIONS:
            patterns: tuple[str, ...] | None = getattr(rights, action)
            if patterns is not None:
                lines = [Line(who, "allow", action, pattern) for pattern in patterns or ("",)]
                allows.setdefault(action, []).extend(lines)
        for action, pattern in rights.deny:
            for also in _with(action):
                denies.setdefault(also, []).append(Line(who, "deny", action, pattern))
    return Held(
        {action: tuple(lines) for action, lines in allows.items()},
        {action: tuple(lines) for action, lines in denies.items()},
        tenant,
    )


def _with(action: Action) -> list[Action]:
    """The action, and those it stands for."""
    found = [action]
    for other in ACTIONS:  # `browse` after `consume`: one pass is enough
        if INSTEAD.get(other) in found:
            found.append(other)
    return found
