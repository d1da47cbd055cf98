"""What the distributor asks of its edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairlead.cluster.configuration.messages import Message
from fairlead.cluster.configuration.types import ClusterSettings


@dataclass(frozen=True, slots=True)
class Send:
    node: str
    message: Message


@dataclass(frozen=True, slots=True)
class Adopt:
    """These settings are in force now; the file is written before anything else happens."""

    settings: ClusterSettings


@dataclass(frozen=True, slots=True)
class Checked:
    """This node may work."""


@dataclass(frozen=True, slots=True)
class Refused:
    """This node must end, with this sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """A change has been decided, or `error` says why not. `missing`: nodes that have not told that they have it."""

    ticket: int
    error: str
    revision: int
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Note:
    """For the log."""

    level: Literal["info", "warning", "error"]
    text: str


Event = Adopt | Checked | Refused | Done | Note
