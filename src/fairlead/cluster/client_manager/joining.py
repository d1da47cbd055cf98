"""One answer out of those of several groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairlead.cluster.client_manager.questions import Reply

Rule = Callable[[dict[str, Reply]], Reply]


class Join:
    """Waits for a reply of each group, then hands the joined one on."""

    def __init__(self, groups: list[str], rule: Rule, then: Callable[[Reply], None]) -> None:
        self._missing = set(groups)
        self._order = list(groups)
        self._replies: dict[str, Reply] = {}
        self._rule = rule
        self._then = then

    def replier(self, group: str) -> Callable[[Reply], None]:
        """To be called with what this group says."""
        return lambda reply: self.reply(group, reply)

    def reply(self, group: str, reply: Reply) -> None:
        if group not in self._missing:
            return
        self._missing.discard(group)
        self._replies[group] = reply
        if not self._missing:
            self._then(self._rule({name: self._replies[name] for name in self._order}))


def first_error(replies: dict[str, Reply]) -> Reply | None:
    return next((reply for reply in replies.values() if reply.facts is None), None)


def any_of(replies: dict[str, Reply]) -> Reply:
    """One group knows what is meant: the yes counts, else the first refusal that is not about being away."""
    for reply in replies.values():
        if reply.facts is not None:
            return reply
    refusals = list(replies.values())
    return next((reply for reply in refusals if reply.code == "no-message-manager"), refusals[0])


def listed(key: str) -> Rule:
    """All have to answer; their lists are put together, and what else they say is the first one's."""

    def rule(replies: dict[str, Reply]) -> Reply:
        refused = first_error(replies)
        if refused is not None:
            return refused
        facts = [reply.facts for reply in replies.values() if reply.facts is not None]
        return Reply({**facts[0], key: [row for one in facts for row in one.get(key, [])]})

    return rule


def published(replies: dict[str, Reply]) -> Reply:
    """A batch is published when every group has: repeated, it is completed where it was not."""
    refused = first_error(replies)
    if refused is not None:
        return refused
    facts = [reply.facts for reply in replies.values() if reply.facts is not None]
    if "parts" in facts[0]:
        return Reply(facts[0])
    now = any(one.get("published") == "now" for one in facts)
    return Reply({"published": "now" if now else "before", "messages": sum(one.get("messages", 0) for one in facts)})


def summed(key: str) -> Rule:
    def rule(replies: dict[str, Reply]) -> Reply:
        refused = first_error(replies)
        if refused is not None:
            return refused
        return Reply({key: sum((reply.facts or {}).get(key, 0) for reply in replies.values())})

    return rule


LISTS: dict[str, str] = {
    "destinations": "destinations",
    "tasks": "tasks",
    "subscriptions": "subscriptions",
    "sessions": "sessions",
    "transactions": "transactions",
    "transfers": "transfers",
    "log": "lines",
}
"""Administration commands whose answer is a list: those of all groups become one."""


def administered(command: str, replies: dict[str, Reply]) -> dict[str, Any]:
    """What the groups said to a command that names no destination, as one answer; who said nothing is named.

    Lists are put together; `total` is the sum, `next` what is left anywhere. Everything else is by group.
    """
    said = {group: reply.facts for group, reply in replies.items() if reply.facts is not None}
    oks: dict[str, Any] = {group: facts["ok"] for group, facts in said.items() if "ok" in facts}
    missing = sorted(group for group, reply in replies.items() if reply.facts is None)
    if not oks:
        errors = [facts["error"] for facts in said.values() if "error" in facts]
        refusal = {"code": "no-message-manager", "text": f"No answer from group {', '.join(missing)}."}
        return {"error": errors[0] if errors else refusal}
    joined: dict[str, Any]
    key = LISTS.get(command)
    if key is not None and all(isinstance(one.get(key), list) for one in oks.values()):
        joined = {key: [row for one in oks.values() for row in one[key]]}
        if any("total" in one for one in oks.values()):
            joined["total"] = sum(one.get("total", 0) for one in oks.values())
        if any("next" in one for one in oks.values()):
            left = [one["next"] for one in oks.values() if one.get("next") is not None]
            joined["next"] = max(left) if left else None
    elif command == "commands":
        joined = next(iter(oks.values()))
    else:
        joined = {"groups": oks}
        refused = {group: facts["error"] for group, facts in said.items() if "error" in facts}
        if refused:
            joined["errors"] = refused
    if missing:
        joined |= {"incomplete": True, "missing": missing}
    return {"ok": joined}
