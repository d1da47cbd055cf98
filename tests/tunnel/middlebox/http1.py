"""As much of HTTP/1.1 as a box in the middle has to know: where a message begins, what it asks for, where it ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

HEAD_MAX = 64 << 10
CHUNK = 256 << 10
BODILESS = {204, 304}
HOP_BY_HOP = {"connection", "keep-alive", "proxy-connection", "proxy-authorization", "te", "trailer", "upgrade"}


class Broken(Exception):
    """The peer hung up in the middle of a message, or what it sent is no HTTP."""


@dataclass
class Message:
    """A request or an answer; the body is put in when it has been read."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes = b""

    def get(self, name: str, default: str = "") -> str:
        return next((value for key, value in self.headers if key.lower() == name), default)

    def without(self, *names: str) -> list[tuple[str, str]]:
        return [(key, value) for key, value in self.headers if key.lower() not in names]

    @property
    def method(self) -> str:
        return self.line.split(" ")[0]

    @property
    def target(self) -> str:
        return self.line.split(" ")[1]

    @property
    def status(self) -> int:
        return int(self.line.split(" ")[1])

    @property
    def kind(self) -> str:
        """`connect`, `push`, `pull`, `stream`, or nothing when it is no tunnel's request."""
        return parse_qs(urlsplit(self.target).query).get("Type", [""])[0]

    @property
    def is_upgrade(self) -> bool:
        return self.get("upgrade").lower() == "websocket"

    @property
    def keeps_alive(self) -> bool:
        said = f"{self.get('connection')},{self.get('proxy-connection')}".lower()
        return "close" not in said and (not self.line.endswith("HTTP/1.0") or "keep-alive" in said)

    def encode(self) -> bytes:
        """With the body as it is: whole, so that its length can be told."""
        headers = self.without("content-length", "transfer-encoding")
        if self.body or self.get("content-length") or self.get("transfer-encoding"):
            headers.append(("Content-Length", str(len(self.body))))
        return encode_head(self.line, headers) + self.body


def encode_head(line: str, headers: list[tuple[str, str]]) -> bytes:
    return "".join([line, "\r\n", *(f"{key}: {value}\r\n" for key, value in headers), "\r\n"]).encode("latin-1")


def page(status: int, reason: str, text: str, headers: list[tuple[str, str]] | None = None) -> Message:
    """What a box says by itself: HTML for people."""
    body = f"<html><head><title>{status} {reason}</title></head><body><h1>{text}</h1></body></html>".encode()
    own = [("Content-Type", "text/html"), ("Server", "middlebox"), ("Content-Length", str(len(body)))]
    return Message(f"HTTP/1.1 {status} {reason}", own + (headers or []), body)


async def read_head(reader: asyncio.StreamReader) -> Message | None:
    """None when the peer hung up between messages."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise Broken("cut off within the head") from None
        return None
    except asyncio.LimitOverrunError:
        raise Broken("a head without an end") from None
    line, *rest = raw[:-4].decode("latin-1").split("\r\n")
    if len(line.split(" ")) < 2 or "HTTP/1." not in line:
        raise Broken(f"no HTTP: {line[:60]!r}")
    headers = []
    for one in rest:
        key, colon, value = one.partition(":")
        if not colon:
            raise Broken("a header without a colon")
        headers.append((key, value.strip()))
    return Message(line, headers)


def has_body(message: Message, request: Message | None) -> bool:
    """`request` is given for an answer, since its method and status decide there."""
    if request is None:
        return bool(message.get("content-length") or message.get("transfer-encoding"))
    return request.method != "HEAD" and message.status not in BODILESS and message.status >= 200


class BodyReader:
    """The pieces of a body as they come; chunked framing is taken off."""

    def __init__(self, reader: asyncio.StreamReader, message: Message, request: Message | None = None) -> None:
        self.reader = reader
        self.chunked = "chunked" in message.get("transfer-encoding").lower()
        length = message.get("content-length")
        self.until_eof = False
        self.left = 0
        if not has_body(message, request):
            self.chunked = False
        elif not self.chunked:
            if length:
                self.left = int(length)
            else:
                self.until_eof = request is not None

    async def piece(self) -> bytes:
        """b"" at the end."""
        if self.chunked:
            return await self.chunk()
        if self.until_eof:
            return await self.reader.read(CHUNK)
        if not self.left:
            return b""
        data = await self.reader.read(min(self.left, CHUNK))
        if not data:
            raise Broken(f"{self.left} bytes of the body are missing")
        self.left -= len(data)
        return data

    async def chunk(self) -> bytes:
        try:
            size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
            data = (await self.reader.readexactly(size + 2))[:-2]
        except (ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise Broken("cut off within a chunk") from None
        if not size:
            self.chunked = False
        return data

    async def whole(self) -> bytes:
        pieces = []
        while data := await self.piece():
            pieces.append(data)
        return b"".join(pieces)
