"""The files of one directory server, made from what its command line says: two nodes of a cluster with one group.

All servers of a directory are told the same names and addresses, and so make the same `cluster.toml`. Only members
vote: a majority of the servers is a majority of the votes (DIR-38), and as many copies are made of every change.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from fairlead.bus.config import split_address
from fairlead.cluster.configuration.checks import check_cluster, check_settings
from fairlead.cluster.configuration.documents import to_toml
from fairlead.cluster.configuration.edge.files import COMMENT, NodeFiles, write_file
from fairlead.cluster.configuration.edge.founding import found_node
from fairlead.cluster.configuration.types import (
    DIRECTORY_GROUP,
    BusSpec,
    ClusterConfig,
    ClusterSettings,
    GroupSpec,
    NodeConfig,
)
from fairlead.errors import ConfigError
from fairlead.runtime.config import Config, users_path
from fairlead.runtime.settings import Directory, Server

BUS: Final = "main"
FRONT: Final = "-cm"  # behind the name of a server: its client manager's node
SERVERS_MAX: Final = 7


class Peers(msgspec.Struct, frozen=True):
    """Who the servers of a directory are: name and bus address of each, and which of them this one is."""

    name: str
    addresses: dict[str, str]

    @property
    def names(self) -> list[str]:
        return sorted(self.addresses)

    @property
    def majority(self) -> int:
        return len(self.addresses) // 2 + 1


def read_peers(name: str, bus: str, peers: str) -> Peers:
    """`d1=HOST:PORT,d2=HOST:PORT`; ConfigError that says what is wrong with it."""
    found: dict[str, str] = {}
    for part in filter(None, (text.strip() for text in peers.split(","))):
        one, equals, address = part.partition("=")
        if not equals or not one or not address:
            raise ConfigError(f"--peers: {part!r} is not NAME=HOST:PORT, such as d2=10.0.0.2:7412")
        if one in found:
            raise ConfigError(f"--peers names {one} twice")
        found[one] = address
    if not name:
        raise ConfigError("say with --name which of --peers this server is")
    if bus and found.setdefault(name, bus) != bus:
        raise ConfigError(f"--bus is {bus}, but --peers says that {name} is at {found[name]}")
    if name not in found:
        raise ConfigError(f"--peers does not name {name}; give it --bus HOST:PORT, or name it there")
    if not 2 <= len(found) <= SERVERS_MAX:
        raise ConfigError(f"a directory has between 2 and {SERVERS_MAX} servers, or one alone without --peers")
    for one, address in found.items():
        if not 0 < split_address(address)[1] < 65535:
            raise ConfigError(f"--peers: {one} needs a port, and the one above it is used too: {address}")
    return Peers(name, found)


class ServerFiles:
    """Below the data directory: `member/` and `front/`, each with the files and the data of a node."""

    def __init__(self, data: Path, peers: Peers) -> None:
        self.data = data.expanduser().absolute()
        self.peers = peers
        self.member = self.data / "member"
        self.front = self.data / "front"

    def write(self, config: Config, *, secret: str = "", faults: bool = False, rejoin: bool = False) -> list[str]:
        """Make what is missing, and this server's own files anew. Sentences for the operator.

        With `rejoin` the data directory was lost: the others give this server its vote back, and all that it missed.
        """
        said: list[str] = []
        cluster, settings = cluster_of(self.peers), settings_of(self.peers, config)
        for node in (self._member_node(config), self._front_node(config)):
            home = self.member if node.kind == "mm" else self.front
            node = msgspec.structs.replace(node, secret_file=secret, faults=faults)
            is_new = not (home / "cluster.toml").exists()
            if is_new:
                write_file(home / "settings.toml", to_toml(settings, COMMENT).encode())
            elif (home / "cluster.toml").read_bytes() != to_toml(cluster).encode():
                raise ConfigError(
                    f"{self.data} is of a directory with other servers; their names stay: begin with an empty directory"
                )
            write_file(home / "node.toml", to_toml(node, "Written at each start of the server.").encode())
            if is_new:
                write_file(home / "cluster.toml", to_toml(cluster).encode())
            files = NodeFiles(home / "node.toml")
            if is_new and not rejoin:
                found_node(files)
            if node.kind == "mm" and not is_new:
                for what in ("directory", "messages", "users"):
                    if getattr(files.settings, what) != getattr(settings, what):
                        said.append(f"`{what}` is as all servers have agreed on; `fairlead cluster set` changes it")
        return said

    def _member_node(self, config: Config) -> NodeConfig:
        name, addresses = self.peers.name, self.peers.addresses
        return NodeConfig(
            name=name,
            kind="mm",
            data="data",
            buses={BUS: addresses[name]},
            seeds={BUS: [address for one, address in sorted(addresses.items()) if one != name]},
            log=config.log,
        )

    def _front_node(self, config: Config) -> NodeConfig:
        name, addresses = self.peers.name, self.peers.addresses
        return NodeConfig(
            name=name + FRONT,
            kind="cm",
            data="data",
            buses={BUS: above(addresses[name])},
            seeds={BUS: [addresses[one] for one in sorted(addresses, key=lambda one: (one != name, one))]},
            vote=False,
            server=msgspec.structs.replace(config.server, data=Server().data),  # that stands above
            limits=config.limits,
            fairness=config.fairness,
            store=config.store,
            requests=config.requests,
            security=msgspec.structs.replace(config.security, users=""),  # they are in settings.toml
            links=config.links,
            tunnel=config.tunnel,
            directory=msgspec.structs.replace(config.directory, serve=False),  # that stands in settings.toml
            log=config.log,
        )


def above(address: str) -> str:
    """The same host, the next port: where the client manager's node of a server is on the bus."""
    host, port = split_address(address)
    return f"[{host}]:{port + 1}" if ":" in host else f"{host}:{port + 1}"


def cluster_of(peers: Peers) -> ClusterConfig:
    cluster = ClusterConfig(name=DIRECTORY_GROUP, voters=peers.names, carrier="tcp", buses=[BusSpec(name=BUS)])
    check_cluster(cluster)
    return cluster


def settings_of(peers: Peers, config: Config) -> ClusterSettings:
    """What all servers agree on: users, and the directory's own values, none of those of a single server."""
    directory, users = config.directory, users_path(config)
    settings = ClusterSettings(
        groups=[GroupSpec(name=DIRECTORY_GROUP, members=peers.names)],
        min_copies=peers.majority,
        strict_copies=True,
        messages=config.messages,
        users=users.read_text(encoding="utf-8") if users is not None else "",
        directory=Directory(
            serve=True,
            lease_s=directory.lease_s,
            reserve_s=directory.reserve_s,
            suspect_s=directory.suspect_s,
            heuristic=directory.heuristic,
            rule=directory.rule,
        ),
    )
    check_settings(settings)
    return settings


def urls_of(listens: Mapping[str, str]) -> str:
    """One URL for all servers, by where each listens."""
    return "fairlead+directory://" + ",".join(listens[name] for name in sorted(listens))
