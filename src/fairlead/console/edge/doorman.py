"""Who is asking: a cookie, a token or a password, against the users file. Wrong passwords cost pauses, as for clients.

A password check takes a tenth of a second and 32 MiB, so there is one at a time, in a thread; whoever would have to
wait behind too many others is sent away. One source cannot take all places, and of one user and source only a few wait:
else the pause after wrong ones would come too late for all that were sent at once. What was right a moment ago is
remembered as a digest, for programs that send their password with each request.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
import time
from base64 import b64decode
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from fairlead.console.gatekeeping import Headers
from fairlead.console.logins import Login, Logins
from fairlead.console.problems import Denied
from fairlead.errors import BadCredentials
from fairlead.security import inside, users
from fairlead.security.rules import Rules
from fairlead.security.throttling import FREE, Throttle

COOKIE: Final = "fairlead-console"
WAITING_MAX: Final = 8
SOURCE_MAX: Final = 4  # of them from one source
REMEMBERED_S: Final = 60.0
REMEMBERED_MAX: Final = 1000


class Caller(NamedTuple):
    """Who is asking. `user` is empty where there are no users, and then he may do everything."""

    user: str
    known: bool  # logged in, or nobody has to
    csrf: str | None = None  # of a cookie: what has to come with a change; None: any value
    bare: bool = False  # without Authorization: it may be a browser that sends what a page told it to
    login: Login | None = None


class Doorman:
    def __init__(self, path: Path | None, idle_s: float) -> None:
        self._logins = Logins(idle_s)
        self._throttle = Throttle()
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, float] = OrderedDict()  # digests of what was right, and until when
        self._checker = ThreadPoolExecutor(1, "password")
        self._waiting: list[tuple[str, str]] = []  # users, and where they come from
        self._path = path
        self._users: users.Users | None = None
        self.rules = Rules.open()
        self.reload(path)

    def __len__(self) -> int:
        return len(self._logins)

    @property
    def is_open(self) -> bool:
        return self._users is None

    def reload(self, path: Path | None) -> None:
        """Read the users again; logins of those who are gone or have another password end."""
        self._path = path
        self._users = None if path is None else users.read(path)
        self.rules = Rules.open() if self._users is None else self._users.rules()
        self._right.clear()
        self._logins.keep({name: one.hash for name, one in self._users.entries.items()} if self._users else {})

    async def who(self, headers: Headers, cookies: dict[str, str], source: str) -> Caller:
        """Whoever shows nothing, or something that has ended, is nobody; whoever shows something wrong is refused."""
        if self._users is None:
            return Caller("", True, bare=True)
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":
            user, password = read_basic(value)
            await self.verify(user, password, source)
            return Caller(user, True)
        if kind.lower() == "bearer":
            login = self._logins.find(value.strip(), time.monotonic())
            if login is None:
                raise BadCredentials("This token is not, or no longer, valid; log in again.")
            return Caller(login.user, True, login=login)
        login = self._logins.find(cookies.get(COOKIE, ""), time.monotonic())
        if login is None:
            return Caller("", False, bare=True)
        return Caller(login.user, True, csrf=login.csrf, bare=True, login=login)

    async def verify(self, user: str, password: str, source: str) -> None:
        """BadCredentials unless it is right; during a pause nothing is looked at."""
        assert self._users is not None
        if wait_s := self._throttle.wait_s(user, source, time.monotonic()):
            seconds = math.ceil(wait_s)
            text = f"Too many wrong passwords for this user from there; try again in {seconds} s."
            raise Denied(429, text, code="bad-credentials", retry_s=seconds)
        digest = hmac.new(self._key, f"{user}\0{password}".encode("utf-8", "surrogatepass"), hashlib.sha256).digest()
        if self._right.get(digest, 0.0) > time.monotonic():
            return
        if not self._is_room(user, source):
            raise Denied(503, "Too many log in at once; try again.", code="unavailable", retry_s=1)
        self._waiting.append((user, source))
        try:
            loop = asyncio.get_running_loop()
            known = self._users
            is_right = user not in inside.USERS and await loop.run_in_executor(
                self._checker, known.verify, user, password
            )
        finally:
            self._waiting.remove((user, source))
        if not is_right or known is not self._users:
            self._throttle.wrong(user, source, time.monotonic())
            raise BadCredentials("Unknown user or wrong password.")
        self._throttle.right(user, source)
        self._right[digest] = time.monotonic() + REMEMBERED_S
        while len(self._right) > REMEMBERED_MAX:
            self._right.popitem(last=False)

    def _is_room(self, user: str, source: str) -> bool:
        waiting = self._waiting
        from_there = sum(one == source for _, one in waiting)
        return len(waiting) < WAITING_MAX and from_there < SOURCE_MAX and waiting.count((user, source)) < FREE

    def begin(self, user: str) -> tuple[str, Login]:
        """A new login of somebody who has shown who he is; its token."""
        assert self._users is not None
        token = secrets.token_urlsafe(32)
        proof = self._users.entries[user].hash
        csrf = secrets.token_urlsafe(24)
        return token, self._logins.begin(user, token=token, csrf=csrf, proof=proof, now_s=time.monotonic())

    def end(self, cookies: dict[str, str], headers: Headers) -> None:
        for token in (cookies.get(COOKIE, ""), headers.get("authorization", "").partition(" ")[2]):
            self._logins.end(token)

    def lasts(self, login: Login) -> bool:
        """Is it still valid? Looking on is not using it."""
        return time.monotonic() < self._logins.expires_s(login) and login in self._logins

    def expires_ms(self, login: Login) -> int:
        return int((time.time() + self._logins.expires_s(login) - time.monotonic()) * 1000)

    def close(self) -> None:
        self._checker.shutdown(wait=False, cancel_futures=True)


def read_basic(value: str) -> tuple[str, str]:
    try:
        user, colon, password = b64decode(value.strip(), validate=True).decode().partition(":")
    except ValueError:
        colon = user = password = ""
    if not colon or len(user) > 256 or len(password) > 1024:
        raise Denied(400, "Authorization: Basic has to be followed by base64 of USER:PASSWORD.")
    return user, password
