"""The text of a selector to a tree of nodes; what is wrong with it is shown with a caret under the place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final, NoReturn, cast

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from fairlead.errors import BadSelector

__all__ = [
    "Arithmetic",
    "Both",
    "Compare",
    "Either",
    "In",
    "IsNull",
    "Like",
    "Literal",
    "Name",
    "Node",
    "Not",
    "Signed",
    "fault",
    "parse",
]

TEXT_MAX: Final = 8192
LONG_MAX: Final = (1 << 63) - 1
SHOWN: Final = 76  # characters of the line with the fault


@dataclass(frozen=True, slots=True)
class Node:
    """Anything in the tree; `at` is its place in the text."""

    at: int


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A text, a number, TRUE or FALSE."""

    value: str | bool | int | float


@dataclass(frozen=True, slots=True)
class Name(Node):
    """A property or header field; in brackets it is a property, whatever it is called."""

    name: str
    bracketed: bool


@dataclass(frozen=True, slots=True)
class Signed(Node):
    """One with a sign before it."""

    sign: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Arithmetic(Node):
    """Several added and subtracted, or multiplied and divided, from the left."""

    operators: tuple[str, ...]
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Compare(Node):
    """Two compared."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class In(Node):
    """Is it one of these?"""

    operand: Node
    values: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Like(Node):
    """Does the text look like this? `escape` is empty if there is none."""

    operand: Node
    pattern: str
    escape: str
    pattern_at: int


@dataclass(frozen=True, slots=True)
class IsNull(Node):
    """Is there none?"""

    operand: Node


@dataclass(frozen=True, slots=True)
class Not(Node):
    """The opposite."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Both(Node):
    """All of them."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either(Node):
    """Any of them."""

    operands: tuple[Node, ...]


def parse(text: str) -> Node:
    """The tree of a selector that is not blank."""
    if len(text) > TEXT_MAX:
        raise fault(text, TEXT_MAX, f"a selector is at most {TEXT_MAX} characters long, not {len(text)}")
    try:
        return cast(Node, _parser().parse(text))
    except UnexpectedCharacters as error:
        at = cast(int, error.pos_in_stream)
        raise fault(text, at, _why_not(text[at])) from None
    except UnexpectedToken as error:
        _unexpected(text, error)
    except _Fault as error:
        raise fault(text, error.at, str(error)) from None


def fault(text: str, at: int, why: str) -> BadSelector:
    """The error that says why, and where."""
    at = min(at, len(text))
    line = text.count("\n", 0, at) + 1
    begin = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    column = at - begin + 1
    from_ = max(begin, at - SHOWN // 2)
    shown = text[from_ : min(end if end >= 0 else len(text), from_ + SHOWN)]
    shown = "".join(letter if letter.isprintable() else " " for letter in shown)
    return BadSelector(
        f"Not a selector, at line {line}, column {column}: {why}.\n  {shown}\n  {' ' * (at - from_)}^",
        line=line,
        column=column,
        offset=at,
    )


def _why_not(letter: str) -> str:
    match letter:
        case "'":
            return "this text has no closing quote"
        case '"':
            return "text stands in single quotes: 'like this'"
        case "!":
            return "this cannot be read; not equal is <>"
        case "[":
            return "a name in brackets has letters, digits, '_', '$', '.' and '-' only, and a closing bracket"
        case _ if letter.isdigit() or letter == ".":
            return "this is not a number"
        case _:
            return f"{letter!r} cannot be read"


def _unexpected(text: str, error: UnexpectedToken) -> NoReturn:
    token = error.token
    ends = token.type == "$END"
    at = len(text.rstrip()) if ends else token.start_pos or 0
    accepted = error.accepts or error.expected
    if "NAME" in accepted:
        wanted = "a name or a value belongs here"
    elif "COMPARATOR" in accepted:
        wanted = "a comparison, AND, OR or the end belongs here"
    elif "_OR" in accepted:
        wanted = "AND, OR or the end belongs here"
    elif "STRING" in accepted:
        wanted = "a text in single quotes belongs here"
    else:
        names = sorted(name.strip("_").replace("RPAR", "a closing parenthesis") for name in accepted if name != "$END")
        wanted = f"{' or '.join(names) or 'nothing more'} belongs here"
    found = "the text ends" if ends else f"there is {str(token)[:40]!r}"
    raise fault(text, at, f"{wanted}, and {found}")


class _Fault(Exception):
    """A fault found while the tree is built, which does not know the text."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at = at


