"""Carriers of the bus, and those who come to it from outside: keepers with news, taps."""

from fairlead.bus.config import BusAddress, BusConfig
from fairlead.bus.edge.announcing import announce_death, read_peers
from fairlead.bus.edge.opening import open_bus
from fairlead.bus.faults import FaultSwitch

__all__ = ["BusAddress", "BusConfig", "FaultSwitch", "announce_death", "open_bus", "read_peers"]
