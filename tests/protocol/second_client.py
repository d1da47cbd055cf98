"""A second client, written from docs/protocol.md alone: sockets, struct and json, and nothing of Fairlead.

It shows that the page is enough (SRV-41). As a program it greets itself: `second_client.py HOST PORT`.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
import sys
from collections import deque
from typing import Any, NamedTuple

HEAD = struct.Struct("<IBBHIIQQ")
(CONNECT, PING, PONG, CREDIT, SUBSCRIBE, UNSUBSCRIBE, REGISTER, UNREGISTER, CANCEL, CLOSE, MOVE) = range(0x01, 0x0C)
PUBLISH, REQUEST, RESPONSE, CONVERSE, FANOUT, SEND = range(0x20, 0x26)
FRAGMENT = 0x2F
CONFIRM, WELCOME, OK, ERROR, ASKED, LOST, CANCELLED, GO_AWAY, MOVED = range(0x41, 0x4A)
LAST, NO_LOCAL, NAMED, FRAGMENTED, IDENTITY = 0x01, 0x02, 0x04, 0x08, 0x10
PIECE = 1 << 20


class Frame(NamedTuple):
    kind: int
    flags: int
    number: int
    correlation: int
    peer: int
    topic: str
    headers: list[tuple[str, bytes]]
    body: bytes


class ServerError(Exception):
    """An ERROR frame."""

    def __init__(self, frame: Frame) -> None:
        self.code = dict(frame.headers).get("code", b"").decode()
        self.frame = frame
        super().__init__(f"{self.code}: {frame.body.decode()}")


def pack_headers(pairs: list[tuple[str, bytes]]) -> bytes:
    section = b""
    for key, value in pairs:
        name = key.encode()
        section += struct.pack("<B", len(name)) + name + struct.pack("<H", len(value)) + value
    return section


def unpack_headers(section: bytes) -> list[tuple[str, bytes]]:
    pairs, at = [], 0
    while at < len(section):
        key_end = at + 1 + section[at]
        (size,) = struct.unpack_from("<H", section, key_end)
        pairs.append((section[at + 1 : key_end].decode(), section[key_end + 2 : key_end + 2 + size]))
        at = key_end + 2 + size
    return pairs


class Client:
    """Every call blocks; messages that arrive meanwhile wait in `waiting`."""

    def __init__(self, host: str = "127.0.0.1", port: int = 7400, *, name: str = "second", timeout: float = 10,
                 credit: int = 1000, **hello: Any) -> None:  # fmt: skip
        self._socket = socket.create_connection((host, port), timeout=timeout)
        self._numbers = itertools.count(1)
        self._credit = credit
        self._taken = 0
        self.waiting: deque[Frame] = deque()
        said = {"version": 1, "type": name, "instance": f"{name}-{id(self)}", "org": "", "user": "", "password": "",
                "credit": credit, "keep_alive_s": 30, "software": "second client"} | hello  # fmt: skip
        self._socket.sendall(b"FLD\n" + struct.pack("<HH", 1, 0))
        self.confirm = json.loads(self._expect(CONFIRM).body)
        self.send(CONNECT, body=json.dumps(said).encode())
        self.welcome = json.loads(self._expect(WELCOME).body)
        self.uid: int = self.welcome["uid"]

    # Frames.

    def send(self, kind: int, *, flags: int = 0, number: int = 0, correlation: int = 0, peer: int = 0, topic: str = "",
             headers: list[tuple[str, bytes]] | None = None, body: bytes = b"") -> None:  # fmt: skip
        rest = b""
        if len(body) > PIECE:
            first = PIECE - 8
            for at in range(first, len(body), PIECE):
                piece = body[at : at + PIECE]
                rest += HEAD.pack(HEAD.size + len(piece), FRAGMENT, 0, 0, 0, 0, 0, 0) + piece
            flags |= FRAGMENTED
            body = struct.pack("<Q", len(body)) + body[:first]
        name, section = topic.encode(), pack_headers(headers or [])
        length = HEAD.size + len(name) + len(section) + len(body)
        head = HEAD.pack(length, kind, flags, len(name), len(section), number, correlation, peer)
        self._socket.sendall(head + name + section + body + rest)

    def receive(self) -> Frame:
        """The next frame; PING is answered and large bodies are put together on the way."""
        while True:
            frame = self._read()
            if frame.kind == PING:
                self.send(PONG, correlation=frame.correlation)
                continue
            if frame.flags & FRAGMENTED and PUBLISH <= frame.kind <= SEND:
                (total,) = struct.unpack_from("<Q", frame.body)
                body = bytearray(frame.body[8:])
                while len(body) < total:
                    piece = self._read()
                    if piece.kind == PING:
                        self.send(PONG, correlation=piece.correlation)
                    elif piece.kind == FRAGMENT:
                        body += piece.body
                frame = frame._replace(body=bytes(body), flags=frame.flags & ~FRAGMENTED)
            if PUBLISH <= frame.kind <= SEND and self._credit:
                self._taken += 1
                if self._taken >= self._credit // 2:
                    self.send(CREDIT, number=self._taken)
                    self._taken = 0
            return frame

    def _read(self) -> Frame:
        head = HEAD.unpack(self._exactly(HEAD.size))
        length, kind, flags, topic_length, headers_length, number, correlation, peer = head
        rest = self._exactly(length - HEAD.size)
        body_at = topic_length + headers_length
        return Frame(kind, flags, number, correlation, peer, rest[:topic_length].decode(),
                     unpack_headers(rest[topic_length:body_at]), rest[body_at:])  # fmt: skip

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(min(size - len(data), 1 << 16))
            if not piece:
                raise ConnectionError("the server closed the connection")
            data += piece
        return bytes(data)

    def _expect(self, *kinds: int, number: int = 0, correlation: int = 0) -> Frame:
        """The next frame of these kinds that belongs to us; messages meanwhile are put aside."""
        while True:
            frame = self.receive()
            ours = (frame.number, frame.correlation) == (number, correlation) if number else (
                frame.correlation == correlation)  # fmt: skip
            if frame.kind == ERROR and (ours or not (frame.number or frame.correlation)):
                raise ServerError(frame)
            if frame.kind in kinds and ours:
                return frame
            if PUBLISH <= frame.kind <= SEND or frame.kind in (CANCELLED, GO_AWAY, MOVED, CLOSE, LOST, ERROR):
                self.waiting.append(frame)

    # What a client does.

    def subscribe(self, pattern: str, *, no_local: bool = False) -> int:
        number = next(self._numbers)
        self.send(SUBSCRIBE, topic=pattern, number=number, flags=NO_LOCAL if no_local else 0)
        self._expect(OK, number=number)
        return number

    def unsubscribe(self, number: int) -> None:
        self.send(UNSUBSCRIBE, number=number)
        self._expect(OK, number=number)

    def register(self, topic: str) -> int:
        number = next(self._numbers)
        self.send(REGISTER, topic=topic, number=number)
        self._expect(OK, number=number)
        return number

    def publish(self, topic: str, body: bytes, *, reply_to: str | None = None) -> None:
        self.send(PUBLISH, topic=topic, body=body, headers=[(":reply", reply_to.encode())] if reply_to else None)

    def request(self, topic: str, body: bytes, *, peer: int = 0) -> list[Frame]:
        """All responses to one request."""
        correlation = next(self._numbers)
        self.send(REQUEST, topic=topic, body=body, correlation=correlation, peer=peer)
        responses = [self._expect(RESPONSE, correlation=correlation)]
        while not responses[-1].flags & LAST:
            responses.append(self._expect(RESPONSE, correlation=correlation))
        return responses

    def respond(self, request: Frame, body: bytes, *, last: bool = True) -> None:
        self.send(RESPONSE, correlation=request.correlation, body=body, flags=LAST if last else 0)

    def send_to(self, peer: int, body: bytes) -> None:
        self.send(SEND, peer=peer, body=body)

    def ping(self) -> None:
        correlation = next(self._numbers)
        self.send(PING, correlation=correlation)
        self._expect(PONG, correlation=correlation)

    def next_message(self) -> Frame:
        """The next message, in the order of arrival."""
        while True:
            frame = self.waiting.popleft() if self.waiting else self.receive()
            if PUBLISH <= frame.kind <= SEND:
                return frame
            if frame.kind == ERROR:
                raise ServerError(frame)

    def close(self) -> None:
        """An orderly end: the server closes after it has taken everything in."""
        self.send(CLOSE)
        try:
            while True:
                self.receive()
        except OSError:
            self._socket.close()


def main(host: str = "127.0.0.1", port: str = "7400") -> None:
    client = Client(host, int(port))
    client.subscribe("second.>")
    client.publish("second.hello", b"hello from the second client")
    message = client.next_message()
    print(f"uid {client.uid} received {message.body.decode()!r} on {message.topic} from {message.peer}")
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
