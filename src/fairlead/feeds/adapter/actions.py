"""What an adapter machine asks of its edge: small structs, to be done first to last."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from fairlead.feeds.words import RoleName, Word

__all__ = ["Action", "BeatLines", "Log", "Renumbered", "RoleChanged", "StopLines", "ToAdministration", "ToLink", "Wake"]


class ToLink(Struct, frozen=True):
    """Say this to the adapter `peer`. If there is no link to it any more, nothing is to be done."""

    peer: str
    word: Word


class ToAdministration(Struct, frozen=True):
    word: Word


class Wake(Struct, frozen=True):
    """There are new blocks for lines to read."""


class StopLines(Struct, frozen=True):
    """This adapter is not active from here on: lines that were started send up to number `last`, then heartbeats only.

    A client that wants more, because it can reach nobody else, says `start` again.
    """

    last: int


class RoleChanged(Struct, frozen=True):
    """A backup drops its links and dials the active; the active drops the link it had dialled. Both report at once."""

    epoch: int
    role: RoleName
    active: str = ""
    active_address: str = ""
    link_token: str = ""


class Renumbered(Struct, frozen=True):
    """All numbers have moved by `shift`, under a new incarnation.

    Cursors stay valid. Each line is to be sent a heartbeat before any further block, since this names the incarnation.
    """

    incarnation: int
    shift: int


class BeatLines(Struct, frozen=True):
    """Each line is to be sent a heartbeat before any further block: it tells of a source that begins (STR-22)."""


class Log(Struct, frozen=True):
    level: Literal["info", "warning"]
    text: str


Action = BeatLines | ToLink | ToAdministration | Wake | StopLines | RoleChanged | Renumbered | Log
