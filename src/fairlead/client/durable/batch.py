"""Messages that were sent together and are not confirmed yet: they are kept until they are, and sent again at need."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.client.durable.receipt import Receipt, Ticket
from fairlead.wire.codec import encode_frame
from fairlead.wire.durable import KIND_STORE, STORE_HEAD
from fairlead.wire.entry_codec import span

__all__ = ["Batch"]


class Batch:
    """One STORE. `entries` is None while the body of its very large message is still on its way."""

    __slots__ = ("confirmed", "count", "entries", "first", "id_first", "sent_ms", "size", "tickets")

    def __init__(
        self, first: int, count: int, entries: bytes | None, tickets: Sequence[Ticket | None], size: int = 0
    ) -> None:
        self.first = first
        self.count = count
        self.entries = entries
        self.tickets = tickets
        self.size = size  # what it counts for in the window
        self.confirmed = 0  # how many of them
        self.id_first = 0
        self.sent_ms = 0

    @property
    def beyond(self) -> int:
        return self.first + self.count

    def frame(self, producer: int, transaction: int = 0) -> bytes:
        assert self.entries is not None
        head = STORE_HEAD.pack(self.count, 0, self.sent_ms, self.id_first)
        return encode_frame(KIND_STORE, 0, producer, self.first, transaction, b"", b"", head + self.entries)

    def confirm(self, count: int, order: int | None, destination: str, duplicate: bool, id_base: str) -> None:
        """The next `count` of them are stored, in one run."""
        at = self.confirmed
        self.confirmed += count
        number = self.id_first + at
        new = tuple.__new__  # half the time of calling the class, and there may be many
        for ticket in self.tickets[at : at + count]:
            if ticket is not None and not ticket.done():
                ticket.set_result(new(Receipt, (id_base, number, order, destination, duplicate)))
            number += 1
            if order is not None:
                order += 1

    def refuse(self, count: int, error: Exception) -> None:
        """The next `count` of them will not be stored."""
        at = self.confirmed
        self.confirmed += count
        for ticket in self.tickets[at : at + count]:
            if ticket is not None and not ticket.done():
                ticket.set_exception(error)

    def cut(self) -> None:
        """Forget what is confirmed, so that only the rest is sent again."""
        done = self.confirmed
        if done and self.entries is not None:
            start, end = span(self.entries, 0, len(self.entries), done, self.count - done)
            self.entries = bytes(self.entries[start:end])
            self.tickets = self.tickets[done:]
            self.first += done
            self.id_first += done
            self.count -= done
            self.confirmed = 0
