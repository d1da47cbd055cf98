"""What can be asked of the directory: the operations, their arguments, and who may ask (DIR-5, DIR-34).

An operation travels as a COMMAND of the client protocol, `{"do": "directory", "op": NAME, …arguments}`, and is answered
with a JSON object that always has `revision` (DIR-20); `stale: true` marks an answer of a server that is cut off from
the majority (DIR-38). Every one may be said again: writes are known again by an identity in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from fairlead.directory.rows import AppKind, Broker, BrokerState, Heuristic, Link, Rule
from fairlead.errors import BadParameter


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """No arguments."""


class PutBroker(Struct, frozen=True, forbid_unknown_fields=True):
    """Make or change the row of a broker, and begin its lease (DIR-31, DIR-33). Answer: `{lease_s}`."""

    broker: Broker
    clusters: tuple[str, ...] | None = None  # join exactly these (those it has stay where they are); None: as they are


class Renew(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Renew the lease (DIR-22). Answer: `{known, links, move, close, lease_s}`.

    `known` false: say `put_broker` and `restate`. `links`: digest of the rows the directory has for it (see
    `links_digest`); if it is another one than the broker's own, `restate`. `move`: identities of links that should
    gently go elsewhere (rebalance). `close`: identities of links to close, since their application was deregistered.
    """

    name: str
    identity: str
    state: BrokerState = "up"


class Restate(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All links of a broker, as they are: rows that are missing come, those not named go (DIR-21).

    A command has at most 64 KiB: many links are restated in pieces by the order of their identities, each of them all
    that are above `above` and not above `upto`; rows outside that stay. Answer: `{labels: {identity: label}}`.
    """

    name: str
    identity: str
    links: tuple[tuple[str, AppKind, Link], ...]  # application, how it is registered, row
    above: str = ""  # identities; empty: from the first
    upto: str = ""  # empty: to the last


class RemoveBroker(Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class JoinCluster(Struct, frozen=True, forbid_unknown_fields=True):
    """`position` counts from 0; None: the end."""

    cluster: str
    broker: str
    position: int | None = None


class LeaveCluster(Struct, frozen=True, forbid_unknown_fields=True):
    cluster: str
    broker: str


class SetCluster(Struct, frozen=True, forbid_unknown_fields=True):
    """How brokers of the cluster are chosen; `cluster` empty: of those that say nothing (DIR-54).

    None: that stays as it is; `default`: it says nothing any more.
    """

    cluster: str = ""
    heuristic: Heuristic | Literal["default"] | None = None
    rule: Rule | Literal["default"] | None = None


class RegisterApp(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Said by the broker that has checked name, user and password; a password is never among it (DIR-25)."""

    app: str
    kind: AppKind
    broker: str
    user: str = ""


class DeregisterApp(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`links`: what about open connections (DIR-29)? `refuse`: then not; `close`: their brokers are told to close."""

    app: str
    broker: str = ""
    links: Literal["refuse", "close"] = "refuse"


class ConnectionOpened(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A new row; said again, or by the other side too, it is the same row (DIR-16). Answer: `{label}`."""

    app: str
    link: Link
    kind: AppKind = "dynamic"
    reservation: str = ""  # of `pick_broker`


class ConnectionClosed(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Also before its `connection_opened` (DIR-17)."""

    app: str
    identity: str
    broker: str


class GetCluster(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Answer: `{unchanged: true}` or `{cluster, brokers: [Broker, …] in order, heuristic, rule}`."""

    cluster: str
    newer_than: int | None = None


class PickBroker(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Answer: `{broker: Broker, reservation}`. `request`: the same again gets the same broker again."""

    app: str
    cluster: str
    request: str
    exclude: tuple[str, ...] = ()
    secure: bool = False
    rule: Rule | None = None


class ReportFailure(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An attempt at a broker failed; reports of two clients make the directory skip it for a while (DIR-64)."""

    app: str
    broker: str
    client: str
    reason: str
    reservation: str = ""


class LookupApp(Struct, frozen=True, forbid_unknown_fields=True):
    """Answer: `{app: Application or null, brokers: [Broker of its rows]}`."""

    app: str


class ListApps(Struct, frozen=True, forbid_unknown_fields=True):
    """Answer: `{apps: [Application, …]}`; `list_brokers` and `list_clusters` likewise, without arguments."""

    app: str = ""


class Totals(Struct, frozen=True, forbid_unknown_fields=True):
    """Answer: `{total, brokers: {name: count}}` of an application in a cluster (DIR-14); empty cluster: anywhere."""

    app: str
    cluster: str = ""


class PublishKey(Struct, frozen=True, forbid_unknown_fields=True):
    """A public key of an application, signed; `{}` under an id that is known removes it."""

    app: str
    key: dict[str, str]


class Rebalance(Struct, frozen=True, forbid_unknown_fields=True):
    """Ask connections of a cluster to move until all brokers have about as many. Answer: `{moves: {broker: count}}`."""

    cluster: str


class Operation(NamedTuple):
    arguments: type[Struct]
    writes: bool = False


OPERATIONS: Final[Mapping[str, Operation]] = {
    "put_broker": Operation(PutBroker, True),
    "renew": Operation(Renew, True),
    "restate": Operation(Restate, True),
    "remove_broker": Operation(RemoveBroker, True),
    "join_cluster": Operation(JoinCluster, True),
    "leave_cluster": Operation(LeaveCluster, True),
    "set_cluster": Operation(SetCluster, True),
    "register_app": Operation(RegisterApp, True),
    "deregister_app": Operation(DeregisterApp, True),
    "connection_opened": Operation(ConnectionOpened, True),
    "connection_closed": Operation(ConnectionClosed, True),
    "pick_broker": Operation(PickBroker, True),
    "report_failure": Operation(ReportFailure, True),
    "publish_key": Operation(PublishKey, True),
    "rebalance": Operation(Rebalance, True),
    "get_cluster": Operation(GetCluster),
    "lookup_app": Operation(LookupApp),
    "list_brokers": Operation(Nothing),
    "list_clusters": Operation(Nothing),
    "list_apps": Operation(ListApps),
    "totals": Operation(Totals),
    "status": Operation(Nothing),
}

ADMIN: Final = "_DIRECTORY"  # who may `admin` this name may say everything
BROKER: Final = "_BROKER."  # who may `serve` _BROKER.A may speak for broker A
APP: Final = "app."  # who may `consume` app.AX may speak for application AX: the queue of its messages


def read(op: object, request: Mapping[str, Any]) -> Struct:
    """The arguments of an operation, or BadParameter that says what is wrong with them."""
    operation = OPERATIONS.get(op) if isinstance(op, str) else None
    if operation is None:
        raise BadParameter(f"The directory has no operation {op!r:.60}.")
    try:
        return msgspec.convert(request, operation.arguments)
    except msgspec.ValidationError as fault:
        raise BadParameter(f"{op}: {fault}.") from None
