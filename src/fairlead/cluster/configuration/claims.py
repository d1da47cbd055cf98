"""Judging what nodes say they have: may this node start, and with whose settings (CLU-189 … CLU-194).

Settings that a vote decided form one chain, so of two such the higher revision is the newer. Of files edited by hand
only descent counts: the later names the earlier among its predecessors. Dates are never looked at.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from fairlead.cluster.configuration.checks import check_group_buses
from fairlead.cluster.configuration.messages import Claim
from fairlead.errors import ConfigError


class Relation(enum.Enum):
    SAME = "same"
    NEWER = "newer"
    OLDER = "older"
    UNRELATED = "unrelated"


@dataclass(frozen=True, slots=True)
class Start:
    """Go on with what we have."""


@dataclass(frozen=True, slots=True)
class Take:
    """Ours is stale: take that node's settings."""

    node: str
    digest: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody else, unchecked like us, has the newer ones; it will start and then give them to us."""

    node: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """We must not start."""

    reason: str


Judgement = Start | Take | Wait | Refusal


def relation(ours: Claim, theirs: Claim) -> Relation:
    """How their settings stand to ours."""
    if theirs.digest == ours.digest:
        return Relation.SAME
    if theirs.revision != ours.revision:
        newer, older = (theirs, ours) if theirs.revision > ours.revision else (ours, theirs)
        if (newer.decided and older.decided) or older.digest in newer.history:
            return Relation.NEWER if newer is theirs else Relation.OLDER
    return Relation.UNRELATED


def judge(node: str, ours: Claim, others: Mapping[str, Claim]) -> Judgement:
    """What a node that has not been checked yet has to do, everybody present having told what they have."""
    different = sorted(name for name, claim in others.items() if claim.essential != ours.essential)
    if different:
        return Refusal(
            f"cluster.toml of {node} (SHA-256 {ours.essential[:12]}…) is not that of {_listed(different)} "
            f"({others[different[0]].essential[:12]}…): it must be the same bytes on all nodes; distribute one copy"
        )
    try:
        for group in ours.groups:
            fellows = {name: claim.buses for name, claim in others.items() if group in claim.groups}
            check_group_buses(node, ours.buses, group, fellows)
    except ConfigError as error:
        return Refusal(str(error))
    checked = {name: claim for name, claim in others.items() if claim.checked}
    if checked:
        best = max(sorted(checked), key=lambda name: checked[name].revision)
        found = relation(ours, checked[best])
        if found is Relation.SAME or (found is Relation.OLDER and ours.decided):
            return Start()
        return Take(best, checked[best].digest)
    everybody = {node: ours, **others}
    for one, other in combinations(sorted(everybody), 2):
        if relation(everybody[one], everybody[other]) is Relation.UNRELATED:
            return Refusal(_two(one, everybody[one], other, everybody[other]))
    newer = sorted(name for name, claim in others.items() if relation(ours, claim) is Relation.NEWER)
    return Wait(newer[0]) if newer else Start()


def _two(one: str, first: Claim, other: str, second: Claim) -> str:
    return (
        f"settings.toml of {one} (revision {first.revision}, {first.digest[:12]}…) and of {other} (revision "
        f"{second.revision}, {second.digest[:12]}…) differ and neither was made from the other; choose one, copy it "
        "to all nodes, and start them again"
    )


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
