"""Numbers of the protocol: kinds of frames, flags, limits (docs/protocol.md, section 2).

Kinds 0x60 to 0x7F are those of queues and durable topics: see `wire/durable.py`.
"""

from __future__ import annotations

from typing import Final

PREFACE: Final = b"FLD\n\x01\x00\x00\x00"
VERSION: Final = 1

KIND_CONNECT: Final = 0x01
KIND_PING: Final = 0x02
KIND_PONG: Final = 0x03
KIND_CREDIT: Final = 0x04
KIND_SUBSCRIBE: Final = 0x05
KIND_UNSUBSCRIBE: Final = 0x06
KIND_REGISTER: Final = 0x07
KIND_UNREGISTER: Final = 0x08
KIND_CANCEL: Final = 0x09
KIND_CLOSE: Final = 0x0A
KIND_MOVE: Final = 0x0B
KIND_PUBLISH: Final = 0x20
KIND_REQUEST: Final = 0x21
KIND_RESPONSE: Final = 0x22
KIND_CONVERSE: Final = 0x23
KIND_FANOUT: Final = 0x24
KIND_SEND: Final = 0x25
KIND_FRAGMENT: Final = 0x2F
KIND_CONFIRM: Final = 0x41
KIND_WELCOME: Final = 0x42
KIND_OK: Final = 0x43
KIND_ERROR: Final = 0x44
KIND_ASKED: Final = 0x45
KIND_LOST: Final = 0x46
KIND_CANCELLED: Final = 0x47
KIND_GO_AWAY: Final = 0x48
KIND_MOVED: Final = 0x49
KIND_INTEREST: Final = 0x4A

KIND_MESSAGE_FIRST: Final = KIND_PUBLISH
KIND_MESSAGE_LAST: Final = KIND_SEND

FLAG_LAST: Final = 0x01
FLAG_NO_LOCAL: Final = 0x02
FLAG_NAMED: Final = 0x04
FLAG_FRAGMENTED: Final = 0x08
FLAG_IDENTITY: Final = 0x10

HEAD_BYTES: Final = 32
HEADER_BYTES_MAX: Final = 65_536
"""The fixed head, the topic and the header section together."""
FRAGMENT_BYTES_MAX: Final = 1 << 20
"""The longest body of one frame; what is longer travels in pieces of this size."""
FRAME_BYTES_MAX: Final = HEADER_BYTES_MAX + FRAGMENT_BYTES_MAX
BODY_BYTES_MAX: Final = 64 << 20

TOPIC_SEPARATOR: Final = "\x1f"

MODES: Final[dict[int, str]] = {
    KIND_PUBLISH: "broadcast",
    KIND_REQUEST: "request",
    KIND_RESPONSE: "response",
    KIND_CONVERSE: "conversation",
    KIND_FANOUT: "fanout",
    KIND_SEND: "send",
}
