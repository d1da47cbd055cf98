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

Groups add their lists to those of their members; what one of them denies is denied, whatever another allows. To deny
`publish` is to deny `send` too, and so with `subscribe`, `consume` and `browse`. A subscription that reaches into
something denied is let in, and what is denied does not come through it: whoever routes asks again for each topic.

Names come here as the server keeps them (see `spaces`): a user of a tenant has rights only inside its name space, and
its patterns are about names in it; nobody else has any right there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from fairlead import topics
from fairlead.directory.delivery.queues import app_queue, carried_to
from fairlead.security import inside, spaces
from fairlead.security.covering import covered as covered
from fairlead.security.covering import covers, overlaps
from fairlead.security.quotas import Quota
from fairlead.security.rights import ACTIONS as ACTIONS
from fairlead.security.rights import INSTEAD as INSTEAD
from fairlead.security.rights import Action as Action
from fairlead.security.rights import Held, Line, held_by
from fairlead.security.rights import Rights as Rights

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
ANSWERS = "admin-reply."
"""Begins topics for answers of administration. They come to nobody by pattern; an administrator may hear its own."""
_ANSWER: Final = re.compile(re.escape(ANSWERS) + "[0-9a-f]{24}")
FOR_ALL: frozenset[tuple[Action, str]] = frozenset({("publish", REGISTRAR), ("publish", STREAMS)})


class Verdict(NamedTuple):
    """An answer, and what it rests on."""

    allowed: bool
    why: str
    line: Line | None = None  # of the users file


REGISTRARS = Rights(serve=(">", REGISTRAR, f"{BROKER}.>"), admin=(ADMIN,))
"""Of the registrar at its own server: it makes and empties queues for others, whatever the users file says."""
STREAM_ADMINISTRATIONS = Rights(publish=(), subscribe=(), serve=(STREAMS,), create=(), admin=())
"""Of the stream administration at its own server: it talks with whoever begins, and does nothing else."""
UNKNOWN: Final = Verdict(False, "the server knows no such user")
OUTSIDE: Final = Verdict(False, "it is not a name of this user's tenant")
READS: Final[tuple[Action, ...]] = ("subscribe", "consume")
"""What is asked for by pattern: the topics of it that are denied are left out one by one."""
_BETWEEN: Final = "\x1e"


def principal(user: str, groups: Iterable[str] = (), tenant: str = "") -> str:
    """Who it is, in one text to ask rules with: the user's name, and what a proof said beyond it."""
    groups = tuple(groups)
    return _BETWEEN.join((user, tenant, *groups)) if groups or tenant else user


CONSOLES = Rights(
    publish=("_CONSOLE.>",),
    subscribe=("_CONSOLE.>",),
    serve=(),
    send=(">",),
    consume=(LOG,),
    browse=(),
    create=(),
    admin=(">",),
)
"""Of the console at its own server: it sends what a user of it may send, follows the log, asks for what streams there
are, and measures round trips. Whatever else it does it asks the supervisor for."""


