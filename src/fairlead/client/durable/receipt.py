"""What became of a send: the receipt, and whoever waits for it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

__all__ = ["Receipt", "Ticket"]


class Receipt(NamedTuple):
    """A message is stored. `order` is its place in the destination; None when it was learnt at a resume."""

    id_base: str
    id_number: int
    order: int | None
    destination: str
    duplicate: bool = False
    """It was there already: a repeat, or another message with the same deduplication id."""

    @property
    def id(self) -> str:
        """The message id, as consumers see it; empty in a transaction, whose receipt is the commit."""
        return f"{self.id_base}{self.id_number:014x}" if self.id_base else ""

    def __repr__(self) -> str:
        again = ", duplicate" if self.duplicate else ""
        return f"<Receipt {self.destination!r} {self.order}, id {self.id}{again}>"


class Ticket(Protocol):
    """Whoever waits for a receipt: as much of a future as is needed here."""

    def done(self) -> bool: ...

    def set_result(self, result: Receipt, /) -> object: ...

    def set_exception(self, exception: Exception, /) -> object: ...
