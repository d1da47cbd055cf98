"""Who may have the lines of one stream: a pass for each client, known to all adapters of the group before it is needed.

A client that comes back has the pass it had, so that lines it still holds go on. A pass whose client has gone lives
until it expires, since the client may only have lost its way to the administration (STR-3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fairlead.feeds.administration.kept import KeptPass

__all__ = ["Pass", "Passes"]


@dataclass(slots=True, eq=False)
class Pass:
    token: str
    client: str
    user: str
    expires_s: float
    talks: set[int] = field(default_factory=set)


class Passes:
    """The passes of one stream, by token; the same client of the same user has one."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.by_token: dict[str, Pass] = {}
        self._by_client: dict[tuple[str, str], Pass] = {}
        self.revoked: dict[str, float] = {}  # tokens of those whose right was taken away, until they would expire
        self.barred_clients: set[str] = set()
        self.barred_users: set[str] = set()

    def __len__(self) -> int:
        return len(self.by_token)

    def __iter__(self) -> Iterator[Pass]:
        return iter(list(self.by_token.values()))

    def is_barred(self, user: str, client: str) -> bool:
        return client in self.barred_clients or user in self.barred_users

    def find(self, user: str, client: str) -> Pass | None:
        return self._by_client.get((user, client))

    def issue(self, user: str, client: str, token: str, expires_s: float) -> Pass | None:
        """None: there are too many of those that are in use."""
        if len(self.by_token) >= self._count_max and not self._make_room():
            return None
        made = Pass(token, client, user, expires_s)
        self.by_token[token] = self._by_client[user, client] = made
        return made

    def _make_room(self) -> bool:
        """Who is away longest goes first."""
        away = min(
            (one for one in self.by_token.values() if not one.talks), key=lambda one: one.expires_s, default=None
        )
        if away is not None:
            self.drop(away)
        return away is not None

    def drop(self, one: Pass) -> None:
        self.by_token.pop(one.token, None)
        self._by_client.pop((one.user, one.client), None)

    def revoke(self, one: Pass) -> None:
        """Drop it, and remember it for adapters that are away."""
        self.drop(one)
        while len(self.revoked) >= self._count_max:
            del self.revoked[next(iter(self.revoked))]
        self.revoked[one.token] = one.expires_s

    def expire(self, now_s: float) -> bool:
        """Of clients that are gone. Was there any?"""
        for token in [token for token, expires_s in self.revoked.items() if expires_s <= now_s]:
            del self.revoked[token]
        over = [one for one in self.by_token.values() if one.expires_s <= now_s and not one.talks]
        for one in over:
            self.drop(one)
        return bool(over)

    def kept(self, wall_offset_s: float) -> tuple[KeptPass, ...]:
        return tuple(
            KeptPass(token=one.token, client=one.client, user=one.user, expires_s=one.expires_s + wall_offset_s)
            for one in self.by_token.values()
        )
