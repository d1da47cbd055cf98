"""What the answers of all nodes to `status` say about the cluster: who leads what, who is behind, what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Facts = dict[str, Any]


def overview(status: Mapping[str, Any]) -> Facts:
    """`nodes`, `groups` (with their members) and `warnings`, from the joined answers of all nodes."""
    answers = {name: facts_of(answer) for name, answer in sorted(status["nodes"].items())}
    groups: dict[str, list[Facts]] = {}
    for node, facts in answers.items():
        for name, member in members_of(facts).items():
            groups.setdefault(name, []).append({"node": node, **member})
    found = [_group(name, members) for name, members in sorted(groups.items())]
    return {
        "nodes": [_node(name, facts) for name, facts in answers.items()],
        "groups": found,
        "missing": list(status.get("missing", [])),
        "expected": status.get("expected", len(answers)),
        "warnings": _warnings(status, answers, found),
    }


def facts_of(answer: Mapping[str, Any]) -> Facts:
    """What a node says about itself; an error stays in it."""
    inner = answer.get("status")
    return {**answer, **inner} if isinstance(inner, dict) else dict(answer)


def members_of(facts: Mapping[str, Any]) -> dict[str, Facts]:
    """The members a node hosts; client managers list groups in their own way and host none."""
    groups = facts.get("groups")
    return dict(groups) if isinstance(groups, dict) else {}


def primary_of(status: Mapping[str, Any], group: str) -> str:
    """The node that serves a group, or nobody."""
    for found in overview(status)["groups"]:
        if found["group"] == group:
            return str(found["primary"])
    return ""


def differing(reports: Mapping[str, Mapping[str, Any]]) -> list[str] | None:
    """Destinations of a group whose copies are not equal, from the reports of its members' scrubs.

    None: they cannot be compared, since records came while they were read, or a member was behind.
    """
    ends = {(report.get("began"), report.get("ended")) for report in reports.values()}
    if len(ends) != 1 or len(set(ends.pop())) != 1:
        return None
    names = {name for report in reports.values() for name in report.get("digests", {})}
    return sorted(name for name in names if len({report["digests"].get(name) for report in reports.values()}) > 1)


def _node(name: str, facts: Facts) -> Facts:
    config = facts.get("config") or {}
    return {
        "node": name,
        "kind": facts.get("kind", "?"),
        "pid": facts.get("pid"),
        "rank": facts.get("rank"),
        "state": facts["error"] if facts.get("error") else config.get("state", "checked"),
        "revision": config.get("revision", facts.get("revision")),
        "settings": str(config.get("settings", ""))[:12],
        "essential": str(config.get("essential", ""))[:12],
        "carrier": facts.get("carrier"),
        "buses": facts.get("buses"),
        "machine": config.get("machine", ""),
        "hosts": sorted(members_of(facts)),
    }


def _group(name: str, members: list[Facts]) -> Facts:
    """One group as its newest leader sees it, else as those who are there do."""
    serving = [member for member in members if member.get("serving")]
    best = max(serving or members, key=lambda member: (member.get("epoch", 0), member.get("version", 0)))
    in_sync = list(best.get("set", []))
    rows = []
    for member in members:
        store = member.get("store", "")
        lag = (best.get("lag") or {}).get(store)
        if lag is None and "last" in member and "last" in best:
            lag = max(0, best["last"] - member["last"])
        rows.append(
            {
                "node": member["node"],
                "role": member.get("role", "?"),
                "epoch": member.get("epoch"),
                "serving": bool(member.get("serving")),
                "in_sync": store in in_sync,
                "store": store,
                "lag": lag,
                "sync": _progress(member.get("state")),
                "waiting": _waiting(member.get("waiting")) or member.get("why", ""),
                "depth": member.get("depth"),
                "stored": member.get("stored"),
                "journal": member.get("journal"),
            }
        )
    return {
        "group": name,
        "primary": serving[0]["node"] if serving else "",
        "epoch": best.get("epoch"),
        "in_sync": in_sync,
        "copies": best.get("copies"),
        "votes": list(best.get("votes", [])),
        "degraded": bool(best.get("degraded")),
        "members": rows,
    }


def _progress(state: Any) -> str:
    """How far a member has come with copying a whole state."""
    if not isinstance(state, dict) or not state.get("taking"):
        return ""
    got, total = state.get("received_bytes", 0), state.get("total_bytes", 0)
    share = f"{100 * got // total} % of {total:,} bytes" if total else "a state"
    return f"copies {share} from {state.get('host')}" + (f": {state['trouble']}" if state.get("trouble") else "")


def _waiting(found: Any) -> str:
    if not isinstance(found, dict):
        return ""
    whom = ", ".join(map(str, found.get("for", [])))
    return f"{found.get('why', 'waits')}" + (f" ({whom})" if whom else "")


def _warnings(status: Mapping[str, Any], answers: dict[str, Facts], groups: list[Facts]) -> list[str]:
    missing = list(status.get("missing", []))
    found = [f"{name} did not answer" for name in missing]
    expected = {name for facts in answers.values() for name in (facts.get("config") or {}).get("expected", [])}
    found += [f"{name} is not there" for name in sorted(expected - answers.keys() - set(missing))]
    found += [f"{name}: {facts['error']}" for name, facts in answers.items() if facts.get("error")]
    for group in groups:
        if not group["primary"]:
            reasons = [f"{row['node']}: {row['waiting']}" for row in group["members"] if row["waiting"]]
            found.append(f"group {group['group']} has no primary" + (f" ({'; '.join(reasons)})" if reasons else ""))
        elif group["degraded"] or len(group["in_sync"]) < min(group["copies"] or 1, len(group["members"])):
            found.append(
                f"group {group['group']} confirms with fewer copies than it should: in sync is only "
                f"{', '.join(store.rpartition('.')[0] for store in group['in_sync']) or 'nobody'}"
            )
    for key, what in (("essential", "cluster.toml"), ("settings", "settings.toml")):
        digests: dict[str, list[str]] = {}
        for name, facts in answers.items():
            if digest := (facts.get("config") or {}).get(key):
                digests.setdefault(digest, []).append(name)
        if len(digests) > 1:
            told = "; ".join(f"{', '.join(names)}: {digest[:12]}" for digest, names in sorted(digests.items()))
            found.append(f"not all nodes have the same {what} ({told})")
    warnings = {(facts.get("config") or {}).get("warning") for facts in answers.values()}
    return found + sorted(warning for warning in warnings if warning)
