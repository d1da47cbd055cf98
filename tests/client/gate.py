"""A door between a client and a scripted server, on real sockets, that can be shut, jammed or set on fire.

`begin` makes the fault so for the connections there are and for those that come; `heal` ends it. What was black-holed
stays so: nobody ever hears the end of a half-open connection.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

from fairlead.wire import kinds
from fairlead.wire.frames import encode_message
from fairlead.wire.headers import encode_headers
from tests.client.test_durable import Server

FAULTS = ("refused", "closed", "silent", "mid-frame", "half-open", "slow", "garbage", "go-away", "no-manager")
RUBBISH = bytes([0xFF]) * 256
PIECE = 7


class All(dict[str, str]):
    """Every command is refused with the same word."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> str:
        return "no-message-manager"


class Pipe:
    """One connection through the door."""

    def __init__(self, gate: Gate, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.gate = gate
        self.reader, self.writer = reader, writer
        self.is_hole = False  # whatever is put in is never seen again

    async def carry(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gate.server.port)
        self.gate.writers.append(writer)
        try:
            up = asyncio.ensure_future(self._pass(self.reader, writer, down=False))
            down = asyncio.ensure_future(self._pass(reader, self.writer, down=True))
            await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
            while self.is_hole:
                await asyncio.sleep(3600)
            for task in (up, down):
                task.cancel()
        finally:
            writer.transport.abort()
            self.writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, down: bool) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                while down and self.gate.mute and not self.is_hole:
                    await asyncio.sleep(0.005)
                if self.is_hole:
                    continue
                if down and self.gate.fault == "mid-frame":
                    writer.write(data[: max(len(data) // 2, 1)])
                    await writer.drain()
                    return
                if self.gate.fault == "slow":
                    for at in range(0, len(data), PIECE):
                        if writer.is_closing():
                            return
                        writer.write(data[at : at + PIECE])
                        await asyncio.sleep(0.001 if len(data) < 500 else 0)
                else:
                    writer.write(data)
                await writer.drain()

    def abort(self) -> None:
        self.writer.transport.abort()


class Gate:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.fault = ""
        self.mute = False  # the server is not heard, until the fault begins
        self.accepted = 0
        self.port = 0
        self.other: Gate | None = None
        self._listener: asyncio.Server | None = None
        self._pipes: dict[Pipe, asyncio.Task[None]] = {}
        self._strays: list[asyncio.StreamWriter] = []  # those that lead nowhere
        self.writers: list[asyncio.StreamWriter] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def open(self) -> None:
        self._listener = await asyncio.start_server(self._came, "127.0.0.1", self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self.fault = "closed"
        for _ in range(5):  # also those that were accepted and not looked at yet
            for task in list(self._pipes.values()):
                task.cancel()
            for writer in self.writers:
                writer.transport.abort()
            await asyncio.sleep(0.002)
        if self._listener is not None:
            self._listener.close()

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.writers.append(writer)
        match self.fault:
            case "closed":
                writer.transport.abort()
            case "silent" | "half-open":
                self._strays.append(writer)
            case "garbage":
                self._strays.append(writer)
                writer.write(RUBBISH)
            case "go-away":
                assert self.other is not None
                headers = encode_headers([("code", "server-full"), ("elsewhere", self.other.address)])
                writer.write(encode_message(kinds.KIND_ERROR, 0, 0, 0, 0, b"", headers, b"go there"))
                writer.close()
            case _:
                pipe = Pipe(self, reader, writer)
                self._pipes[pipe] = task = asyncio.ensure_future(self._carry(pipe))
                with suppress(asyncio.CancelledError):
                    await task

    async def _carry(self, pipe: Pipe) -> None:
        try:
            await pipe.carry()
        finally:
            self._pipes.pop(pipe, None)

    async def begin(self, fault: str) -> None:
        self.fault = fault
        if fault == "half-open":
            for pipe in self._pipes:
                pipe.is_hole = True
        self.mute = False
        match fault:
            case "refused":
                assert self._listener is not None
                self._listener.close()
                self._abort_all()
            case "closed" | "silent":
                self._abort_all()
            case "mid-frame":
                for pipe in list(self._pipes):  # half a frame, and the end
                    pipe.writer.write(encode_message(kinds.KIND_PING, 0, 0, 0, 0, b"", b"", b"")[:10])
                    pipe.writer.close()
            case "garbage":
                for pipe in self._pipes:
                    pipe.writer.write(RUBBISH)
            case "go-away":
                self.other = Gate(self.server)
                await self.other.open()
                body = json.dumps({"token": "none", "within_s": 0.2, "elsewhere": [self.other.address]}).encode()
                for pipe in self._pipes:
                    pipe.writer.write(encode_message(kinds.KIND_GO_AWAY, 0, 0, 0, 0, b"", b"", body))
            case "no-manager":
                self.server.manager.refuse = All()
                for line in self.server.lines.values():
                    line.notice(event="interrupted")
                    line.lost()

    async def heal(self) -> None:
        fault = self.fault
        if fault != "refused":
            self.fault = ""
        match fault:
            case "refused":
                await self.open()
                self.fault = ""
            case "silent":
                for stray in self._strays:
                    stray.transport.abort()
            case "no-manager":
                self.server.manager.refuse = {}
                for line in self.server.lines.values():
                    line.notice(event="back")

    def _abort_all(self) -> None:
        for pipe in list(self._pipes):
            pipe.abort()


__all__ = ["FAULTS", "Gate"]
