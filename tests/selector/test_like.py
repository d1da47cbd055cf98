"""LIKE, against a table of all prefixes, and with patterns meant to make it slow."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.selector.like import BadEscape, matcher
from tests.selector import reference


@settings(max_examples=400)
@given(st.text("ab_%", max_size=8), st.text("ab", max_size=10))
def test_as_the_table_has_it(pattern: str, text: str) -> None:
    assert matcher(pattern)(text) is reference.like(text, pattern)


@given(st.text("ab_%!é\n", max_size=8))
def test_what_is_escaped_is_itself(text: str) -> None:
    pattern = "".join("!" + letter if letter in "_%!" else letter for letter in text)
    assert matcher(pattern, "!")(text)
    assert matcher("%" + pattern + "%", "!")("x" + text + "y")
    assert not matcher(pattern, "!")(text + "x")


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("", "", True),
        ("", "a", False),
        ("%", "", True),
        ("%%", "", True),
        ("_", "", False),
        ("_", "é", True),
        ("12%3", "123", True),
        ("12%3", "12993", True),
        ("12%3", "1234", False),
        ("a%a", "a", False),
        ("%a_a%", "xxabaxx", True),
        ("%a__a%", "xxabaxx", False),
        ("%ab%ab%", "abxab", True),
        ("%ab%ab%", "ab", False),
        ("a.c", "abc", False),
        ("%\n%", "a\nb", True),
    ],
)
def test_patterns(pattern: str, text: str, expected: bool) -> None:
    assert matcher(pattern)(text) is expected


@pytest.mark.parametrize(("pattern", "at"), [("a!", 1), ("a!b", 1), ("!!!", 2)])
def test_an_escape_before_nothing_is_refused(pattern: str, at: int) -> None:
    with pytest.raises(BadEscape) as caught:
        matcher(pattern, "!")
    assert caught.value.at == at


@pytest.mark.parametrize(
    "pattern", ["%a" * 2000 + "%b", "%" + "a_" * 2000 + "b%", "%" * 4000 + "b", "%" + "_" * 4000 + "b%", "%a%_" * 1000]
)
def test_a_hostile_pattern_takes_no_time_of_its_own(pattern: str) -> None:
    is_like = matcher(pattern)
    began = time.process_time()
    is_like("a" * 65_000)
    assert time.process_time() - began < 1
