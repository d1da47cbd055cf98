"""The durable road's frames: kinds, fixed layouts, and what their fields mean (docs/durable.md, section 2).

A frame of the durable road has the ordinary 32-byte head. What travels in bulk (STORE, SETTLE, STORED, DELIVER) has
a packed body and is never looked at by a connection manager; what is rare (COMMAND, ANSWER, NOTICE) is JSON.
"""

from __future__ import annotations

import struct
from typing import Final

# client -> message manager
KIND_COMMAND: Final = 0x60  # JSON {"do": …}; `number` ties the ANSWER or ERROR to it
KIND_STORE: Final = 0x61  # number: producer, correlation: first send number, peer: transaction or 0
KIND_SETTLE: Final = 0x62  # number: consumer, correlation: transaction or 0, peer: tag (0: no answer wanted); PATIENT
KIND_WANT: Final = 0x63  # number: consumer, correlation: messages more, peer: bytes more
KIND_PIECE: Final = 0x64  # number: producer, correlation: transfer, peer: offset; flag LAST
KIND_PULL: Final = 0x65  # number: consumer, correlation: order, peer: send up to this offset; flag LAST: stop
KIND_MORE: Final = 0x66  # number: scan, correlation: batches more; flag LAST: stop
# message manager -> client
KIND_ANSWER: Final = 0x70  # JSON; `number` of the COMMAND
KIND_STORED: Final = 0x71  # number: producer; items of STORED_ITEM
KIND_DELIVER: Final = 0x72  # number: consumer; chunks
KIND_SETTLED: Final = 0x73  # number: consumer, peer: tag; items of RANGE that were stale
KIND_DATA: Final = 0x74  # number: consumer, correlation: order, peer: offset; flag LAST
KIND_NOTICE: Final = 0x75  # JSON {"event": …}
KIND_COLUMNS: Final = 0x76  # number: scan, correlation: batch (from 1), peer: offset in it; flag LAST: the batch ends

FLAG_MORE: Final = 0x40  # ANSWER: the next ANSWER of this number goes on with it
FLAG_PATIENT: Final = 0x20  # SETTLE: nobody waits for the answer, so it may be written with what comes next

KIND_DURABLE_FIRST: Final = 0x60
KIND_DURABLE_LAST: Final = 0x7F

ENVELOPE: Final = struct.Struct("<IIQ")
"""Before each frame on a link between manager and message manager: length of both, connection index, connection uid."""

STORE_HEAD: Final = struct.Struct("<IIQQ")
"""Begins the body of STORE: count, zero, time of sending in ms, number of the first in the session's id block."""

STORED_ITEM: Final = struct.Struct("<QIIQQ")
"""first send number, count, status (below), order number of the first, time of arrival in ms."""

SETTLE_ITEM: Final = struct.Struct("<QQII")
"""first order number, one beyond the last, action, delay in ms."""

RANGE: Final = struct.Struct("<QQ")
"""first order number, one beyond the last."""

CHUNK: Final = struct.Struct("<QIIQQ20sIQ")
"""Begins each chunk of DELIVER: order number of the first, count, deliveries (1: the first), time of sending, time of
arrival, id of the first message, bytes of entries that follow, zero."""

# status of STORED_ITEM
STORED_NEW: Final = 0
STORED_AGAIN: Final = 1  # a repeat; stored once, by an earlier send
STORED_REFUSED: Final = 2  # not stored; a NOTICE {"event": "refused"} with the reason came before
STORED_VOLATILE: Final = 3  # taken, not yet on stable storage: what confirm="memory" asked for

# action of SETTLE_ITEM
ACKNOWLEDGE: Final = 0
RETURN: Final = 1  # comes again, count raised, after the delay
RELEASE: Final = 2  # comes again, count not raised: the application never saw it
REJECT: Final = 3  # to the dead message queue
ACTIONS: Final = (ACKNOWLEDGE, RETURN, RELEASE, REJECT)

# One message inside STORE, DELIVER and the journal: an entry (docs/durable.md, section 3).
ENTRY: Final = struct.Struct("<IBBHII")
"""length of the entry, flags, priority, key length, length of the header section, zero; then, if TIMED, two u64 (time
to live and delay, in ms, 0: none), key, headers, body."""
TIMES: Final = struct.Struct("<QQ")

ENTRY_KEY: Final = 1  # has a grouping key
ENTRY_TIMED: Final = 2  # has a time to live or a delay
ENTRY_LARGE: Final = 4  # the body is not here but in a side file: body = LARGE
ENTRY_VOLATILE: Final = 8  # non-persistent
ENTRY_DEDUP: Final = 16  # has a ":dedup" header
ENTRY_CRON: Final = 32  # has a ":cron" header: a schedule, never delivered itself
ENTRY_FLAGS: Final = 63
PRIORITY_DEFAULT: Final = 4
PRIORITY_MAX: Final = 9

LARGE: Final = struct.Struct("<QQ32s")
"""Body of a LARGE entry: transfer number, length in bytes, SHA-256."""

COMMAND_BYTES_MAX: Final = 262_144  # of a COMMAND's body, with what a manager adds
COUNT_MAX: Final = 65_536  # messages of one STORE
STORE_BYTES_MAX: Final = 1_048_576  # of one STORE frame