class Rules:
    """The rights of all users. Someone it does not know may do nothing; `""` is a client without a name."""

    def __init__(
        self,
        rights: Mapping[str, Rights],
        *,
        is_open: bool = False,
        groups: Mapping[str, Rights] | None = None,
        tenants: Mapping[str, Quota] | None = None,
        quotas: Mapping[str, Quota] | None = None,
    ) -> None:
        self._rights = dict(rights)
        self._groups = dict(groups or {})
        self._tenants = dict(tenants or {})
        self._quotas = dict(quotas or {})  # of single users
        self._is_open = is_open  # there is no users file
        self._rights.setdefault(ANONYMOUS, Rights())
        self._rights[inside.REGISTRAR] = REGISTRARS
        self._rights[inside.STREAMS] = STREAM_ADMINISTRATIONS
        self._rights[inside.CONSOLE] = CONSOLES
        self._held: dict[str, Held | None] = {}
        self._answers: dict[tuple[str, Action, str], bool] = {}

    @classmethod
    def open(cls) -> Rules:
        """Without a users file there are no rules but those for the server's own names."""
        return cls({}, is_open=True)

    @property
    def is_open(self) -> bool:
        """Is there no users file?"""
        return self._is_open

    def knows(self, who: str) -> bool:
        """Has this somebody any rights at all here?"""
        return self._held_by(who) is not None

    def tenant_of(self, who: str) -> str:
        held = self._held_by(who)
        return held.tenant if held is not None else ""

    def quotas_of(self, who: str) -> list[tuple[str, Quota]]:
        """The limits that count for somebody, each with whose it is: `=NAME` a user, else a tenant."""
        user, _, _ = who.partition(_BETWEEN)
        found = [(f"={user}", self._quotas[user])] if user in self._quotas else []
        tenant = self.tenant_of(who)
        return [*found, (tenant, self._tenants[tenant])] if tenant else found

    def unrestricted(self, who: str, action: Action) -> bool:
        """May the user do this with every name but the server's own? Then nobody has to ask per message."""
        held = self._held_by(who)
        return held is not None and not held.tenant and held.list_of(action) is None and action not in held.denies

    def filters(self, who: str) -> bool:
        """Is there anything a subscription that was let in may not bring? Then each topic has to be asked for."""
        held = self._held_by(who)
        return held is None or bool(held.tenant) or "subscribe" in held.denies

    def allows(self, who: str, action: Action, topic_or_pattern: str) -> bool:
        """May the user do this with that topic, those topics (publish), or that pattern (subscribe)?"""
        question = (who, action, topic_or_pattern)
        answer = self._answers.get(question)
        if answer is None:
            if len(self._answers) >= _ANSWERS_MAX:  # clients choose the topics, so this must not grow with them
                self._answers.clear()
            answer = self._answers[question] = self.verdict(who, action, topic_or_pattern).allowed
        return answer

    def verdict(self, who: str, action: Action, topic_or_pattern: str) -> Verdict:
        """The same with what it rests on; of several topics, about the first that is refused."""
        held = self._held_by(who)
        if held is None:
            return UNKNOWN
        found = UNKNOWN
        for wanted in topic_or_pattern.split(TOPIC_SEPARATOR) if action == "publish" else [topic_or_pattern]:
            bare = spaces.bare(held.tenant, wanted)
            if bare is None:
                return OUTSIDE
            found = self._judge(held, action, bare)
            if not found.allowed:
                break
        return found

    def exceptions(self, who: str, pattern: str) -> tuple[str, ...]:
        """Patterns of what may not come to a durable consumer by this one, as the server keeps them."""
        held = self._held_by(who)
        if held is None:
            return (pattern,)
        bare = spaces.bare(held.tenant, pattern) or pattern
        denied = [line.pattern for line in held.denies.get("consume", ()) if overlaps(line.pattern, bare)]
        if held.tenant and not topics.is_reserved(bare):
            denied.append("glob:_*")
        return tuple(_inside_all(held.tenant, denied))

    def _held_by(self, who: str) -> Held | None:
        if who not in self._held:
            if len(self._held) >= _ANSWERS_MAX:
                self._held.clear()
            self._held[who] = self._gather(who)
        return self._held[who]

    def _gather(self, who: str) -> Held | None:
        user, _, said = who.partition(_BETWEEN)
        tenant, *groups = said.split(_BETWEEN)
        own = self._rights.get(user or ANONYMOUS)
        if own is None and self._is_open:
            own = self._rights[ANONYMOUS]  # who has shown to be somebody may do what anybody may
        if own is not None:
            groups = [*own.groups, *(group for group in groups if group not in own.groups)]
            if tenant and own.tenant and tenant != own.tenant:
                return None  # two proofs that contradict each other are none
            tenant = own.tenant or tenant
        if tenant and tenant not in self._tenants:
            return None
        sources = [(f"user {user or ANONYMOUS}", own)] if own is not None else []
        sources += [(f"group {group}", self._groups[group]) for group in groups if group in self._groups]
        return held_by(sources, tenant) if sources else None

    # ------------------------------------------------------------------ one name

    def _judge(self, held: Held, action: Action, wanted: str) -> Verdict:
        own = well_known(wanted)
        if action in ("publish", "send", "create") and own in SERVER_ONLY:
            return Verdict(False, f"what is in {own} is the server's word alone")
        if action == "publish" and wanted == ADMIN:
            action = "admin"
        if action == "subscribe" and held.list_of("admin") and _ANSWER.fullmatch(wanted):
            return Verdict(True, "administrators hear their answers")
        if (action, wanted) in FOR_ALL and not held.tenant:
            return Verdict(True, f"everybody who may connect talks with {wanted}")
        if action in ("send", "create") and (carried := carried_to(wanted)) is not None and not held.tenant:
            # Answers are for whoever was asked: their queue is temporary, and who knows its name was given it.
            if not carried.app:
                return Verdict(True, "it is the queue of an answer")
            return self._judge(held, "send", app_queue(carried.app))
        for line in held.denies.get(action, ()):
            if covers(line.pattern, wanted) or (action not in READS and overlaps(line.pattern, wanted)):
                return Verdict(False, "denied", line)
        allowed = held.list_of(action)
        if allowed is not None:
            for line in allowed:
                if line.pattern and (covers(line.pattern, wanted) or covers(line.pattern, own)):
                    return Verdict(True, "allowed", line)
        if topics.is_reserved(wanted):
            family = BROKER if wanted.startswith(f"{BROKER}.") else own
            if allowed is None and self._is_open and (action, family) in OPEN:
                return Verdict(True, "there is no users file")
            return Verdict(False, "names with an underscore are the server's own, and no line names this one")
        if action == "admin":
            return self._judge_administrator(held, allowed)
        if allowed is not None:
            return Verdict(False, f"no line about {allowed[0].action} allows it", allowed[0])
        if action == "create":
            sends = self._judge(held, "send", wanted)
            return sends if sends.allowed else self._judge(held, "consume", wanted)
        return Verdict(True, "no list restricts it")

    def _judge_administrator(self, held: Held, allowed: tuple[Line, ...] | None) -> Verdict:
        """A destination is administered by who has it in a list, and by who administers the whole."""
        whole = self._judge(held, "admin", ADMIN)
        if whole.allowed:
            return whole
        return Verdict(False, "no line about admin allows it", allowed[0] if allowed else None)


def well_known(name: str) -> str:
    """`_LOG` of `_LOG.GROUP`, `_DMQ` of `_DMQ.GROUP`: who may do something with it may with those of all groups."""
    first, _, _ = name.partition(".")
    return first if first in SERVER_ONLY else name


def _inside_all(tenant: str, patterns: list[str]) -> list[str]:
    return [spaces.inside(tenant, pattern) for pattern in patterns]
