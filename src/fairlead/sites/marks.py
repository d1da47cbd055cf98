"""What a message carries over links: where it was published, its number there, and the servers it came through.

Links put it into headers of the protocol's own. Whether to believe them says the sender's uid, which is the server's
word: only that of a link counts.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from fairlead.broker.interest import PATH_HEADER
from fairlead.message import Message
from fairlead.wire.headers import encode_headers

ORIGIN_HEADER = ":origin"
FROM_HEADER = ":from"
KEPT = (":reply", ":type", ":org", ":asked", ":last", ":lost")
WINDOW = 65_536
HOPS_MAX = 32


class Mark(NamedTuple):
    """Of one message: numbers are counted by the first bridge that took it up."""

    origin: str
    bridge: str
    number: int
    path: tuple[str, ...]

    def pairs(self, here: str) -> list[tuple[str, bytes | str]]:
        """… when it leaves `here`."""
        return [
            (ORIGIN_HEADER, f"{self.origin},{self.bridge},{self.number}"),
            (PATH_HEADER, ",".join([*self.path, here])),
        ]


def read(message: Message) -> Mark | None:
    """The mark a link gave it; None when it cannot be read."""
    origin, path = message.protocol_header(ORIGIN_HEADER), message.protocol_header(PATH_HEADER)
    if origin is None or path is None:
        return None
    parts = origin.decode(errors="replace").split(",")
    if len(parts) != 3 or not parts[2].isdecimal() or len(parts[2]) > 20:
        return None
    return Mark(parts[0], parts[1], int(parts[2]), tuple(path.decode(errors="replace").split(","))[:HOPS_MAX])


def section(message: Message, mark: Mark, here: str, user: str | None) -> bytes:
    """The header section of a message that leaves `here`; first the sender's user, for which the next one vouches."""
    pairs: list[tuple[str, bytes | str]] = [(FROM_HEADER, user)] if user else []
    pairs += mark.pairs(here)
    return encode_headers(pairs + kept(message))


def kept(message: Message) -> list[tuple[str, bytes | str]]:
    """Everything in its headers that is not about links."""
    pairs: list[tuple[str, bytes | str]] = []
    for key in KEPT:
        value = message.protocol_header(key)
        if value is not None:
            pairs.append((key, value))
    return pairs + list(message.headers.items())


class Seen:
    """The numbers that went over a link, so that none does twice while ways change: a window per origin and bridge."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._seen: dict[tuple[str, str], OrderedDict[int, None]] = {}

    def is_new(self, mark: Mark) -> bool:
        """True the first time."""
        seen = self._seen.setdefault((mark.origin, mark.bridge), OrderedDict())
        if mark.number in seen:
            return False
        seen[mark.number] = None
        if len(seen) > self._window:
            seen.popitem(last=False)
        return True

    def forget(self, servers: set[str]) -> None:
        """Only these servers are left."""
        for key in [key for key in self._seen if key[0] not in servers]:
            del self._seen[key]
