"""One request for "any broker of cluster X", from the question to the broker that accepted, or to the reason why none.

The edge asks `step` what to do, does it, and tells how it went. A round tries every broker at most once; after a round
without success come a look at the directory and a pause that grows (DIR-60, DIR-62). What would be the same everywhere
(credentials, version) ends the request at once (DIR-63); so does a cluster in which every broker is full (DIR-65).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple, TypeAlias

from fairlead.client.pauses import Pauses
from fairlead.directory.placing.copy import Copy
from fairlead.directory.placing.knowledge import Knowledge, has_port
from fairlead.directory.placing.mode import heuristic
from fairlead.directory.placing.rotation import Start
from fairlead.directory.rows import Broker, Heuristic, Rule
from fairlead.errors import (
    AllBrokersFailed,
    BadCredentials,
    ConfigError,
    FairleadError,
    NoDirectory,
    ServerFull,
    UnknownCluster,
    UnsupportedVersion,
)

__all__ = ["Dial", "Fail", "Fetch", "Pause", "Pick", "Report", "Request", "Step", "Wish"]

LOOK_S: Final = 1.0
"""How long it may take when it is only asked for news."""
WRONG: Final = "Authentication failed: the application name, user id or password is wrong."


class Wish(NamedTuple):
    """What the application asked for (DIR-3). `placement` and `rule` None: as the directory says of the cluster."""

    app: str
    cluster: str
    placement: Heuristic | None = None
    rule: Rule | None = None
    secure: bool = False
    start: Start = "first"
    attempt_s: float = 5.0
    limit_s: float | None = 60.0
    directory_s: float = 10.0
    """How long the directory may take where there is no way without it: longer than it needs to elect a primary."""


class Fetch(NamedTuple):
    """Renew the copy of the cluster: then `on_copy`, `on_unknown` or `on_no_directory`."""

    timeout_s: float


class Pick(NamedTuple):
    """Ask the directory: then `on_picked`, `on_none`, `on_unknown` or `on_no_directory`."""

    exclude: tuple[str, ...]
    timeout_s: float


class Dial(NamedTuple):
    """Connect and register: then `on_reached` or `on_failed`."""

    broker: Broker
    reservation: str
    timeout_s: float


class Pause(NamedTuple):
    seconds: float


class Fail(NamedTuple):
    error: Exception


class Report(NamedTuple):
    """To be said to the directory, beside everything else."""

    broker: str
    reason: str
    reservation: str


Step: TypeAlias = Fetch | Pick | Dial | Pause | Fail


class Request:
    """`avoid`: a broker that was just left; it is taken only when there is no other."""

    def __init__(
        self, wish: Wish, knowledge: Knowledge, random: Callable[[], float], now_s: float, *, avoid: str = ""
    ) -> None:
        self.wish = wish
        self.reasons: dict[str, str] = {}  # by broker, the newest
        self._knowledge = knowledge
        self._pauses = Pauses(random)
        self._until_s = inf if wish.limit_s is None else now_s + wish.limit_s
        self._error: Exception | None = None
        self._tried: set[str] = set()  # in this round
        self._full: set[str] = set()  # in this round
        self._avoid = avoid
        self._looked = False  # asked the directory for news in this round
        self._lost = False  # it did not answer
        self._is_over = False  # the round
        self._cooling_too = False  # ask for those that cool down as well: there was no other
        self._dialled: Dial | None = None
        self._is_picked = False
        knowledge.requests += 1

    # What to do.

    def step(self, now_s: float) -> Step:
        if self._error is not None:
            return Fail(self._error)
        if now_s >= self._until_s:
            return Fail(self._too_late())
        copy = self._knowledge.copies.get(self.wish.cluster)
        how = heuristic(self.wish.placement, copy.heuristic if copy is not None else None)
        if how != "centralised" and (copy is None or not copy.brokers):
            return self._without_copy(now_s)
        if self._is_over:
            return self._between_rounds(copy, now_s)
        if self._is_centralised(how):
            return self._pick(how, now_s)
        assert copy is not None
        return self._choose(copy, now_s)

    def mode(self) -> Heuristic:
        """Who chooses at the moment."""
        copy = self._knowledge.copies.get(self.wish.cluster)
        how = heuristic(self.wish.placement, copy.heuristic if copy is not None else None)
        return "centralised" if self._is_centralised(how) else "decentralised"

    def _is_centralised(self, how: Heuristic | None) -> bool:
        return how == "centralised" or (how in ("auto", None) and self._knowledge.auto.is_centralised)

    def _without_copy(self, now_s: float) -> Step:
        """Nothing is known of the cluster, or that it is empty: ask, once (DIR-4)."""
        if self._looked:
            return Fail(no_such(self.wish.cluster))
        self._looked = True
        return Fetch(self._left_s(now_s, self.wish.directory_s))

    def _choose(self, copy: Copy, now_s: float) -> Step:
        wish = self.wish
        broker = self._knowledge.choose(
            wish.app,
            copy,
            secure=wish.secure,
            rule=wish.rule or copy.rule,
            start=wish.start,
            without=self._tried | {self._avoid},
            now_s=now_s,
            whoever=self._lost,
        )
        if broker is not None:
            return self._dial(broker, "", now_s)
        if self._avoid:
            self._avoid = ""
            return self._choose(copy, now_s)
        if self._tried.issuperset(copy.order) or self._looked:
            self._is_over = True
            return self._between_rounds(copy, now_s)
        self._looked = True  # some are not available, as far as we know: is that so?
        return Fetch(self._left_s(now_s, LOOK_S))

    def _pick(self, how: Heuristic | None, now_s: float) -> Step:
        cooling = set() if self._cooling_too else self._knowledge.cooling.names(now_s)
        exclude = self._tried | cooling | ({self._avoid} if self._avoid else set())
        self._knowledge.picks += 1
        # With `auto` a directory that is late is as good as none.
        patience_s = self.wish.directory_s if how == "centralised" else self._knowledge.auto.latency_max_s
        return Pick(tuple(sorted(exclude)), self._left_s(now_s, patience_s))

    def _dial(self, broker: Broker, reservation: str, now_s: float) -> Dial:
        self._knowledge.note_attempt(self.wish.app, self.wish.cluster, broker.name)
        self._dialled = Dial(broker, reservation, self._left_s(now_s, self.wish.attempt_s))
        return self._dialled

    def _between_rounds(self, copy: Copy | None, now_s: float) -> Step:
        if not self._looked:
            self._looked = True
            return Fetch(self._left_s(now_s, LOOK_S))
        if copy is not None:
            self._note_unavailable(copy)
            if copy.brokers and self._full.issuperset(copy.order):
                return Fail(self._all_failed("every broker is full"))
        self._tried.clear()
        self._full.clear()
        self._looked = self._lost = self._is_over = self._cooling_too = False
        return Pause(self._left_s(now_s, self._pauses.next_s()))

    def _note_unavailable(self, copy: Copy) -> None:
        for broker in copy.brokers:
            if broker.name in self._tried:
                continue
            if not has_port(broker, secure=self.wish.secure):
                self.reasons[broker.name] = f"has no {'TLS' if self.wish.secure else 'plain'} port"
            elif broker.state != "up":
                self.reasons[broker.name] = broker.state
                if broker.state == "full":
                    self._full.add(broker.name)
            elif not broker.available:
                self.reasons.setdefault(broker.name, "not available, as the directory says")

    def _left_s(self, now_s: float, at_most_s: float) -> float:
        return max(min(self._until_s - now_s, at_most_s), 0.001)

    # How it went.

    def on_copy(self) -> None:
        """The copy is renewed, or confirmed."""
        self._lost = False

    def on_unknown(self, error: UnknownCluster) -> None:
        """There is no such cluster, or nobody in it."""
        self._knowledge.copies.drop(self.wish.cluster)
        self._error = no_such(self.wish.cluster)

    def on_no_directory(self, error: NoDirectory) -> None:
        """Choosing from a copy goes on without it; a fixed choice is kept (DIR-56)."""
        self._lost = True
        copy = self._knowledge.copies.get(self.wish.cluster)
        how = heuristic(self.wish.placement, copy.heuristic if copy is not None else None)
        if copy is None if how != "centralised" else not self._is_over:
            self._error = error

    def on_refused(self, error: Exception) -> None:
        """The directory does not let us ask for this application: as if its broker had said so (DIR-24)."""
        self._error = BadCredentials(WRONG)
        self._error.__cause__ = error

    def on_picked(self, broker: Broker, reservation: str, now_s: float) -> Dial:
        self._is_picked = True
        return self._dial(broker, reservation, now_s)

    def on_none(self) -> None:
        """The directory has nobody, without those we excluded."""
        if self._avoid:
            self._avoid = ""
        elif not self._cooling_too:
            self._cooling_too = True
        else:
            self._is_over = True

    def on_reached(self) -> Broker:
        """It accepted us: connected, authenticated, registered."""
        assert self._dialled is not None
        self._knowledge.reached(self.wish.app, self._dialled.broker.name)
        return self._dialled.broker

    def on_failed(self, error: Exception, now_s: float) -> Report | None:
        assert self._dialled is not None
        dial, self._dialled = self._dialled, None
        name, reason = dial.broker.name, str(error) or type(error).__name__
        if isinstance(error, BadCredentials):
            self.on_refused(error)
        elif isinstance(error, (UnsupportedVersion, ConfigError)):
            self._error = error
        if self._error is not None:
            self._knowledge.note_result(self.wish.app, name, reason)
            return None
        if isinstance(error, ServerFull):
            self._full.add(name)
            reason = f"full: {reason}"
        self._tried.add(name)
        self.reasons[name] = reason
        self._knowledge.failed(self.wish.app, name, reason, now_s)
        if not self._is_picked:
            return None
        self._is_picked = False
        return Report(name, reason, dial.reservation)

    def _too_late(self) -> FairleadError:
        return self._all_failed(f"none within {self.wish.limit_s:g} s")

    def _all_failed(self, why: str) -> AllBrokersFailed:
        listed = "; ".join(f"{name}: {reason}" for name, reason in self.reasons.items()) or "none was tried"
        return AllBrokersFailed(
            f"No broker of cluster {self.wish.cluster!r} took the connection ({why}): {listed}", reasons=self.reasons
        )


def no_such(cluster: str) -> UnknownCluster:
    return UnknownCluster(f"The directory has no cluster {cluster!r} with brokers in it; nothing was tried.")
