"""A server for the bulk client's tests: enough of docs/durable.md, section 7, to read, stage and publish.

It is told what to say beside that: refusals, notices, frames of any kind, silence. The real one is met in
tests/processes/durable/test_bulk.py.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from fairlead.wire import durable, kinds
from fairlead.wire.column_batch import BODY, OFFSETS, ORDER_NUMBER, VALUES, assemble
from fairlead.wire.entries import details
from fairlead.wire.frames import Message, Parser, encode_frame
from fairlead.wire.headers import encode_headers

PIECE = 1000
"""Bytes of a COLUMNS frame: small, so that there are many."""


def error(number: int, code: str, text: str = "") -> bytes:
    return encode_frame(kinds.KIND_ERROR, 0, number, 0, 0, b"", encode_headers([("code", code)]), text.encode())


def notice(**facts: Any) -> bytes:
    return encode_frame(durable.KIND_NOTICE, 0, 0, 0, 0, b"", b"", json.dumps(facts).encode())


def batch_of(bodies: list[bytes], first: int, following: int, *, end: bool) -> bytearray:
    """Bodies with their order numbers."""
    offsets = [0]
    for body in bodies:
        offsets.append(offsets[-1] + len(body))
    orders = struct.pack(f"<{len(bodies)}q", *range(first, first + len(bodies)))
    return assemble(
        len(bodies),
        following,
        end,
        [
            (ORDER_NUMBER, VALUES, orders),
            (BODY, OFFSETS, struct.pack(f"<{len(offsets)}i", *offsets)),
            (BODY, VALUES, b"".join(bodies)),
        ],
    )


class BulkServer:
    """`bodies` can be read (order numbers from 1); what is published comes behind them."""

    def __init__(self, bodies: list[bytes] | None = None, *, window_bytes: int = 4 << 20) -> None:
        self.bodies = bodies or []
        self.window_bytes = window_bytes
        self.staged: dict[str, list[bytes]] = {}
        self.published: dict[str, int] = {}
        self.asked: list[dict[str, Any]] = []
        self.hellos: list[dict[str, Any]] = []
        self.answers: dict[str, list[bytes | tuple[str, str]]] = {}
        """By `do`, said once each instead of the answer: an error's code and text, or bytes as they are."""
        self.stored: list[int | bytes | tuple[str, str] | None] = []
        """By STORE, once each, instead of storing: another status, bytes as they are, or a refusal's code and text."""
        self.refused: tuple[str, str] | None = None
        """To everybody who connects."""
        self.lines: list[Line] = []
        self.batches_sent = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    @property
    def url(self) -> str:
        return f"fairlead://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        for line in self.lines:
            line.cut()
            line.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.lines.append(Line(self, sock))
                self.lines[-1].start()


