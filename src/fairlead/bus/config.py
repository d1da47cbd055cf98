"""What a node must say to be put on its buses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fairlead.bus.faults import FaultSwitch
from fairlead.errors import ConfigError

CARRIERS = ("tcp", "udp", "local")
MESSAGE_BYTES_MAX = 16 << 20

Log = Callable[[str, str, Mapping[str, Any]], None]
"""Level, what happened, and facts about it."""


def no_log(level: str, text: str, facts: Mapping[str, Any]) -> None:
    """For those who do not want to know."""


@dataclass(frozen=True, slots=True)
class BusAddress:
    """One bus: where this node listens on it ("host:port"; for `local` a directory), and its multicast "group:port"."""

    name: str
    listen: str
    multicast: str = ""
    interface: str = ""  # of the multicast group; the listening host unless said


class TlsFiles(NamedTuple):
    """Certificate and key of this node (PEM), and who may sign those of others."""

    certificate: str
    key: str
    ca: str


@dataclass(frozen=True, slots=True)
class BusConfig:
    """A node's attachment to its buses. `start` must grow with each life of the node: the time in ns does."""

    node: str
    start: int
    cluster: str
    carrier: str
    buses: list[BusAddress]
    seeds: Mapping[str, list[str]] = field(default_factory=dict)
    secret: bytes | None = None
    tls: TlsFiles | None = None  # of the carrier `tcp`
    detection_s: float = 3.0
    faults: FaultSwitch | None = None
    tag: Mapping[str, Any] = field(default_factory=dict)
    role: str = "member"  # or "tap": sees headers, counts for nothing
    peers_file: str = ""  # where the addresses of the others are kept for the keeper; "": nowhere
    send_bytes_max: int = 64 << 20  # waiting for one node; beyond it that node is excluded
    repair_bytes_max: int = 32 << 20  # kept for repair by `udp`; a node that is further behind is excluded
    mtu: int = 0  # of `udp`; 0: 1400, and 60000 on loopback
    log: Log = no_log

    def check(self) -> None:
        """Raise ConfigError for what cannot work or must not be."""
        if self.carrier not in CARRIERS:
            raise ConfigError(f"carrier {self.carrier!r} is none of {', '.join(CARRIERS)}")
        if not self.node or len(self.node) > 64 or any(letter in self.node for letter in "/ \n"):
            raise ConfigError(f"{self.node!r} cannot be the name of a node: 1 to 64 letters without '/' and blanks")
        if not self.buses:
            raise ConfigError(f"node {self.node} is on no bus: name at least one")
        if len({bus.name for bus in self.buses}) != len(self.buses):
            raise ConfigError(f"node {self.node} is on the same bus twice")
        if self.carrier == "udp" and self.tls is not None:
            raise ConfigError("multicast is not encrypted: with certificates for nodes the carrier is tcp")
        if self.carrier == "local":
            return
        for bus in self.buses:
            host, _ = split_address(bus.listen)
            if self.secret is None and not is_loopback(host):
                raise ConfigError(
                    f"bus {bus.name} listens on {bus.listen}, which others can reach: it needs the cluster's secret"
                )
            if self.carrier == "udp":
                group, _ = split_address(bus.multicast)
                if not group.split(".")[0].isdigit() or not 224 <= int(group.split(".")[0]) <= 239:
                    raise ConfigError(
                        f"bus {bus.name}: {bus.multicast!r} is no multicast address such as 239.255.74.1:7474"
                    )


def split_address(text: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[host]:port"."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{text!r} is not an address: write host:port")
    return host, int(port)


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
