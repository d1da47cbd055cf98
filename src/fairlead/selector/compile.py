"""A selector made ready: its text becomes one Python expression, which is evaluated for each message.

Truth has three values, but only `true` selects. So what is written is when a condition is true, and under NOT when it
is false; unknown is neither, and needs no code. Nothing of the text gets into what is written: names are read from the
message into variables before, values are constants beside it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from fairlead.selector import like, values
from fairlead.selector.parse import (
    Arithmetic,
    Both,
    Compare,
    Either,
    In,
    IsNull,
    Like,
    Literal,
    Name,
    Node,
    Not,
    Signed,
    fault,
    parse,
)
from fairlead.wire.entry_codec import pick

__all__ = ["FIELDS", "Facts", "Selector", "compile_selector"]

DEPTH_MAX: Final = 40
NAME_BYTES_MAX: Final = 255


class Facts(NamedTuple):
    """What is known of a message beside its headers."""

    priority: int
    timestamp_ms: int
    message_id: bytes
    delivery_count: int
    key: bytes = b""
    persistent: bool = True


_PRIORITY = "facts[0]"
_TIMESTAMP = "facts[1]"
_MESSAGE_ID = "'ID:' + facts[2].hex()"
_DELIVERIES = "facts[3]"
_KEY = "(facts[4].decode('utf-8', 'replace') if facts[4] else None)"
_MODE = "('PERSISTENT' if facts[5] else 'NON_PERSISTENT')"

FIELDS: Final[dict[str, str | bytes]] = {
    "JMSPriority": _PRIORITY,
    "priority": _PRIORITY,
    "JMSTimestamp": _TIMESTAMP,
    "timestamp": _TIMESTAMP,
    "JMSMessageID": _MESSAGE_ID,
    "JMSXDeliveryCount": _DELIVERIES,
    "delivery_count": _DELIVERIES,
    "JMSXGroupID": _KEY,
    "key": _KEY,
    "JMSDeliveryMode": _MODE,
    "JMSCorrelationID": b":correlation",
    "correlation_id": b":correlation",
    "JMSType": b":type",
    "type": b":type",
    "JMSXUserID": b":from",
    "dead_reason": b":dead-reason",
    "dead_destination": b":dead-destination",
    "dead_count": b":dead-count",
}
"""Names of header fields, and where they come from: the facts, or one of Fairlead's own headers."""


class Selector:
    """A condition on messages; `matches(headers, facts)` says whether one with this header section is selected."""

    __slots__ = ("_is_false", "matches", "names", "text")

    def __init__(
        self,
        text: str,
        names: frozenset[str],
        is_true: Callable[[bytes, Facts], bool],
        is_false: Callable[[bytes, Facts], bool],
    ) -> None:
        self.text = text
        self.names = names  # all it asks for, as they stand in the text
        self.matches = is_true
        self._is_false = is_false

    def evaluate(self, headers: bytes, facts: Facts) -> bool | None:
        """Its truth in full: None is unknown, which does not select either."""
        if self.matches(headers, facts):
            return True
        return False if self._is_false(headers, facts) else None

    def __repr__(self) -> str:
        return f"<Selector {self.text!r}>"


def compile_selector(text: str) -> Selector | None:
    """The selector of this text; None for a blank one, which selects everything. BadSelector says what is wrong."""
    return _compile(text) if text.strip() else None


@lru_cache(maxsize=128)
def _compile(text: str) -> Selector:
    writer = _Writer(text)
    tree = parse(text)
    is_true = writer.condition(tree, True, 1)
    is_false = writer.condition(tree, False, 1)
    return Selector(text, frozenset(writer.names), writer.function(is_true), writer.function(is_false))


