"""Rows of one stage that are not safe yet: they are kept until they are, and sent again on the next line.

Rows count from 1 within stage and destination, so that the server knows a repeat. What it has when the stage is
opened again is safe, and is not sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.client.bulk.incoming import HEAD
from fairlead.errors import BodyTooLarge, FairleadError, LocalProtocolError, RemoteProtocolError, from_wire
from fairlead.wire.durable import (
    COUNT_MAX,
    KIND_STORE,
    STORE_BYTES_MAX,
    STORE_HEAD,
    STORED_AGAIN,
    STORED_ITEM,
    STORED_NEW,
    STORED_REFUSED,
)
from fairlead.wire.entry_codec import span

__all__ = ["ENTRIES_BYTES_MAX", "WINDOW_BYTES_MAX", "Bytes", "Unconfirmed"]

ENTRIES_BYTES_MAX = STORE_BYTES_MAX - HEAD.size - STORE_HEAD.size
"""Of the entries handed over in one go."""
WINDOW_BYTES_MAX = 16 << 20

Bytes = bytes | bytearray | memoryview


@dataclass(slots=True, frozen=True)
class Rows:
    """What travels in one STORE."""

    first: int
    count: int
    entries: Bytes
    sent_ms: int

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def parts(self, handle: int) -> tuple[bytes, Bytes]:
        """The frame, in two parts: what is large is not copied."""
        length = HEAD.size + STORE_HEAD.size + len(self.entries)
        head = HEAD.pack(length, KIND_STORE, 0, 0, 0, handle, self.first, 0)
        return head + STORE_HEAD.pack(self.count, 0, self.sent_ms, 0), self.entries


class Unconfirmed:
    """`error` is why the server does not take them."""

    def __init__(self) -> None:
        self.handle = 0  # on the line there is
        self.added = 0
        self.safe = 0
        self.error: FairleadError | None = None
        self.window_bytes = WINDOW_BYTES_MAX
        self._bytes = 0
        self._rows: deque[Rows] = deque()
        self._sent = 0  # how many of them, on this line
        self._reason: FairleadError | None = None

    @property
    def is_safe(self) -> bool:
        return self.safe >= self.added

    @property
    def has_room(self) -> bool:
        """For as much as may be handed over in one go; a window smaller than that takes one at a time."""
        return not self._rows or self._bytes + ENTRIES_BYTES_MAX <= self.window_bytes

    def add(self, entries: Bytes, count: int, sent_ms: int) -> None:
        if not 0 < count <= COUNT_MAX:
            raise LocalProtocolError(f"{count} rows were handed over in one go; it takes 1 to {COUNT_MAX}.")
        if isinstance(entries, memoryview):
            entries = entries.cast("B")
        if len(entries) > ENTRIES_BYTES_MAX:
            raise BodyTooLarge(
                f"Entries of {len(entries)} bytes were handed over in one go; it takes {ENTRIES_BYTES_MAX}.",
                size=len(entries),
                limit=ENTRIES_BYTES_MAX,
            )
        self._rows.append(Rows(self.added + 1, count, entries, sent_ms))
        self._bytes += len(entries)
        self.added += count
        self._confirm(self.safe)  # a stage that was there before may have them already

    def on_open(self, handle: int, accepted: int, window_bytes: int) -> None:
        """It is open on a new line; everything up to `accepted` is safe."""
        self.handle = handle
        self.error = self._reason = None
        self.window_bytes = min(max(window_bytes, 1), WINDOW_BYTES_MAX)
        self._confirm(accepted)
        self._sent = 0

    def to_send(self) -> Iterator[tuple[bytes, Bytes]]:
        """What has not been sent on this line yet, frame by frame."""
        while self._sent < len(self._rows):
            self._sent += 1
            yield self._rows[self._sent - 1].parts(self.handle)

    def on_stored(self, body: bytes) -> None:
        """STORED: taken but not yet on stable storage (STORED_VOLATILE) does not count."""
        if len(body) % STORED_ITEM.size:
            raise RemoteProtocolError("STORED does not consist of whole items.")
        for first, count, status, _order, _arrival_ms in STORED_ITEM.iter_unpack(body):
            if status in (STORED_NEW, STORED_AGAIN):
                if first > self.safe + 1 or first + count - 1 > self.added:
                    raise RemoteProtocolError(f"Rows from {first} are said to be stored; {self.safe} were before.")
                self._confirm(first + count - 1)
            elif status == STORED_REFUSED and self.error is None:
                self.error = self._reason or from_wire("refused", "The server does not take these rows.")

    def on_refused(self, code: str, text: str) -> None:
        """A NOTICE with the reason; the first one counts, for what follows a refused row is out of order."""
        if self._reason is None:
            self._reason = from_wire(code, text)
        self.error = self.error or self._reason

    def _confirm(self, accepted: int) -> None:
        """Rows up to this number are safe; one that is partly so is cut."""
        self.safe = max(self.safe, accepted)
        rows = self._rows
        while rows and rows[0].last <= accepted:
            self._bytes -= len(rows.popleft().entries)
            self._sent = max(self._sent - 1, 0)
        if rows and rows[0].first <= accepted:
            cut = rows[0]
            done = accepted + 1 - cut.first
            start, end = span(cut.entries, 0, len(cut.entries), done, cut.count - done)
            rows[0] = Rows(cut.first + done, cut.count - done, memoryview(cut.entries)[start:end], cut.sent_ms)
            self._bytes -= len(cut.entries) - (end - start)
