"""What `fairlead streams status` shows of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fairlead.feeds.administration.group import Group, Member

__all__ = ["bounded", "every_one", "facts", "summary", "without_clients"]

CLIENTS_TOLD_MAX: Final = 500
COUNTERS_MAX: Final = 64


def every_one(groups: Sequence[Group], now_s: float) -> tuple[dict[str, object], ...]:
    """Of several streams; their clients share the room there is."""
    share = max(CLIENTS_TOLD_MAX * 10 // max(len(groups), 1), 1)
    return tuple(facts(group, now_s, min(share, CLIENTS_TOLD_MAX)) for group in groups)


def without_clients(found: dict[str, object]) -> dict[str, object]:
    """For those who are clients themselves."""
    return found | {"clients": [], "barred_clients": [], "barred_users": []}


def bounded(counters: Mapping[str, int]) -> dict[str, int]:
    """Somebody else chose the names."""
    return {name[:64]: count for name, count in list(counters.items())[:COUNTERS_MAX]}


def facts(group: Group, now_s: float, clients_max: int = CLIENTS_TOLD_MAX) -> dict[str, object]:
    leader = group.members.get(group.active)
    subscribers = list(group.subscribers.values())
    return {
        "name": group.stream,
        "epoch": group.epoch,
        "active": group.active,
        "threshold": group.threshold,
        "settling": group.settle_s is not None,
        "switching_to": group.switch.to if group.switch is not None else "",
        "failovers": group.failovers,
        "switches": group.switches,
        "gaps": sum(one.counters.get("gaps_found", 0) for one in subscribers),
        "adapters": [_adapter(group, one, leader, now_s) for one in sorted(group.members.values(), key=_name)],
        "clients": [
            {
                "client": one.client,
                "user": one.user,
                "line": one.line,
                "local": one.local,
                "counters": dict(one.counters),
            }
            for one in subscribers[:clients_max]
        ],
        "clients_total": len(subscribers),
        "passes": len(group.passes),
        "barred_clients": sorted(group.passes.barred_clients),
        "barred_users": sorted(group.passes.barred_users),
        "decisions": list(group.decisions),
        "sources": [
            {"id": one.id, "relations": [[each.kind, each.of] for each in one.relations]} for one in group.sources()
        ],
    }


def _name(member: Member) -> str:
    return member.name


def _adapter(group: Group, one: Member, leader: Member | None, now_s: float) -> dict[str, Any]:
    is_active = one is leader
    return {
        "name": one.name,
        "role": "active" if is_active else "backup",
        "alive": one.alive,
        "address": one.address,
        "incarnation": one.incarnation,
        "preference": one.preference,
        "synchronised": one.synchronised or (is_active and one.alive),
        "source_alive": one.source_alive,
        "last": one.last,
        "lag": 0 if leader is None or is_active else max(leader.last - one.last, 0),
        "positions": {source: list(place) for source, place in one.positions.items()},
        "heard_s": round(now_s - one.heard_s, 3) if one.talk is not None else None,
        "counters": dict(one.counters),
    }


def summary(groups: dict[str, Group], refused: int) -> dict[str, Any]:
    """For `fairlead status`: of the whole administration."""
    every = list(groups.values())
    return {
        "streams": len(every),
        "adapters": sum(one.alive for group in every for one in group.members.values()),
        "without_active": sum(group.leader is None for group in every),
        "without_backup": sum(group.leader is not None and len(group.living()) < 2 for group in every),
        "clients": sum(len(group.subscribers) for group in every),
        "failovers": sum(group.failovers for group in every),
        "switches": sum(group.switches for group in every),
        "refused": refused,
    }
