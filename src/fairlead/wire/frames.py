"""Frames to bytes and back: the plain twin of `_frames.pyx`, and its specification.

A parser takes whatever the network gave and answers with every whole message in it; the partial rest is
kept (never more than one frame, never more than one unfinished body) and bytes are copied at most twice.
When the peer breaks the rules, what came before is still handed out; `fault` then says what was wrong,
and from there on every call raises it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

from fairlead.errors import HeaderTooLarge, RemoteProtocolError, TooLarge
from fairlead.wire.headers import decode_headers
from fairlead.wire.kinds import (
    BODY_BYTES_MAX,
    FLAG_FRAGMENTED,
    FLAG_IDENTITY,
    FRAGMENT_BYTES_MAX,
    FRAME_BYTES_MAX,
    HEAD_BYTES,
    HEADER_BYTES_MAX,
    KIND_FRAGMENT,
    KIND_MESSAGE_FIRST,
    KIND_MESSAGE_LAST,
    KIND_PUBLISH,
    MODES,
    TOPIC_SEPARATOR,
)
from fairlead.wire.trace_context import TraceContext

__all__ = ["Message", "Parser", "encode_frame", "encode_message", "encode_publishes"]

Bytes: TypeAlias = bytes | bytearray | memoryview

_HEAD = struct.Struct("<IBBHIIQQ")
_TOTAL = struct.Struct("<Q")


class Message:
    """One message (or control frame) as it arrived. `body` is bytes; topic and headers are ready to use."""

    __slots__ = (
        "_headers", "_section", "body", "correlation", "flags", "kind", "number", "sender", "topic", "topic_text",
    )  # fmt: skip

    def __init__(
        self,
        kind: int,
        flags: int,
        number: int,
        correlation: int,
        sender: int,
        topic_text: str,
        section: bytes,
        body: bytes,
    ) -> None:
        self.kind = kind
        self.flags = flags
        self.number = number
        self.correlation = correlation
        self.sender = sender
        self.topic_text = topic_text  # as on the wire: several topics are joined by U+001F
        self.topic = topic_text.split(TOPIC_SEPARATOR, 1)[0]
        self.body = body
        self._section = section
        self._headers: dict[str, bytes] | None = None

    @property
    def topics(self) -> list[str]:
        """All topics a broadcast named; `topic` is the first of them."""
        return self.topic_text.split(TOPIC_SEPARATOR)

    @property
    def headers(self) -> dict[str, bytes]:
        """What the sender's application set."""
        if self._headers is None:
            self._headers = {key: value for key, value in decode_headers(self._section) if key[0] != ":"}
        return self._headers

    @property
    def user(self) -> str | None:
        """The sender's authenticated user, vouched for by the server; None without authentication."""
        if not self.flags & FLAG_IDENTITY or not self._section:
            return None
        key, value = decode_headers(self._section)[0]
        return value.decode(errors="replace") if key == ":from" else None

    @property
    def reply_to(self) -> str | None:
        """The topic on which an answer is welcome."""
        value = self.protocol_header(":reply")
        return None if value is None else value.decode(errors="replace")

    @property
    def trace(self) -> TraceContext | None:
        """The trace it belongs to, as its sender said (docs/tracing.md); None if it did not, or not in due form."""
        return TraceContext.of(self.headers)

    def span_facts(self) -> tuple[str, dict[str, Any]]:
        """For spans about it: its topic and their attributes."""
        return self.topic, {"messaging.message.body.size": len(self.body)}

    @property
    def mode(self) -> str:
        """How it was sent: broadcast, request, response, conversation, fanout or send."""
        return MODES.get(self.kind, "control")

    def protocol_header(self, key: str) -> bytes | None:
        """The value of a header of the protocol's own, such as `:reply`."""
        for name, value in decode_headers(self._section):
            if name == key:
                return value
        return None

    def __repr__(self) -> str:
        return f"<Message {self.mode} {self.topic!r} {len(self.body)} bytes from {self.sender}>"


