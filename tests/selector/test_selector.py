"""Selectors: the rules of Jakarta Messaging one by one, and at random against a second reading of them."""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead import selector
from fairlead.errors import BadSelector
from fairlead.selector import Facts
from fairlead.selector.compile import DEPTH_MAX, FIELDS
from fairlead.selector.parse import TEXT_MAX
from fairlead.wire.properties import encode_properties
from tests.selector import reference

FACTS = Facts(4, 1_700_000_000_000, bytes(19) + b"\x07", 2, b"customer-9", True)
PROPERTIES: dict[str, Any] = {
    "age": 17,
    "rate": 2.5,
    "zero": 0,
    "country": "UK",
    "phone": "12993",
    "word": "loose",
    "under": "_foo",
    "yes": True,
    "no": False,
    "raw": b"UK",
    "JMS_Fairlead": "own",
    "content-type": "text",
    "order.total": 5,
    "type": "a property, not the field",
    "größe": 3,
}
OWN = {":correlation": "c-1", ":type": "order", ":from": "ada"}


def truth(text: str, properties: dict[str, Any] | None = None, facts: Facts = FACTS, own: Any = None) -> bool | None:
    made = selector.compile(text)
    assert made is not None
    headers = encode_properties(PROPERTIES if properties is None else properties, OWN if own is None else own)
    found = made.evaluate(headers, facts)
    assert made.matches(headers, facts) is (found is True)
    return found


@pytest.mark.requirement("CLU-19", state="half")
def test_truth_has_three_values() -> None:
    names = {"t": True, "f": False, "u": None}
    said = {name: value for name, value in names.items() if value is not None}
    for (x, a), (y, b) in itertools.product(names.items(), repeat=2):
        assert truth(f"{x} AND {y}", said) is reference.both(a, b)
        assert truth(f"{x} OR {y}", said) is reference.either(a, b)
        assert truth(f"NOT {x}", said) is reference.opposite(a)
        assert truth(f"NOT ({x} AND NOT {y})", said) is reference.opposite(reference.both(a, reference.opposite(b)))


