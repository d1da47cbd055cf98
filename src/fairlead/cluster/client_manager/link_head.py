"""What goes between an agent and a group's primary over the bus, before envelopes and frames (docs/cluster.md, 5)."""

from __future__ import annotations

import struct
from typing import Final

LINK_HEAD: Final = struct.Struct("<BxHIQ")
"""what, slot (whose link it is; the agent's own has the last number), generation, epoch."""

OPEN: Final = 1
DATA: Final = 2
CLOSE: Final = 3
REFUSED: Final = 4  # from the member: it is not the primary of that epoch
FULL: Final = 5  # to the primary: the manager of this link takes no more for the moment
ROOM: Final = 6  # … and does again

OWN_SLOT: Final = 0xFFFF
SLOTS: Final = 0xFFFF  # others are below


def port_of(group: str) -> str:
    return f"link:{group}"
