"""What all message managers say about one message, as one story; and what nobody knows.

`merged` is for whoever has the answer of the command `trace`: one message manager's, or those of several groups.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["merged", "merged_search", "not_found"]

Facts = dict[str, Any]

FIRST: Final = {"received", "stored"}
SETTLES: Final = {"acknowledged", "returned", "expired", "dropped", "dead"}


def answers_of(answer: Facts) -> list[Facts]:
    """Of each group; those that could not be asked have only a name and the reason."""
    if "groups" not in answer:
        return [answer]
    found = [{"group": name, **facts} for name, facts in sorted(answer["groups"].items())]
    found += [
        {"group": name, "error": facts.get("text", "")} for name, facts in sorted(answer.get("errors", {}).items())
    ]
    return found + [{"group": name, "error": "It is not served."} for name in answer.get("missing", ())]


def merged(answer: Facts) -> Facts:
    """What `trace` says, as one story: `found`, `events` (the oldest first), `now`, `copies`, `unknown`, `looked`."""
    groups = answers_of(answer)
    said = [one for one in groups if "looked" in one]
    with_it = [one for one in said if one["found"]]
    events = [{**event, "node": one["node"], "group": one["group"]} for one in said for event in one["events"]]
    events.sort(key=lambda event: (event["ms"], event.get("index") or 0))
    first = with_it[0] if with_it else said[0] if said else {}
    return {
        "id": first.get("id"),
        "made": first.get("made"),
        "found": bool(with_it),
        "message": next((one["message"] for one in with_it if one["message"]), None),
        "events": events,
        "now": [{**now, "node": one["node"], "group": one["group"]} for one in with_it for now in one["now"]],
        "copies": [{"group": one["group"], **one["copies"]} for one in with_it if one["copies"]],
        "log": [line for one in with_it for line in one.get("log", ())],
        "unknown": [sentence for one in with_it for sentence in _unknown(one)] + _unasked(groups),
        "looked": [_looked(one) for one in groups],
    }


def merged_search(answer: Facts) -> Facts:
    """What `find-trace` says: the messages of a trace, in the order in which they arrived."""
    groups = answers_of(answer)
    said = [one for one in groups if "looked" in one]
    messages = [{**found, "node": one["node"], "group": one["group"]} for one in said for found in one["messages"]]
    messages.sort(key=lambda found: (found["arrival_ms"], found["id"]))
    unknown = ["There are more; only the first of them are listed."] if any(one["cut"] for one in said) else []
    return {"messages": messages, "unknown": unknown + _unasked(groups), "looked": [_looked(one) for one in groups]}


def not_found(story: Facts, what: str) -> str:
    """Where it was looked for, in words."""
    places = [
        f"group {one['group']}: {one['error']}"
        if "error" in one
        else f"group {one['group']} at {one['node']} (records {one['first']:,} to {one['last']:,})"
        for one in story["looked"]
    ]
    return (
        f"Nobody has a record of {what}. Looked in {'; '.join(places) or 'no group'}. "
        "Records of messages that are consumed go when their files are needed no more; broadcasts are never recorded."
    )


def _looked(one: Facts) -> Facts:
    if "looked" not in one:
        return {"group": one["group"], "error": one.get("error", "It did not answer.")}
    return {"group": one["group"], "node": one["node"], **one["looked"]}


def _unasked(groups: list[Facts]) -> list[str]:
    return [
        f"Group {one['group']} could not be asked: {one.get('error', 'it did not answer.')}"
        for one in groups
        if "looked" not in one
    ]


def _unknown(one: Facts) -> list[str]:
    """What has no record, so that nobody takes silence for an answer."""
    found, events = [], one["events"]
    whats = {event["what"] for event in events}
    if not whats & FIRST:
        found.append("When it was received, and by whom it was sent: the file with its first record was given up.")
    given = sum(event["what"] == "delivered" for event in events)
    deliveries = max((now.get("deliveries", 0) for now in one["now"]), default=0)
    counted = max((event.get("count") or 0 for event in events if event["what"] in SETTLES), default=0)
    if max(deliveries, counted, int("acknowledged" in whats)) > given:
        found.append("To whom it was delivered earlier: deliveries are remembered for a while, and not on disk.")
    if one["cut"]:
        found.append("What came later: only the first thousand events are told.")
    if not one["looked"]["complete"]:
        found.append("What the rest of the journal says: reading all of it takes too long.")
    return found
