"""Passwords, checked beside the loop: the hash is slow on purpose, and clients must not wait for each other's.

Two threads and a bounded queue. What was found right is remembered as a keyed hash in memory until the users file is
read again, so that a thousand clients that come back at once are not a thousand slow hashes.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from fairlead.security.users import Users

THREADS = 2
WAITING_MAX = 512
REMEMBERED_MAX = 8192


class Verifier:
    """Ask with `check`; the answer comes through `answers` once `fd` is readable."""

    def __init__(self, users: Users | None) -> None:
        self.users = users
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._pool = ThreadPoolExecutor(THREADS, "passwords")
        self._waiting = 0
        self._answers: deque[tuple[tuple[int, int], bool]] = deque()
        self._key = secrets.token_bytes(32)
        self._right: set[bytes] = set()

    def reload(self, users: Users | None) -> None:
        self.users = users
        self._right = set()

    def remembers(self, user: str, password: str) -> bool:
        """Was this found right before?"""
        return self._mark(user, password) in self._right

    def check(self, who: tuple[int, int], user: str, password: str) -> bool:
        """False: too many wait already."""
        if self._waiting >= WAITING_MAX or self.users is None:
            return False
        self._waiting += 1
        self._pool.submit(self._verify, self.users, who, user, password)
        return True

    def answers(self) -> list[tuple[tuple[int, int], bool]]:
        """(who, right or wrong) for everything checked since the last call."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass
        found = []
        while self._answers:
            found.append(self._answers.popleft())
        self._waiting -= len(found)
        return found

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _verify(self, users: Users, who: tuple[int, int], user: str, password: str) -> None:
        try:
            right = users.verify(user, password)
        except Exception:
            right = False
        if right and users is self.users and len(self._right) < REMEMBERED_MAX:
            self._right.add(self._mark(user, password))
        self._answers.append((who, right))
        os.eventfd_write(self.fd, 1)

    def _mark(self, user: str, password: str) -> bytes:
        said = len(user).to_bytes(4, "little") + user.encode("utf-8", "replace") + password.encode("utf-8", "replace")
        return hmac.new(self._key, said, hashlib.sha256).digest()
