"""Who may do what through the console: nothing that the same user may not do as a client.

Seeing and changing the whole server is what `admin` on `_ADMIN` is for clients; on a destination, that one
alone. Without it a user sees the destinations that his other rights speak of, may look into those he may browse, send
to those he may send to, and create those he may create.
"""

from __future__ import annotations

from typing import Final, Literal

from fairlead.errors import NotAllowed
from fairlead.security.rules import ADMIN, Rules

Right = Literal["anybody", "user", "admin", "see", "send", "browse", "create"]
"""`anybody`: also who is not logged in; `user`: whoever is. The others are about the destination of the request."""

METRICS: Final = "_METRICS"
"""What monitoring is given the right to browse; there is no such destination."""
WORDS: Final = {
    "admin": "administer this server",
    "see": "see this destination",
    "send": "send to this destination",
    "browse": "look into this destination",
    "create": "create this destination",
}


def is_admin(rules: Rules, user: str) -> bool:
    return rules.allows(user, "admin", ADMIN)


def may(rules: Rules, user: str, right: Right, name: str) -> bool:
    if right == "anybody" or right == "user":
        return True
    if right == "send":
        return rules.allows(user, "send", name)
    if is_admin(rules, user) or (name and rules.allows(user, "admin", name)):
        return True
    if right == "admin":
        return False
    if right == "see":
        return sees(rules, user, name)
    return rules.allows(user, right, name)


def sees(rules: Rules, user: str, name: str) -> bool:
    """Does any right of this user speak of the destination?"""
    return any(rules.allows(user, action, name) for action in ("browse", "consume", "send", "admin"))


def check(rules: Rules, user: str, right: Right, name: str) -> None:
    if not may(rules, user, right, name):
        who = repr(user) if user else "Nobody without a name"
        text = f"{who} may not {WORDS.get(right, 'do this')}"
        raise NotAllowed(f"{text}{f': {name}' if name and right != 'admin' else ''}.")


def check_metrics(rules: Rules, user: str) -> None:
    """They name destinations of everybody: for administrators, and for monitoring, which needs no more than this."""
    if not is_admin(rules, user) and not rules.allows(user, "browse", METRICS):
        raise NotAllowed(f"{user!r} may not read metrics: `fairlead user allow {user} browse {METRICS}` lets it.")


def rights_of(rules: Rules, user: str, name: str) -> list[str]:
    """What the page may offer for a destination."""
    found = [action for action in ("send", "consume", "create", "browse") if rules.allows(user, action, name)]
    return found + (["admin"] if may(rules, user, "admin", name) else [])