def encode_frame(
    kind: int, flags: int, number: int, correlation: int, peer: int, topic: bytes, headers: bytes, body: Bytes
) -> bytes:
    """One frame."""
    header_bytes = HEAD_BYTES + len(topic) + len(headers)
    length = header_bytes + len(body)
    if header_bytes > HEADER_BYTES_MAX or length > FRAME_BYTES_MAX:
        raise _too_large(header_bytes, length)
    return _HEAD.pack(length, kind, flags, len(topic), len(headers), number, correlation, peer) + topic + headers + body


def encode_message(
    kind: int,
    flags: int,
    number: int,
    correlation: int,
    peer: int,
    topic: bytes,
    headers: bytes,
    body: Bytes,
    fragment: int = FRAGMENT_BYTES_MAX,
) -> bytes:
    """One message of any length: a frame, or a frame and its fragments."""
    if len(body) <= fragment:
        return encode_frame(kind, flags, number, correlation, peer, topic, headers, body)
    view = memoryview(body)
    piece = max(fragment - 8, 0)
    first = _TOTAL.pack(len(view)) + view[:piece]
    frames = [encode_frame(kind, flags | FLAG_FRAGMENTED, number, correlation, peer, topic, headers, first)]
    frames += [
        encode_frame(KIND_FRAGMENT, 0, 0, 0, 0, b"", b"", view[at : at + fragment])
        for at in range(piece, len(view), fragment)
    ]
    return b"".join(frames)


def encode_publishes(
    topic: bytes, headers: bytes, bodies: Sequence[bytes], fragment: int = FRAGMENT_BYTES_MAX
) -> bytes:
    """Many broadcasts to one topic, in one buffer."""
    return b"".join([encode_message(KIND_PUBLISH, 0, 0, 0, 0, topic, headers, body, fragment) for body in bodies])


def _too_large(header_bytes: int, length: int) -> TooLarge:
    if header_bytes > HEADER_BYTES_MAX:
        return HeaderTooLarge(
            f"Topic and headers take {header_bytes} of {HEADER_BYTES_MAX} bytes.",
            size=header_bytes,
            limit=HEADER_BYTES_MAX,
        )
    return TooLarge(f"The frame takes {length} of {FRAME_BYTES_MAX} bytes.", size=length, limit=FRAME_BYTES_MAX)


