"""What a topic is, what a pattern is, and which topics a pattern stands for (docs/protocol.md, section 5).

A topic is words joined by dots. In the default style `*` stands for one word, a last `>` for one or more
words, `?` for one character of a word. `glob:` and `regex:` choose those styles over the whole topic; there
`*` and `.` also run over the dots. Expressions are matched in linear time (see `automaton`), so that no
pattern of one client can hold up the others.

A topic that begins with an underscore is one of the server's own: only a pattern that itself begins with one stands
for it (CLU-175), so that `>` does not bring the server's log.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from fairlead.automaton import EXPRESSION_LENGTH_MAX, Automaton, BadExpression
from fairlead.errors import BadPattern, BadTopic

__all__ = [
    "TOPIC_BYTES_MAX",
    "Pattern",
    "PatternIndex",
    "compile",
    "is_reserved",
    "validate_pattern",
    "validate_topic",
]

TOPIC_BYTES_MAX = 512
GLOB = "glob:"
REGEX = "regex:"

# Control characters are those of ASCII, of Latin-1 (C1), and the two line separators of Unicode.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_WILD = re.compile("[*>?]")


def validate_topic(text: str) -> None:
    """Raise BadTopic unless `text` is a topic somebody may publish to."""
    problem = _problem(text)
    if problem is None and _WILD.search(text):
        problem = "holds a wildcard"
    if problem:
        raise BadTopic(f"{_shown(text)} is not a topic: it {problem}.")


def validate_pattern(text: str) -> None:
    """Raise BadPattern unless `text` is a pattern somebody may subscribe to."""
    compile(text)


def is_reserved(text: str) -> bool:
    """Does this topic or pattern, whatever its style, begin with an underscore?"""
    return text.removeprefix(GLOB).removeprefix(REGEX).startswith("_")


class Pattern:
    """One compiled pattern."""

    __slots__ = ("_reserved", "_test", "is_plain", "text")

    def __init__(self, text: str, *, is_plain: bool, test: Callable[[str], object]) -> None:
        self.text = text
        self.is_plain = is_plain
        self._reserved = is_reserved(text)
        self._test = test

    def matches(self, topic: str) -> bool:
        return (self._reserved or not topic.startswith("_")) and bool(self._test(topic))

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"


def compile(pattern: str) -> Pattern:  # noqa: A001 - as in `re`
    """Make a pattern ready for use, or raise BadPattern."""
    if pattern.startswith(GLOB):
        return _compile_glob(pattern)
    if pattern.startswith(REGEX):
        return _compile_regex(pattern)
    words = _words(pattern)
    if not _WILD.search(pattern):
        return Pattern(pattern, is_plain=True, test=pattern.__eq__)
    # No two of these can match the same characters in two ways: `re` has nothing to go back to.
    parts = ["[^.]+" if word == "*" else re.escape(word).replace(r"\?", "[^.]") for word in words]
    if words[-1] == ">":
        parts[-1] = ".+"
    return Pattern(pattern, is_plain=False, test=re.compile(r"\.".join(parts), re.DOTALL).fullmatch)


def _words(pattern: str) -> list[str]:
    problem = _problem(pattern)
    words = pattern.split(".")
    if problem is None:
        if any("*" in word and word != "*" for word in words):
            problem = "has a `*` that is not a word of its own"
        elif any(">" in word for word in words[:-1]) or (">" in words[-1] and words[-1] != ">"):
            problem = "has a `>` that is not the last word"
    if problem:
        raise BadPattern(f"{_shown(pattern)} is not a pattern: it {problem}.")
    return words


def _compile_glob(text: str) -> Pattern:
    glob = text.removeprefix(GLOB)
    if not 0 < len(glob) <= EXPRESSION_LENGTH_MAX or _CONTROLS.search(glob) or not _encodable(glob):
        raise BadPattern(f"{_shown(text)} is not a pattern: a glob has 1 to {EXPRESSION_LENGTH_MAX} plain characters.")
    try:
        # `translate` makes every `*` but the last atomic: it never goes back on one.
        return Pattern(text, is_plain=False, test=re.compile(fnmatch.translate(glob)).match)
    except re.error as error:
        raise BadPattern(f"{_shown(text)} is not a pattern: {error}.") from None


def _compile_regex(text: str) -> Pattern:
    expression = text.removeprefix(REGEX)
    if not expression or _CONTROLS.search(expression) or not _encodable(expression):
        raise BadPattern(f"{_shown(text)} is not a pattern: the expression is empty or holds control characters.")
    try:
        return Pattern(text, is_plain=False, test=Automaton(expression).fullmatch)
    except BadExpression as error:
        raise BadPattern(f"{_shown(text)} is not a pattern: {error}.") from None


def _problem(text: str) -> str | None:
    """What is wrong with `text` both as a topic and as a pattern of the default style."""
    if not text:
        return "is empty"
    if not _encodable(text):
        return "is not text"
    if len(text.encode()) > TOPIC_BYTES_MAX:
        return f"is longer than {TOPIC_BYTES_MAX} bytes"
    if _CONTROLS.search(text):
        return "holds a control character"
    if text.startswith(".") or text.endswith(".") or ".." in text:
        return "has an empty word"
    return None


def _encodable(text: str) -> bool:
    """Lone surrogates are the one kind of `str` that is not text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:77] + "...")


