"""Asks one question of any of several directory servers, until one of them answers or time is up (DIR-37).

Every operation may be said again, so a server that fails, is silent or is cut off from the majority is left for the
next one. A stale answer is taken only if no other server that seems well has a fresh one (DIR-38).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from fairlead.client.target import DirectoryTarget, parse_directory
from fairlead.directory.answers import Answer, read_answer
from fairlead.directory.edge.line import ServerLine
from fairlead.directory.servers import Servers
from fairlead.errors import (
    ConnectionLost,
    FairleadError,
    NoDirectory,
    NoneAvailable,
    RemoteProtocolError,
    RequestTimeout,
    ServerFull,
    SlowClient,
    StoreFull,
)
from fairlead.tunnel.options import TunnelOptions

if TYPE_CHECKING:
    from fairlead.client.aio import Connection
    from fairlead.client.aio.access import Shown

__all__ = ["Asking"]

A = TypeVar("A", bound=Answer)

ATTEMPT_MIN_S = 0.01
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 1.0
BETTER_S = 1.0
"""How long to look for a fresh answer at one server when another one gave a stale one."""


class Asking:
    """The part of a `DirectoryClient` that talks."""

    def __init__(
        self,
        url: str | Sequence[str] | DirectoryTarget,
        *,
        user: str | None = None,
        password: str | None = None,
        tunnel: TunnelOptions | None = None,
        timeout_s: float = 5.0,
        deadline_s: float = 20.0,
        **shown: Unpack[Shown],
    ) -> None:
        self.target = target = url if isinstance(url, DirectoryTarget) else parse_directory(url, tunnel)
        self._user = target.user if user is None else user
        self._password = target.password if password is None else password
        self._shown = shown
        self._timeout_s = timeout_s
        self._deadline_s = deadline_s
        self._servers = Servers(target.targets)
        self._lines = [ServerLine(partial(self._connection, server)) for server in target.targets]
        self._overloaded = False
        self._revision = 0
        self._stale = False
        self._closed = False

    def _connection(self, url: str) -> Connection:
        from fairlead.client.aio import Connection  # which places connections with the help of this client

        return Connection(
            url,
            name="directory-client",
            user=self._user,
            password=self._password,
            **self._shown,
            tunnel=self.target.tunnel,
            reconnect=False,  # another server may be quicker than this one's return
            connect_timeout_s=self._timeout_s,
        )

    async def close(self) -> None:
        """Close the connections to the servers."""
        self._closed = True
        await asyncio.gather(*(line.close() for line in self._lines))

    # What is known of the servers.

    @property
    def latency_s(self) -> float | None:
        """How long answers take at present, open questions counted in; None before the first."""
        return self._servers.latency_s(asyncio.get_running_loop().time())

    @property
    def overloaded(self) -> bool:
        """Did the server that answered last say that it has too much to do?"""
        return self._overloaded

    @property
    def server(self) -> str:
        """URL of the server that is asked first."""
        return self._servers.first

    def facts(self) -> dict[str, Any]:
        """For a status call (DIR-81)."""
        return {
            "servers": self._servers.facts(asyncio.get_running_loop().time()),
            "latency_s": self.latency_s,
            "overloaded": self._overloaded,
            "revision": self._revision,
            "stale": self._stale,
        }

    # Asking.

    async def ask(self, op: str, arguments: dict[str, Any], kind: type[A], timeout: float | None = None) -> A:
        """The answer of whichever server has one; `timeout` for all of it, 0: each is asked once."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + (self._deadline_s if timeout is None else timeout)
        once = timeout is not None and timeout <= 0
        reasons: dict[str, str] = {}
        pause_s = PAUSE_FIRST_S
        while True:
            if self._closed:
                raise ConnectionLost("This client of the directory is closed.")
            found = await self._round(op, arguments, kind, until_s, once, reasons)
            if found is not None:
                self._revision, self._stale = found.revision, found.stale
                return found
            wait_s = pause_s * random.uniform(0.5, 1.0)
            if loop.time() + wait_s >= until_s:
                each = "; ".join(f"{url}: {reason}" for url, reason in reasons.items())
                raise NoDirectory(f"directory unreachable: {each or 'there was no time to ask'}")
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _round(
        self, op: str, arguments: dict[str, Any], kind: type[A], until_s: float, once: bool, reasons: dict[str, str]
    ) -> A | None:
        """Ask each server until one answers; None: nobody did, `reasons` says why."""
        now_s = asyncio.get_running_loop().time
        servers = self._servers
        order = servers.round(now_s())
        old: A | None = None
        for asked, number in enumerate(order):
            patience_s = self._timeout_s
            if not once:
                patience_s = min(patience_s, max((until_s - now_s()) / (len(order) - asked), ATTEMPT_MIN_S))
            if old is not None:
                if servers.is_cooling(number, now_s()):
                    continue
                patience_s = min(patience_s, BETTER_S)
            try:
                answer = await self._ask_one(number, op, arguments, kind, patience_s)
            except FairleadError as error:
                if not _elsewhere(error):
                    raise
                reasons[self.target.targets[number]] = error.text
                continue
            if not answer.stale:
                servers.settled(number)
                return answer
            if old is None:
                old = answer
                servers.settled(number)
        return old

    async def _ask_one(self, number: int, op: str, arguments: dict[str, Any], kind: type[A], patience_s: float) -> A:
        """One attempt at one server."""
        now_s = asyncio.get_running_loop().time
        servers, line = self._servers, self._lines[number]
        question = servers.asked(now_s())
        try:
            async with asyncio.timeout(patience_s):
                connection = await line.connection()
                servers.sent(question, now_s())
                facts = await connection._ask_directory(op, arguments)
            answer = read_answer(op, kind, facts)
        except TimeoutError:  # RequestTimeout too
            text = f"no answer within {patience_s:.3g} s"
            servers.failed(number, question, now_s(), text)
            if patience_s >= self._timeout_s:
                line.leave()
            raise RequestTimeout(text) from None
        except FairleadError as error:
            if _elsewhere(error):
                servers.failed(number, question, now_s(), error.text)
                self._overloaded = self._overloaded or isinstance(error, ServerFull | SlowClient | StoreFull)
            else:
                servers.answered(number, question, now_s())
            raise
        except BaseException:
            servers.given_up(question)
            raise
        servers.answered(number, question, now_s())
        self._overloaded = facts.get("overloaded") is True
        return answer


def _elsewhere(error: FairleadError) -> bool:
    """Is it the server's trouble, and may another one answer? A refusal is an answer, and all would say the same."""
    if isinstance(error, NoneAvailable):
        return False
    return error.retryable or isinstance(error, RemoteProtocolError)
