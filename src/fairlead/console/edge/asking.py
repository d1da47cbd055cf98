"""Questions to this server's supervisor, over the socket that only the server's own user can open.

It answers with the status report, passes administration on to whoever keeps the messages, and replaces programs. A
connection for each question: they are few, and answers come in whatever order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead.errors import NoMessageManager, RequestTimeout, Unavailable, from_wire
from fairlead.runtime.admin import SOCKET_NAME
from fairlead.runtime.rundir import short_path

Facts = dict[str, Any]
ANSWER_BYTES_MAX: Final = 64 << 20
ANSWER_S: Final = 20.0
UPDATE_S: Final = 300.0
ASKED_AT_ONCE: Final = 16


class Supervisor:
    """The supervisor, as the console knows it."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._room = asyncio.Semaphore(ASKED_AT_ONCE)

    async def status(self, *, brief: bool = False) -> Facts:
        """The report of `fairlead status`."""
        report: Facts = (await self.ask("status", brief=brief))["status"]
        return report

    async def administer(self, name: str, /, **args: Any) -> Facts:
        """A command of docs/administration.md; refused, it is the error that administration refuses it with."""
        answer = await self.ask("admin", name=name, args=args)
        result: Facts = answer.get("result", {})
        return result

    async def ask(self, command: str, /, *, timeout_s: float = ANSWER_S, **facts: Any) -> Facts:
        try:
            async with asyncio.timeout(timeout_s), self._room, self._opened() as (reader, writer):
                writer.write(msgspec.json.encode({"command": command, **facts}) + b"\n")
                await writer.drain()
                while True:
                    line = await reader.readline()
                    if not line:
                        raise Unavailable("The supervisor ended before it had answered; try again.")
                    answer = msgspec.json.decode(line, type=Facts)
                    if "ok" in answer:
                        break
        except TimeoutError:
            raise RequestTimeout(f"The server did not answer within {timeout_s:g} s.") from None
        except (OSError, ValueError) as error:
            raise Unavailable(f"The supervisor cannot be asked just now: {error}.") from None
        if answer["ok"]:
            return answer
        text = str(answer.get("error", "The server said no."))
        if code := answer.get("code"):
            raise from_wire(str(code), text)
        raise NoMessageManager(text) if command == "admin" else Unavailable(text, code="unavailable")

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        with short_path(self._run / SOCKET_NAME) as path:
            reader, writer = await asyncio.open_unix_connection(path, limit=ANSWER_BYTES_MAX)
        try:
            yield reader, writer
        finally:
            writer.close()
