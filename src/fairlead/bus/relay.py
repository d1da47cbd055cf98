"""Talk across buses: which ports are passed on by a node that is on both, and how a message is known again.

Only control ports: a message that was relayed has cost two buses. The head names who sent it and which one of its
messages to that node it is; numbers that come again, or late, are not delivered.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from fairlead.bus.frames import Malformed

PORTS: Final = frozenset({"config", "admin"})
PREFIXES: Final = ("settle:", "voter:", "ballot:")
HEAD: Final = Struct("<BQQ")


def is_control(port: str) -> bool:
    return port in PORTS or port.startswith(PREFIXES)


def pack(origin: str, start: int, number: int) -> bytes:
    name = origin.encode()
    return HEAD.pack(len(name), start, number) + name


def parse(content: memoryview) -> tuple[str, int, int, memoryview]:
    """Origin, its start, the number, and the message."""
    if len(content) < HEAD.size:
        raise Malformed("a relayed message without a head")
    size, start, number = HEAD.unpack_from(content)
    end = HEAD.size + size
    if len(content) < end:
        raise Malformed("a relayed message without its sender")
    try:
        return str(content[HEAD.size : end], "utf-8"), start, number, content[end:]
    except UnicodeDecodeError:
        raise Malformed("a relayed message whose sender is no text") from None


class Numbers:
    """Which relayed messages are ours to send and new to us."""

    def __init__(self) -> None:
        self._sent: dict[str, int] = {}
        self._seen: dict[str, tuple[int, int]] = {}

    def next(self, node: str) -> int:
        self._sent[node] = self._sent.get(node, 0) + 1
        return self._sent[node]

    def is_new(self, origin: str, start: int, number: int) -> bool:
        if self._seen.get(origin, (0, 0)) >= (start, number):
            return False
        self._seen[origin] = (start, number)
        return True
