"""Typed properties to bytes and back."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import BadEntries, BadParameter, HeaderTooLarge
from fairlead.wire.properties import (
    OWN_NAMES,
    SERVER_NAMES,
    application_properties,
    check_section,
    decode,
    encode_properties,
    lookup,
    pairs,
)

NAMES = st.text(st.sampled_from("aZé9_$.-"), min_size=1, max_size=6)
VALUES = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=9), st.binary()
)


@pytest.mark.requirement("CLU-18", state="half")
@given(st.dictionaries(NAMES, VALUES), st.dictionaries(st.sampled_from(sorted(OWN_NAMES)), VALUES))
def test_every_type_there_and_back(properties: dict[str, Any], own: dict[str, Any]) -> None:
    section = encode_properties(properties, own)
    check_section(section)
    assert application_properties(section) == properties
    assert decode(section) == own | properties
    for name, value in (own | properties).items():
        found = lookup(section, name.encode())
        assert (found, type(found)) == (value, type(value))
    assert lookup(section, b"not there") is None


def test_what_is_not_a_number_is_one() -> None:
    assert math.isnan(decode(encode_properties({"a": math.nan}))["a"])  # type: ignore[arg-type]


def test_buffers_are_bytes_and_none_of_ones_own_is_left_out() -> None:
    section = encode_properties({"a": bytearray(b"x"), "b": memoryview(b"y")}, {":type": None})  # type: ignore[dict-item]
    assert decode(section) == {"a": b"x", "b": b"y"}


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("", 1, "not empty"),
        (5, 1, "is a str"),
        (":type", "x", "kept for Fairlead"),
        ("a b", 1, "' ' at place 2"),
        ("a'b", 1, "at place 2"),
        ("a\x00", 1, "at place 2"),
        ("n" * 256, 1, "longer than 255"),
        ("a", 2**63, "64 bits"),
        ("a", -(2**63) - 1, "64 bits"),
        ("a", None, "NoneType"),
        ("a", [1], "list"),
        ("a", "\ud800", "surrogate"),
    ],
)
def test_what_cannot_be_sent_is_refused_and_named(name: Any, value: Any, why: str) -> None:
    with pytest.raises(BadParameter, match=why):
        encode_properties({name: value})


def test_own_headers_have_fixed_names() -> None:
    with pytest.raises(BadParameter, match="own headers"):
        encode_properties({}, {":typo": "x"})
    assert {name for name in OWN_NAMES if name.startswith((":from", ":dead-"))} == SERVER_NAMES


def test_too_long_is_refused() -> None:
    assert encode_properties({"a": "x" * 65_531})
    with pytest.raises(HeaderTooLarge, match="65535 bytes long"):
        encode_properties({"a": "x" * 65_535})
    with pytest.raises(HeaderTooLarge, match="together"):
        encode_properties({"a": "x" * 40_000, "b": "x" * 40_000})


def test_of_two_of_one_name_the_first_counts() -> None:
    section = encode_properties({"a": 1}) + encode_properties({"a": 2})
    assert decode(section) == application_properties(section) == {"a": 1}
    assert lookup(section, b"a") == 1


@given(st.binary(max_size=60))
def test_any_bytes_do_no_harm(section: bytes) -> None:
    try:
        check_section(section)
    except BadEntries:
        well = False
    else:
        well = True
    try:
        found = decode(section)
        assert len(found) <= len(list(pairs(section)))
    except BadEntries:
        assert not well
