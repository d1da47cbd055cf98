"""What can be set for a journal, and what a test can make go wrong in one."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairlead.journal.facts import Describer, Nothing

if TYPE_CHECKING:
    from fairlead.journal.edge.files import Files


@dataclass(slots=True, kw_only=True)
class Faults:
    """For tests: how the disk misbehaves. Without any of them set nothing does."""

    sync_delay_ms: float = 0.0  # every sync takes so much longer
    fail_sync_at: int = 0  # this sync (the first is 1) fails, once
    fail_write_at: int = 0  # this write fails, once
    write_max: int = 0  # no single write takes more bytes than this
    sync_errno: int = errno.EIO
    write_errno: int = errno.EIO


@dataclass(slots=True, kw_only=True)
class Options:
    """How a journal is kept. The defaults are those of a server."""

    segment_bytes: int = 64 << 20  # size of a file; smaller ones come free sooner and are changed more often
    cache_bytes: int = 32 << 20  # of batches written last, for consumers that keep up
    ahead: int = 2  # files made before they are needed; the last is the reserve when the disk is full
    quota_bytes: int = 0  # of all files of the journal; 0: what the disk has
    sync: bool = True  # False: a power failure loses what was confirmed, and `status` says so
    retry_s: float = 1.0  # how often a full disk is asked again
    describe: Describer = field(default_factory=Nothing)  # what the records say about messages
    bulky: frozenset[int] = frozenset((8, 9))  # kinds refused when the disk is full: STORE and HIDDEN
    faults: Faults | None = None
    files: Files | None = None  # for tests: another way to the disk
    clock_ms: Callable[[], int] | None = None  # calendar time, for the batch headers
