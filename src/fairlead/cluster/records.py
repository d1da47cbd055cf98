"""What is written to the journal: kinds of records and their layouts. State is what these records say, in order.

Every record names what it concerns by the destination's number (given by its CREATE record) so that the state of each
destination can be kept, snapshotted and repaired by itself. A record is applied by the same function when it is
written and when it is read again at a start.
"""

from __future__ import annotations

import struct
from typing import Final

START: Final = 1  # JSON: a message manager began to write: epoch, store id, software, time
CREATE: Final = 2  # JSON {number, id, name, kind, parameters, temporary}
DELETE: Final = 3  # JSON {number}
CHANGE: Final = 4  # JSON {number, parameters}
SUBSCRIBE: Final = 5  # JSON {number, cursor, name, client, selector, shared, start, pattern}
UNSUBSCRIBE: Final = 6  # JSON {number, cursor}
SESSION: Final = 7  # JSON {id, incarnation, secret (hash), ended_ms or null}
STORE: Final = 8  # STORE_RECORD + entries: accepted messages, order numbers given
HIDDEN: Final = 9  # STORE_RECORD + entries: sent in a transaction; order numbers come with COMMIT
COMMIT: Final = 10  # COMMIT_RECORD + items: a transaction became effective, all of it
OUTCOME: Final = 11  # JSON {session, transaction, outcome}: rolled back for good; nobody may commit it any more
SETTLE: Final = 12  # SETTLE_RECORD + items: acknowledged, dropped, expired, count raised, delayed
MOVE: Final = 13  # STORE_RECORD + MOVED per message + entries: stored in one destination, settled in another
MARK: Final = 14  # MARK_RECORD: up to this order number messages may have been delivered, and none behind it
PLACE: Final = 15  # STORE_RECORD + entries: compaction copied messages; they are here now
FIRE: Final = 16  # STORE_RECORD + FIRE_RECORD + entries: a schedule fell due and made messages
CANCEL: Final = 17  # JSON {number, order}: a schedule was cancelled
TRANSFER: Final = 18  # JSON: a very large message begins, is complete, or is given up
CONFIG: Final = 19  # JSON {revision, settings}
RESERVE: Final = 21  # RESERVE_RECORD: messages of a queue reserved under the name of a cursor, with their positions
RESERVED: Final = 22  # RESERVED_RECORD: how far a cursor was committed, or that it was released
STAGE: Final = 23  # JSON {do: open, drop, forget, ids, …}: of stages and sinks; what is staged is in HIDDEN records
PUBLISH: Final = 24  # PUBLISH_RECORD + items + JSON: a batch of a query, its stages became visible, all of them
PREPARE: Final = 25  # PREPARE_RECORD + items + JSON: a transaction across groups is ready, and waits for the word
DECIDED: Final = 26  # JSON {rolled_back: id} or {complete: [id]}: of transactions across groups, known by their ids
DIRECTORY: Final = 27  # JSON: a change of the directory's tables (directory/tables.py)
PRODUCER: Final = 20  # JSON {session, numbers: {destination number: last accepted send number}}; from compaction

STORE_RECORD: Final = struct.Struct("<IIQI20sQQIIQQ20sI")
"""destination, flags of all entries or-ed, order number of the first (0 in HIDDEN), count, session id, first send
number, transaction, lowest priority, highest priority, time of sending, time of arrival, id of the first message,
bytes of entries. All records with messages (STORE, HIDDEN, MOVE, PLACE, FIRE) begin with it, end with the entries."""

SETTLE_RECORD: Final = struct.Struct("<IIQQ")
"""destination, cursor, transaction or 0, number of items."""

SETTLE_LINE: Final = struct.Struct("<QQIIQ")
"""first order number, one beyond, what (below), reason or raised count, due time in ms (0: now)."""

GONE: Final = 0  # acknowledged
RAISED: Final = 1  # delivery count raised to `reason`; visible again at the due time
EXPIRED: Final = 2
DROPPED: Final = 3  # purged, retention, replaced by a newer value
DEAD: Final = 4

COMMIT_RECORD: Final = struct.Struct("<20sQII")
"""session id, transaction, number of stored items, number of settle items."""
COMMIT_STORED: Final = struct.Struct("<IIQQQ")
"""destination, count, order number of the first, index of the HIDDEN record, time of commit in ms."""
COMMIT_SETTLED: Final = struct.Struct("<IIQQ")
"""destination, cursor, first order number, one beyond."""

PREPARE_RECORD: Final = struct.Struct("<20sQIII")
"""session id, transaction, number of hidden items, number of settle items (as in COMMIT), bytes of JSON {id, decider,
groups, ms}; then the items, then the JSON."""
PREPARE_HIDDEN: Final = struct.Struct("<IIQ")
"""destination, count, index of the HIDDEN record."""

MOVED: Final = struct.Struct("<IIQ")
"""the destination the message leaves, cursor, its order number there."""

MARK_RECORD: Final = struct.Struct("<IIQ")
"""destination, cursor, one beyond the last order number that may have been delivered."""

RESERVE_RECORD: Final = struct.Struct("<IHHIIQQ")
"""destination, bytes of the cursor's name, zero, number of runs, number of keys, position of the first message, time in
ms; then the name, RESERVE_RUN of each run, RESERVE_KEY of each key with its bytes. No runs: the cursor was made."""
RESERVE_RUN: Final = struct.Struct("<QQ")
"""first order number, one beyond."""
RESERVE_KEY: Final = struct.Struct("<QHH")
"""last position of this grouping key, its bytes, zero."""

RESERVED_RECORD: Final = struct.Struct("<IHHQQ")
"""destination, bytes of the cursor's name, what (below), committed up to this position, time in ms; then the name."""
COMMITTED: Final = 0
RELEASED: Final = 1  # what was not committed is anybody's again, and the cursor is no more

PUBLISH_RECORD: Final = struct.Struct("<QII")
"""time in ms, number of items, bytes of JSON {query, batch, user, messages}; then the items, then the JSON."""
PUBLISH_ITEM: Final = struct.Struct("<IIQQ")
"""destination, count, order number of the first, index of the HIDDEN record."""
STAGED: Final = 2**64 - 1
"""In the place of a HIDDEN record's transaction: it is a stage's, whose id is in the place of the session's."""

FIRE_RECORD: Final = struct.Struct("<IQQ")
"""destination, order number of the schedule, next due time in ms (0: it was the last)."""
