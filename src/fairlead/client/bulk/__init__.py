"""Messages by the million: a small blocking client for programs that read ranges and publish batches."""

from __future__ import annotations

from fairlead.client.bulk.answers import Cursor, Plan, Position, Positions, Published
from fairlead.client.bulk.edge.connection import BulkConnection, Tls
from fairlead.client.bulk.edge.stage import Stage
from fairlead.client.bulk.unconfirmed import ENTRIES_BYTES_MAX
from fairlead.wire.column_batch import Columns

__all__ = [
    "ENTRIES_BYTES_MAX",
    "BulkConnection",
    "Columns",
    "Cursor",
    "Plan",
    "Position",
    "Positions",
    "Published",
    "Stage",
    "Tls",
]
