"""The batches of one scan as they come in: pieces go straight to their place, and every batch has memory of its own.

So the arrays that are made of a batch can keep its memory, as long as they need it, without a copy.
"""

from __future__ import annotations

from collections import deque

from fairlead.client.bulk.incoming import Head
from fairlead.client.bulk.memory import Memory
from fairlead.errors import FairleadError, RemoteProtocolError
from fairlead.wire.column_batch import BATCH, Columns
from fairlead.wire.column_codec import parse
from fairlead.wire.kinds import FLAG_LAST

__all__ = ["Batches"]

NOTHING = memoryview(bytearray())
SIZE_AT = 6  # among the fields of BATCH


class Batches:
    """One scan of one line. A batch longer than `bytes_max` is none we asked for."""

    def __init__(self, handle: int, bytes_max: int, memory: Memory) -> None:
        self.handle = handle
        self.bytes_max = bytes_max
        self._memory = memory
        self.ready: deque[Columns] = deque()
        self.granted = 0
        """Batches the server may still send, the one that is coming in among them."""
        self.received_bytes = 0
        self.error: FairleadError | None = None
        self._batch = 0  # number of the last whole one
        self._begin = memoryview(bytearray(BATCH.size))
        self._bytes = NOTHING
        self._filled = 0

    # Receiver of COLUMNS frames.

    def room(self, head: Head, done: int) -> memoryview:
        if done == 0:
            self._check(head)
        at = head.peer + done
        if at < BATCH.size:
            return self._begin[at : min(BATCH.size, at + head.rest_bytes - done)]
        if at == BATCH.size:
            self._open()
        end = at + head.rest_bytes - done
        if end > len(self._bytes):
            raise RemoteProtocolError(f"A batch of {len(self._bytes)} bytes goes on to byte {end}.")
        return self._bytes[at:end]

    def _check(self, head: Head) -> None:
        if not self.granted:
            raise RemoteProtocolError("A batch came that was not asked for.")
        if head.topic_bytes or head.section_bytes:
            raise RemoteProtocolError("A piece of a batch has a topic or headers.")
        if (head.correlation, head.peer) != (self._batch + 1, self._filled):
            raise RemoteProtocolError(
                f"Batch {self._batch + 1} should go on at byte {self._filled}; batch {head.correlation} came, "
                f"at byte {head.peer}."
            )

    def _open(self) -> None:
        size = BATCH.unpack(self._begin)[SIZE_AT]
        if not BATCH.size <= size <= self.bytes_max:
            raise RemoteProtocolError(f"A batch says that it has {size} bytes.")
        self._bytes = self._memory.take(size)
        self._bytes[: BATCH.size] = self._begin

    def on_piece(self, head: Head) -> None:
        """A COLUMNS frame is in."""
        self._filled += head.rest_bytes
        self.received_bytes += head.rest_bytes
        if not head.flags & FLAG_LAST:
            return
        if self._filled == BATCH.size:
            self._open()
        if self._filled != len(self._bytes):
            raise RemoteProtocolError(f"A batch of {len(self._bytes)} bytes ended at byte {self._filled}.")
        self.ready.append(parse(self._bytes))
        self._batch += 1
        self.granted -= 1
        self._filled = 0
        self._bytes = NOTHING
