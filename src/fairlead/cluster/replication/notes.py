"""What a member and a vote must remember through any crash. The edge writes them before anything is sent."""

from __future__ import annotations

import msgspec

from fairlead.cluster.replication.record import ControlRecord


class MemberNotes(msgspec.Struct):
    """One store's notes. Without a file: `MemberNotes.fresh`."""

    fence: int  # nothing of a lower epoch is stored or reported
    known: ControlRecord  # the newest record heard of
    loaded: bool  # the log is whole as far as it goes: not what a damaged disk has left
    leading: int = 0  # the epoch in which this store led last

    @classmethod
    def fresh(cls, founding: ControlRecord, loaded: bool) -> MemberNotes:
        return cls(founding.epoch, founding, loaded)


class VoterNotes(msgspec.Struct):
    """One vote's file: what was promised to whom, and the newest record accepted (CLU-144)."""

    promised: int
    promised_to: str
    record: ControlRecord

    @classmethod
    def fresh(cls, founding: ControlRecord) -> VoterNotes:
        return cls(founding.epoch, "", founding)
