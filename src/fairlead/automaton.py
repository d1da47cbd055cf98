"""Regular expressions that always take linear time: one step per character, whatever the expression.

Python's own `re` backtracks, so that a pattern such as `(a|a)*b` can occupy the router for ever. Here an
expression becomes a Thompson automaton whose possible states are followed all at once, and the sets met
on the way are remembered (a DFA built on demand, thrown away when it grows too large).

Understood: literals, `.`, classes `[a-z]`, escapes (`\\d \\w \\s \\.` …), groups, `|`, `* + ? {m,n}` and
their lazy forms, `^` at the very beginning, `$` at the very end. Refused: backreferences, lookaround,
flags, `\\b`. What a single character class means is left to `re`, which cannot backtrack on one character.
"""

from __future__ import annotations

import re
import warnings
from typing import NamedTuple, TypeAlias

__all__ = ["Automaton", "BadExpression"]

EXPRESSION_LENGTH_MAX = 256
DEPTH_MAX = 20
STATES_MAX = 1000
"""Counted repeats are written out, so `(a{1,99}){1,99}` must be stopped."""
SETS_REMEMBERED_MAX = 4096

_COUNTED = re.compile(r"\{(\d{0,3})(?:(,)(\d{0,3}))?\}")
_CLASS = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)
_ESCAPES = frozenset("dDwWsS")
_REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class BadExpression(ValueError):
    """Not an expression this automaton understands."""


class Any(NamedTuple):
    """One character that `test` agrees with."""

    test: re.Pattern[str]


class Sequence(NamedTuple):
    parts: list[Node]


class Choice(NamedTuple):
    parts: list[Node]


class Repeat(NamedTuple):
    part: Node
    least: int
    most: int | None


Node: TypeAlias = Any | Sequence | Choice | Repeat


class Automaton:
    """One compiled expression; `fullmatch` says whether it describes the whole text."""

    def __init__(self, expression: str) -> None:
        tree = _Reader(expression).read()
        self._tests: list[re.Pattern[str] | None] = []  # what a state wants of the next character
        self._free: list[list[int]] = []  # where it goes without one
        self._next: list[int] = []  # where it goes with one
        start, self._final = self._build(tree)
        self._first = self._closure({start})
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def fullmatch(self, text: str) -> bool:
        states = self._first
        known = self._known
        for character in text:
            following = known.get((states, character))
            if following is None:
                following = self._step(states, character)
                if len(known) >= SETS_REMEMBERED_MAX:
                    known.clear()
                known[states, character] = following
            if not following:
                return False
            states = following
        return self._final in states

    def _step(self, states: frozenset[int], character: str) -> frozenset[int]:
        reached = set()
        for state in states:
            test = self._tests[state]
            if test is not None and test.match(character):
                reached.add(self._next[state])
        return self._closure(reached)

    def _closure(self, states: set[int]) -> frozenset[int]:
        waiting = list(states)
        while waiting:
            for state in self._free[waiting.pop()]:
                if state not in states:
                    states.add(state)
                    waiting.append(state)
        return frozenset(states)

    def _state(self, test: re.Pattern[str] | None = None, following: int = -1) -> int:
        if len(self._tests) >= STATES_MAX:
            raise BadExpression("too large once its repeats are written out")
        self._tests.append(test)
        self._next.append(following)
        self._free.append([])
        return len(self._tests) - 1

    def _build(self, node: Node) -> tuple[int, int]:
        """Add the states of `node`: where it begins, and where it ends (with no way out yet)."""
        free = self._free
        end = self._state()
        match node:
            case Any(test):
                return self._state(test, end), end
            case Choice(parts):
                start = self._state()
                for part in parts:
                    first, last = self._build(part)
                    free[start].append(first)
                    free[last].append(end)
                return start, end
            case Sequence(parts):
                start = end
                for part in parts:
                    first, last = self._build(part)
                    free[end].append(first)
                    end = last
                return start, end
            case Repeat(part, least, most):
                start = here = self._state()
                for _ in range(least):
                    first, last = self._build(part)
                    free[here].append(first)
                    here = last
                for _ in range(1 if most is None else most - least):
                    first, last = self._build(part)
                    free[here] += [first, end]
                    if most is None:
                        free[last].append(here)
                    else:
                        here = last
                free[here].append(end)
                return start, end


class _Reader:
    """A recursive descent over the text of an expression, one method per level of binding."""

    def __init__(self, expression: str) -> None:
        if len(expression) > EXPRESSION_LENGTH_MAX:
            raise BadExpression(f"longer than {EXPRESSION_LENGTH_MAX} characters")
        self._text = expression.removeprefix("^")
        self._at = 0

    def read(self) -> Node:
        tree = self._choice(0)
        if self._at < len(self._text):
            raise BadExpression(f"unexpected {self._text[self._at]!r}")
        return tree

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _choice(self, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise BadExpression("groups are nested too deeply")
        parts = [self._sequence(depth)]
        while self._peek() == "|":
            self._at += 1
            parts.append(self._sequence(depth))
        return Choice(parts) if len(parts) > 1 else parts[0]

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            if depth == 0 and self._text[self._at :] == "$":
                self._at += 1
                break
            parts.append(self._repeat(self._atom(depth)))
        return Sequence(parts)

    def _repeat(self, part: Node) -> Node:
        sign = self._peek()
        if sign in _REPEATS:
            least, most = _REPEATS[sign]
            self._at += 1
        elif counted := _COUNTED.match(self._text, self._at):
            low, comma, high = counted.groups()
            if not low and not high:
                raise BadExpression("a repeat without a number")
            least = int(low or 0)
            most = (int(high) if high else None) if comma else least
            if most is not None and most < least:
                raise BadExpression("a repeat from more to less")
            self._at = counted.end()
        else:
            return part
        if self._peek() == "?":  # lazy or greedy makes no difference to whether the whole text matches
            self._at += 1
        if self._peek() in ("*", "+", "?") or _COUNTED.match(self._text, self._at):
            raise BadExpression("a repeat of a repeat needs parentheses")
        return Repeat(part, least, most)

    def _atom(self, depth: int) -> Node:
        sign = self._peek()
        if sign == "(":
            self._at += 3 if self._text.startswith("(?:", self._at) else 1
            if self._peek() == "?":
                raise BadExpression("only plain groups ( ) and (?: ) are understood")
            inside = self._choice(depth + 1)
            if self._peek() != ")":
                raise BadExpression("a parenthesis is not closed")
            self._at += 1
            return inside
        if sign == "[":
            extent = _CLASS.match(self._text, self._at)
            if extent is None:
                raise BadExpression("a bracket is not closed")
            token = extent.group()
        elif sign == "\\":
            token = self._text[self._at : self._at + 2]
            if len(token) < 2 or (token[1].isalnum() and token[1] not in _ESCAPES):
                raise BadExpression(f"the escape {token!r} is not understood")
        elif sign in "*+?^$":
            raise BadExpression(f"unexpected {sign!r}")
        else:
            token = "." if sign == "." else re.escape(sign)
            self._at += 1
            return Any(_one(token))
        self._at += len(token)
        return Any(_one(token))


def _one(token: str) -> re.Pattern[str]:
    """Let `re` judge a single character; what it would only warn about is refused."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(token, re.DOTALL)
    except (re.error, Warning, OverflowError) as error:
        raise BadExpression(str(error)) from None