@pytest.mark.requirement("CLU-19", state="half")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # comparison
        ("age = 17", True),
        ("age <> 17", False),
        ("age >= 17 AND age <= 17", True),
        ("age > 16.5", True),
        ("17 = age", True),
        ("16 < age", True),
        ("16 >= age", False),
        ("rate = 2.5", True),
        ("country = 'UK'", True),
        ("country <> 'US'", True),
        ("yes = TRUE", True),
        ("no <> true", True),
        ("age = rate", False),
        ("rate < age", True),
        # what is not of one type
        ("age = '17'", False),
        ("age <> '17'", False),
        ("NOT age = '17'", True),
        ("phone > 1", False),
        ("phone = 12993", False),
        ("yes = 1", False),
        ("yes <> 1", False),
        ("country = yes", False),
        ("country < phone", False),
        ("raw = 'UK'", False),
        ("raw = raw", False),
        ("1 = 'a'", False),
        # what is not there
        ("missing = 1", None),
        ("missing <> 1", None),
        ("NOT missing = 1", None),
        ("missing = missing", None),
        ("missing IS NULL", True),
        ("missing IS NOT NULL", False),
        ("age is null", False),
        ("age Is Not Null", True),
        ("raw IS NULL", False),
        # arithmetic
        ("age + 1 = 18", True),
        ("2 + 3 * 4 = 14", True),
        ("(2 + 3) * 4 = 20", True),
        ("10 - 3 - 2 = 5", True),
        ("-age = -17", True),
        ("+age = 17", True),
        ("- -5 = 5", True),
        ("7 / 2 = 3", True),
        ("-7 / 2 = -3", True),
        ("7 / -2 = -3", True),
        ("7 / 2. = 3.5", True),
        ("age / zero = 1", None),
        ("age / 0.0 = 1", None),
        ("country + 1 = 2", None),
        ("-country = 1", None),
        ("+yes = 1", None),
        ("missing + 1 > 0", None),
        ("9223372036854775807 + 1 > 0", None),
        ("-9223372036854775808 < 0", True),
        # BETWEEN
        ("age BETWEEN 15 AND 19", True),
        ("age BETWEEN 18 AND 19", False),
        ("age NOT BETWEEN 15 AND 19", False),
        ("age NOT BETWEEN 18 AND 19 AND yes", True),
        ("missing BETWEEN 1 AND 2", None),
        ("age BETWEEN missing AND 1", False),
        ("age BETWEEN missing AND 20", None),
        ("country BETWEEN 1 AND 2", False),
        ("country NOT BETWEEN 1 AND 2", False),
        # IN
        ("country IN ('UK', 'US')", True),
        ("country IN ('US')", False),
        ("country NOT IN ('UK', 'US')", False),
        ("country NOT IN ('US')", True),
        ("missing IN ('UK')", None),
        ("missing NOT IN ('UK')", None),
        ("age IN ('UK')", False),
        ("age NOT IN ('UK')", True),
        ("age IN (16, -3, 17L)", True),
        ("rate IN (2.5, 'x', TRUE)", True),
        ("yes IN (1)", False),
        ("age IN (TRUE)", False),
        # LIKE
        ("phone LIKE '12%3'", True),
        ("word LIKE 'l_se'", False),
        ("word LIKE 'l__se'", True),
        (r"under LIKE '\_%' ESCAPE '\'", True),
        (r"country LIKE '\_%' ESCAPE '\'", False),
        ("phone NOT LIKE '12%3'", False),
        ("missing LIKE '%'", None),
        ("missing NOT LIKE '%'", None),
        ("age LIKE '17'", False),
        ("age NOT LIKE '17'", True),
        # conditions
        ("yes", True),
        ("NOT yes", False),
        ("(no)", False),
        ("country", None),
        ("NOT country", None),
        ("TRUE", True),
        ("TRUE AND FALSE", False),
        ("yes OR no AND no", True),
        ("NOT no AND no", False),
        ("no = FALSE OR missing", True),
        # words and literals
        ("yes and not no oR no", True),
        ("country = 'U''K' OR 'it''s' = 'it''s'", True),
        ("age = 17L AND age = 1.7E1 AND age = 17.0D AND age = 17f AND rate = .25e1 AND rate = 25e-1", True),
        ("age=17AND age<18", None),
        ("\n age\t= \r\n 17 ", True),
        ("größe = 3", True),
        ("order.total = 5", True),
        ("[content-type] = 'text'", True),
        ("JMS_Fairlead = 'own'", True),
    ],
)
def test_the_rules(text: str, expected: bool | None) -> None:
    if text == "age=17AND age<18":
        with pytest.raises(BadSelector):
            truth(text)
    else:
        assert truth(text) is expected


@pytest.mark.requirement("CLU-19", state="half")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("JMSPriority = 4 AND priority = 4", True),
        ("JMSTimestamp = 1700000000000 AND timestamp > 1699999999999", True),
        ("JMSMessageID = 'ID:0000000000000000000000000000000000000007'", True),
        ("JMSDeliveryMode = 'PERSISTENT'", True),
        ("JMSDeliveryMode = 'NON_PERSISTENT'", False),
        ("JMSXDeliveryCount = 2 AND delivery_count > 1", True),
        ("JMSXGroupID = 'customer-9' AND key LIKE 'customer-%'", True),
        ("JMSCorrelationID = 'c-1' AND correlation_id = 'c-1'", True),
        ("JMSType = 'order' AND type = 'order'", True),
        ("[type] = 'a property, not the field'", True),
        ("JMSXUserID = 'ada'", True),
        ("dead_reason IS NULL AND dead_destination IS NULL AND dead_count IS NULL", True),  # it is alive
        ("jmspriority = 4", None),  # names are case-sensitive
        ("JMSXAppID IS NULL", True),
    ],
)
def test_header_fields(text: str, expected: bool | None) -> None:
    assert truth(text) is expected


def test_header_fields_that_are_not_there() -> None:
    bare = Facts(9, 0, bytes(20), 1, b"", False)
    for name in ("JMSXGroupID", "key", "JMSCorrelationID", "JMSType", "type"):
        assert truth(f"{name} IS NULL AND NOT ({name} IS NOT NULL)", {}, bare, {}) is True
    assert truth("JMSDeliveryMode = 'NON_PERSISTENT' AND priority = 9", {}, bare, {}) is True


