"""What the session asks of its edge, and what the application may want to hear."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from fairlead.client.link import Link
    from fairlead.client.target import Address

__all__ = ["Drop", "Effect", "Event", "Live", "Lost", "OpenSuccessor", "Switched", "Undelivered"]


@dataclass(frozen=True, slots=True)
class Live:
    """This link is the session's now; `again` says it replaces one that was lost."""

    link: Link
    again: bool


@dataclass(frozen=True, slots=True)
class Drop:
    """Close this link: it is of no more use."""

    link: Link
    error: Exception


@dataclass(frozen=True, slots=True)
class Lost:
    """The session has no link any more; whoever waited has been told."""

    error: Exception


@dataclass(frozen=True, slots=True)
class OpenSuccessor:
    """Open a second link with this token (make before break); or leave for one of these addresses, if there are any."""

    token: str
    within_s: float
    elsewhere: list[Address] = field(default_factory=list)
    renew: bool = False
    """Only because the login is about to expire: of no use without a fresh one."""


@dataclass(frozen=True, slots=True)
class Switched:
    """The successor carries on; the old link can be closed."""

    old: Link
    new: Link


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A one-way message found nobody, or was refused."""

    error: Exception


Effect: TypeAlias = Live | Drop | Lost | OpenSuccessor | Switched | Undelivered


@dataclass(frozen=True, slots=True)
class Event:
    """Something the application may want to know.

    `lost`, `reconnected`, `moved`, `undelivered` or `closed`; of an application's connection also `labelled`, and
    `integrity`: a message was changed on the way, or cannot be opened, and was put aside.
    """

    name: str
    error: Exception | None = None
