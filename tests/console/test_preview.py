from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.console.preview import as_hex, body_of, message
from fairlead.console.shapes_messages import As


def shown(raw: bytes, wanted: As = "auto", most: int = 1000, cut: bool = False) -> tuple[str | None, str, bool]:
    return body_of({"body_base64": b64encode(raw).decode(), "bytes": len(raw), "cut": cut}, wanted, most)


@pytest.mark.parametrize(
    ("raw", "wanted", "text", "how"),
    [
        (b"hello", "auto", "hello", "text"),
        (b'{"a":[1]}', "auto", '{\n  "a": [\n    1\n  ]\n}', "json"),
        (b'{"a":', "json", '{"a":', "text"),
        (b"12", "auto", "12", "text"),
        (b"\x00\x01", "auto", as_hex(b"\x00\x01"), "hex"),
        (b"\xff", "text", "\ufffd", "text"),
        (b"hi", "hex", as_hex(b"hi"), "hex"),
        (b"", "auto", "", "text"),
        ("é".encode(), "auto", "é", "text"),
        (b"\x1b[2J", "auto", as_hex(b"\x1b[2J"), "hex"),
    ],
)
def test_a_body_is_shown_as_what_it_is(raw: bytes, wanted: As, text: str, how: str) -> None:
    assert shown(raw, wanted) == (text, how, False)


def test_a_body_that_is_cut_inside_a_letter_is_still_text() -> None:
    assert shown("aé".encode(), most=2) == ("a", "text", True)
    assert shown("a€".encode()[:3], cut=True) == ("a", "text", True)


def test_a_very_large_body_is_not_shown() -> None:
    assert body_of({"bytes": 10**9}, "auto", 100) == (None, "none", True)


def test_json_that_is_nested_too_deeply_is_text() -> None:
    raw = b"[" * 100_000
    assert shown(raw, most=200_000)[1] == "text"


def test_hex_has_offsets_and_letters() -> None:
    assert as_hex(bytes(range(60, 80))).splitlines()[1].startswith("00000010  4c 4d 4e 4f")
    assert as_hex(b"A\n").endswith(" A.")


@given(st.binary(max_size=200), st.sampled_from(["auto", "text", "json", "hex"]), st.integers(0, 250))
def test_every_body_can_be_shown_every_way(raw: bytes, wanted: Any, most: int) -> None:
    text, _, cut = shown(raw, wanted, most)
    assert text is not None
    assert cut is (len(raw) > most)


def test_a_message_keeps_what_administration_says_of_it() -> None:
    facts = {
        "order": 1,
        "id": "7f",
        "state": "ready",
        "deliveries": 0,
        "priority": 4,
        "key": None,
        "persistent": True,
        "sent_ms": 1,
        "arrival_ms": 2,
        "ttl_ms": 0,
        "delay_ms": 5,
        "properties": {"a": 1},
        "headers": {},
        "bytes": 2,
        "cut": False,
        "body": "hi",
    }
    found = message(facts, "auto", 100)
    assert (found.body, found.ttl_ms, found.delay_ms, found.properties) == ("hi", None, 5, {"a": 1})
