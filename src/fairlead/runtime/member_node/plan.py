"""What a member node is to be: its three configurations, where it keeps things, and how it gets on the bus."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlead.bus.config import BusAddress, BusConfig, Log, TlsFiles, no_log, split_address
from fairlead.bus.faults import FaultSwitch
from fairlead.cluster.configuration.types import ClusterConfig, ClusterSettings, NodeConfig, electorate
from fairlead.cluster.replication.record import ControlRecord
from fairlead.cluster.replication.settings import Settings
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from fairlead.cluster.edge.engine import Identity

PLAN_NAME: Final = "plan.json"
START_NAME: Final = "start"
PEERS_NAME: Final = "peers.json"


class Whole(msgspec.Struct):
    node: NodeConfig
    cluster: ClusterConfig
    settings: ClusterSettings


class Plan:
    """One node's."""

    def __init__(self, node: NodeConfig, cluster: ClusterConfig, settings: ClusterSettings) -> None:
        self.node, self.cluster, self.settings = node, cluster, settings
        self.data = Path(node.data).expanduser().absolute()
        self.run = self.data / "run"
        self.run.mkdir(mode=0o700, parents=True, exist_ok=True)

    # --- From keeper to child -------------------------------------------------------------------------------------
    def write(self) -> Path:
        """For the child to read."""
        path = self.run / PLAN_NAME
        path.write_bytes(msgspec.json.encode(Whole(self.node, self.cluster, self.settings)))
        return path

    @classmethod
    def read(cls, path: Path) -> Plan:
        whole = msgspec.json.decode(path.read_bytes(), type=Whole)
        return cls(whole.node, whole.cluster, whole.settings)

    def next_start(self) -> int:
        """Larger than that of every earlier life, also when the clock was set back; on disk before it is used."""
        path = self.data / START_NAME
        try:
            last = int(path.read_text())
        except (OSError, ValueError):
            last = 0
        start = max(time.time_ns(), last + 1)
        fresh = path.with_name(f"{START_NAME}.new")
        with open(fresh, "w") as file:
            file.write(f"{start}\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        return start

    # --- The bus --------------------------------------------------------------------------------------------------
    @property
    def peers_file(self) -> Path:
        return self.run / PEERS_NAME

    def bus_config(self, start: int, *, log: Log = no_log, tag: dict[str, Any] | None = None) -> BusConfig:
        node, cluster = self.node, self.cluster
        known = {bus.name: bus for bus in cluster.buses}
        addresses = []
        for name, listen in node.buses.items():
            if name not in known:
                raise ConfigError(f"node {node.name} is on bus {name!r}, which cluster.toml does not know.")
            multicast = f"{known[name].multicast}:{known[name].port}" if known[name].multicast else ""
            addresses.append(BusAddress(name, listen, multicast))
        return BusConfig(
            node=node.name,
            start=start,
            cluster=cluster.name,
            carrier=cluster.carrier,
            buses=addresses,
            seeds=node.seeds,
            secret=Path(node.secret_file).read_bytes().strip() if node.secret_file else None,
            tls=TlsFiles(node.tls_certificate, node.tls_key, node.tls_ca) if node.tls_certificate else None,
            detection_s=cluster.detection_s,
            faults=FaultSwitch() if node.faults else None,
            tag=tag or {},
            peers_file=str(self.peers_file),
            log=log,
        )

    # --- The groups -----------------------------------------------------------------------------------------------
    def identity(self) -> Identity:
        """For ids: an address and a port this node holds open (CLU-89)."""
        from fairlead.cluster.edge.engine import Identity  # much comes with it, and an agent needs none of it

        site = self.cluster.site_id
        if self.cluster.carrier != "local":
            for listen in self.node.buses.values():
                host, port = split_address(listen)
                try:
                    found = socket.gethostbyname(host)
                except OSError:
                    continue
                return Identity(found, site, port)
        return Identity("127.0.0.1", site, 1 + os.getpid() % 65535)

    def member_settings(self) -> Settings:
        cluster, settings = self.cluster, self.settings
        return Settings(
            detection_s=cluster.detection_s,
            lease_s=cluster.lease_s,
            margin_s=cluster.margin_s,
            removal_s=settings.removal_s,
            min_copies=settings.min_copies,
            strict_copies=settings.strict_copies,
        )

    def founding(self) -> ControlRecord:
        """The record with which every group begins: nobody has led yet."""
        votes = frozenset(f"{name}.0" for name in self.cluster.voters)
        return ControlRecord(0, 0, "", frozenset(), votes, self.settings.min_copies)

    def electorate(self) -> list[str]:
        return electorate(self.cluster, self.settings)
