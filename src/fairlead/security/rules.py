"""What a user may do: publish to, subscribe to, or serve a topic. Asked per topic, answered from lists of patterns.

A list that is absent allows everything, an empty one nothing. The surprising part is `subscribe`: there the
request is itself a pattern, and it must lie wholly inside one allowed pattern; `prices.>` does not get in
through `prices.eur.*`. For `glob:` and `regex:` requests that question has no short answer, so they are
allowed only by `>` or by exactly the same pattern.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from fairlead import topics

Action = Literal["publish", "subscribe", "serve"]
ACTIONS: tuple[Action, ...] = ("publish", "subscribe", "serve")

ANONYMOUS = "anonymous"
"""The name under which the users file keeps the rights of clients that gave no name."""

TOPIC_SEPARATOR = "\x1f"  # PUBLISH may name several topics, docs/protocol.md section 5
_ANSWERS_MAX = 16_384


class Rights(NamedTuple):
    """The three lists of one user; None means everything."""

    publish: tuple[str, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    serve: tuple[str, ...] | None = None


class Rules:
    """The rights of all users. Someone it does not know may do nothing; `""` is a client without a name."""

    def __init__(self, rights: Mapping[str, Rights]) -> None:
        self._rights = dict(rights)
        self._rights.setdefault(ANONYMOUS, Rights())
        self._answers: dict[tuple[str, Action, str], bool] = {}

    @classmethod
    def open(cls) -> Rules:
        """Without a users file there are no rules."""
        return cls({})

    def unrestricted(self, user: str, action: Action) -> bool:
        """May the user do this with every topic? Then nobody has to ask per message."""
        rights = self._rights.get(user or ANONYMOUS)
        return rights is not None and getattr(rights, action) is None

    def allows(self, user: str, action: Action, topic_or_pattern: str) -> bool:
        """May the user do this with that topic, those topics (publish), or that pattern (subscribe)?"""
        question = (user, action, topic_or_pattern)
        answer = self._answers.get(question)
        if answer is None:
            if len(self._answers) >= _ANSWERS_MAX:  # clients choose the topics, so this must not grow with them
                self._answers.clear()
            answer = self._answers[question] = self._judge(user, action, topic_or_pattern)
        return answer

    def _judge(self, user: str, action: Action, topic_or_pattern: str) -> bool:
        rights = self._rights.get(user or ANONYMOUS)
        if rights is None:
            return False
        allowed: tuple[str, ...] | None = getattr(rights, action)
        if allowed is None:
            return True
        wanted = topic_or_pattern.split(TOPIC_SEPARATOR) if action == "publish" else [topic_or_pattern]
        return all(covered(one, allowed) for one in wanted)


def covered(wanted: str, allowed: Iterable[str]) -> bool:
    """Is everything that `wanted`, a topic or pattern, can match inside one of the allowed patterns?"""
    return any(_covers(pattern, wanted) for pattern in allowed)


def _covers(pattern: str, wanted: str) -> bool:
    if pattern in (">", wanted):
        return True
    if _is_plain_topic(wanted):
        return topics.compile(pattern).matches(wanted)
    if _has_style(pattern) or _has_style(wanted):
        return False
    return _words_cover(pattern.split("."), wanted.split("."))


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


def _has_style(pattern: str) -> bool:
    return pattern.startswith(("glob:", "regex:"))


def _is_plain_topic(text: str) -> bool:
    return not _has_style(text) and not any(wildcard in text for wildcard in "*>?")
