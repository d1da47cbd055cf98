"""The control record of a group: who leads it, which stores count, who votes (CLU-144).

It is one value of a Paxos register whose ballot is the epoch. Stores and votes are named after their node and the life
of its disk, `a1.9f03…`, so that an emptied disk is nobody's member and no vote.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

Stamp = tuple[int, int]
"""Epoch and version: which of two records is newer."""


class ControlRecord(msgspec.Struct, frozen=True):
    """Epoch 0 with an empty set is the founding record: nobody has led yet."""

    epoch: int
    version: int
    primary: str  # a store; empty in the founding record
    members: frozenset[str]  # the in-sync set, as stores
    electorate: frozenset[str]  # votes
    copies: int  # stores of the set that make something safe, if it has as many
    returning: frozenset[str] = frozenset()  # nodes whose lost vote went out and whose new one may come in (CLU-145)

    @property
    def stamp(self) -> Stamp:
        return self.epoch, self.version

    @property
    def enough(self) -> int:
        """How many stores of the set make something safe (CLU-116)."""
        return min(self.copies, len(self.members))

    @property
    def is_founding(self) -> bool:
        return self.epoch == 0 and not self.members

    def __repr__(self) -> str:
        stores, votes = " ".join(sorted(self.members)), " ".join(sorted(self.electorate))
        return f"<{self.epoch}.{self.version} {self.primary} of {stores}; {self.copies} copies; votes {votes}>"


@lru_cache(4096)
def node_of(identity: str) -> str:
    """The node of a store or a vote."""
    return identity.rpartition(".")[0]


def nodes_of(identities: Iterable[str]) -> set[str]:
    return {node_of(identity) for identity in identities}


def is_majority(electorate: frozenset[str], votes: Iterable[str]) -> bool:
    """More than half of all votes of the electorate, reachable or not."""
    return 2 * len(electorate.intersection(votes)) > len(electorate)
