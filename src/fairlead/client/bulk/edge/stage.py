"""A place at the server for rows that nobody sees before their batch is published."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairlead.client.bulk.answers import Staged, taken
from fairlead.client.bulk.attempts import Attempts
from fairlead.client.bulk.unconfirmed import Bytes, Unconfirmed
from fairlead.errors import FairleadError

if TYPE_CHECKING:
    from fairlead.client.bulk.edge.connection import BulkConnection
    from fairlead.client.bulk.edge.line import Line

__all__ = ["Stage"]


class Stage:
    """Rows of one stage for one destination, in the order in which they are sent.

    What is sent must not be changed before `finish`: it is kept, not copied, and sent again after a lost connection.
    """

    def __init__(self, connection: BulkConnection, fields: dict[str, Any]) -> None:
        self._connection = connection
        self._fields = fields
        self._rows = Unconfirmed()
        self._line: Line | None = None
        self._failed: FairleadError | None = None
        self.is_published = False
        """Was this batch published before the stage was opened? Then there is nothing to send."""

    @property
    def rows(self) -> int:
        """How many were sent."""
        return self._rows.added

    @property
    def rows_safe(self) -> int:
        """How many of them are on stable storage."""
        return min(self._rows.safe, self._rows.added)

    def open(self) -> None:
        self._carry(lambda: True)

    def send(self, entries: Bytes, count: int) -> None:
        """`count` rows (docs/durable.md, section 3), at most ENTRIES_BYTES_MAX bytes; waits only for room."""
        rows = self._rows
        self._carry(lambda: rows.is_safe if self._is_moving else rows.has_room)
        rows.add(entries, count, time.time_ns() // 1_000_000)
        line = self._line
        if line is not None and not line.closed:
            try:
                line.protocol.store(rows)
                line.push()
            except FairleadError:
                pass  # whatever it is, the next call meets it again, or goes on with another line

    def finish(self) -> int:
        """Wait until all rows are safe; how many there are."""
        self._carry(lambda: self._rows.is_safe)
        return self._rows.added

    @property
    def _is_moving(self) -> bool:
        return self._line is not None and self._line.protocol.moving

    def _carry(self, done: Callable[[], bool]) -> None:
        """Let rows travel until it is so; open again and repeat what is not safe, whenever a line is lost."""
        if self._failed is not None:
            raise self._failed

        def work(line: Line, attempts: Attempts) -> None:
            rows = self._rows
            if line is not self._line:
                opened = taken(Staged, self._connection.command(line, "stage", self._fields, attempts))
                rows.on_open(opened.stage, opened.accepted, opened.window_bytes)
                line.protocol.stages[opened.stage] = rows
                self._line = line
                self.is_published = opened.published
            before = rows.safe
            try:
                line.protocol.store(rows)
                self._connection.wait(line, lambda: rows.error is not None or done(), lambda: rows.safe, attempts)
            finally:
                if rows.safe > before:
                    attempts.on_progress(time.monotonic())
            if rows.error is not None:
                line.protocol.stages.pop(rows.handle, None)
                self._line = None
                raise rows.error

        try:
            self._connection.trying(work)
        except FairleadError as error:
            self._failed = error
            raise
