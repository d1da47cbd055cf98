"""Tokens, checked beside the loop: signatures take a while, and keys may have to be fetched first.

One thread checks, another fetches keys; both have bounded queues. A token of an unknown key waits for newer keys once,
and nobody else waits with it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from fairlead.runtime import config as configuring
from fairlead.runtime.settings import Config
from fairlead.security import issuing
from fairlead.security.identity import Identity, NoIdentity
from fairlead.security.tokens import Terms, UnknownKey, identity_of

if TYPE_CHECKING:
    from fairlead.broker.edge.token_keys import KeySource

__all__ = ["Authority", "TokenDesk", "authorities_of"]

WAITING_MAX: Final = 512
FETCHING_MAX: Final = 64
OWN_LEEWAY_S: Final = 30.0
ANY: Final = "*"

Answer = Identity | NoIdentity


class Authority(NamedTuple):
    """Somebody whose tokens are accepted."""

    source: KeySource
    terms: Terms


def authorities_of(config: Config) -> list[Authority]:
    """The server itself, if it has keys of its own, and the provider of the settings."""
    found, tokens = [], config.tokens
    own = configuring.token_keys_path(config)
    if not tokens.keys and not own.is_file():
        return []
    from fairlead.broker.edge.token_keys import KeySource  # brings HTTP along, for which most managers have no use

    if own.is_file():
        terms = Terms(
            issuing.ISSUER, (issuing.AUDIENCE,), (issuing.ALGORITHM,), OWN_LEEWAY_S, "sub", "groups", "tenant"
        )
        found.append(Authority(KeySource(str(own), refresh_s=tokens.refresh_s), terms))
    if tokens.keys:
        terms = Terms(
            tokens.issuer,
            () if tokens.audience == [ANY] else tuple(tokens.audience),
            tuple(tokens.algorithms),
            tokens.leeway_s,
            tokens.user_claim,
            tokens.groups_claim,
            tokens.tenant_claim,
        )
        where = tokens.keys if "://" in tokens.keys else str(Path(tokens.keys).expanduser())
        source = KeySource(where, ca=tokens.keys_ca, refresh_s=tokens.refresh_s, stale_s=tokens.stale_s)
        found.append(Authority(source, terms))
    return found


class TokenDesk:
    """Ask with `check`; the answer comes through `answers` once `fd` is readable."""

    def __init__(self, authorities: list[Authority], say: Callable[[str], None]) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._authorities = authorities
        self._say = say
        self._checking = ThreadPoolExecutor(1, "tokens")
        self._fetching = ThreadPoolExecutor(1, "token-keys")
        self._waiting = 0
        self._fetches = 0
        self._answers: deque[tuple[tuple[int, int], Answer]] = deque()
        self._problems: deque[str] = deque(maxlen=16)
        self._begin()

    @property
    def is_open(self) -> bool:
        """Is anybody's token accepted?"""
        return bool(self._authorities)

    def reload(self, authorities: list[Authority]) -> None:
        """Other terms from now on, and keys read anew; until they are there the old ones of the same place stay."""
        known = {authority.source.where: authority.source for authority in self._authorities}
        for authority in authorities:
            if (before := known.get(authority.source.where)) is not None:
                authority.source.take_over(before)
        self._authorities = authorities
        self._begin()

    def _begin(self) -> None:
        for authority in self._authorities:
            if authority.source.is_url:
                self._fetching.submit(self._refresh, authority)
            else:
                self._refresh(authority)  # small and here

    def check(self, who: tuple[int, int], token: str) -> bool:
        """False: too many wait already."""
        if self._waiting >= WAITING_MAX:
            return False
        self._waiting += 1
        self._checking.submit(self._judge, self._authorities, who, token, False)
        return True

    def answers(self) -> list[tuple[tuple[int, int], Answer]]:
        """(who, who that is or why nobody) for everything checked since the last call."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass
        while self._problems:
            self._say(self._problems.popleft())
        found = []
        while self._answers:
            found.append(self._answers.popleft())
        self._waiting -= len(found)
        return found

    def close(self) -> None:
        for pool in (self._checking, self._fetching):
            pool.shutdown(wait=False, cancel_futures=True)

    # On the threads.

    def _judge(self, authorities: list[Authority], who: tuple[int, int], token: str, again: bool) -> None:
        answer: Identity | None = None
        reasons = []
        newer: list[Authority] = []
        for authority in authorities:
            if authority.source.is_old():
                self._fetching.submit(self._refresh, authority)
            try:
                answer = identity_of(token, authority.source.keys(), authority.terms)
                break
            except UnknownKey as error:
                reasons.append(str(error))
                if authority.source.is_worth_a_try():
                    newer.append(authority)
            except NoIdentity as error:
                reasons.append(str(error))
            except Exception as error:  # a fault of ours must not leave somebody waiting
                reasons.append(f"it could not be checked: {type(error).__name__}")
        if answer is None and newer and not again and self._fetches < FETCHING_MAX:
            self._fetches += 1
            self._fetching.submit(self._fetch_and_judge, authorities, newer, who, token)
            return
        self._answers.append((who, answer or NoIdentity("; ".join(reasons))))
        self._wake()

    def _fetch_and_judge(
        self, authorities: list[Authority], newer: list[Authority], who: tuple[int, int], token: str
    ) -> None:
        try:
            for authority in newer:
                if authority.source.is_worth_a_try():  # another one may have fetched them meanwhile
                    self._refresh(authority)
        finally:
            self._fetches -= 1
            self._judge(authorities, who, token, True)

    def _refresh(self, authority: Authority) -> None:
        source = authority.source
        before = source.problem
        if not source.refresh() and source.problem != before:
            self._problems.append(f"the keys of tokens at {source.where} were not read: {source.problem}")
            self._wake()

    def _wake(self) -> None:
        os.eventfd_write(self.fd, 1)
