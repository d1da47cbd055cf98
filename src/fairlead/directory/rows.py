"""Rows of the three tables, as the directory keeps them and as it tells of them (DIR-9 … DIR-14)."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

BrokerState = Literal["up", "full", "draining", "disabled"]
AppKind = Literal["static", "dynamic"]
Heuristic = Literal["centralised", "decentralised", "auto"]
Rule = Literal["rotation", "least_connections"]


class Broker(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A server that applications may connect to. `available`, `clusters` and `connections` are worked out when told."""

    name: str
    ip: str
    port: int  # plain; 0: there is none
    secure_port: int = 0  # TLS; 0: there is none
    host: str = ""  # a name of the machine, for certificates and people
    identity: str = ""  # of the server (its data directory), the same after a restart; says whose row this is
    store: str = ""  # brokers with the same store share queues and topics: nothing is carried between them
    limit: int = 2000  # connections, over all clusters and applications
    state: BrokerState = "up"  # as it says itself
    available: bool = False  # DIR-50, apart from the cool-down of a single client
    missing: bool = False  # only a static registration still names it (DIR-18)
    clusters: tuple[str, ...] = ()
    connections: int = 0  # of applications
    reserved: int = 0


class Cluster(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A named, ordered set of brokers. What is empty is as the directory's default says."""

    name: str
    brokers: tuple[str, ...] = ()
    heuristic: Heuristic | None = None
    rule: Rule | None = None


class Link(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One connection of an application, a row of the application table. `identity` is agreed when it is opened."""

    identity: str
    broker: str
    label: str = ""  # AX-4; empty only in what a broker says of it before it was given one
    client: str = ""  # type/instance of the connection
    user: str = ""
    kind: Literal["synchronous", "asynchronous"] = "asynchronous"
    secure: bool = False
    cluster: str = ""  # through which it was placed; empty: directly


class Application(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An application that is registered: always (static), or while it has a connection (dynamic)."""

    name: str
    kind: AppKind
    user: str = ""
    broker: str = ""  # static: where messages wait for it while it is away
    broker_missing: bool = False  # that broker was removed (DIR-18)
    last: int = 0  # number of the newest label
    links: tuple[Link, ...] = ()
    keys: tuple[dict[str, str], ...] = ()  # published public keys, signed by the application (DIR-80)
