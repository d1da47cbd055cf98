"""A very large message on its way in: asked for window by window, from where it stopped when the line was lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING

from fairlead.errors import TransferFailed
from fairlead.wire.codec import encode_frame
from fairlead.wire.durable import KIND_PULL
from fairlead.wire.entry_codec import Delivered
from fairlead.wire.kinds import FLAG_LAST

if TYPE_CHECKING:
    from fairlead.client.durable.consumer import DurableConsumer

__all__ = ["Download"]

WINDOW_BYTES = 1 << 20


class Download:
    """Pieces in order; the hash of the whole is checked before its end is believed."""

    def __init__(self, consumer: DurableConsumer, message: Delivered, wake: Callable[[], None]) -> None:
        large = message.large
        assert large is not None
        self._consumer = consumer
        self._message = message
        self._wake = wake
        _, self.length, self._digest = large
        self._hash = sha256()
        self._pieces: deque[bytes] = deque()
        self._at = 0  # received so far
        self._taken = 0  # given to the application
        self._granted = 0
        self._handle = message.handle
        self.error: Exception | None = None
        self.is_over = False
        self._pull()

    def take(self) -> bytes | None:
        """The next piece; None: nothing is there at the moment, or nothing more will come."""
        if not self._pieces:
            if self.error is not None:
                raise self.error
            return None
        piece = self._pieces.popleft()
        self._taken += len(piece)
        if not self.is_over and self._granted - self._taken <= WINDOW_BYTES // 2:
            self._pull()
        return piece

    @property
    def is_read(self) -> bool:
        return self.is_over and not self._pieces

    def on_data(self, offset: int, flags: int, body: bytes) -> None:
        if self.is_over or self.error is not None or offset > self._at:
            return
        piece = body[self._at - offset :] if offset < self._at else body
        if piece:
            self._hash.update(piece)
            self._at += len(piece)
            self._pieces.append(piece)
        if self._at >= self.length:
            self.is_over = True
            self._consumer.end_download(self._message.order)
            if self._at != self.length or self._hash.digest() != self._digest:
                self.error = TransferFailed("The message that came is not the one that was sent: its hash differs.")
        elif flags & FLAG_LAST:
            self.fail(TransferFailed(f"The message ended after {self._at} of {self.length} bytes."))
        self._wake()

    def close(self) -> None:
        """No more of it: the server is told to stop (CLU-100)."""
        if not self.is_over and self.error is None:
            self._say(FLAG_LAST)
        self._consumer.end_download(self._message.order)
        self.is_over = True
        self._pieces.clear()

    def on_lost(self) -> None:
        self._handle = 0

    def on_open(self, handle: int) -> None:
        """The consumer has a line again; if the message is still there, it goes on."""
        self._handle = handle
        self._granted = self._at
        self._pull()

    def fail(self, error: Exception) -> None:
        if not self.is_over and self.error is None:
            self.error = error
            self._wake()

    def _pull(self) -> None:
        self._granted = min(self._taken + WINDOW_BYTES, self.length)
        self._say(0)

    def _say(self, flags: int) -> None:
        if self._handle:
            road = self._consumer.part.road
            frame = encode_frame(KIND_PULL, flags, self._handle, self._message.order, self._granted, b"", b"", b"")
            road.send(frame)
            road.changed()
