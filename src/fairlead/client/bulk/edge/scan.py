"""Reading a range of a destination, batch by batch; a lost line costs the batch that was coming in, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fairlead.client.bulk.answers import taken
from fairlead.client.bulk.attempts import Attempts
from fairlead.client.bulk.batches import Batches
from fairlead.client.bulk.memory import Memory
from fairlead.errors import FairleadError, RemoteProtocolError, TooMany, Unavailable
from fairlead.wire.column_batch import Columns

if TYPE_CHECKING:
    from fairlead.client.bulk.edge.connection import BulkConnection
    from fairlead.client.bulk.edge.line import Line

__all__ = ["Scan"]

AHEAD_MAX = 8  # the server does not count grants beyond
BATCH_BYTES_EXTRA = 16 << 20


class Scan:
    """`ahead` batches may be on their way while the program works on one."""

    def __init__(self, connection: BulkConnection, fields: dict[str, Any], *, ahead: int) -> None:
        self._connection = connection
        self._fields = fields
        self._ahead = min(max(ahead, 1), AHEAD_MAX)
        self._at: int = fields["first"]
        self._line: Line | None = None
        self._memory = Memory()
        self._batches = Batches(0, 0, self._memory)

    def __iter__(self) -> Iterator[Columns]:
        beyond: int = self._fields["beyond"]
        try:
            while self._at < beyond:
                batch = self._connection.trying(self._next)
                if batch.rows:
                    yield batch
                if batch.end:
                    break
        finally:
            self._close()

    def _next(self, line: Line, attempts: Attempts) -> Columns:
        if line is not self._line:
            self._open(line, attempts)
        batches = self._batches
        self._grant(line)
        self._connection.wait(
            line,
            lambda: bool(batches.ready) or batches.error is not None,
            lambda: batches.received_bytes,
            attempts,
        )
        if not batches.ready:
            self._line = None
            assert batches.error is not None
            raise batches.error
        batch = batches.ready.popleft()
        if batch.next <= self._at and not batch.end:
            line.close()
            raise RemoteProtocolError(f"A scan stands still at {self._at}.")
        self._at = batch.next
        if batch.end:
            line.protocol.scans.pop(batches.handle, None)
            self._line = None
        elif not line.protocol.moving:
            self._grant(line)
            self._push(line)
        return batch

    def _open(self, line: Line, attempts: Attempts) -> None:
        try:
            facts = self._connection.command(line, "scan", {**self._fields, "first": self._at}, attempts)
        except TooMany as error:  # as many as the server takes are open: others will end
            raise Unavailable(error.text, code=error.code) from error
        # What a row takes as columns may be more than it counts for, since text is longer than what it stands for.
        bytes_max = 4 * int(self._fields["bytes"]) + BATCH_BYTES_EXTRA
        self._batches = Batches(taken(int, facts.get("scan")), bytes_max, self._memory)
        line.protocol.scans[self._batches.handle] = self._batches
        self._line = line

    def _grant(self, line: Line) -> None:
        batches = self._batches
        under_way = batches.granted + len(batches.ready)
        if under_way < self._ahead and not (line.protocol.moving and under_way):
            line.protocol.grant(batches, self._ahead - under_way)

    def _push(self, line: Line) -> None:
        try:
            line.push()
        except FairleadError:
            pass  # the next batch goes on with another line

    def _close(self) -> None:
        line, self._line = self._line, None
        if line is not None and not line.closed:
            line.protocol.stop(self._batches)
            self._push(line)
