"""Which node serves which group, as the nodes themselves say in their tags."""

from __future__ import annotations

from fairlead.bus.port import View
from fairlead.cluster.client_manager.group_link import Served


def members_of(view: View, group: str) -> tuple[str, ...]:
    """Nodes that have a copy of what a group keeps, those that were in sync when they last knew first."""
    found = []
    for name, peer in view.peers.items():
        groups = peer.tag.get("groups")
        facts = groups.get(group) if isinstance(groups, dict) else None
        if isinstance(facts, dict) and facts.get("role") in ("primary", "backup"):
            found.append((facts.get("sync") not in ("in-sync", "primary", "suspended"), peer.rank, name))
    return tuple(name for _, _, name in sorted(found))


def serving_of(view: View) -> dict[str, Served]:
    """Of two that say so, while one of them does not know better yet, the later epoch counts."""
    found: dict[str, Served] = {}
    for name, peer in view.peers.items():
        groups = peer.tag.get("groups")
        for group, facts in groups.items() if isinstance(groups, dict) else ():
            if not isinstance(facts, dict) or not facts.get("serving") or facts.get("role") != "primary":
                continue
            epoch = facts.get("epoch")
            if isinstance(epoch, int) and (group not in found or epoch > found[group].epoch):
                found[group] = Served(name, epoch)
    return found
