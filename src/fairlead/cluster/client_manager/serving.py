"""Which node serves which group, as the nodes themselves say in their tags."""

from __future__ import annotations

from fairlead.bus.port import View
from fairlead.cluster.client_manager.group_link import Served


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
