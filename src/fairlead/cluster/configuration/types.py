"""What a node of a cluster is told: `cluster.toml`, `settings.toml` and `node.toml`, as values.

`ClusterConfig` is essential: the same bytes on every node, never changed while one runs. `ClusterSettings` is
acquirable: a node that was away takes it from the others, and it changes online. `NodeConfig` is this node's own and
outside every comparison, so that nodes can be added without touching the others (CLU-187, CLU-188).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from fairlead.runtime.settings import (
    Console,
    Directory,
    Fairness,
    Limits,
    Links,
    Log,
    Messages,
    Requests,
    Security,
    Server,
    Store,
    Tokens,
    Tunnel,
)

GROUPS_MAX: Final = 128  # the index of a group has seven bits in every number it hands out
DIRECTORY_GROUP: Final = "directory"
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$"

Kind = Literal["cm", "mm", "witness"]
Form = Literal["single", "a", "b"]
Carrier = Literal["tcp", "udp", "local"]
Name = Annotated[str, Meta(pattern=NAME)]


class BusSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One bus of the cluster, as all nodes know it."""

    name: Annotated[Name, Meta(description="What node files call it.")]
    multicast: Annotated[
        str, Meta(description="Group address of the udp carrier, such as 239.255.74.1. The others need none.")
    ] = ""
    port: Annotated[int, Meta(ge=0, le=65535, description="Port of the multicast group.")] = 7404


class ClusterConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`cluster.toml`: what all nodes share, and what nobody changes while one of them runs."""

    name: Annotated[Name, Meta(description="Nodes of another cluster are not spoken with.")]
    site_id: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description="Part of every message id. Give installations whose messages meet different numbers.",
        ),
    ] = 0
    form: Annotated[
        Form,
        Meta(
            description="How nodes are attached to buses. `single`: one bus for all. `a`: every client manager is on "
            "all buses, every message manager on one. `b`: the other way round."
        ),
    ] = "single"
    carrier: Annotated[
        Carrier,
        Meta(
            description="What carries the bus: `udp` is multicast, `tcp` a mesh of connections (what clouds allow), "
            "`local` is for nodes on one host."
        ),
    ] = "udp"
    buses: Annotated[list[BusSpec], Meta(min_length=1, max_length=16, description="Every bus there is.")] = (
        msgspec.field(default_factory=lambda: [BusSpec(name="main")])
    )
    voters: Annotated[
        list[Name],
        Meta(
            min_length=1,
            description="The founding electorate: nodes whose majority decides who leads a group. An odd number on "
            "different machines survives the loss of one. Later changes are made online.",
        ),
    ]
    detection_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Silence after which a node counts as lost. Lower finds cuts sooner, and takes pauses for "
            "cuts.",
        ),
    ] = 3.0
    lease_s: Annotated[
        float,
        Meta(gt=0, description="How long a primary may serve without a word from a majority of voters."),
    ] = 3.0
    margin_s: Annotated[
        float,
        Meta(ge=0, description="What is added where clocks of two hosts are compared. Covers their drift in a lease."),
    ] = 1.0


class GroupSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One group of message managers. Its place in the list is its number for ever."""

    name: Annotated[Name, Meta(description="What commands call it.")]
    members: Annotated[list[Name], Meta(description="Nodes that keep a copy of what the group holds.")] = msgspec.field(
        default_factory=list
    )
    pins: Annotated[
        list[str], Meta(description="Destinations made in this group, whatever the hash of their name says.")
    ] = msgspec.field(default_factory=list)


class ClusterSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`settings.toml`: what all nodes share and what changes online, each change with the next revision."""

    revision: Annotated[int, Meta(ge=1, description="Counts the changes.")] = 1
    predecessor: Annotated[
        str, Meta(description="Digest of the settings this one was made from; empty for the first.")
    ] = ""
    groups: Annotated[
        list[GroupSpec],
        Meta(
            min_length=1,
            max_length=GROUPS_MAX,
            description="The groups, in an order that never changes; new ones are added at the end.",
        ),
    ]
    voters: Annotated[
        list[Name],
        Meta(description="The electorate after changes; empty: the founding one of cluster.toml."),
    ] = msgspec.field(default_factory=list)
    min_copies: Annotated[
        int,
        Meta(
            ge=1,
            le=7,
            description="Copies, the primary's own included, that a confirm waits for while so many are in sync. Lower "
            "confirms sooner and loses more with a host.",
        ),
    ] = 2
    strict_copies: Annotated[
        bool,
        Meta(description="Rather stop confirming than go on with fewer copies than `min_copies`."),
    ] = False
    removal_s: Annotated[
        float,
        Meta(
            gt=0,
            description="How long a backup may be behind before the primary goes on without it. Longer rides out "
            "pauses, and confirms wait for it.",
        ),
    ] = 5.0
    prepare_limit_s: Annotated[
        float, Meta(gt=0, description="Time all groups have to get ready for a commit across groups.")
    ] = 30.0
    messages: Annotated[
        Messages,
        Meta(description="The [messages] section of the server, for every message manager of the cluster."),
    ] = Messages()
    directory: Annotated[
        Directory,
        Meta(
            description="The [directory] section of the group that keeps the directory: `directory` if there is one of "
            "that name, else the first. Only `serve` and what is said there to be of the directory counts here."
        ),
    ] = Directory()
    users: Annotated[
        str,
        Meta(
            description="The users file of all client managers, as text (`fairlead user --help`). Empty: each has its "
            "own."
        ),
    ] = ""

    def group(self, name: str) -> GroupSpec | None:
        """The group of that name, if there is one."""
        return next((group for group in self.groups if group.name == name), None)

    def index(self, name: str) -> int:
        """The number of a group; ValueError if there is none of that name."""
        return [group.name for group in self.groups].index(name)


class NodeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`node.toml`: what is true of this node alone."""

    name: Annotated[Name, Meta(description="Its name in the cluster, for all its lives.")]
    kind: Annotated[
        Kind,
        Meta(
            description="`cm`: clients connect here. `mm`: keeps messages. `witness`: has a vote and nothing else.",
        ),
    ]
    data: Annotated[str, Meta(description="Directory of everything the node keeps.")]
    buses: Annotated[
        dict[Name, str],
        Meta(
            description='The buses it is on and where it listens there: `main = "10.0.0.1:7404"`. With the udp '
            "carrier the host says which interface; with the local carrier it is a directory for sockets.",
        ),
    ]
    seeds: Annotated[
        dict[Name, list[str]],
        Meta(description="Per bus: addresses of some other nodes, to find the rest by; the local carrier needs none."),
    ] = msgspec.field(default_factory=dict)
    groups: Annotated[
        list[Name],
        Meta(description="Groups this node may host. Empty: those whose members in settings.toml name it."),
    ] = msgspec.field(default_factory=list)
    vote: Annotated[
        bool,
        Meta(description="May this node vote, if the electorate names it?"),
    ] = True
    secret_file: Annotated[
        str,
        Meta(
            description="File with the cluster's secret, readable by its owner only. Needed as soon as a bus leaves "
            "this host."
        ),
    ] = ""
    tls_certificate: Annotated[
        str,
        Meta(
            description="Certificate of this node (PEM): its name there is the node's, as common name or as DNS name. "
            "With it all lines of the tcp carrier are encrypted, and others are not spoken with. For all nodes or none."
        ),
    ] = ""
    tls_key: Annotated[str, Meta(description="Private key of that certificate (PEM), without a passphrase.")] = ""
    tls_ca: Annotated[str, Meta(description="Certificates (PEM) of those who may sign those of nodes.")] = ""
    faults: Annotated[
        bool, Meta(description="For tests of the cluster itself: lets `fairlead cluster fault` disturb the bus.")
    ] = False
    server: Annotated[Server, Meta(description="Of a `cm`: the section [server].")] = Server()
    limits: Annotated[Limits, Meta(description="Of a `cm`: the section [limits].")] = Limits()
    fairness: Annotated[Fairness, Meta(description="Of a `cm`: the section [fairness].")] = Fairness()
    store: Annotated[Store, Meta(description="Of a `cm`: the section [store].")] = Store()
    requests: Annotated[Requests, Meta(description="Of a `cm`: the section [requests].")] = Requests()
    security: Annotated[Security, Meta(description="Of a `cm`: the section [security].")] = Security()
    tokens: Annotated[Tokens, Meta(description="Of a `cm`: the section [tokens].")] = Tokens()
    links: Annotated[
        Links,
        Meta(
            description="Of a `cm`: the section [links]; `parents` are other client managers, so that what is not "
            "stored (broadcasts, requests) reaches their clients as well."
        ),
    ] = Links()
    tunnel: Annotated[Tunnel, Meta(description="Of a `cm`: the section [tunnel].")] = Tunnel()
    console: Annotated[
        Console, Meta(description="Of a `cm`: the section [console]. Here it is off unless `enabled` says otherwise.")
    ] = Console(enabled=False)
    directory: Annotated[
        Directory,
        Meta(description="Of a `cm`: the section [directory], for it as a broker. Whether it keeps one stands above."),
    ] = Directory()
    log: Annotated[Log, Meta(description="The section [log].")] = Log()


def directory_group(settings: ClusterSettings) -> str:
    """The group that keeps the directory; empty: nobody does."""
    if not settings.directory.serve:
        return ""
    names = [group.name for group in settings.groups]
    return DIRECTORY_GROUP if DIRECTORY_GROUP in names else names[0]


def electorate(cluster: ClusterConfig, settings: ClusterSettings) -> list[str]:
    """Whose majority decides, as far as the files say; each group's control record has the last word."""
    return settings.voters or cluster.voters


def hosted(node: NodeConfig, settings: ClusterSettings) -> list[str]:
    """The groups of which this node keeps a copy, in the order of their numbers."""
    return [group.name for group in settings.groups if node.name in group.members]
