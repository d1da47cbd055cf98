"""What values do in a selector: arithmetic and comparison, where None is SQL's NULL and truth has three values.

Only like compares with like: numbers with numbers, text with text, bool with bool; of others the comparison is
false, and of a NULL it is unknown. Arithmetic without a result (a NULL, a text, a division by zero, more than 64 bits)
is NULL.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

__all__ = ["COMPARISONS", "NUMBERS", "calculate", "negate", "positive"]

NUMBERS: Final = frozenset({int, float})
_KINDS: Final = {bool: 1, str: 2, int: 3, float: 3}
_NUMBER: Final = 3
_LONG_MIN: Final = -(1 << 63)
_LONG_MAX: Final = (1 << 63) - 1

Value = Any
Truth = bool | None


def _comparison(compare: Callable[[Any, Any], bool], *, ordered: bool) -> Callable[[Value, Value], Truth]:
    def decide(left: Value, right: Value) -> Truth:
        if left is None or right is None:
            return None
        kind = _KINDS.get(type(left))
        if kind is None or kind != _KINDS.get(type(right)) or (ordered and kind != _NUMBER):
            return False
        return compare(left, right)

    return decide


COMPARISONS: Final = {
    "=": _comparison(operator.eq, ordered=False),
    "<>": _comparison(operator.ne, ordered=False),
    "<": _comparison(operator.lt, ordered=True),
    "<=": _comparison(operator.le, ordered=True),
    ">": _comparison(operator.gt, ordered=True),
    ">=": _comparison(operator.ge, ordered=True),
}


def calculate(operators: tuple[str, ...], first: Value, *others: Value) -> int | float | None:
    """One after another, from the left."""
    if type(first) not in NUMBERS:
        return None
    total: int | float = first
    for sign, value in zip(operators, others, strict=True):
        if type(value) not in NUMBERS:
            return None
        if sign == "+":
            total = total + value
        elif sign == "-":
            total = total - value
        elif sign == "*":
            total = total * value
        elif value == 0:
            return None
        elif isinstance(total, int) and isinstance(value, int):
            whole = abs(total) // abs(value)
            total = whole if (total < 0) == (value < 0) else -whole  # towards zero, as in SQL
        else:
            total = total / value
        if isinstance(total, int) and not _LONG_MIN <= total <= _LONG_MAX:
            return None
    return total


def negate(value: Value) -> int | float | None:
    """With the other sign."""
    return calculate(("-",), 0, value) if type(value) is int else -value if type(value) is float else None


def positive(value: Value) -> int | float | None:
    """As it is, if it is a number."""
    return value if type(value) in NUMBERS else None
