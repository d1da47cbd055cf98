"""The rules of safety, each with a switch. All are on; tests switch one off to see that a law catches it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """What each switch stands for, and where the specification says it."""

    # control record and votes
    adopt_record: bool = True  # a candidate takes over the newest record its majority shows (CLU-144)
    promise_once: bool = True  # a vote promises an epoch to one candidate (CLU-144)
    # leases: who serves; no confirm depends on them
    lease_from_send: bool = True  # the primary counts its lease from sending the renewal (CLU-149)
    voter_waits: bool = True  # a restarted voter grants nothing for lease + margin (CLU-149)
    obey_lease: bool = True  # a vote promises nothing to others while a lease runs (CLU-149)
    # in-sync set
    cover_new_set: bool = True  # a set is proposed only when all that is safe is safe in it, too (CLU-148)
    joint_sets: bool = True  # while a change is open, a confirm satisfies both sets (CLU-148)
    copies_in_record: bool = True  # the number of copies changes like the set, never by configuration alone (CLU-148)
    never_backwards: bool = True  # a state taken over is not older than the one it replaces (CLU-139)
    # failover
    check_epoch: bool = True  # a backup refuses what comes from an older epoch (CLU-143)
    fence_members: bool = True  # who took part in a choice stores nothing for an older epoch (CLU-150)
    only_members: bool = True  # who is not in the recorded set does not lead (CLU-150)
    enough_members: bool = True  # set size - copies + 1 members take part (CLU-150)
    copy_best: bool = True  # a candidate first holds the log of the most up to date (CLU-150)
    durable_first: bool = True  # what a candidate took over is durable before it asks for its record (CLU-150)
    epoch_first: bool = True  # "most up to date": epoch of the last record, then its number (CLU-150)
    own_epoch: bool = True  # copies are counted for records of the primary's own epoch (CLU-143)
    match_previous: bool = True  # a backup stores a record only behind the record it follows (CLU-138)
    # copies
    sync_before_stored: bool = True  # a backup reports what is durable, not what it has heard (CLU-116)
    count_copies: bool = True  # the primary waits for the copies (CLU-116)


ALL_RULES = Rules()