Children = Sequence[Any]


class _Builder(Transformer[Token, Node]):
    """Called by the parser for each rule as soon as it is complete: no recursion, however deep the text."""

    def start(self, children: Children) -> Node:
        return _node(children[0])

    def either(self, children: Children) -> Node:
        operands = tuple(map(_node, children))
        return Either(operands[0].at, operands)

    def both(self, children: Children) -> Node:
        operands = tuple(map(_node, children))
        return Both(operands[0].at, operands)

    def negation(self, children: Children) -> Node:
        return Not(children[0].start_pos, _node(children[1]))

    def compare(self, children: Children) -> Node:
        left, operator, right = children
        return Compare(operator.start_pos, str(operator), _node(left), _node(right))

    def between(self, children: Children) -> Node:
        operand, negated, low, high = children[0], children[1], _node(children[2]), _node(children[3])
        operand = _node(operand)
        # As Jakarta Messaging defines it, which is not the opposite where types do not fit.
        if negated:
            return Either(operand.at, (Compare(operand.at, "<", operand, low), Compare(operand.at, ">", operand, high)))
        return Both(operand.at, (Compare(operand.at, ">=", operand, low), Compare(operand.at, "<=", operand, high)))

    def in_list(self, children: Children) -> Node:
        operand, negated, *values = children
        operand = _node(operand)
        literals = tuple(node for node in map(_node, values) if isinstance(node, Literal))
        assert len(literals) == len(values), "the grammar has literals only"
        return _negated(negated, In(operand.at, operand, literals))

    def like(self, children: Children) -> Node:
        operand, negated, pattern, escape = children
        operand = _node(operand)
        mark = "" if escape is None else _text(escape)
        if escape is not None and len(mark) != 1:
            raise _Fault(escape.start_pos, "what escapes is one character")
        return _negated(negated, Like(operand.at, operand, _text(pattern), mark, pattern.start_pos))

    def is_null(self, children: Children) -> Node:
        operand, negated = children
        operand = _node(operand)
        return _negated(negated, IsNull(operand.at, operand))

    def added(self, children: Children) -> Node:
        operands = tuple(map(_node, children[::2]))
        return Arithmetic(operands[0].at, tuple(map(str, children[1::2])), operands)

    multiplied = added

    def signed(self, children: Children) -> Node:
        sign, operand = children
        if isinstance(operand, Token) and operand.type in ("INTEGER", "FLOAT"):
            return _number(operand, sign)
        operand = _node(operand)
        return Signed(sign.start_pos, str(sign), operand)

    signed_literal = signed

    def name(self, children: Children) -> Node:
        token = children[0]
        bracketed = token.type == "BRACKETED"
        return Name(token.start_pos, token[1:-1] if bracketed else str(token), bracketed)


def _node(child: Any) -> Node:
    """A child that may still be the token of a literal."""
    if isinstance(child, Node):
        return child
    at = child.start_pos
    match child.type:
        case "STRING":
            return Literal(at, _text(child))
        case "TRUE" | "FALSE":
            return Literal(at, child.type == "TRUE")
        case _:
            return _number(child)


def _text(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _number(token: Token, sign: Token | None = None) -> Literal:
    at = token.start_pos if sign is None else sign.start_pos
    assert at is not None
    negative = sign == "-"
    if token.type == "FLOAT":
        value = float(token.rstrip("fFdD"))
        if value == float("inf"):
            raise _Fault(at, "this number is too large")
        return Literal(at, -value if negative else value)
    digits = token.rstrip("lL").lstrip("0") or "0"
    number = int(digits) if len(digits) < 20 else LONG_MAX + 2
    if number > LONG_MAX + negative:
        raise _Fault(at, "this number does not fit into 64 bits")
    return Literal(at, -number if negative else number)


def _negated(negated: Token | None, node: Node) -> Node:
    return node if negated is None else Not(node.at, node)


@cache
def _parser() -> Lark:
    grammar = files(__package__).joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", lexer="basic", transformer=_Builder())
