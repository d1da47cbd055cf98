"""Patterns inside patterns: is everything one stands for also meant by another, and can two mean the same topic?

The first question is answered `no` and the second `yes` where there is no short answer, as with `glob:` and `regex:`:
a right is then not given, and what is denied is looked at again for each topic.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead import topics
from fairlead.errors import BadPattern


def covered(wanted: str, allowed: Iterable[str]) -> bool:
    """Is everything that `wanted`, a topic or pattern, can match inside one of the allowed patterns?"""
    return any(covers(pattern, wanted) for pattern in allowed)


def covers(pattern: str, wanted: str) -> bool:
    if pattern == wanted:
        return True
    if topics.is_reserved(wanted) != topics.is_reserved(pattern):
        return False  # patterns without an underscore stand for no name with one, and the other way round
    if pattern == ">":
        return True
    if is_plain(wanted):
        return topics.compile(pattern).matches(wanted)
    if _has_style(pattern) or _has_style(wanted):
        return False
    return _words_cover(pattern.split("."), wanted.split("."))


def overlaps(one: str, other: str) -> bool:
    """Can both stand for the same topic? A text that is no pattern at all can, as far as we know."""
    if is_plain(one) and is_plain(other):
        return one == other
    try:
        if is_plain(one):
            return covers(other, one)
        if is_plain(other):
            return covers(one, other)
    except BadPattern:
        return True
    if topics.is_reserved(one) != topics.is_reserved(other):
        return False
    if _has_style(one) or _has_style(other):
        return True
    return _words_meet(one.split("."), other.split("."))


def is_plain(text: str) -> bool:
    """Is it one name, and no pattern?"""
    return not _has_style(text) and not any(wildcard in text for wildcard in "*>?")


def _words_cover(pattern: list[str], wanted: list[str]) -> bool:
    for i, word in enumerate(pattern):
        if word == ">":
            return len(wanted) > i
        if i >= len(wanted) or wanted[i] == ">" or not _word_covers(word, wanted[i]):
            return False
    return len(pattern) == len(wanted)


def _word_covers(pattern: str, wanted: str) -> bool:
    if pattern in ("*", wanted):
        return True
    if wanted == "*" or len(pattern) != len(wanted):
        return False
    return all(p in ("?", w) for p, w in zip(pattern, wanted, strict=True))


def _words_meet(one: list[str], other: list[str]) -> bool:
    for i in range(max(len(one), len(other))):
        if i >= len(one) or i >= len(other):
            return False
        if ">" in (one[i], other[i]):
            return True
        if not _word_meets(one[i], other[i]):
            return False
    return True


def _word_meets(one: str, other: str) -> bool:
    if "*" in (one, other):
        return True
    return len(one) == len(other) and all(a == b or "?" in (a, b) for a, b in zip(one, other, strict=True))


def _has_style(pattern: str) -> bool:
    return pattern.startswith((topics.GLOB, topics.REGEX))
