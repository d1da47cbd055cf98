"""One stream's adapters and clients, as the administration knows them: who is active, who would be next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.feeds.administration.kept import KeptGroup, KeptMember
from fairlead.feeds.administration.passes import Passes
from fairlead.feeds.source_relations import Relations, merged
from fairlead.feeds.words import LineOffer, Placed, Role, Source

__all__ = ["Expiry", "Group", "Member", "Subscriber", "Switch"]


@dataclass(slots=True, eq=False)
class Member:
    """An adapter of the group. `alive`: it has a conversation with us and reports."""

    name: str
    address: str
    incarnation: int
    preference: int
    heartbeat_s: float
    link_token: str
    talk: int | None = None
    user: str = ""
    alive: bool = False
    expected: bool = False  # it was here before the administration was started anew, and has not reported yet
    heard_s: float = 0.0
    role_told_s: float = 0.0
    last: int = 0
    positions: Mapping[str, Placed] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    source_alive: bool = True
    source_lost_s: float | None = None
    synchronised: bool = False
    counters: Mapping[str, int] = field(default_factory=dict)
    admitted: int = 0  # the newest subscription it has said that it knows of

    def kept(self) -> KeptMember:
        return KeptMember(
            name=self.name,
            address=self.address,
            incarnation=self.incarnation,
            preference=self.preference,
            heartbeat_s=self.heartbeat_s,
            link_token=self.link_token,
            is_here=self.talk is not None or self.expected,
            sources=self.sources,
        )


@dataclass(slots=True, eq=False)
class Subscriber:
    """One conversation of a client."""

    token: str
    client: str
    user: str
    line: str = ""
    local: bool = False
    number: int = 0  # in the order of subscriptions; 0: it waits for the group to settle
    until_s: float = 0.0  # so long adapters have to say that they know of it
    is_told: bool = False  # it has had its Brokered
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Switch:
    """A planned switch that was ordered and is not done yet (STR-78)."""

    to: str
    epoch: int
    until_s: float
    talk: int  # of the operator


class Group:
    def __init__(self, stream: str, *, threshold: int, schema: str, passes_max: int, relations: Relations) -> None:
        self.stream, self.threshold, self.schema = stream, threshold, schema
        self.epoch = self.highest = 0
        self.active = ""
        self.former = ""  # was active, died and is back: its turn comes after everybody else's (STR-75)
        self.members: dict[str, Member] = {}
        self.passes = Passes(passes_max)
        self.subscribers: dict[int, Subscriber] = {}
        self.waiting: dict[int, Subscriber] = {}  # those of them without an answer
        self.newcomers: list[int] = []  # those of these that adapters were not told of yet
        self.admitting: dict[str, int] = {}  # their tokens, and the number of the newest such subscription
        self.subscriptions = 0
        self.settle_s: float | None = None  # until then nobody is promoted: adapters may still come back
        self.learning = False  # the store was lost, or this is new to it: who is active is not known yet
        self.switch: Switch | None = None
        self.promised = (0, "")  # epoch and adapter of the last planned switch, done or not
        self.failovers = self.switches = 0
        self.decisions: deque[dict[str, object]] = deque(maxlen=20)  # on administrative messages, the newest ones
        self.told: object = None  # what clients know of roles, adapters and sources
        self._relations = relations

    # --- Who is here ----------------------------------------------------------------------------------------------
    def living(self) -> list[Member]:
        """The active one first, then in order of preference."""
        return sorted((one for one in self.members.values() if one.alive), key=self._order)

    def _order(self, one: Member) -> tuple[bool, int, str]:
        return one.name != self.active, one.preference, one.name

    def present(self) -> Iterator[Member]:
        """All with a conversation, also those that do not report."""
        return (one for one in self.members.values() if one.talk is not None)

    @property
    def leader(self) -> Member | None:
        """The active adapter, if it is alive."""
        found = self.members.get(self.active)
        return found if found is not None and found.alive else None

    def is_unsettled(self, now_s: float) -> bool:
        """May adapters still come back, so that nobody is promoted yet?"""
        if self.settle_s is None or now_s >= self.settle_s:
            return False
        return any(one.expected for one in self.members.values()) or (self.learning and self.leader is None)

    def best(self, *, but: str = "") -> Member | None:
        """Whom to promote: synchronised ones first (STR-73), then by preference."""
        candidates = [one for one in self.members.values() if one.alive and one.name != but]
        return min(candidates, key=_merit, default=None)

    # --- What the others are told ---------------------------------------------------------------------------------
    def role_of(self, member: Member) -> Role:
        leader = self.members.get(self.active)
        if leader is member:
            return Role(epoch=self.epoch, role="active", active=member.name, active_address=member.address)
        return Role(
            epoch=self.epoch,
            role="backup",
            active=self.active,
            active_address=leader.address if leader is not None else "",
            link_token=member.link_token,
        )

    def lines(self, token: str) -> tuple[LineOffer, ...]:
        return tuple(
            LineOffer(
                adapter=one.name,
                address=one.address,
                token=token,
                incarnation=one.incarnation,
                role="active" if one.name == self.active else "backup",
            )
            for one in self.living()
        )

    def sources(self) -> tuple[Source, ...]:
        """Of all adapters, and the relations the configuration adds (STR-44). The active one has the last word."""
        ranked = sorted(self.members.values(), key=self._order)
        return merged(
            (one.sources for one in ranked if one.alive or one.expected), self._relations.get(self.stream, {})
        )

    def positions(self) -> Mapping[str, Placed]:
        leader = self.members.get(self.active)
        return leader.positions if leader is not None else {}

    def heartbeat_s(self) -> float:
        return max((one.heartbeat_s for one in self.members.values() if one.alive), default=0.2)

    # --- The store ------------------------------------------------------------------------------------------------
    def kept(self, wall_offset_s: float) -> KeptGroup:
        return KeptGroup(
            stream=self.stream,
            epoch=self.epoch,
            highest=self.highest,
            active=self.active,
            threshold=self.threshold,
            promised=self.promised,
            schema=self.schema,
            failovers=self.failovers,
            switches=self.switches,
            members=tuple(one.kept() for one in self.members.values()),
            passes=self.passes.kept(wall_offset_s),
            revoked={token: until_s + wall_offset_s for token, until_s in self.passes.revoked.items()},
            barred_clients=tuple(sorted(self.passes.barred_clients)),
            barred_users=tuple(sorted(self.passes.barred_users)),
        )

    @classmethod
    def restored(cls, kept: KeptGroup, *, passes_max: int, relations: Relations, expiry: Expiry) -> Group:
        """Its adapters may be alive and serve: they are expected, and nobody is promoted in a hurry."""
        made = cls(
            kept.stream, threshold=kept.threshold, schema=kept.schema, passes_max=passes_max, relations=relations
        )
        made.epoch, made.highest, made.active = kept.epoch, max(kept.highest, kept.epoch), kept.active
        made.promised = kept.promised
        made.failovers, made.switches = kept.failovers, kept.switches
        for one in kept.members:
            made.members[one.name] = Member(
                one.name,
                one.address,
                one.incarnation,
                one.preference,
                one.heartbeat_s,
                one.link_token,
                expected=one.is_here,
                sources=one.sources,
            )
        made.passes.barred_clients.update(kept.barred_clients)
        made.passes.barred_users.update(kept.barred_users)
        made.passes.revoked.update({token: expiry.of(until_s) for token, until_s in kept.revoked.items()})
        for had in kept.passes:
            made.passes.issue(had.user, had.client, had.token, expiry.of(had.expires_s))
        return made


@dataclass(frozen=True, slots=True)
class Expiry:
    """From the wall clock of the store to ours; a clock that was set back does not make a pass live longer."""

    now_s: float
    wall_s: float
    life_s: float

    def of(self, wall_expires_s: float) -> float:
        return self.now_s + min(wall_expires_s - self.wall_s, self.life_s)


def _merit(one: Member) -> tuple[bool, bool, int, str]:
    return not (one.synchronised and one.source_alive), not one.source_alive, one.preference, one.name