def test_what_a_selector_says_of_itself() -> None:
    made = selector.compile(" a = 1 AND priority > 3 OR [x-y] IS NULL ")
    assert made is not None
    assert made.text == " a = 1 AND priority > 3 OR [x-y] IS NULL "
    assert made.names == {"a", "priority", "x-y"}
    assert "x-y" in repr(made)


@pytest.mark.requirement("CLU-19", state="half")
@pytest.mark.parametrize("text", ["", " ", "\n\t "])
def test_an_empty_text_is_no_selector(text: str) -> None:
    assert selector.compile(text) is None


@pytest.mark.requirement("CLU-19", state="half")
@pytest.mark.parametrize(
    ("text", "offset", "why"),
    [
        ("a =", 3, "the text ends"),
        ("= a", 0, "a name or a value belongs here"),
        ("a = 'x", 4, "no closing quote"),
        ("a == 1", 3, "there is '='"),
        ("a != 1", 2, "not equal is <>"),
        ('a = "x"', 4, "single quotes"),
        ("a = 5x", 4, "not a number"),
        ("a = 1.2.3", 4, "not a number"),
        ("a = 1 b", 6, "AND, OR or the end belongs here"),
        ("a b", 2, "a comparison, AND, OR or the end"),
        ("(a", 2, "closing parenthesis"),
        ("a)", 1, "nothing more"),
        ("IN = 5", 0, "there is 'IN'"),
        ("NULL = 5", 0, "there is 'NULL'"),
        ("a BETWEEN 1", 11, "AND belongs here"),
        ("a IN ()", 6, "there is ')'"),
        ("a IN (b)", 6, "there is 'b'"),
        ("a LIKE b", 7, "text in single quotes"),
        ("a LIKE 'x' ESCAPE 'ab'", 18, "one character"),
        ("a LIKE 'x' ESCAPE ''", 18, "one character"),
        ("a LIKE 'ab!c' ESCAPE '!'", 10, "before %, _ or itself"),
        ("a LIKE 'it''s!' ESCAPE '!'", 13, "before %, _ or itself"),
        ("a IS 5", 5, "NOT or NULL"),
        ("9223372036854775808 = a", 0, "64 bits"),
        ("a = -9223372036854775809", 4, "64 bits"),
        ("a = 99999999999999999999999999999", 4, "64 bits"),
        ("1e999 = a", 0, "too large"),
        ("a < 'x'", 4, "= and <> only"),
        ("TRUE >= a", 0, "= and <> only"),
        ("a BETWEEN 'x' AND 'y'", 10, "= and <> only"),
        ("a + 'x' = 1", 4, "calculated with"),
        ("-TRUE = 1", 1, "calculated with"),
        ("5", 0, "a condition belongs here"),
        ("a AND 'x'", 6, "a condition belongs here"),
        ("NOT a + 1", 4, "a condition belongs here"),
        ("(a = 1) = TRUE", 3, "no value"),
        ("(a OR b) + 1 = 2", 1, "no value"),
        ("a + 1 IS NULL", 0, "before IS NULL stands a name"),
        ("'x' LIKE 'x'", 0, "before LIKE stands a name"),
        ("5 IN (5)", 0, "before IN stands a name"),
        ("JMSPriorty = 4", 0, "JMSPriority"),
        ("JMSReplyTo IS NULL", 0, "no header field"),
        ("a = 1; DROP", 5, "';' cannot be read"),
        ("[a b] = 1", 0, "brackets"),
        ("n" * 256 + " = 1", 0, "255 bytes"),
        ("a = 1 AND\n  b c\nOR d", 14, "there is 'c'"),
        ("__import__('os')", 10, "there is '('"),
    ],
)
def test_a_fault_is_named_and_pointed_at(text: str, offset: int, why: str) -> None:
    with pytest.raises(BadSelector) as caught:
        selector.compile(text)
    error = caught.value
    said, shown, caret = str(error).splitlines()
    assert why in said
    assert error.offset == offset
    assert error.line == text[:offset].count("\n") + 1
    assert error.column == offset - (text[:offset].rfind("\n") + 1) + 1
    assert f"line {error.line}, column {error.column}" in said
    assert shown[caret.index("^") :][:1] == text[offset : offset + 1].strip("\n")
    assert error.code == "bad-selector"


