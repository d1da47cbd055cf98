"""Orders from the router to managers: what they look like, and how the common ones are made.

An instruction for a stored message carries its touch number; the last one also the completion condition, which is
the final touch count (SRV-69, SRV-70). Router-made frames travel in the instruction itself and count nothing (SRV-32).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from fairlead.broker.parties import Attachment
from fairlead.store import layout
from fairlead.wire import kinds
from fairlead.wire.frames import encode_frame
from fairlead.wire.headers import encode_headers

HEAD = struct.Struct("<IBBHIIQQ")  # length, kind, flags, topic length, headers length, number, correlation, peer


class Instruction(NamedTuple):
    """An order to one manager, as it will stand in its ring."""

    manager: int
    kind: int
    handle: int = 0
    touch: int = 0
    limit: int = 0
    recipients: bytes = b""
    content: bytes = b""
    body_length: int = 0


class Decision(NamedTuple):
    """What to log and what to send; `again`: the entry needs another decision before it is dealt with."""

    records: list[tuple[int, bytes]]
    instructions: list[Instruction]
    again: bool = False
    refused: bool = False  # a message was given up: nobody will get it


class Stored(NamedTuple):
    """A message in the store on its way through one decision."""

    back: int  # the manager that stored it
    handle: int
    body_length: int
    head: bytes
    source: Attachment
    linked: bool = False  # the sender is a link: whose user stands in the first header pair is its word

    @property
    def correlation(self) -> int:
        return int(HEAD.unpack_from(self.head)[6])

    def rewritten(self, correlation: int) -> bytes:
        """The head as recipients see it: the sender's uid and user are the server's word, not the sender's (SRV-43)."""
        _, kind, flags, topic_length, headers_length, number, _, _ = HEAD.unpack_from(self.head)
        pair = self.source.from_pair
        if pair or (self.linked and self.head[HEAD.size + topic_length :].startswith(b"\x05:from")):
            flags |= kinds.FLAG_IDENTITY
        length = HEAD.size + topic_length + headers_length + len(pair) + self.body_length
        at = HEAD.size + topic_length
        fixed = HEAD.pack(
            length, kind, flags, topic_length, headers_length + len(pair), number, correlation, self.source.uid
        )
        return fixed + self.head[HEAD.size : at] + pair + self.head[at:]

    def without(self, strip: int) -> Stored:
        """The same with so many bytes less in front of its topic: a tenant's topic as its clients know it."""
        length, kind, flags, topic_length, *rest = HEAD.unpack_from(self.head)
        fixed = HEAD.pack(length - strip, kind, flags, topic_length - strip, *rest)
        return self._replace(head=fixed + self.head[HEAD.size + strip :])

    def deliver(self, targets: list[tuple[int, bytes]], correlation: int) -> list[Instruction]:
        """One instruction a manager, the last with the completion condition; nobody: a lone delete (SRV-70, 71)."""
        if not targets:
            return [delete(self.back, self.handle)]
        head, final = self.rewritten(correlation), len(targets)
        return [
            Instruction(
                manager, layout.DOWN_DELIVER, self.handle, touch, final if touch == final - 1 else 0, recipients,
                head, self.body_length,
            )
            for touch, (manager, recipients) in enumerate(targets)
        ]  # fmt: skip


def one(attachment: Attachment) -> bytes:
    return attachment.recipient.to_bytes(8, "little")


def plain(attachment: Attachment, frame: bytes) -> Instruction:
    return Instruction(attachment.manager, layout.DOWN_PLAIN, recipients=one(attachment), content=frame)


def delete(manager: int, handle: int) -> Instruction:
    return Instruction(manager, layout.DOWN_DELETE, handle, 0, 1)


def ok(attachment: Attachment, number: int) -> Instruction:
    return plain(attachment, encode_frame(kinds.KIND_OK, 0, number, 0, 0, b"", b"", b""))


def error_frame(code: str, text: str, correlation: int = 0, number: int = 0) -> bytes:
    pair = encode_headers([("code", code)])
    return encode_frame(kinds.KIND_ERROR, 0, number, correlation, 0, b"", pair, text.encode())


def error(attachment: Attachment, code: str, text: str, correlation: int = 0, number: int = 0) -> Instruction:
    return plain(attachment, error_frame(code, text, correlation, number))
