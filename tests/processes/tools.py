"""What black-box tests need beside the server: patience, suspended processes, placed clients, raw bytes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import fairlead
from fairlead.testing import Server
from tests.protocol.second_client import HEAD, Client, Frame, unpack_headers

NEVER_FROZEN: Final[dict[str, Any]] = {"limits.frozen_s": 600}
PREFACE: Final = b"FLD\n" + struct.pack("<HH", 1, 0)

Report = dict[str, Any]


def at_rest(report: Report) -> bool:
    """No clients, nothing stored, nothing waiting, and no fault ever."""
    assert report["accounting_faults"] == 0
    assert report["safety_tick_finds"] == 0
    return not (report["connections"] or report["attachments"] or report["stored"] or report["requests_open"])


async def until(condition: Callable[[], Any], timeout_s: float = 10.0) -> None:
    """Let others run until it is so."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come about in time"
        await asyncio.sleep(0.01)


async def reported(server: Server, condition: Callable[[Report], Any], timeout_s: float = 10.0) -> Report:
    """The first status report that is as wanted; the loop runs on meanwhile."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        report = server.status()
        if condition(report):
            return report
        assert time.monotonic() < deadline_s, f"not reached in {timeout_s:g} s; the report says: {report}"
        await asyncio.sleep(0.02)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@contextmanager
def suspended(*pids: int) -> Iterator[None]:
    """Processes that stand still inside, and go on after it."""
    for pid in pids:
        suspend(pid)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):  # the test may have killed it meanwhile
                os.kill(pid, signal.SIGCONT)


def suspend(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    deadline_s = time.monotonic() + 5
    while not is_stopped(pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def manager_of(report: Report, uid: int) -> int:
    found: list[int] = [one["manager"] for one in report["connections"] if one["uid"] == uid]
    return found[0]


@asynccontextmanager
async def placed(
    server: Server, *managers: int, options: dict[str, Any] | None = None
) -> AsyncIterator[list[fairlead.Connection]]:
    """Clients on just these managers; those that landed elsewhere stay until the end, to keep the balance."""
    async with AsyncExitStack() as stack:
        everyone = len(server.status(brief=True)["managers"])
        at_once = max(Counter(managers).values()) * everyone  # enough, if the managers are equally used
        spare: dict[int, list[fairlead.Connection]] = {}
        while any(len(spare.get(one, ())) < count for one, count in Counter(managers).items()):
            new = [fairlead.connect(server.url, **(options or {})) for _ in range(at_once)]
            await asyncio.gather(*(stack.enter_async_context(one) for one in new))
            report, at_once = server.status(), 1
            for one in new:
                spare.setdefault(manager_of(report, one.uid), []).append(one)
        yield [spare[wanted].pop(0) for wanted in managers]


class RawClient:
    """A socket that says exactly what it is told to."""

    def __init__(self, server: Server, *, receive_buffer: int | None = None, timeout_s: float = 10) -> None:
        self.sock = socket.socket()
        self.sock.settimeout(timeout_s)
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            self.sock.connect(("127.0.0.1", server.port))
        except OSError:
            self.sock.close()
            raise

    def say(self, *parts: bytes) -> None:
        self.sock.sendall(b"".join(parts))

    def read(self) -> Frame | None:
        """The next frame; None at the end of the connection."""
        head = self._exactly(HEAD.size)
        if head is None:
            return None
        length, kind, flags, topic_length, headers_length, number, correlation, peer = HEAD.unpack(head)
        rest = self._exactly(length - HEAD.size) or b""
        at = topic_length + headers_length
        headers = unpack_headers(rest[topic_length:at])
        return Frame(kind, flags, number, correlation, peer, rest[:topic_length].decode(), headers, rest[at:])

    def expect(self, kind: int) -> Frame:
        frame = self.read()
        assert frame is not None, "the server closed the connection"
        assert frame.kind == kind, frame
        return frame

    def is_silent(self, for_s: float) -> bool:
        """Nothing arrives, and the connection stays."""
        before = self.sock.gettimeout()
        self.sock.settimeout(for_s)
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.sock.settimeout(before)
        return False

    def _exactly(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self.sock.recv(size - len(data))
            except ConnectionError:
                piece = b""
            if not piece:
                return None
            data += piece
        return bytes(data)

    def close(self) -> None:
        self.sock.close()


def frame(kind: int, *, topic: bytes = b"", headers: bytes = b"", body: bytes = b"", flags: int = 0, number: int = 0,
          correlation: int = 0, peer: int = 0) -> bytes:  # fmt: skip
    length = HEAD.size + len(topic) + len(headers) + len(body)
    return HEAD.pack(length, kind, flags, len(topic), len(headers), number, correlation, peer) + topic + headers + body


Dial = Callable[..., Client]
RawDial = Callable[..., RawClient]
