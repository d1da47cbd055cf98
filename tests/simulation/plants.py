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
