"""Topics, patterns and the index against matchers too simple to be wrong."""

from __future__ import annotations

import fnmatch
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import topics
from fairlead.automaton import Automaton, BadExpression
from fairlead.errors import BadPattern, BadTopic

WORDS = st.sampled_from(["a", "b", "ab", "é", "abc"])
TOPICS = st.lists(WORDS, min_size=1, max_size=4).map(".".join)
PATTERN_WORDS = st.sampled_from(["a", "b", "ab", "*", "?", "a?", "é"])


@st.composite
def patterns(draw: st.DrawFn) -> str:
    words = draw(st.lists(PATTERN_WORDS, min_size=0 if draw(st.booleans()) else 1, max_size=4))
    if not words or draw(st.booleans()):
        words.append(">")
    style = draw(st.sampled_from(["", "", "", "glob:", "regex:"]))
    return (
        style + ".".join(words) if style != "regex:" else style + ".".join(words).replace("*", ".*").replace("?", ".")
    )


def naive(pattern: str, topic: str) -> bool:
    if pattern.startswith("glob:"):
        return fnmatch.fnmatchcase(topic, pattern[5:])
    if pattern.startswith("regex:"):
        return re.fullmatch(pattern[6:], topic) is not None
    wanted, given_ = pattern.split("."), topic.split(".")
    if wanted[-1] == ">":
        if len(given_) < len(wanted):
            return False
        wanted, given_ = wanted[:-1], given_[: len(wanted) - 1]
    return len(wanted) == len(given_) and all(
        w == "*" or (len(w) == len(g) and all(x in ("?", y) for x, y in zip(w, g, strict=True)))
        for w, g in zip(wanted, given_, strict=True)
    )


@given(patterns(), TOPICS)
def test_a_pattern_agrees_with_the_naive_matcher(pattern: str, topic: str) -> None:
    assert topics.compile(pattern).matches(topic) == naive(pattern, topic)


@given(st.lists(st.tuples(st.booleans(), patterns(), st.integers(0, 3)), max_size=20), st.lists(TOPICS, min_size=1))
def test_the_index_agrees_with_trying_every_pattern(steps: list[tuple[bool, str, int]], asked: list[str]) -> None:
    index: topics.PatternIndex[int] = topics.PatternIndex()
    held: set[tuple[str, int]] = set()
    for adding, pattern, key in steps:
        if adding:
            index.add(pattern, key)
            held.add((pattern, key))
        else:
            index.remove(pattern, key)
            held.discard((pattern, key))
    for topic in asked:
        assert index.match(topic) == {key for pattern, key in held if naive(pattern, topic)}


def test_an_emptied_index_holds_nothing() -> None:
    index: topics.PatternIndex[int] = topics.PatternIndex()
    for pattern in ("a.*.b", "a.>", "a.b", "a.?", ">", "*"):
        index.add(pattern, 1)
        index.add(pattern, 2)
    for pattern in ("a.*.b", "a.>", "a.b", "a.?", ">", "*", "never.*", "never.?", "never"):
        index.remove(pattern, 1)
        index.remove(pattern, 2)
    assert not index._root
    assert not index._plain
    assert not index._others


@pytest.mark.parametrize("topic", ["a", "a.b", "prices.eur-usd", "é.ü", "x" * 512, "a/b", "glob", "a b"])
def test_topics(topic: str) -> None:
    topics.validate_topic(topic)
    topics.validate_pattern(topic)
    assert topics.compile(topic).is_plain


@pytest.mark.parametrize(
    "topic", ["", ".", "a.", ".a", "a..b", "a.*", ">", "a?", "a\nb", "a\x1fb", "a\x85", "é" * 257, "\ud800"]
)
def test_what_is_not_a_topic(topic: str) -> None:
    with pytest.raises(BadTopic) as caught:
        topics.validate_topic(topic)
    assert caught.value.code == "bad-topic"


@pytest.mark.parametrize(
    "pattern",
    ["", "a*", "*a.b", "a.>.b", "a>", ">>", "a..*", "*.", "\x00", "x." * 300 + "*", "glob:", "regex:", "regex:(",
     "regex:(a)\\1", "regex:(?=a)", "regex:(?i)a", "regex:a**", "regex:" + "a" * 257, "glob:" + "a" * 257,
     "regex:((a{1,99}){1,99})", "regex:[a", "regex:a)", "regex:\\b", "regex:a{3,1}", "regex:a{}", "regex:a$b",
     "regex:" + "(" * 40 + "a" + ")" * 40, "regex:*", "regex:\\", "regex:[b-a]", "regex:[[a]", "glob:\x00",
     "regex:\ud800", "glob:\ud800", "regex:a\n"],
)  # fmt: skip
def test_what_is_not_a_pattern(pattern: str) -> None:
    with pytest.raises(BadPattern) as caught:
        topics.validate_pattern(pattern)
    assert caught.value.code == "bad-pattern"


@pytest.mark.parametrize(
    "pattern", ["regex:(a|a)*b", "regex:(a*)*b", "regex:.*.*.*.*.*.*x", "regex:(a+)+", "glob:*a*a*a*a*a*a*a*b"]
)
def test_no_pattern_takes_long(pattern: str) -> None:
    begin = time.perf_counter()
    topics.compile(pattern).matches("a" * 511 + ".")
    assert time.perf_counter() - begin < 1


EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "\\.", "\\w"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{1,}", "{,2}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=5,
)


@given(EXPRESSIONS, st.text("ab.", max_size=6))
def test_the_automaton_agrees_with_re(expression: str, text: str) -> None:
    # Python 3.11 reads `{,2}` as we do.
    try:
        automaton = Automaton(f"^{expression}$")
    except BadExpression:
        assert len(expression) > 200 or expression.count("{") > 2
        return
    assert automaton.fullmatch(text) == (re.fullmatch(expression, text) is not None)


@given(st.text(alphabet="ab.*+?|()[]{}\\^$-0129,:=!", max_size=30))
def test_any_expression_is_taken_or_refused(expression: str) -> None:
    try:
        topics.compile(f"regex:{expression}").matches("a.b")
    except BadPattern:
        pass
