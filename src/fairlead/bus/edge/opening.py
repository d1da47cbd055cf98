"""Put a node on its buses."""

from __future__ import annotations

from fairlead.bus.config import BusConfig
from fairlead.bus.edge.multicast import MulticastBus
from fairlead.bus.edge.streams import StreamBus


def open_bus(config: BusConfig) -> StreamBus:
    """The carrier that the configuration names; raises ConfigError if it cannot be."""
    config.check()
    return MulticastBus(config) if config.carrier == "udp" and config.role == "member" else StreamBus(config)
