"""Names that mean something by themselves: destinations that are always there, and patterns. Cheap to import."""

from __future__ import annotations

from typing import Final

from fairlead import topics
from fairlead.cluster.parameters import Kind

NAMES_PER_FRAME: Final = 2000  # of a greeting or an announcement
WELL_KNOWN: Final[dict[str, tuple[int, Kind]]] = {"_ADMIN": (1, "topic"), "_LOG": (2, "topic"), "_DMQ": (3, "queue")}


def fixed_id(number: int, group: int = 0) -> bytes:
    """Ids of the destinations that are always there: nobody needs to look them up (CLU-178)."""
    return bytes(16) + (group << 24 | number).to_bytes(4, "big")


def is_pattern(name: str) -> bool:
    return name.startswith((topics.GLOB, topics.REGEX)) or any(sign in name for sign in "*>?")