class _Writer:
    """Writes the expression of one selector, and keeps what it refers to."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: set[str] = set()
        self._headers: dict[bytes, str] = {}  # variables by header
        self._facts: dict[str, str] = {}  # and by what is done with the facts
        self._space: dict[str, Any] = {"pick": pick, "NUMBERS": values.NUMBERS, "__builtins__": {}}
        self._space |= {"bool": bool, "str": str, "calculate": values.calculate}
        self._space |= {"negate": values.negate, "positive": values.positive}

    def function(self, expression: str) -> Callable[[bytes, Facts], bool]:
        lines = ["def selects(headers, facts):"]
        if self._headers:
            self._space["headers_wanted"] = tuple(self._headers)
            lines.append(f"    {', '.join(self._headers.values())}, = pick(headers, headers_wanted)")
        lines += [f"    {variable} = {source}" for source, variable in self._facts.items()]
        lines.append(f"    return {expression}")
        made: dict[str, Any] = {}
        exec(builtins.compile("\n".join(lines), "<selector>", "exec"), self._space, made)
        return made["selects"]  # type: ignore[no-any-return]

    def condition(self, node: Node, wanted: bool, depth: int) -> str:
        """An expression that is true if the node is `wanted`: a condition is true, or is false."""
        self._check_depth(node, depth)
        match node:
            case Both(operands=operands) | Either(operands=operands):
                word = " and " if isinstance(node, Both) == wanted else " or "
                return f"({word.join(self.condition(operand, wanted, depth + 1) for operand in operands)})"
            case Not(operand=operand):
                return self.condition(operand, not wanted, depth + 1)
            case Compare():
                return self._compare(node, wanted, depth)
            case In():
                return self._in(node, wanted)
            case Like():
                return self._like(node, wanted)
            case IsNull(operand=operand):
                return f"({self._variable(operand, 'IS NULL')} is {'' if wanted else 'not '}None)"
            case Name():
                return f"({self._variable(node)} is {wanted})"
            case Literal(value=bool() as value):
                return str(value is wanted)
            case Literal(value=str()):
                raise fault(self.text, node.at, "this is a text, and a condition belongs here")
            case _:
                raise fault(self.text, node.at, "this is a number, and a condition belongs here")

    def _compare(self, node: Compare, wanted: bool, depth: int) -> str:
        ordered = node.operator not in ("=", "<>")
        for side in (node.left, node.right):
            if isinstance(side, Literal) and isinstance(side.value, str | bool) and ordered:
                what = "texts" if isinstance(side.value, str) else "TRUE and FALSE"
                raise fault(self.text, side.at, f"{what} can be compared with = and <> only")
        match node.left, node.right:
            case Name() as name, Literal(value=value):
                return self._compare_constant(self._variable(name), node.operator, value, wanted)
            case Literal(value=value), Name() as name:
                turned = node.operator.translate(str.maketrans("<>", "><")) if ordered else node.operator
                return self._compare_constant(self._variable(name), turned, value, wanted)
        left, right = self._value(node.left, depth + 1), self._value(node.right, depth + 1)
        function = self._constant(values.COMPARISONS[node.operator])
        return f"({function}({left}, {right}) is {wanted})"

    def _compare_constant(self, variable: str, operator: str, value: object, wanted: bool) -> str:
        """The common case, written out: a name, and a value that is known."""
        constant = self._constant(value)
        if isinstance(value, bool):
            is_true = f"{variable} is {value}" if operator == "=" else f"{variable} is {not value}"
        elif isinstance(value, str):
            kind = "" if operator == "=" else f"{variable}.__class__ is str and "
            is_true = f"{kind}{variable} {'==' if operator == '=' else '!='} {constant}"
        else:
            sign = {"=": "==", "<>": "!="}.get(operator, operator)
            is_true = f"{variable}.__class__ in NUMBERS and {variable} {sign} {constant}"
        return f"({is_true})" if wanted else f"({variable} is not None and not ({is_true}))"

    def _in(self, node: In, wanted: bool) -> str:
        variable = self._variable(node.operand, "IN")
        # One set for each kind of value: in Python, TRUE would be 1.
        several = [
            self._compare_set(variable, kind, frozenset(v.value for v in node.values if isinstance(v.value, kinds)))
            for kind, kinds in (("str", str), ("bool", bool))
        ]
        numbers = frozenset(v.value for v in node.values if type(v.value) in values.NUMBERS)
        several.append(
            f"{variable}.__class__ in NUMBERS and {variable} in {self._constant(numbers)}" if numbers else ""
        )
        is_true = " or ".join(filter(None, several))
        return f"({is_true})" if wanted else f"({variable} is not None and not ({is_true}))"

    def _compare_set(self, variable: str, kind: str, members: frozenset[Any]) -> str:
        return f"{variable}.__class__ is {kind} and {variable} in {self._constant(members)}" if members else ""

    def _like(self, node: Like, wanted: bool) -> str:
        variable = self._variable(node.operand, "LIKE")
        try:
            matcher = like.matcher(node.pattern, node.escape)
        except like.BadEscape as error:
            quotes = node.pattern.count("'", 0, error.at)  # each of them stands doubled in the text
            raise fault(self.text, node.pattern_at + 1 + error.at + quotes, str(error)) from None
        is_true = f"{variable}.__class__ is str and {self._constant(matcher)}({variable})"
        return f"({is_true})" if wanted else f"({variable} is not None and not ({is_true}))"

    def _value(self, node: Node, depth: int, calculated: bool = False) -> str:
        """An expression for a value; one that is calculated with has to be a number."""
        self._check_depth(node, depth)
        match node:
            case Literal(value=value):
                if calculated and isinstance(value, str | bool):
                    raise fault(self.text, node.at, "only numbers can be calculated with")
                return self._constant(value)
            case Name():
                return self._variable(node)
            case Signed(sign=sign, operand=operand):
                function = "negate" if sign == "-" else "positive"
                return f"{function}({self._value(operand, depth + 1, True)})"
            case Arithmetic(operators=operators, operands=operands):
                arguments = [self._value(operand, depth + 1, True) for operand in operands]
                return f"calculate({self._constant(operators)}, {', '.join(arguments)})"
            case _:
                raise fault(self.text, node.at, "a condition is no value; combine conditions with AND, OR and NOT")

    def _constant(self, value: object) -> str:
        name = f"constant_{len(self._space)}"
        self._space[name] = value
        return name

    def _variable(self, node: Node, what: str = "") -> str:
        """Where the value of a name will be found."""
        if not isinstance(node, Name):
            raise fault(self.text, node.at, f"before {what} stands a name, and nothing else")
        self.names.add(node.name)
        source = None if node.bracketed else FIELDS.get(node.name)
        if isinstance(source, str):
            return self._facts.setdefault(source, f"fact_{len(self._facts)}")
        if source is None:
            self._check_name(node)
            source = node.name.encode()
        return self._headers.setdefault(source, f"header_{len(self._headers)}")

    def _check_name(self, node: Name) -> None:
        if node.name.startswith("JMS") and not node.name.startswith(("JMSX", "JMS_")) and not node.bracketed:
            known = ", ".join(name for name in FIELDS if name.startswith("JMS"))
            raise fault(self.text, node.at, f"there is no header field {node.name[:40]!r}; there are {known}")
        if len(node.name.encode()) > NAME_BYTES_MAX:
            raise fault(self.text, node.at, f"a name is at most {NAME_BYTES_MAX} bytes long")

    def _check_depth(self, node: Node, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise fault(self.text, node.at, f"more than {DEPTH_MAX} levels deep: fewer parentheses will do")
