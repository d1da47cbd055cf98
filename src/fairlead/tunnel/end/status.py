"""What can be seen of an end from outside: its role, its state, its figures (TUN-102)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from fairlead.tunnel.packets import Abort

__all__ = ["EndStatus", "Role", "State"]


class Role(Enum):
    """Who opened: the only thing in which the two ends differ."""

    CLIENT = "client"
    BROKER = "broker"


class State(Enum):
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    """One of the two closes is under way: no more writes are taken."""
    CLOSED = "closed"
    """Both closes were acknowledged; the id is remembered for a while (TUN-92)."""
    ABORTED = "aborted"


class EndStatus(NamedTuple):
    """Numbers of packets are as they look on the wire."""

    connection_id: int
    version: int
    role: Role
    state: State
    reason: Abort | None
    received: int
    """R: all up to here has come."""
    consumed: int
    """C: R less the packets that wait for the reader."""
    window: int
    """Packets this end can still take."""
    edge: int
    """Highest number this end may send."""
    acknowledged: int
    unacknowledged: int
    waiting_bytes: int
    """Written, not yet in a packet."""
    readable_bytes: int
    resends: int
    probes: int
    duplicates: int
    damaged: int
    """Packets the driver left out for their checksum."""
    dropped: int
    """Of a foreign id or version, of an unknown type, beyond the window, or not fit for the state."""
    rtt_s: float | None
    interval_s: float
    pull_period_s: float
    age_s: float
    silent_s: float
    """Since the last ACK, while one is awaited."""
