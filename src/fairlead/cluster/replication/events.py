"""What a member tells its edge: roles, messages to send, and what has happened."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fairlead.cluster.replication.messages import Message
from fairlead.cluster.replication.record import ControlRecord


class Role(Enum):
    """The states of a group member (spec, 5.2)."""

    JOINING = "joining"  # knows of no primary yet
    UNSYNCHRONISED = "unsynchronised"  # follows, but its log does not meet the primary's yet
    SYNCHRONISING = "synchronising"  # gets the primary's records; not in the set
    IN_SYNC = "in-sync"
    CANDIDATE = "candidate"
    PRIMARY = "primary"
    SUSPENDED = "suspended"  # primary without a lease


@dataclass(frozen=True, slots=True)
class Send:
    """A message for a part of a node: port `member:GROUP` or `voter:GROUP`."""

    node: str
    port: str
    message: Message


@dataclass(frozen=True, slots=True)
class Led:
    """We lead: append the START record of this epoch to the log, then call `on_appended`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class SteppedDown:
    """We lead no more; what is not safe in our log may be cut."""

    epoch: int
    why: str


@dataclass(frozen=True, slots=True)
class Serving:
    """Whether we may take commands and deliver (CLU-149)."""

    serving: bool


@dataclass(frozen=True, slots=True)
class NeedsState:
    """Records do not help any more: fetch a whole state from one of these nodes, best first (CLU-131)."""

    why: str
    hosts: tuple[str, ...]
    epoch: int


@dataclass(frozen=True, slots=True)
class SetChanged:
    """This record is valid now."""

    record: ControlRecord


@dataclass(frozen=True, slots=True)
class Waiting:
    """We cannot lead until somebody is there; told when the reason changes (CLU-129, CLU-150)."""

    whom: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Degraded:
    """The set has fewer stores than a confirm should have copies, or has enough again (CLU-116)."""

    degraded: bool


@dataclass(frozen=True, slots=True)
class SetAside:
    """Records from `first` to `last` of our log were undone: no primary has them (CLU-152)."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A handover ended: the target was told to lead, or why it was given up."""

    to: str
    done: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Forced:
    """We lead by an administrator's word; stores that may have had more (CLU-151)."""

    epoch: int
    missing: tuple[str, ...]


Event = Led | SteppedDown | Serving | NeedsState | SetChanged | Waiting | Degraded | SetAside | HandedOver | Forced
