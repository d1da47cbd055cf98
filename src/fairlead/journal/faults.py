"""What can go wrong with a journal, for those who use one."""

from __future__ import annotations

from fairlead.errors import FairleadError, StoreFull

__all__ = ["JournalDamaged", "JournalFailed", "JournalRefused", "StoreFull"]


class JournalFailed(FairleadError):
    """The device did not take what was written. Nothing more is confirmed; a restart reads what is really there."""

    code = "journal-failed"


class JournalDamaged(FairleadError):
    """What is at this place is not what was written there."""

    code = "journal-damaged"


class JournalRefused(FairleadError):
    """The journal cannot be opened: another process has it, or it is of another format."""

    code = "journal-refused"
