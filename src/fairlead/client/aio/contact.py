"""A client's line to the directory: opened when something is asked, logged in when that is wanted, timed for `auto`."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from fairlead.client.target import DirectoryTarget
from fairlead.directory.placing.mode import Auto
from fairlead.errors import BadCredentials, FairleadError, NoDirectory

if TYPE_CHECKING:
    from fairlead.directory.edge.client import DirectoryClient

__all__ = ["Contact"]

logger = logging.getLogger("fairlead.client")

T = TypeVar("T")
BESIDE_MAX = 256
LAST_WORDS_S = 1.0


class Contact:
    """What the directory's answers say about itself goes to `auto`, under `lock`."""

    def __init__(self, target: DirectoryTarget, tls: ssl.SSLContext | None, auto: Auto, lock: threading.Lock) -> None:
        self._target = target
        self._tls = tls
        self._auto = auto
        self._lock = lock
        self._directory: DirectoryClient | None = None
        self._login: tuple[str, str] | None = None  # of the newest connection
        self._login_said: tuple[str, str] | None = None
        self._beside: set[asyncio.Task[Any]] = set()

    def offer(self, user: str, password: str) -> None:
        """A login to be said if the directory asks for one, and only then; one in the URL is said at once."""
        if user and not self._target.user:
            self._login = (user, password)

    @property
    def directory(self) -> DirectoryClient:
        if self._directory is None:
            from fairlead.directory.edge.client import DirectoryClient

            user, password = self._login_said or (None, None)
            self._directory = DirectoryClient(self._target, user=user, password=password, tls=self._tls)
        return self._directory

    def _log_in(self) -> bool:
        """The directory asks for a user: is there one it was not told yet?"""
        if self._login is None or self._login == self._login_said:
            return False
        self._login_said = self._login
        before, self._directory = self._directory, None
        if before is not None:
            self.beside(before.close())
        return True

    async def ask(self, question: Callable[[DirectoryClient], Awaitable[T]]) -> T:
        """What the directory says; how long it takes, and whether it answers, is what `auto` goes by."""
        try:
            return await self._timed(question)
        except BadCredentials:
            if not self._log_in():
                raise
        return await self._timed(question)

    async def _timed(self, question: Callable[[DirectoryClient], Awaitable[T]]) -> T:
        directory, now_s = self.directory, asyncio.get_running_loop().time
        began_s = now_s()
        try:
            answer = await question(directory)
        except NoDirectory as error:
            with self._lock:
                self._auto.on_bad(str(error), now_s())
            raise
        except FairleadError:
            self._answered(directory, now_s() - began_s)
            raise
        self._answered(directory, now_s() - began_s)
        return answer

    def _answered(self, directory: DirectoryClient, took_s: float) -> None:
        latency_s = directory.latency_s
        with self._lock:
            self._auto.on_answer(
                took_s if latency_s is None else latency_s, directory.overloaded, asyncio.get_running_loop().time()
            )

    def beside(self, work: Coroutine[Any, Any, Any]) -> None:
        """Say something to the directory without waiting; that it fails is no harm."""
        if len(self._beside) >= BESIDE_MAX:
            work.close()
            return
        task = asyncio.create_task(_quietly(work))
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    @property
    def is_saying(self) -> bool:
        """Is something being said beside?"""
        return bool(self._beside)

    def part(self) -> Callable[[], Coroutine[Any, Any, None]]:
        """Forget the line; what is given back closes it, after the last words."""
        directory, self._directory = self._directory, None

        async def close() -> None:
            beside = set(self._beside)
            if beside:
                await asyncio.wait(beside, timeout=LAST_WORDS_S)
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            if directory is not None:
                await directory.close()

        return close

    def facts(self) -> dict[str, Any]:
        return self._directory.facts() if self._directory is not None else {}


async def _quietly(work: Coroutine[Any, Any, Any]) -> None:
    try:
        await work
    except FairleadError as error:
        logger.debug("The directory was not told: %s", error)
