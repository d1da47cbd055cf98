"""Who is logged in: random tokens, each with its user and an end. Bounded, and ended when a user or his password goes.

Tokens are kept as digests, so that whoever reads our memory dump cannot use them. Nothing here survives the process:
after a restart of the console people log in again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

MOST: Final = 1000
PER_USER: Final = 50


@dataclass(slots=True)
class Login:
    """One session of a browser or a program."""

    user: str
    csrf: str
    proof: str  # what the users file said about this user when he logged in; another one ends it
    used_s: float
    ends_s: float


class Logins:
    def __init__(self, idle_s: float, *, longest_s: float = 7 * 86400.0, most: int = MOST, per_user: int = PER_USER):
        self._idle_s, self._longest_s, self._most, self._per_user = idle_s, longest_s, most, per_user
        self._by_digest: dict[bytes, Login] = {}  # the one used longest ago first

    def __len__(self) -> int:
        return len(self._by_digest)

    def __contains__(self, login: Login) -> bool:
        return any(one is login for one in self._by_digest.values())

    def begin(self, user: str, *, token: str, csrf: str, proof: str, now_s: float) -> Login:
        """`token` and `csrf` are random. Whoever has too many, or all together, lose the one used longest ago."""
        self._expire(now_s)
        own = [digest for digest, one in self._by_digest.items() if one.user == user]
        if len(own) >= self._per_user:
            del self._by_digest[own[0]]
        elif len(self._by_digest) >= self._most:
            del self._by_digest[next(iter(self._by_digest))]
        login = Login(user, csrf, proof, now_s, now_s + self._longest_s)
        self._by_digest[_digest(token)] = login
        return login

    def find(self, token: str, now_s: float) -> Login | None:
        """Whose token this is; it counts as used."""
        digest = _digest(token)
        login = self._by_digest.get(digest)
        if login is None:
            return None
        if now_s > min(login.used_s + self._idle_s, login.ends_s):
            del self._by_digest[digest]
            return None
        login.used_s = now_s
        self._by_digest[digest] = self._by_digest.pop(digest)
        return login

    def expires_s(self, login: Login) -> float:
        return min(login.used_s + self._idle_s, login.ends_s)

    def end(self, token: str) -> None:
        self._by_digest.pop(_digest(token), None)

    def keep(self, proofs: dict[str, str]) -> None:
        """Users were read again: logins of those who are gone, or have another password, end."""
        self._by_digest = {d: one for d, one in self._by_digest.items() if proofs.get(one.user) == one.proof}

    def _expire(self, now_s: float) -> None:
        self._by_digest = {
            d: one for d, one in self._by_digest.items() if now_s <= min(one.used_s + self._idle_s, one.ends_s)
        }


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
