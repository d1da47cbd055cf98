"""Passwords, checked beside the loop: the hash is slow on purpose, and clients must not wait for each other's.

Two threads that leave the processor to messages, and a waiting room in which sources take turns
(`security/waiting.py`). What was found right is remembered as a keyed hash in memory until the users file is read
again: a thousand clients that come back at once are not a thousand slow hashes.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from fairlead.security.users import Users
from fairlead.security.waiting import Question, WaitingRoom, Who

THREADS = 2
NICENESS = 5
REMEMBERED_MAX = 8192


def give_way() -> None:
    """Of the calling thread: whoever floods us with guesses takes no processor from those who are in."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)


class Verifier:
    """Ask with `check`; the answer comes through `answers` once `fd` is readable."""

    def __init__(self, users: Users | None) -> None:
        self.users = users
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._pool = ThreadPoolExecutor(THREADS, "passwords", give_way)
        self._room = WaitingRoom()
        self._under_way = 0
        self._answers: deque[tuple[Question, bool]] = deque()
        self._key = secrets.token_bytes(32)
        self._right: set[bytes] = set()

    def reload(self, users: Users | None) -> None:
        self.users = users
        self._key = secrets.token_bytes(32)  # so that nobody gets an answer that is from before
        self._right = set()

    def remembers(self, user: str, password: str) -> bool:
        """Was this found right before?"""
        return self._mark(user, password) in self._right

    def check(self, who: Who, user: str, password: str, source: str = "") -> bool:
        """False: too many wait already, or too many different passwords of this user from there."""
        if self.users is None or not self._room.ask(who, Question(self._mark(user, password), user, password, source)):
            return False
        self._begin()
        return True

    def answers(self) -> list[tuple[Who, bool]]:
        """(who, right or wrong) for everything checked since the last call."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass
        found = []
        while self._answers:
            question, right = self._answers.popleft()
            found += [(who, right) for who in self._room.done(question)]
            self._under_way -= 1
        self._begin()
        return found

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        while self._under_way < THREADS and (question := self._room.next()) is not None:
            self._under_way += 1
            self._pool.submit(self._verify, self.users, question)

    def _verify(self, users: Users | None, question: Question) -> None:
        try:
            right = users is not None and users.verify(question.user, question.password)
        except Exception:
            right = False
        if right and users is self.users and len(self._right) < REMEMBERED_MAX:
            self._right.add(question.mark)
        self._answers.append((question, right))
        os.eventfd_write(self.fd, 1)

    def _mark(self, user: str, password: str) -> bytes:
        said = len(user).to_bytes(4, "little") + user.encode("utf-8", "replace") + password.encode("utf-8", "replace")
        return hmac.new(self._key, said, hashlib.sha256).digest()
