"""What a stored message carries over links: the id it had where it was first stored, and the ways it came.

The id is its deduplication id at every further server, so a message that is carried twice, because a bridge was killed
between storing it there and acknowledging it here, is stored once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

ID, PATH = "fairlead_id", "fairlead_path"

Value = bool | int | float | str | bytes


class Trail(NamedTuple):
    """Of one message."""

    id: str
    path: tuple[str, ...]

    @classmethod
    def of(cls, message_id: str, properties: Mapping[str, Value]) -> Trail:
        first, path = properties.get(ID, message_id), properties.get(PATH, "")
        return cls(str(first), tuple(filter(None, str(path).split(","))))

    def may_go(self, way: Way) -> bool:
        """Not back to where it came from."""
        return way.back not in self.path

    def properties(self, given: Mapping[str, Value], way: Way) -> dict[str, Value]:
        """Those of the message when it has gone this way."""
        return {**given, ID: self.id, PATH: ",".join([*self.path, way.name])}


class Way(NamedTuple):
    """One direction of the link between a server and one of its parents; named after the bridge and the parent."""

    name: str
    back: str

    def subscription(self, pattern: str) -> str:
        """The name of the durable subscription that feeds it."""
        return f"link-{hashlib.blake2b(f'{self.name} {pattern}'.encode(), digest_size=12).hexdigest()}"

    @classmethod
    def both(cls, bridge: str, parent: str) -> tuple[Way, Way]:
        """Up and down."""
        up, down = f"{bridge}>{parent}", f"{bridge}<{parent}"
        return cls(up, down), cls(down, up)
