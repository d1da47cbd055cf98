"""Administration from a program: commands on the topic `_ADMIN`, and the answers of all who are meant.

::

    async with fairlead.connect(url) as connection:
        facts = await connection.admin.destination(name="orders")

Every command of docs/administration.md is a method; `execute` takes its name as text.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.cluster.lives import merged, merged_search
from fairlead.errors import NotAllowed, RemoteProtocolError, RequestTimeout, from_wire

if TYPE_CHECKING:
    from fairlead.client.aio.connection import Connection
    from fairlead.client.aio.subscription import Subscription
    from fairlead.client.effects import Event

__all__ = ["Admin"]

TOPIC = "_ADMIN"
REPEAT_S = 2.0
TIMEOUT_S = 30.0
TRACE_S = 60.0


class Admin:
    """`connection.admin`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def execute(
        self, command: str, /, *, timeout: float = TIMEOUT_S, scope: dict[str, Any] | None = None, **arguments: Any
    ) -> dict[str, Any]:
        """Run a command and return what it says; with several answers those of all nodes, under `nodes`."""
        answers = await self.ask(command, timeout=timeout, scope=scope, **arguments)
        if len(answers) == 1:
            return _facts(answers[0])
        return {"nodes": {str(answer.get("node")): _facts(answer) for answer in answers}}

    async def ask(
        self, command: str, /, *, timeout: float = TIMEOUT_S, scope: dict[str, Any] | None = None, **arguments: Any
    ) -> list[dict[str, Any]]:
        """The answers as they come, one of each who is meant; said again until they are in, which is harmless."""
        connection, loop = self._connection, asyncio.get_running_loop()
        number = secrets.token_hex(12)
        topic = f"admin-reply.{number}"
        request: dict[str, Any] = {"command": command, "id": number, "args": arguments, "reply": topic}
        if scope:
            request["scope"] = scope
        body = msgspec.json.encode(request)
        deadline_s = loop.time() + timeout
        answers: dict[str, dict[str, Any]] = {}
        async with connection.subscribe(topic) as replies:

            def refused(event: Event) -> None:
                if event.name == "undelivered" and isinstance(event.error, NotAllowed) and TOPIC in event.error.text:
                    replies.fail(event.error)

            connection.on_event(refused)
            try:
                while loop.time() < deadline_s:
                    await connection.publish(TOPIC, body)
                    if await _collect(replies, answers, min(REPEAT_S, deadline_s - loop.time())):
                        return list(answers.values())
            finally:
                connection.forget_listener(refused)
        raise RequestTimeout(f"The command {command!r} was not answered in {timeout:g} s.")

    async def trace(self, id: str = "", *, trace: str = "", timeout: float = TRACE_S) -> dict[str, Any]:  # noqa: A002
        """The life of one message by its id, or the messages of a `trace`: see docs/tracing.md."""
        if trace:
            return merged_search(await self.execute("find-trace", timeout=timeout, trace=trace))
        return merged(await self.execute("trace", timeout=timeout, id=id))

    def __getattr__(self, name: str) -> Callable[..., Awaitable[dict[str, Any]]]:
        if name.startswith("_"):
            raise AttributeError(name)

        async def command(**arguments: Any) -> dict[str, Any]:
            return await self.execute(name.replace("_", "-"), **arguments)

        return command


async def _collect(replies: Subscription, answers: dict[str, dict[str, Any]], patience_s: float) -> bool:
    """Take in answers; True when there are as many as are to be expected (CLU-183)."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + patience_s
    while (left_s := until_s - loop.time()) > 0:
        try:
            message = await replies.next(left_s)
        except RequestTimeout:
            return False
        try:
            answer = msgspec.json.decode(message.body, type=dict[str, Any])
        except msgspec.DecodeError as fault:
            raise RemoteProtocolError(f"An answer is not JSON: {fault}") from None
        answers[str(answer.get("node"))] = answer
        if len(answers) >= int(answer.get("expected", 1)):
            return True
    return False


def _facts(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        error = answer["error"]
        raise from_wire(str(error.get("code", "internal")), str(error.get("text", "")))
    facts: dict[str, Any] = answer.get("ok", {})
    return facts
