"""What a user may do with a topic or a destination. Asked per name, answered from lists of patterns.

A list that is absent allows everything, an empty one nothing. The surprising part is `subscribe`: there the
request is itself a pattern, and it must lie wholly inside one allowed pattern; `prices.>` does not get in
through `prices.eur.*`. For `glob:` and `regex:` requests that question has no short answer, so they are
allowed only by `>` or by exactly the same pattern.

Where a user has no list for queues and durable topics, the transient one stands for it: `publish` for `send`,
`subscribe` for `consume`, `consume` for `browse`; and who may send to or consume from a name may create it. So a
user with narrow rights has none that were not thought of.

Names that begin with an underscore are the server's own (CLU-205): nobody may use them but by a pattern that begins
with one itself. Where there is no users file at all, whoever reaches the server may read its log and its dead
messages, administer it and speak for any broker in its directory; to publish to those two is for nobody. One such name
is for everybody: with the registrar talks whoever may connect, and it is the registrar that asks for rights (DIR-24);
so it is with the stream administration.
Who may send to an application may hand over what is carried to it at another broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from fairlead import topics
from fairlead.directory.delivery.queues import app_queue, carried_to
from fairlead.security import inside

Action = Literal["publish", "subscribe", "serve", "send", "consume", "browse", "create", "admin"]
ACTIONS: tuple[Action, ...] = ("publish", "subscribe", "serve", "send", "consume", "browse", "create", "admin")
INSTEAD: Mapping[Action, Action] = {"send": "publish", "consume": "subscribe", "browse": "consume"}
"""Which list is asked where a user has none for the action."""

ANONYMOUS = "anonymous"
"""The name under which the users file keeps the rights of clients that gave no name."""

TOPIC_SEPARATOR = "\x1f"  # PUBLISH may name several topics, docs/protocol.md section 5
_ANSWERS_MAX = 16_384


ADMIN, LOG, DEAD, LINK = "_ADMIN", "_LOG", "_DMQ", "_LINK"
DIRECTORY, BROKER, REGISTRAR = "_DIRECTORY", "_BROKER", "_REGISTRAR"  # docs/directory.md, sections 3 and 4
STREAMS = "_STREAMS"  # docs/feeds.md, section 5
SERVER_ONLY: frozenset[str] = frozenset({LOG, DEAD})  # what is in them is the server's word
OPEN: frozenset[tuple[Action, str]] = frozenset(
    {
        ("consume", LOG),
        ("browse", LOG),
        ("subscribe", LOG),
        ("consume", DEAD),
        ("browse", DEAD),
        ("admin", ADMIN),
        ("subscribe", LINK),
        ("publish", LINK),
        ("admin", DIRECTORY),
        ("serve", BROKER),
    }
)
FOR_ALL: frozenset[tuple[Action, str]] = frozenset({("publish", REGISTRAR), ("publish", STREAMS)})


class Rights(NamedTuple):
    """The lists of one user; None means everything, except names with an underscore."""

    publish: tuple[str, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    serve: tuple[str, ...] | None = None
    send: tuple[str, ...] | None = None
    consume: tuple[str, ...] | None = None
    browse: tuple[str, ...] | None = None
    create: tuple[str, ...] | None = None
    admin: tuple[str, ...] | None = None

    def of(self, action: Action) -> tuple[str, ...] | None:
        """The list that decides about this action."""
        while getattr(self, action) is None and action in INSTEAD:
            action = INSTEAD[action]
        allowed: tuple[str, ...] | None = getattr(self, action)
        return allowed


REGISTRARS = Rights(serve=(">", REGISTRAR, f"{BROKER}.>"), admin=(ADMIN,))
"""Of the registrar at its own server: it makes and empties queues for others, whatever the users file says."""
STREAM_ADMINISTRATIONS = Rights(publish=(), subscribe=(), serve=(STREAMS,), create=(), admin=())
"""Of the stream administration at its own server: it talks with whoever begins, and does nothing else."""


class Rules:
    """The rights of all users. Someone it does not know may do nothing; `""` is a client without a name."""

    def __init__(self, rights: Mapping[str, Rights], *, is_open: bool = False) -> None:
        self._rights = dict(rights)
        self._is_open = is_open  # there is no users file
        self._rights.setdefault(ANONYMOUS, Rights())
        self._rights[inside.REGISTRAR] = REGISTRARS
        self._rights[inside.STREAMS] = STREAM_ADMINISTRATIONS
        self._answers: dict[tuple[str, Action, str], bool] = {}

    @classmethod
    def open(cls) -> Rules:
        """Without a users file there are no rules but those for the server's own names."""
        return cls({}, is_open=True)

    @property
    def is_open(self) -> bool:
        """Is there no users file?"""
        return self._is_open

    def unrestricted(self, user: str, action: Action) -> bool:
        """May the user do this with every name but the server's own? Then nobody has to ask per message."""
        rights = self._rights_of(user)
        return rights is not None and rights.of(action) is None

    def allows(self, user: str, action: Action, topic_or_pattern: str) -> bool:
        """May the user do this with that topic, those topics (publish), or that pattern (subscribe)?"""
        question = (user, action, topic_or_pattern)
        answer = self._answers.get(question)
        if answer is None:
            if len(self._answers) >= _ANSWERS_MAX:  # clients choose the topics, so this must not grow with them
                self._answers.clear()
            answer = self._answers[question] = self._judge(user, action, topic_or_pattern)
        return answer

    def _rights_of(self, user: str) -> Rights | None:
        """Without a users file, who has shown to be somebody may do what anybody may."""
        return self._rights.get(user or ANONYMOUS) or (self._rights[ANONYMOUS] if self._is_open else None)

    def _judge(self, user: str, action: Action, topic_or_pattern: str) -> bool:
        rights = self._rights_of(user)
        if rights is None:
            return False
        wanted = topic_or_pattern.split(TOPIC_SEPARATOR) if action == "publish" else [topic_or_pattern]
        return all(self._judge_one(rights, action, one) for one in wanted)

    def _judge_one(self, rights: Rights, action: Action, wanted: str) -> bool:
        own = well_known(wanted)
        if action in ("publish", "send", "create") and own in SERVER_ONLY:
            return False
        if action == "publish" and wanted == ADMIN:
            action = "admin"
        if (action, wanted) in FOR_ALL:
            return True
        if action in ("send", "create") and (carried := carried_to(wanted)) is not None:
            # Answers are for whoever was asked: their queue is temporary, and who knows its name was given it.
            return not carried.app or self._judge_one(rights, "send", app_queue(carried.app))
        allowed = rights.of(action)
        if topics.is_reserved(wanted):
            if allowed is None:
                family = BROKER if wanted.startswith(f"{BROKER}.") else own
                return self._is_open and (action, family) in OPEN
            return covered(wanted, allowed) or covered(own, allowed)
        if action == "create" and allowed is None:
            return self._judge_one(rights, "send", wanted) or self._judge_one(rights, "consume", wanted)
        return allowed is None or covered(wanted, allowed)


def well_known(name: str) -> str:
    """`_LOG` of `_LOG.GROUP`, `_DMQ` of `_DMQ.GROUP`: who may do something with it may with those of all groups."""
    first, _, _ = name.partition(".")
    return first if first in SERVER_ONLY else name


def covered(wanted: str, allowed: Iterable[str]) -> bool:
    """Is everything that `wanted`, a topic or pattern, can match inside one of the allowed patterns?"""
    return any(_covers(pattern, wanted) for pattern in allowed)


def _covers(pattern: str, wanted: str) -> bool:
    if pattern == wanted:
        return True
    if topics.is_reserved(wanted) != topics.is_reserved(pattern):
        return False  # patterns without an underscore stand for no name with one, and the other way round
    if pattern == ">":
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
