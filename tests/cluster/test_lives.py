"""Answers of several message managers as one story, and what is said to be unknown."""

from __future__ import annotations

from typing import Any

from fairlead.cluster.lives import merged, merged_search, not_found

LOOKED = {"segments": 1, "first": 1, "last": 90, "oldest_ms": 5, "complete": True}


def answer(group: str = "a", **facts: Any) -> dict[str, Any]:
    events = facts.pop("events", [])
    base = {"node": f"mm-{group}", "group": group, "epoch": 1, "id": "00" * 20, "made": {}, "found": bool(events)}
    more = {"message": None, "events": events, "now": [], "copies": {}, "cut": False, "looked": LOOKED, "log": []}
    return {**base, **more, **facts}


def event(ms: int, what: str, **facts: Any) -> dict[str, Any]:
    return {"ms": ms, "what": what, "destination": "q", "order": 1, **facts}


def test_events_of_all_groups_are_told_in_their_order() -> None:
    a = answer("a", events=[event(1, "received"), event(2, "stored", index=4), event(9, "acknowledged", index=9)])
    b = answer("b", events=[event(5, "delivered")])
    story = merged({"groups": {"b": b, "a": a}})
    assert [(one["ms"], one["group"]) for one in story["events"]] == [(1, "a"), (2, "a"), (5, "b"), (9, "a")]
    assert story["found"]
    assert [one["group"] for one in story["looked"]] == ["a", "b"]


def test_what_is_not_on_record_is_said_to_be_unknown() -> None:
    assert merged(answer(events=[event(1, "received"), event(1, "stored")]))["unknown"] == []
    acknowledged = merged(answer(events=[event(1, "received"), event(2, "acknowledged")]))
    assert any("delivered earlier" in one for one in acknowledged["unknown"])
    copied = merged(answer(events=[event(1, "copied")]))
    assert any("received" in one for one in copied["unknown"])
    cut = merged(answer(events=[event(1, "stored")], cut=True, looked={**LOOKED, "complete": False}))
    assert len(cut["unknown"]) == 2
    twice = [event(1, "stored"), event(2, "delivered", count=1)]
    held = merged(answer(events=twice, now=[{"destination": "q", "order": 1, "state": "locked", "deliveries": 2}]))
    assert any("delivered earlier" in one for one in held["unknown"])


def test_a_group_that_could_not_be_asked_is_named() -> None:
    story = merged({"groups": {"a": answer("a")}, "errors": {"b": {"text": "It is ill."}}, "missing": ["c"]})
    assert not story["found"]
    assert story["unknown"] == [
        "Group b could not be asked: It is ill.",
        "Group c could not be asked: It is not served.",
    ]
    text = not_found(story, "the message 00")
    assert "group a at mm-a (records 1 to 90)" in text
    assert "group b: It is ill." in text


def test_a_search_is_in_the_order_of_arrival() -> None:
    def found(group: str, arrival_ms: int) -> dict[str, Any]:
        messages = [{"id": group, "destination": "q", "order": 1, "arrival_ms": arrival_ms, "sent_ms": 0}]
        return {"node": group, "group": group, "messages": messages, "cut": False, "looked": LOOKED}

    story = merged_search({"groups": {"a": found("a", 7), "b": found("b", 3)}})
    assert [one["id"] for one in story["messages"]] == ["b", "a"]
    assert story["unknown"] == []
