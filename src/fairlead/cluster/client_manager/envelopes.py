"""Frames in their envelopes, made by the agent itself."""

from __future__ import annotations

import struct
from typing import Any, Final

from fairlead.cluster.outgoing import encode_json
from fairlead.errors import CODES
from fairlead.wire.durable import ENVELOPE, KIND_ANSWER, KIND_COMMAND, KIND_NOTICE
from fairlead.wire.kinds import HEAD_BYTES, KIND_ERROR

_BOTH: Final = struct.Struct("<IIQIBBHIIQQ")


def packed(
    uid: int,
    index: int,
    kind: int,
    *,
    number: int = 0,
    correlation: int = 0,
    peer: int = 0,
    flags: int = 0,
    topic: bytes = b"",
    headers: bytes = b"",
    body: bytes = b"",
) -> bytes:
    """One frame for the connection with that uid; 0: about the link itself."""
    length = HEAD_BYTES + len(topic) + len(headers) + len(body)
    whole = ENVELOPE.size + length
    head = _BOTH.pack(whole, index, uid, length, kind, flags, len(topic), len(headers), number, correlation, peer)
    return b"".join((head, topic, headers, body))


def command(uid: int, index: int, number: int, facts: dict[str, Any], correlation: int = 0) -> bytes:
    return packed(uid, index, KIND_COMMAND, number=number, correlation=correlation, body=encode_json(facts))


def answer(uid: int, index: int, number: int, facts: dict[str, Any]) -> bytes:
    return packed(uid, index, KIND_ANSWER, number=number, body=encode_json(facts))


def notice(uid: int, index: int, **facts: Any) -> bytes:
    return packed(uid, index, KIND_NOTICE, body=encode_json(facts))


def error(uid: int, index: int, number: int, code: str, text: str = "", correlation: int = 0) -> bytes:
    """An ERROR; without a text it says what docs/errors.md says."""
    if not text:
        entry = CODES.get(code)
        text = entry.sentence if entry else code
    word = code.encode()
    headers = b"\x04code" + len(word).to_bytes(2, "little") + word
    body = text.encode(errors="replace")
    return packed(uid, index, KIND_ERROR, number=number, correlation=correlation, headers=headers, body=body)
