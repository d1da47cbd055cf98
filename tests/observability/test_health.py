"""Readiness: everything a client needs, and a sentence for what is missing."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.observability.health import alive, ready
from tests.observability.given import status


def without(role: str, reason: str = "it died") -> dict[str, Any]:
    known = status()
    for post in known["posts"]:
        if post["role"] == role:
            post |= {"up": False, "reason": reason}
    return known


def test_a_server_with_everything_is_ready() -> None:
    verdict = ready(status())
    assert verdict.ok
    assert verdict.sentence == "The server is ready."
    names = ["supervisor", "router", "dispatcher", "message-manager", "managers"]
    assert [(check.name, check.ok) for check in verdict.checks] == [(name, True) for name in names]
    assert verdict.checks[-1].text == "2 of 2 take connections."


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ("router", "There is no router in service: it died."),
        ("dispatcher", "There is no dispatcher in service: it died."),
        ("message-manager", "There is no message manager in service: it died."),
        ("manager", "No connection manager takes connections: it died."),
    ],
)
def test_what_is_missing_is_said(role: str, words: str) -> None:
    verdict = ready(without(role))
    assert not verdict.ok
    assert verdict.reasons == [words]
    assert verdict.sentence == words


def test_one_manager_is_enough_unless_it_is_draining() -> None:
    known = status()
    known["posts"][-1] |= {"up": False, "reason": "it died"}
    assert ready(known).ok
    known["managers"][0]["draining"] = True
    assert ready(known).reasons == ["No connection manager takes connections: all are draining."]


def test_a_message_manager_that_is_switched_off_is_not_missed() -> None:
    known = without("message-manager", "switched off by [messages] enabled")
    known["messages"]["enabled"] = False
    next(post for post in known["posts"] if post["role"] == "message-manager")["needed"] = False
    assert ready(known).ok


def test_a_full_store_and_a_server_that_stops_are_not_ready() -> None:
    known = status()
    known["messages"]["store_full"] = 1
    assert "full" in ready(known).sentence
    known = status()
    known["components"][0]["state"] = "stopping"
    assert ready(known).reasons == ["The server is stopping."]


def test_nobody_who_answers_is_neither_alive_nor_ready() -> None:
    assert alive(status()).ok
    for verdict in (alive(None), ready(None)):
        assert not verdict.ok
        assert verdict.sentence == "The supervisor does not answer."
