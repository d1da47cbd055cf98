"""What the arbitration asks of the edge around it, to be done first to last."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from fairlead.feeds.words import FetchAdmin, Fill, LineOffer, SnapshotAsk, Start, Stop

__all__ = ["Ask", "Dial", "Drop", "RenewNow", "ReportNow", "Say"]


class Dial(Struct, frozen=True):
    """Have a line to this adapter, and dial again whenever it is down, until Drop."""

    offer: LineOffer


class Drop(Struct, frozen=True):
    """Close the line and hand in nothing more of it."""

    adapter: str
    why: str


class Say(Struct, frozen=True):
    adapter: str
    word: Start | Stop | Fill | SnapshotAsk | FetchAdmin


class ReportNow(Struct, frozen=True):
    """Tell the administration how this client is. `local`: it left the active adapter by itself (STR-31)."""

    local: bool


class RenewNow(Struct, frozen=True):
    """Ask the administration for a Notice: there is a source stream nobody has told of."""


Ask: TypeAlias = Dial | Drop | Say | ReportNow | RenewNow
