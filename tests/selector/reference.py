"""A second, slow reading of selectors: trees made at random, their text, and their truth by the book.

Nothing here is shared with the real one: truth is worked out value by value, with None for NULL and unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Message = dict[str, Any]
NAMES = ["a", "b", "flag", "word", "missing"]
I64 = 2**63


@dataclass
class Part:
    text: str
    evaluate: Any  # from a message to a value, or to True, False, None


def kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return {int: "number", float: "number", str: "text"}.get(type(value), "other")


def compare(sign: str, x: Any, y: Any) -> bool | None:
    if x is None or y is None:
        return None
    if kind(x) != kind(y) or kind(x) == "other":
        return False
    if sign == "=":
        return bool(x == y)
    if sign == "<>":
        return bool(x != y)
    if kind(x) != "number":
        return False
    return bool({"<": x < y, ">": x > y, "<=": x <= y, ">=": x >= y}[sign])


def both(x: bool | None, y: bool | None) -> bool | None:
    if x is False or y is False:
        return False
    return True if x and y else None


def opposite(x: bool | None) -> bool | None:
    return None if x is None else not x


def either(x: bool | None, y: bool | None) -> bool | None:
    return opposite(both(opposite(x), opposite(y)))


def calculate(sign: str, x: Any, y: Any) -> Any:
    if kind(x) != "number" or kind(y) != "number":
        return None
    if sign == "/":
        if y == 0:
            return None
        if isinstance(x, int) and isinstance(y, int):
            quotient = (abs(x) - abs(x) % abs(y)) // abs(y)
            result: Any = quotient if x * y >= 0 else -quotient
        else:
            result = x / y
    else:
        result = {"+": x + y, "-": x - y, "*": x * y}[sign]
    return None if isinstance(result, int) and not -I64 <= result < I64 else result


def like(text: str, pattern: str) -> bool:
    """By a table of all prefixes: slow, and easy to believe."""
    row = [True] + [False] * len(text)
    for letter in pattern:
        if letter == "%":
            row = [any(row[: n + 1]) for n in range(len(text) + 1)]
        else:
            row = [False] + [row[n] and letter in ("_", text[n]) for n in range(len(text))]
    return row[-1]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def literal(value: Any) -> Part:
    if isinstance(value, bool):
        return Part("TRUE" if value else "false", lambda _: value)
    return Part(quoted(value) if isinstance(value, str) else repr(value), lambda _: value)


def name(text: str) -> Part:
    return Part(text, lambda message: message.get(text))


WORDS = st.text("ab%_'", max_size=4)
WHOLE = st.integers(-5, 5) | st.sampled_from([2**62, I64 - 1, -I64])
REAL = st.sampled_from([0.0, 0.5, -1.5, 2.0, 1e300])
NUMBER_LITERALS = (WHOLE | REAL).map(literal)
NAME = st.sampled_from(NAMES).map(name)
NUMBERS = st.recursive(
    NUMBER_LITERALS | NAME,
    lambda inner: (
        st.builds(
            lambda s, x, y: Part(f"({x.text} {s} {y.text})", lambda m: calculate(s, x.evaluate(m), y.evaluate(m))),
            st.sampled_from("+-*/"),
            inner,
            inner,
        )
        | st.builds(lambda x: Part(f"-({x.text})", lambda m: calculate("-", 0, x.evaluate(m))), inner)
    ),
    max_leaves=4,
)
SIGNS = st.sampled_from(["=", "<>", "<", ">", "<=", ">="])


def comparison(sign: str, x: Part, y: Part) -> Part:
    return Part(f"{x.text} {sign} {y.text}", lambda m: compare(sign, x.evaluate(m), y.evaluate(m)))


def between(no: bool, x: Part, low: Part, high: Part) -> Part:
    def evaluate(m: Message) -> bool | None:
        value, a, b = x.evaluate(m), low.evaluate(m), high.evaluate(m)
        if no:
            return either(compare("<", value, a), compare(">", value, b))
        return both(compare(">=", value, a), compare("<=", value, b))

    return Part(f"{x.text} {'NOT ' if no else ''}between {low.text} AND {high.text}", evaluate)


def in_list(no: bool, x: Part, members: list[Any]) -> Part:
    def evaluate(m: Message) -> bool | None:
        found: bool | None = False
        for member in members:
            found = either(found, compare("=", x.evaluate(m), member))
        return opposite(found) if no else found

    listed = ", ".join(literal(member).text for member in members)
    return Part(f"{x.text} {'not ' if no else ''}IN ({listed})", evaluate)


def like_pattern(no: bool, x: Part, pattern: str) -> Part:
    def evaluate(m: Message) -> bool | None:
        value = x.evaluate(m)
        if value is None:
            return None
        found = isinstance(value, str) and like(value, pattern)
        return found != no

    return Part(f"{x.text} {'NOT ' if no else ''}Like {quoted(pattern)}", evaluate)


def is_null(no: bool, x: Part) -> Part:
    return Part(f"{x.text} IS {'NOT ' if no else ''}NULL", lambda m: (x.evaluate(m) is None) != no)


def as_condition(x: Part) -> Part:
    def evaluate(m: Message) -> bool | None:
        value = x.evaluate(m)
        return value if isinstance(value, bool) else None

    return Part(x.text, evaluate)


LEAVES = (
    st.builds(comparison, SIGNS, NUMBERS, NUMBERS)
    | st.builds(comparison, st.sampled_from(["=", "<>"]), NAME, (WORDS | st.booleans()).map(literal))
    | st.builds(comparison, st.sampled_from(["=", "<>"]), (WORDS | st.booleans()).map(literal), NAME)
    | st.builds(between, st.booleans(), NUMBERS, NUMBERS, NUMBERS)
    | st.builds(in_list, st.booleans(), NAME, st.lists(WORDS | st.booleans() | WHOLE | REAL, min_size=1, max_size=3))
    | st.builds(like_pattern, st.booleans(), NAME, WORDS)
    | st.builds(is_null, st.booleans(), NAME)
    | NAME.map(as_condition)
    | st.booleans().map(literal)
)


def joined(word: str, parts: list[Part]) -> Part:
    def evaluate(m: Message) -> bool | None:
        truth = parts[0].evaluate(m)
        for part in parts[1:]:
            truth = (both if word == "AND" else either)(truth, part.evaluate(m))
        return truth  # type: ignore[no-any-return]

    return Part("(" + f" {word} ".join(part.text for part in parts) + ")", evaluate)


CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(joined, st.sampled_from(["AND", "OR"]), st.lists(inner, min_size=2, max_size=3))
        | inner.map(lambda part: Part(f"NOT ({part.text})", lambda m: opposite(part.evaluate(m))))
    ),
    max_leaves=8,
)
VALUES = WORDS | WHOLE | REAL | st.booleans() | st.just(b"bytes")
MESSAGES = st.dictionaries(st.sampled_from(NAMES[:-1]), VALUES)
