"""Whom an adapter lets in: tokens the stream administration told it of, each for a time (STR-80 … STR-82).

A line that is open outlives its token only while there is no administration that could renew it: brokered streams must
not suffer from its absence (STR-3). Nobody comes in with a token that has run out.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final, NamedTuple

from fairlead.feeds.words import Admit

__all__ = ["Admission", "Admitted"]

TOKENS_MAX: Final = 100_000
LIFE_MAX_S: Final = 7 * 86_400.0


class Admitted(NamedTuple):
    """Who has a token, and until when."""

    client: str
    is_link: bool
    expires_s: float


class Admission:
    """The tokens of one adapter."""

    def __init__(self) -> None:
        self._tokens: dict[str, Admitted] = {}
        self._expiries: list[tuple[float, str]] = []  # may name tokens that were renewed since

    def __len__(self) -> int:
        return len(self._tokens)

    def admit(self, word: Admit, now_s: float) -> bool:
        """Let somebody in, or let it stay longer; False if there are too many already."""
        if word.token not in self._tokens and len(self._tokens) >= TOKENS_MAX:
            return False
        expires_s = now_s + min(max(word.life_s, 0.0), LIFE_MAX_S)
        self._tokens[word.token] = Admitted(word.client, word.link, expires_s)
        heappush(self._expiries, (expires_s, word.token))
        if len(self._expiries) > 2 * len(self._tokens) + 1024:  # renewals left many behind
            self._expiries = sorted((one.expires_s, token) for token, one in self._tokens.items())
        return True

    def find(self, token: str, now_s: float) -> Admitted | None:
        """Who this is; None: a token nobody told us of, or one that has run out."""
        found = self._tokens.get(token)
        return found if found is not None and found.expires_s > now_s else None

    def revoke(self, token: str) -> bool:
        """Nobody comes in with it any more."""
        return self._tokens.pop(token, None) is not None

    def expire(self, now_s: float) -> list[str]:
        """Forget the tokens that have run out; these."""
        return list(self._expired(now_s))

    def tokens(self) -> tuple[str, ...]:
        """Of the programs that may come in, for an administration that lost its memory."""
        return tuple(token for token, one in self._tokens.items() if not one.is_link)

    def _expired(self, now_s: float) -> Iterator[str]:
        while self._expiries and self._expiries[0][0] <= now_s:
            _, token = heappop(self._expiries)
            found = self._tokens.get(token)
            if found is not None and found.expires_s <= now_s:
                del self._tokens[token]
                yield token
