"""What the directory answers, as its client hands it on: one struct for each kind of answer (docs/directory.md).

`revision` is that of the directory when it answered (DIR-20). `stale` marks what a server said that is cut off from the
majority: it may be old (DIR-38).
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from fairlead.directory.rows import Application, Broker, Cluster, Heuristic, Rule
from fairlead.errors import RemoteProtocolError

__all__ = [
    "Admitted",
    "Answer",
    "Apps",
    "Brokers",
    "ClusterView",
    "Clusters",
    "Counted",
    "Done",
    "Found",
    "Moves",
    "Opened",
    "Picked",
    "Renewed",
    "Restated",
    "Status",
    "read_answer",
]


class Answer(Struct, frozen=True, kw_only=True):
    """What all of them have."""

    revision: int
    stale: bool = False


A = TypeVar("A", bound=Answer)


class Done(Answer, frozen=True, kw_only=True):
    """It is done, and safe."""


class Admitted(Answer, frozen=True, kw_only=True):
    """Of `put_broker`: the broker has its row, and a lease."""

    lease_s: float = 0.0  # 0: it is not said


class Renewed(Answer, frozen=True, kw_only=True):
    """Of `renew`: is the broker known, which links does the directory know of (a digest), and what about them?"""

    known: bool
    links: str | int = ""
    move: tuple[str, ...] = ()  # identities of links that should go elsewhere when it suits
    close: tuple[str, ...] = ()  # identities of links whose application was deregistered
    lease_s: float = 0.0


class Restated(Answer, frozen=True, kw_only=True):
    """Of `restate`: the label of each link, by identity."""

    labels: dict[str, str] = field(default_factory=dict)


class Opened(Answer, frozen=True, kw_only=True):
    """Of `connection_opened`; no label: it was closed before it was opened (DIR-17)."""

    label: str = ""


class Picked(Answer, frozen=True, kw_only=True):
    """Of `pick_broker`: where to connect, and the name of the place that is kept there for a while."""

    broker: Broker
    reservation: str = ""


class ClusterView(Answer, frozen=True, kw_only=True):
    """Of `get_cluster`: its brokers in order of rotation; `unchanged`: as you know it, and nothing else is told."""

    unchanged: bool = False
    cluster: Cluster | None = None
    brokers: tuple[Broker, ...] = ()
    heuristic: Heuristic = "auto"
    rule: Rule = "rotation"


class Found(Answer, frozen=True, kw_only=True):
    """Of `lookup_app`; None: nobody is registered under that name."""

    app: Application | None = None
    brokers: tuple[Broker, ...] = ()
    keys: tuple[dict[str, str], ...] = ()  # published under that name, also when nobody is registered now


class Brokers(Answer, frozen=True, kw_only=True):
    brokers: tuple[Broker, ...] = ()


class Clusters(Answer, frozen=True, kw_only=True):
    clusters: tuple[Cluster, ...] = ()


class Apps(Answer, frozen=True, kw_only=True):
    apps: tuple[Application, ...] = ()


class Counted(Answer, frozen=True, kw_only=True):
    """Of `totals`: connections, and how many of them at which broker (DIR-14)."""

    total: int = 0
    brokers: dict[str, int] = field(default_factory=dict)


class Moves(Answer, frozen=True, kw_only=True):
    """Of `rebalance`: how many connections are asked to leave which broker."""

    moves: dict[str, int] = field(default_factory=dict)


class Status(Answer, frozen=True, kw_only=True):
    """Of `status`: everything it says (DIR-81)."""

    facts: dict[str, Any] = field(default_factory=dict)


def read_answer(op: str, kind: type[A], facts: dict[str, Any]) -> A:
    """An answer from the wire; RemoteProtocolError if it is not one to this operation."""
    if kind is Status:
        facts = {**{name: facts[name] for name in ("revision", "stale") if name in facts}, "facts": facts}
    try:
        return msgspec.convert(facts, kind)
    except msgspec.ValidationError as fault:
        raise RemoteProtocolError(f"The answer to {op} cannot be read: {fault}.") from None