Key = TypeVar("Key", bound=Hashable)


class _Node(Generic[Key]):
    """A place in the trie: the words so far."""

    __slots__ = ("children", "ending", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node[Key]] = {}
        self.ending: set[Key] = set()  # patterns that end here
        self.rest: set[Key] = set()  # patterns that go on with `>`

    def __bool__(self) -> bool:
        return bool(self.children or self.ending or self.rest)


class PatternIndex(Generic[Key]):
    """Which keys want a topic, over many patterns.

    Plain patterns are one dictionary, words with `*` and `>` a trie, and the other styles are tried one by one.
    Adding a pair twice is adding it once.
    """

    def __init__(self) -> None:
        self._plain: dict[str, set[Key]] = {}
        self._root: _Node[Key] = _Node()
        self._others: dict[str, tuple[Pattern, set[Key]]] = {}

    def add(self, pattern_text: str, key: Key) -> None:
        """Raise BadPattern, or let `key` be found for every topic the pattern stands for."""
        pattern = compile(pattern_text)
        if pattern.is_plain:
            self._plain.setdefault(pattern_text, set()).add(key)
        elif _is_wordwise(pattern_text):
            node = self._root
            words = pattern_text.split(".")
            for word in words[:-1] if words[-1] == ">" else words:
                node = node.children.setdefault(word, _Node())
            (node.rest if words[-1] == ">" else node.ending).add(key)
        else:
            self._others.setdefault(pattern_text, (pattern, set()))[1].add(key)

    def remove(self, pattern_text: str, key: Key) -> None:
        """Forget the pair; a pair that is not there is not an error."""
        if keys := self._plain.get(pattern_text):
            keys.discard(key)
            if not keys:
                del self._plain[pattern_text]
        elif other := self._others.get(pattern_text):
            other[1].discard(key)
            if not other[1]:
                del self._others[pattern_text]
        elif _is_wordwise(pattern_text):
            self._remove_words(pattern_text.split("."), key)

    def match(self, topic: str) -> set[Key]:
        """A new set of the keys whose patterns stand for `topic`."""
        found = set(self._plain.get(topic, ()))
        if self._root:
            self._match_words(topic.split("."), found)
        for pattern, keys in self._others.values():
            if pattern.matches(topic):
                found |= keys
        return found

    def _match_words(self, words: list[str], found: set[Key]) -> None:
        nodes = [self._root]
        for place, word in enumerate(words):
            following = []
            wild = place > 0 or not word.startswith("_")
            for node in nodes:
                if wild:
                    found |= node.rest
                for child in (node.children.get(word), node.children.get("*") if wild else None):
                    if child is not None:
                        following.append(child)
            if not following:
                return
            nodes = following
        for node in nodes:
            found |= node.ending

    def _remove_words(self, words: list[str], key: Key) -> None:
        path = [self._root]
        for word in words[:-1] if words[-1] == ">" else words:
            child = path[-1].children.get(word)
            if child is None:
                return
            path.append(child)
        (path[-1].rest if words[-1] == ">" else path[-1].ending).discard(key)
        for parent, child, word in reversed(list(zip(path, path[1:], words, strict=False))):
            if child:
                return
            del parent.children[word]


def _is_wordwise(pattern_text: str) -> bool:
    """Can the trie hold it? `?` and the other styles cannot be looked up by words."""
    return "?" not in pattern_text and not pattern_text.startswith((GLOB, REGEX))