@pytest.mark.requirement("CLU-19", state="half")
@settings(max_examples=400)
@given(reference.CONDITIONS, reference.MESSAGES)
def test_as_a_second_reading_has_it(condition: reference.Part, message: dict[str, Any]) -> None:
    try:
        found = truth(condition.text, message, FACTS, {})
    except BadSelector as error:
        # Parentheses count in what the reference writes; and literals on both sides may be of no use.
        assert "levels deep" in str(error)
        return
    assert found is condition.evaluate(message)


TOKENS = [
    *("a", "b", "5", "1.5", "'x'", "AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "BETWEEN", "IS", "NULL", "TRUE"),
    *("(", ")", ",", "=", "<>", "<", "+", "-", "*", "/", "[a-b]", "JMSType", "'", "\x00", "\n", "é", "$"),
]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(TOKENS), max_size=14).map(" ".join) | st.text(max_size=30))
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    try:
        made = selector.compile(text)
    except BadSelector as error:
        assert 0 <= error.offset <= len(text)
        assert error.line >= 1
        assert error.column >= 1
        return
    if made is not None:
        assert made.evaluate(b"", FACTS) in (True, False, None)


def test_length_and_depth_have_limits() -> None:
    fits = "a = 1" + " OR a = 2" * 900
    assert truth(fits, {"a": 2}) is True
    assert truth("a = " + "+".join(["1"] * 2000), {"a": 2000}) is True
    assert truth("a IN (" + ", ".join(f"'{n}'" for n in range(1000)) + ")", {"a": "999"}) is True
    assert truth("(" * 2000 + "a" + ")" * 2000, {"a": True}) is True
    assert truth("NOT " * (DEPTH_MAX - 1) + "a", {"a": True}) is False
    before = sys.getrecursionlimit()
    for deep in ("NOT " * 1000 + "a", "-" * 5000 + "a = 1", "(a OR (b AND " * 300 + "a" + "))" * 300):
        with pytest.raises(BadSelector, match="levels deep"):
            selector.compile(deep)
    with pytest.raises(BadSelector, match=f"at most {TEXT_MAX}"):
        selector.compile("a = '" + "x" * TEXT_MAX + "'")
    assert sys.getrecursionlimit() == before


def test_nested_to_the_limit_it_still_compiles() -> None:
    text = "a"
    for level in range(DEPTH_MAX - 1):
        text = f"({text} {'AND' if level % 2 else 'OR'} a)"
    assert truth(text, {"a": True}) is True
    sums = "1"
    for level in range(DEPTH_MAX - 2):
        sums = f"({sums} {'+' if level % 2 else '*'} 1)"
    assert truth(f"{sums} > 0") is True


def test_a_thousand_selectors_leave_nothing_behind_that_grows() -> None:
    first = selector.compile("a = 1")
    for number in range(300):
        selector.compile(f"a = {number}")
    assert selector.compile("a = 299") is selector.compile("a = 299")
    assert first is not None
    assert first.matches(encode_properties({"a": 1}), FACTS)


def test_the_fields_of_the_page() -> None:
    assert {name for name in FIELDS if name.startswith("JMS")} == {
        *("JMSPriority", "JMSTimestamp", "JMSMessageID", "JMSCorrelationID", "JMSType", "JMSDeliveryMode"),
        *("JMSXDeliveryCount", "JMSXGroupID", "JMSXUserID"),
    }


def test_an_evaluation_costs_little() -> None:
    made = selector.compile("region = 'eu' AND amount > 10")
    assert made is not None
    headers = encode_properties({"region": "eu", "amount": 11.5})
    began = time.process_time()
    for _ in range(20_000):
        made.matches(headers, FACTS)
    assert time.process_time() - began < 2  # 100 µs each would be a hundred times too slow
