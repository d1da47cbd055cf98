"""A very large message on its way out: pieces up to where the server grants, again from where it stopped.

Pieces are kept until the server has them, so that a source that cannot be read again survives a loss too (CLU-98,
CLU-123). The edge reads as much of the source as `room` says, from `position` on, and calls `offer`. A server whose
host lost power may have less than it had: then a source that can be read again goes on from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING

from fairlead.client.durable.commands import Command, Facts, moot
from fairlead.errors import TransferFailed
from fairlead.wire.codec import encode_frame
from fairlead.wire.durable import KIND_PIECE, LARGE
from fairlead.wire.kinds import FLAG_LAST

if TYPE_CHECKING:
    from fairlead.client.durable.part import Part
    from fairlead.client.durable.producer import Producer

__all__ = ["Upload", "discard"]

WINDOW_BYTES = 1 << 20


def discard(part: Part, number: int) -> None:
    """No message will ever name it: the server need not keep it until the session ends."""
    part.ask(Command("transfer", {"transfer": number, "drop": True}, moot))


class Upload:
    """`done` is called when the server has everything: with the body of the entry to send, or with what went wrong."""

    def __init__(
        self,
        producer: Producer,
        number: int,
        length: int | None,
        *,
        seekable: bool = False,
        wake: Callable[[], None],
        done: Callable[[bytes, Exception | None], None],
    ) -> None:
        self.producer = producer
        self.number = number
        self.is_over = False
        self.position = 0  # where to go on reading the source
        self._seekable = seekable
        self._hashed = 0
        self._length = length
        self._wake = wake
        self._done = done
        self._hash = sha256()
        self._kept: deque[tuple[int, bytes]] = deque()  # offset and bytes of what the server may not have
        self._unsent: deque[tuple[int, bytes]] = deque()
        self._granted = 0
        self._window = WINDOW_BYTES
        self._live = False
        self._last = False  # the source is read to its end
        self._begun = False  # the server may have something of it
        producer.part.uploads.append(self)
        if producer.handle:
            self.begin()

    @property
    def room(self) -> int:
        """How much of the source to read now."""
        return 0 if self._last or self.is_over else max(min(self._granted - self.position, self._fragment), 0)

    @property
    def _fragment(self) -> int:
        return self.producer.part.road.fragment

    def begin(self) -> None:
        """Its producer is open: ask how far the server is."""
        self._begun = True
        fields: Facts = {
            "producer": self.producer.handle,
            "transfer": self.number,
            "length": self._length,
            "resume": True,
        }
        self.producer.part.ask(Command("transfer", fields, self._on_begun, on_loss="drop"))

    def _on_begun(self, facts: Facts, error: Exception | None) -> None:
        if self.is_over:
            return
        if error is not None:
            self.fail(error)
            return
        offset = int(facts.get("offset") or 0)
        self._window = int(facts.get("window") or WINDOW_BYTES)
        oldest = self._kept[0][0] if self._kept else self.position
        if offset > self.position or (offset < oldest and not self._seekable):
            self.fail(TransferFailed(f"The server has {offset} bytes of it; what follows cannot be read again."))
            return
        if offset < oldest:
            self.position, self._last = offset, False
            self._kept.clear()
        self._live = True
        self._unsent = deque(
            (max(at, offset), piece[max(offset - at, 0) :])
            for at, piece in self._kept
            if at + len(piece) > offset or (self._last and not piece)
        )
        if self._last and not self._unsent:
            self._unsent.append((self.position, b""))
        self.on_granted(offset + self._window, complete=bool(facts.get("complete")))

    def offer(self, piece: bytes, *, last: bool) -> None:
        """The next bytes of the source."""
        if self.is_over:
            return
        self._hash.update(piece[max(self._hashed - self.position, 0) :])
        self._last = last
        self._kept.append((self.position, piece))
        self._unsent.append((self.position, piece))
        self.position += len(piece)
        self._hashed = max(self._hashed, self.position)
        if self._length is not None and (self.position > self._length or (last and self.position < self._length)):
            self.fail(TransferFailed(f"The source does not have the {self._length} bytes it was said to have."))
            return
        self._send()

    def on_granted(self, offset: int, *, complete: bool) -> None:
        """It may be sent up to here; what is a window before that is on the server's disk."""
        if complete:
            self._finish()
            return
        self._granted = max(self._granted, offset)
        stored = self._granted - self._window
        while self._kept and self._kept[0][1] and self._kept[0][0] + len(self._kept[0][1]) <= stored:
            self._kept.popleft()
        self._send()
        self._wake()

    def _send(self) -> None:
        road = self.producer.part.road
        while self._live and self._unsent and self._unsent[0][0] + len(self._unsent[0][1]) <= self._granted:
            at, piece = self._unsent.popleft()
            flags = FLAG_LAST if self._last and not self._unsent else 0
            road.send(encode_frame(KIND_PIECE, flags, self.producer.handle, self.number, at, b"", b"", piece))
            road.changed()

    def _finish(self) -> None:
        if not self.is_over:
            self._end()
            self._done(LARGE.pack(self.number, self.position, self._hash.digest()), None)
            self._wake()

    def on_lost(self) -> None:
        self._live = False
        self._granted = 0

    def fail(self, error: Exception) -> None:
        if not self.is_over:
            self._end()
            if self._begun:
                discard(self.producer.part, self.number)
            self._done(b"", error)
            self._wake()

    def _end(self) -> None:
        self.is_over = True
        if self in self.producer.part.uploads:
            self.producer.part.uploads.remove(self)