class Line(threading.Thread):
    """One connection."""

    def __init__(self, server: BulkServer, sock: socket.socket) -> None:
        super().__init__()
        self.server = server
        self.sock = sock
        self.scans: dict[int, dict[str, Any]] = {}
        self.stages: dict[int, str] = {}
        self.parts: list[Any] = []
        self.pongs: list[int] = []

    def cut(self) -> None:
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def say(self, *frames: bytes) -> None:
        self.sock.sendall(b"".join(frames))

    def run(self) -> None:
        parser, preface = Parser(), bytearray()
        with self.sock, suppress(OSError):
            while data := self.sock.recv(1 << 16):
                if len(preface) < len(kinds.PREFACE):
                    preface += data[: len(kinds.PREFACE) - len(preface)]
                    data = data[len(preface) :]
                for message in parser.feed(data):
                    if not self.take(message):
                        return

    def take(self, message: Message) -> bool:
        match message.kind:
            case kinds.KIND_CONNECT:
                self.server.hellos.append(json.loads(message.body))
                self.say(encode_frame(kinds.KIND_CONFIRM, 0, 0, 0, 0, b"", b"", b'{"uid": 1}'))
                if self.server.refused is not None:
                    self.say(error(0, *self.server.refused))
                    return False
                self.say(encode_frame(kinds.KIND_WELCOME, 0, 0, 0, 0, b"", b"", b'{"uid": 1}'))
            case durable.KIND_COMMAND:
                self.command(message.number, json.loads(message.body))
            case durable.KIND_MORE:
                self.more(message)
            case durable.KIND_STORE:
                self.store(message)
            case kinds.KIND_PONG:
                self.pongs.append(message.correlation)
            case kinds.KIND_CLOSE:
                return False
        return True

    def command(self, number: int, asked: dict[str, Any]) -> None:
        self.server.asked.append(asked)
        instead = self.server.answers.get(asked["do"])
        if instead:
            said = instead.pop(0)
            self.say(error(number, *said) if isinstance(said, tuple) else said)
            return
        answer = getattr(self, "do_" + asked["do"].replace("-", "_"))(asked)
        if isinstance(answer, tuple):
            self.say(error(number, *answer))
        else:
            self.say(encode_frame(durable.KIND_ANSWER, 0, number, 0, 0, b"", b"", json.dumps(answer).encode()))

    def do_positions(self, asked: dict[str, Any]) -> dict[str, Any]:
        beyond = len(self.server.bodies) + 1
        one = {"name": asked["destination"], "kind": "topic", "id": "x", "first": 1, "next": beyond, "low": 1}
        one |= {"retains": True, "bytes": 0} | ({"at": 1} if "ms" in asked else {})
        return {"destinations": [one], "now_ms": 5}

    def do_scan(self, asked: dict[str, Any]) -> dict[str, Any]:
        handle = len(self.scans) + 1
        self.scans[handle] = {**asked, "at": asked["first"], "batch": 0}
        return {"scan": handle, "first": 1, "next": len(self.server.bodies) + 1}

    def more(self, message: Message) -> None:
        scan = self.scans.get(message.number)
        if message.flags & kinds.FLAG_LAST or scan is None:
            self.scans.pop(message.number, None)
            return
        for _ in range(message.correlation):
            first, beyond = scan["at"], min(scan["beyond"], len(self.server.bodies) + 1)
            following = min(first + scan["rows"], beyond)
            end = following >= beyond
            blob = batch_of(self.server.bodies[first - 1 : following - 1], first, following, end=end)
            scan["at"], scan["batch"] = following, scan["batch"] + 1
            self.server.batches_sent += 1
            for at in range(0, len(blob), PIECE):
                flags = kinds.FLAG_LAST if at + PIECE >= len(blob) else 0
                piece = bytes(blob[at : at + PIECE])
                self.say(encode_frame(durable.KIND_COLUMNS, flags, message.number, scan["batch"], at, b"", b"", piece))
            if end:
                self.scans.pop(message.number)
                return

    def do_stage(self, asked: dict[str, Any]) -> dict[str, Any]:
        handle = len(self.stages) + 1
        self.stages[handle] = asked["stage"]
        accepted = len(self.server.staged.setdefault(asked["stage"], []))
        return {"stage": handle, "accepted": accepted, "window_bytes": self.server.window_bytes}

    def store(self, message: Message) -> None:
        rows = self.server.staged[self.stages[message.number]]
        count, _, _, _ = durable.STORE_HEAD.unpack_from(message.body)
        first, status = message.correlation, durable.STORED_NEW
        special = self.server.stored.pop(0) if self.server.stored else None
        if isinstance(special, tuple):
            code, text = special
            special = notice(event="refused", producer=message.number, first=first, count=count, code=code, text=text)
        if isinstance(special, bytes):
            self.say(special)
            return
        if first <= len(rows):
            status = durable.STORED_AGAIN
        elif first > len(rows) + 1:
            self.say(notice(event="refused", producer=message.number, first=first, count=count, code="out-of-order"))
            return
        elif special is None:
            entries = details(message.body, durable.STORE_HEAD.size, len(message.body))
            rows += [message.body[entry.body_start : entry.body_end] for entry in entries]
        item = durable.STORED_ITEM.pack(first, count, status if special is None else special, 0, 0)
        self.say(encode_frame(durable.KIND_STORED, 0, message.number, 0, 0, b"", b"", item))

    def do_publish(self, asked: dict[str, Any]) -> dict[str, Any] | tuple[str, str]:
        server = self.server
        if "part" in asked:
            self.parts = self.parts if asked["part"] else []
            self.parts += asked["stages"]
            if asked["more"]:
                return {"parts": asked["part"] + 1}
            asked["stages"], self.parts = self.parts, []
        if server.published.get(asked["query"], -1) >= asked["batch"]:
            return {"published": "before", "messages": 0}
        for stage, counts in asked["stages"]:
            if len(server.staged.get(stage, ())) != sum(counts.values()):
                return "stage-missing", f"{stage} has not so many."
        rows = [row for stage, _ in asked["stages"] for row in server.staged.pop(stage)]
        server.bodies += rows
        server.published[asked["query"]] = asked["batch"]
        return {"published": "now", "messages": len(rows)}
