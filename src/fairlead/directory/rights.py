"""Whose right a change of the directory needs: what the server that was asked looks up and vouches for (DIR-34).

Whoever holds a connection knows its user and the rules; whoever keeps the tables knows what an operation is about. So
the first sends along, of the names that the request mentions, those on which the user has the right, and the second
compares (docs/directory.md, section 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairlead.directory.operations import ADMIN, APP, BROKER, OPERATIONS
from fairlead.security.rules import Rules


def is_read(op: object) -> bool:
    """Does it change nothing? Then it is for everybody who may connect."""
    operation = OPERATIONS.get(op) if isinstance(op, str) else None
    return operation is not None and not operation.writes


def granted(rules: Rules, user: str, request: Mapping[str, Any]) -> list[str]:
    """Of the names in this request those the user may speak for: `_DIRECTORY`, `_BROKER.A`, `app.AX`.

    Who has no name may change nothing where there are users (DIR-34).
    """
    if not user and not rules.is_open:
        return []
    found = [ADMIN] if rules.allows(user, "admin", ADMIN) else []
    found += [name for name in _brokers(request) if rules.allows(user, "serve", name)]
    if isinstance(app := request.get("app"), str) and rules.allows(user, "consume", APP + app):
        found.append(APP + app)
    return found


def _brokers(request: Mapping[str, Any]) -> Iterator[str]:
    """Every name that stands where operations name a broker."""
    broker, link = request.get("broker"), request.get("link")
    named = (
        request.get("name"),
        broker.get("name") if isinstance(broker, dict) else broker,
        link.get("broker") if isinstance(link, dict) else None,
    )
    yield from dict.fromkeys(BROKER + name for name in named if isinstance(name, str) and name)
