"""Bugs to plant: the machine's rules, and those its edge has to keep."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from fairlead.cluster.replication.rules import Rules


@dataclass(frozen=True, slots=True)
class EdgeRules(Rules):
    """What the process around the machines does; the simulation's own edge obeys these switches."""

    vote_identity: bool = True  # a voter that lost its file votes no more under its old name (CLU-144)
    store_identity: bool = True  # an emptied or damaged disk is a new store (CLU-129)
    keep_until_swapped: bool = True  # a member resynchronises beside its old state (CLU-139)
    restart_new_epoch: bool = True  # a restarted primary never goes on in its old epoch (CLU-143)
    notes_first: bool = True  # notes are durable before anything is sent (CLU-143, CLU-150)
    certain_death: bool = True  # a lease ends early only for the very process that died (CLU-149)
    gapless: bool = True  # the primary takes a session's numbers one by one (CLU-118)
    keep_keys: bool = True  # a new primary knows what its predecessors have accepted (CLU-118)
    repeat_waits: bool = True  # a repeat is confirmed when the original is safe (CLU-118)
    serve_by_lease: bool = True  # a primary asks for its lease before it answers (CLU-149)

    def without(self, *names: str) -> EdgeRules:
        return replace(self, **dict.fromkeys(names, False))


ALL = EdgeRules()
NAMES = [field.name for field in fields(EdgeRules)]

DRILLS = {
    "sync_before_stored": "lost_tails",
    "check_epoch": "old_mail",
    "voter_waits": "sudden_darkness",
    "lease_from_send": "slow_answers",
    "joint_sets": "unheard_change",
    "cover_new_set": "unheard_change",
    "copies_in_record": "changed_mind",
    "certain_death": "late_notice",
    "durable_first": "laggard",
    "vote_identity": "forgotten_votes",
    "never_backwards": "late_state",
    "keep_until_swapped": "late_state",
    "own_epoch": "relay",
    "epoch_first": "relay",
    "fence_members": "half_seen",
}
"""The drill that brings about what a rule is for; the others are missed in any storm."""