class Parser:
    """Bytes of one direction of one connection, to messages."""

    def __init__(self, frame_max: int = FRAME_BYTES_MAX, body_max: int = BODY_BYTES_MAX) -> None:
        self.frame_max = frame_max
        self.body_max = body_max
        self.fault: RemoteProtocolError | None = None
        self._rest = bytearray()
        self._unfinished: Message | None = None  # its body is coming in fragments
        self._body = bytearray()
        self._body_bytes = 0
        self._last_topic: tuple[bytes, str] = (b"", "")
        self._last_section = b""

    @property
    def buffered(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._rest)

    def feed(self, data: Bytes) -> list[Message]:
        """Every message that is whole now."""
        if self.fault is not None:
            raise self.fault
        found: list[Message] = []
        try:
            self._take(memoryview(data), found)
        except RemoteProtocolError as fault:
            self.fault = fault
            self._rest.clear()
            if not found:
                raise
        return found

    def runs(self, data: Bytes) -> list[list[Message]]:
        """The same, in runs of one kind and topic, so that whoever hands them on decides once per run."""
        runs: list[list[Message]] = []
        kind, topic = -1, ""
        for message in self.feed(data):
            if message.kind == kind and message.topic_text == topic:
                runs[-1].append(message)
            else:
                runs.append([message])
                kind, topic = message.kind, message.topic_text
        return runs

    def _take(self, data: memoryview, found: list[Message]) -> None:
        at = 0
        rest = self._rest
        while rest and at < len(data):
            # Fill up to the head, then to the frame it announces, and take that frame alone.
            wanted = HEAD_BYTES if len(rest) < HEAD_BYTES else self._length(rest, 0)
            piece = data[at : at + wanted - len(rest)]
            rest += piece
            at += len(piece)
            if len(rest) >= HEAD_BYTES and len(rest) == self._length(rest, 0):
                frame, self._rest = rest, bytearray()
                rest = self._rest
                self._frame(memoryview(frame), found)
        while len(data) - at >= HEAD_BYTES:
            length = self._length(data, at)
            if len(data) - at < length:
                break
            self._frame(data[at : at + length], found)
            at += length
        self._rest += data[at:]

    def _length(self, data: bytearray | memoryview, at: int) -> int:
        length = int.from_bytes(data[at : at + 4], "little")
        if length < HEAD_BYTES:
            raise RemoteProtocolError(f"A frame of {length} bytes is shorter than its head.")
        if length > self.frame_max:
            raise RemoteProtocolError(f"A frame of {length} bytes exceeds {self.frame_max}.", code="frame-too-large")
        return length

    def _frame(self, frame: memoryview, found: list[Message]) -> None:
        _, kind, flags, topic_bytes, section_bytes, number, correlation, sender = _HEAD.unpack_from(frame)
        section_at = HEAD_BYTES + topic_bytes
        body_at = section_at + section_bytes
        if body_at > HEADER_BYTES_MAX:
            raise RemoteProtocolError(f"A header of {body_at} bytes exceeds the limit.", code="header-too-large")
        if body_at > len(frame):
            raise RemoteProtocolError("A frame is shorter than its topic and headers.")
        if kind == KIND_FRAGMENT:
            self._fragment(frame[body_at:], found)
            return
        topic = self._topic(bytes(frame[HEAD_BYTES:section_at]))
        section = bytes(frame[section_at:body_at])
        if section != self._last_section:
            decode_headers(section)
            self._last_section = section
        if not KIND_MESSAGE_FIRST <= kind <= KIND_MESSAGE_LAST:
            body = bytes(frame[body_at:])
            found.append(Message(kind, flags, number, correlation, sender, topic, section, body))
            return
        if self._unfinished is not None:
            raise RemoteProtocolError("A message begins before the fragments of the last one are in.")
        if not flags & FLAG_FRAGMENTED:
            body = bytes(frame[body_at:])
            found.append(Message(kind, flags, number, correlation, sender, topic, section, body))
            return
        if len(frame) - body_at < _TOTAL.size:
            raise RemoteProtocolError("A fragmented message does not tell its length.")
        (total,) = _TOTAL.unpack_from(frame, body_at)
        if total > self.body_max:
            raise RemoteProtocolError(f"A body of {total} bytes exceeds {self.body_max}.", code="body-too-large")
        flags &= ~FLAG_FRAGMENTED
        self._unfinished = Message(kind, flags, number, correlation, sender, topic, section, b"")
        self._body_bytes = total
        self._fragment(frame[body_at + _TOTAL.size :], found)

    def _fragment(self, piece: memoryview, found: list[Message]) -> None:
        message = self._unfinished
        if message is None:
            raise RemoteProtocolError("A fragment belongs to no message.")
        if len(self._body) + len(piece) > self._body_bytes:
            raise RemoteProtocolError("The fragments are longer than the message they belong to.")
        self._body += piece
        if len(self._body) == self._body_bytes:
            message.body = bytes(self._body)
            found.append(message)
            self._unfinished = None
            self._body = bytearray()

    def _topic(self, raw: bytes) -> str:
        """Equal topics one after another share one `str`."""
        if raw != self._last_topic[0]:
            try:
                self._last_topic = (raw, raw.decode())
            except UnicodeDecodeError:
                raise RemoteProtocolError("A topic is not UTF-8.") from None
        return self._last_topic[1]
